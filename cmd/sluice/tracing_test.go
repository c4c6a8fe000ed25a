package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

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

// A collector that cannot be reached costs no call, and is named once.
func TestTracingWithoutCollector(t *testing.T) {
	s := serve(t, []string{"TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY=10", "DRAIN_TIME=0s"})
	for range 20 {
		if code := s.postBody(exampleRequest); code != http.StatusOK && code != http.StatusTooManyRequests {
			t.Fatalf("status %d", code)
		}
	}
	s.eventually("the log says that spans are not sent", func() bool { return strings.Contains(s.log(), "OTEL_EXPORTER_OTLP_ENDPOINT") })
	if n := strings.Count(s.log(), "spans are dropped"); n != 1 {
		t.Errorf("said %d times", n)
	}
}
