package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
)

// A node drains, also if the reader of its log has ended.
func TestDrain(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("started by nohup: the node ignores SIGHUP, too")
	}
	redis := redistest.Start(t)
	cmd := command(append([]string{"DRAIN_TIME=1h", "REDIS_URL=" + redis.Addr}, freePorts...), "serve")
	reader, log, _ := os.Pipe()
	cmd.Stderr = log
	s := start(t, cmd)
	reader.Close()
	log.Close()
	s.eventually("healthy", s.healthy)
	conn := s.dial()
	watch, err := healthpb.NewHealthClient(conn).Watch(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for r := new(healthpb.HealthCheckResponse); r.Status != healthpb.HealthCheckResponse_SERVING; {
		if r, err = watch.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.cmd.Process.Signal(syscall.SIGHUP)
	if r, err := watch.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("after SIGHUP: %v %v", r, err)
	}
	if code, _ := s.get(s.http + "/healthcheck"); code != 500 {
		t.Errorf("/healthcheck: %d", code)
	}
	if got := s.postBody(exampleRequest); got != 200 {
		t.Errorf("a call while draining: %d", got)
	}
	redis.Do("HSET", "sluice:nodes", "gone", "9999999999 {}") // of one that crashed before the clock was set back
	s.eventually("a node that drains counts the others", func() bool { return redis.Do("HLEN", "sluice:nodes") == int64(1) })
	conn.Close()            // the watch is a call under way
	s.ends(syscall.SIGTERM) // a second one ends the wait
}

// The first request after health succeeds is decided by the store, over TLS as well, on an existing connection:
// dialling would take longer than a decision may. The test does not measure the time, because a busy machine
// may delay any decision for more than 15 ms.
func TestFirstRequestIsNoFallback(t *testing.T) {
	const starts = 5
	i := redistest.NewAuthority(t)
	i.Leaf("redis", time.Hour, "localhost")
	port := freePort(t)
	store := redistest.Start(t, "--tls-port", port, "--tls-cert-file", i.File("redis.crt"), "--tls-key-file", i.File("redis.key"),
		"--tls-ca-cert-file", i.File("ca.crt"), "--tls-auth-clients", "no")
	rules := rulesFile(t, patient("domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n"))
	fallbacks := 0
	for n := range starts {
		s := serve(t, []string{"REDIS_URL=localhost:" + port, "REDIS_TLS=true", "REDIS_TLS_CACERT=" + i.File("ca.crt"), "DRAIN_TIME=0s"}, "--config", rules)
		ask := s.overGRPC()
		s.untilHealthy()
		before := connectionsOf(store)
		if got := ask(request("k", strconv.Itoa(n))); !strings.HasPrefix(got, "OK") {
			t.Error(got)
		}
		if s.metric(`sluice_decision_sources_total{source="claim"}`) != 1 {
			fallbacks++
		}
		if made := connectionsOf(store) - before - 1; made > 0 { // the one is to ask for this
			t.Errorf("%d connections to the store were made for the first request", made)
		}
		s.ends(syscall.SIGKILL)
	}
	if fallbacks > 0 {
		t.Errorf("%d of %d first requests after health were not decided by the store", fallbacks, starts)
	}
}

// connectionsOf is how many connections a Redis has accepted.
func connectionsOf(s *redistest.Server) (n int) {
	for line := range strings.Lines(s.Info("stats")) {
		if text, ok := strings.CutPrefix(line, "total_connections_received:"); ok {
			n, _ = strconv.Atoi(strings.TrimSpace(text))
		}
	}
	return n
}

// An error repeats a line of what came at most.
func TestHostileErrorsAreShort(t *testing.T) {
	s := serve(t, nil)
	long := strings.Repeat("x", 100_000)
	quoted, err := json.Marshal(long + "\n" + long)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{
		long, `{` + string(quoted) + `:1}`, `{"domain":` + long, `{"domain":"d","descriptors":[{"limit":{"unit":` + string(quoted[:100_000]) + `"}}]}`,
		`{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"hitsAddend":"` + long + `"}]}`, strings.Repeat("[", 100_000),
	} {
		code, answer, err := hostile.Post(s.http, body)
		if err != nil || code != 400 || len(answer) > 300 || strings.Count(answer, "\n") > 1 {
			t.Errorf("%.40s...: %d, %d bytes (%v): %.300s", body, code, len(answer), err, answer)
		}
	}
	for _, path := range []string{"/explain?domain=" + long[:10_000] + "&entry=a", "/explain?domain=d&entry=" + "=" + long[:10_000]} {
		if code, answer := s.get(s.debug + path); code != 400 || len(answer) > 300 {
			t.Errorf("%.40s...: %d, %d bytes", path, code, len(answer))
		}
	}
}

// spanSink is an OpenTelemetry collector.
type spanSink struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (s *spanSink) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.got <- r
	return &collector.ExportTraceServiceResponse{}, nil
}

func (s *spanSink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var m collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &m)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
		return
	}
	s.got <- &m
}

// listen serves it over a protocol and returns its OTEL_EXPORTER_OTLP_ENDPOINT.
func (s *spanSink) listen(t *testing.T, protocol string) string {
	if protocol == "http" {
		web := httptest.NewServer(s)
		t.Cleanup(web.Close)
		return web.URL
	}
	l := listens(t)
	g := grpc.NewServer()
	collector.RegisterTraceServiceServer(g, s)
	go g.Serve(l)
	t.Cleanup(g.Stop)
	return "http://" + l.Addr().String()
}

// Calls whose callers sample them are traced, whatever headers say so; those
// whose callers do not are not; and the rate decides on the others.
func TestTracing(t *testing.T) {
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			sink := &spanSink{got: make(chan *collector.ExportTraceServiceRequest, 100)}
			s := serve(t, []string{
				"TRACING_ENABLED=true", "TRACING_EXPORTER_PROTOCOL=" + protocol, "TRACING_SAMPLING_RATE=0", "TRACING_SERVICE_NAME=limits",
				"OTEL_EXPORTER_OTLP_ENDPOINT=" + sink.listen(t, protocol), "DRAIN_TIME=0s",
			})
			const w3c, b3, unsampled = "0af7651916cd43dd8448eb211c80319c", "80f198ee56343ba864fe8b2a57d3eff7", "11f198ee56343ba864fe8b2a57d3eff7"
			client := rls.NewRateLimitServiceClient(s.dial())
			for _, headers := range [][]string{
				{"traceparent", "00-" + w3c + "-b7ad6b7169203331-01"},
				{"b3", b3 + "-e457b5a2e4d86bd1-1"},
				{"traceparent", "00-" + unsampled + "-b7ad6b7169203331-00"},
				nil,
			} {
				ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), headers...), 5*time.Second)
				q := request("user", "very-secret-value")
				q.Domain = "example"
				if _, err := client.ShouldRateLimit(ctx, q); err != nil {
					t.Error(err)
				}
				cancel()
			}
			s.do(http.MethodPost, s.http+"/json", exampleRequest, "X-B3-TraceId", b3, "X-B3-SpanId", "e457b5a2e4d86bd2", "X-B3-Sampled", "1")
			s.ends(syscall.SIGTERM) // it sends what waits
			close(sink.got)
			got := map[string]*spanpb.Span{}
			for m := range sink.got {
				if text := fmt.Sprint(m); !strings.Contains(text, `"limits"`) || strings.Contains(text, "very-secret-value") {
					t.Errorf("spans without the service's name, or with a descriptor's value:\n%s", text)
				}
				for _, r := range m.ResourceSpans {
					for _, scope := range r.ScopeSpans {
						for _, span := range scope.Spans {
							got[fmt.Sprintf("%x %x", span.TraceId, span.ParentSpanId)] = span
						}
					}
				}
			}
			for _, want := range []string{w3c + " b7ad6b7169203331", b3 + " e457b5a2e4d86bd1", b3 + " e457b5a2e4d86bd2"} {
				span := got[want]
				if span == nil {
					t.Errorf("no span of %s in %v", want, got)
				} else if text := fmt.Sprint(span); !strings.Contains(text, `"ratelimit.code"`) || !strings.Contains(text, `"example"`) || !strings.Contains(text, `"lease"`) && !strings.Contains(text, `"claim"`) {
					t.Errorf("the span does not say what was decided: %s", text)
				}
			}
			if len(got) != 3 {
				t.Errorf("%d spans, want 3: %v", len(got), got)
			}
		})
	}
}
