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
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
)

// The first request after health succeeds finds a connection to the store: dialling would take longer than a decision
// may. Then the node drains, also if the reader of its log has ended.
func TestDrain(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("started by nohup: the node ignores SIGHUP, too")
	}
	redis := redistest.Start(t)
	file := rulesFile(t, patient(rules(1_000_000)))
	cmd := command(append([]string{"DRAIN_TIME=1h", "REDIS_URL=" + redis.Addr}, freePorts...), "serve", "--config", file)
	reader, log, _ := os.Pipe()
	cmd.Stderr = log
	s := start(t, cmd)
	reader.Close()
	log.Close()
	s.untilHealthy()
	connections := func() (n int) {
		m := regexp.MustCompile(`total_connections_received:(\d+)`).FindStringSubmatch(redis.Info("stats"))
		if _, err := fmt.Sscan(m[1], &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := connections()
	if !s.admits(1, "k", "first") || s.metric(`sluice_decision_sources_total{source="claim"}`) != 1 {
		t.Error("the first request after health is not decided by the store")
	}
	if made := connections() - before - 1; made > 0 { // the one is to ask for this
		t.Errorf("%d connections to the store were made for the first request", made)
	}
	conn := s.dial()
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for r := new(healthpb.HealthCheckResponse); r.Status != healthpb.HealthCheckResponse_SERVING; {
		if r, err = watch.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	s.Signal(syscall.SIGHUP)
	if r, err := watch.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("after SIGHUP: %v %v", r, err)
	}
	if code, _ := s.get(s.http + "/healthcheck"); code != http.StatusInternalServerError {
		t.Errorf("/healthcheck: %d", code)
	}
	if !s.admits(1, "k", "x") {
		t.Error("a call while draining is refused")
	}
	redis.Do("HSET", "sluice:nodes", "gone", "9999999999 {}") // of one that crashed before the clock was set back
	s.eventually("a node that drains counts the others", func() bool { return redis.Do("HLEN", "sluice:nodes") == int64(1) })
	conn.Close()            // the watch is a call under way
	s.ends(syscall.SIGTERM) // a second one ends the wait
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
		if err != nil || code != http.StatusBadRequest || len(answer) > 300 || strings.Count(answer, "\n") > 1 {
			t.Errorf("%.40s...: %d, %d bytes (%v): %.300s", body, code, len(answer), err, answer)
		}
	}
	for _, path := range []string{"/explain?domain=" + long[:10_000] + "&entry=a", "/explain?domain=d&entry=" + "=" + long[:10_000]} {
		if code, answer := s.get(s.debug + path); code != http.StatusBadRequest || len(answer) > 300 {
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
	body, _ := io.ReadAll(r.Body)
	var m collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &m); err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
		return
	}
	s.got <- &m
}

// Calls whose callers sample them are traced, whatever headers say so; those
// whose callers do not are not; and the rate decides on the others.
func TestTracing(t *testing.T) {
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			sink := &spanSink{got: make(chan *collector.ExportTraceServiceRequest, 100)}
			web := httptest.NewServer(sink)
			t.Cleanup(web.Close)
			endpoint := web.URL
			if protocol == "grpc" {
				l := listens(t)
				g := grpc.NewServer()
				collector.RegisterTraceServiceServer(g, sink)
				go func() { _ = g.Serve(l) }()
				t.Cleanup(g.Stop)
				endpoint = "http://" + l.Addr().String()
			}
			s := serve(t, []string{
				"TRACING_ENABLED=true", "TRACING_EXPORTER_PROTOCOL=" + protocol, "TRACING_SAMPLING_RATE=0", "TRACING_SERVICE_NAME=limits",
				"OTEL_EXPORTER_OTLP_ENDPOINT=" + endpoint, "DRAIN_TIME=0s",
			})
			const w3c, b3, unsampled = "0af7651916cd43dd8448eb211c80319c", "80f198ee56343ba864fe8b2a57d3eff7", "11f198ee56343ba864fe8b2a57d3eff7"
			for _, headers := range [][]string{
				{"traceparent", "00-" + w3c + "-b7ad6b7169203331-01"},
				{"b3", b3 + "-e457b5a2e4d86bd1-1"},
				{"traceparent", "00-" + unsampled + "-b7ad6b7169203331-00"},
				nil,
			} {
				ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), headers...), 5*time.Second)
				q := asking(descriptor(1, "user", "very-secret-value"))
				q.Domain = "example"
				if _, err := s.client.ShouldRateLimit(ctx, q); err != nil {
					t.Error(err)
				}
				cancel()
			}
			s.do(http.MethodPost, s.http+"/json", exampleRequest, "X-B3-TraceId", b3, "X-B3-SpanId", "e457b5a2e4d86bd2", "X-B3-Sampled", "1")
			s.ends(syscall.SIGTERM) // it sends what waits
			close(sink.got)
			got := map[string]string{}
			for m := range sink.got {
				if text := fmt.Sprint(m); !strings.Contains(text, `"limits"`) || strings.Contains(text, "very-secret-value") {
					t.Errorf("spans without the service's name, or with a descriptor's value:\n%s", text)
				}
				for _, r := range m.ResourceSpans {
					for _, scope := range r.ScopeSpans {
						for _, span := range scope.Spans {
							got[fmt.Sprintf("%x %x", span.TraceId, span.ParentSpanId)] = fmt.Sprint(span)
						}
					}
				}
			}
			decided := regexp.MustCompile(`(?s)"ratelimit.code".*"(lease|claim)"`)
			for _, want := range []string{w3c + " b7ad6b7169203331", b3 + " e457b5a2e4d86bd1", b3 + " e457b5a2e4d86bd2"} {
				if text := got[want]; !decided.MatchString(text) || !strings.Contains(text, `"example"`) {
					t.Errorf("the span of %s does not say what was decided: %s", want, text)
				}
			}
			if len(got) != 3 {
				t.Errorf("%d spans, want 3: %v", len(got), got)
			}
		})
	}
}
