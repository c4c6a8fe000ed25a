package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/redistest"
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

// Each endpoint answers as /openapi.json says, also when it refuses; and each page that the debug port lists is
// described.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	const rules = `domain: d
descriptors:
  - {key: five, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: free, rate_limit: {unlimited: true}}
`
	s := newFleet(t, 1, setup{rules: rules}).nodes[0]
	for _, kind := range []string{"text/html", "text/css", "text/javascript", "application/octet-stream"} {
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.PlainBodyDecoder)
	}
	_, text := s.get(s.debug + "/openapi.json")
	spec, err := openapi3.NewLoader().LoadFromData([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	_, index := s.get(s.debug + "/")
	for line := range strings.Lines(index) {
		path, _, _ := strings.Cut(line, ":")
		path, _, _ = strings.Cut(path, "?")
		if spec.Paths.Value(path) == nil && path != "/debug/pprof/" {
			t.Errorf("%s is not described", path)
		}
	}
	request := `{"domain": "d", "descriptors": [{"entries": [{"key": "five", "value": "x"}]}]}`
	seen := map[string]bool{} // paths with statuses
	try := func(method, path, query, body, token string) {
		t.Helper()
		address := s.debug
		if path == "/json" || path == "/healthcheck" {
			address = s.http
		}
		headers := []string{"Content-Type", "application/json", "Authorization", "Bearer " + token}
		answer, text := s.do(method, address+strings.Replace(path, "{domain}", "d", 1)+query, body, headers...)
		seen[path+" "+strconv.Itoa(answer.StatusCode)] = true
		r := &http.Request{Method: method, URL: &url.URL{Scheme: "http", Host: address, Path: path}}
		route := &routers.Route{Spec: spec, Path: path, PathItem: spec.Paths.Value(path), Method: method}
		if route.PathItem == nil || route.PathItem.GetOperation(method) == nil {
			t.Fatalf("%s %s is not described", method, path)
		}
		route.Operation = route.PathItem.GetOperation(method)
		err := openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
			RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, Route: route},
			Options:                &openapi3filter.Options{IncludeResponseStatus: true},
			Status:                 answer.StatusCode, Header: answer.Header, Body: io.NopCloser(strings.NewReader(text)),
		})
		if err != nil {
			t.Errorf("%s %s: %v", method, path, err)
		}
	}
	for range 6 {
		try("POST", "/json", "", request, "")
	}
	try("POST", "/json", "", "{", "")
	try("POST", "/json", "", strings.Repeat(" ", 257<<10), "")
	for path, item := range spec.Paths.Map() {
		if item.Get != nil && path != "/explain" {
			try("GET", path, "", "", "hunter2")
		}
	}
	try("GET", "/explain", "?domain=d&entry=five=x", "", "")
	try("GET", "/explain", "?domain=d", "", "")
	try("GET", "/console/history", "?since=x", "", "")
	for _, path := range []string{"/admin/reset", "/admin/drop"} {
		try("POST", path, "?domain=d&entry=five=x", "", "hunter2")
		try("POST", path, "?domain=d&entry=five=x", "", "wrong")
		try("POST", path, "?domain=d", "", "hunter2")
	}
	try("POST", "/admin/remove", "?node=nobody:6070", "", "hunter2")
	try("POST", "/admin/remove", "?node=nobody:6070", "", "wrong")
	const override = "/v1/overrides/{domain}"
	for _, change := range []struct{ method, query, body, token string }{
		{"GET", "?five=x", "", "hunter2"},
		{"PUT", "?five=x", `{"limit": "unlimited", "reason": "why", "expires": "1h"}`, "hunter2"},
		{"GET", "?five=x", "", "hunter2"},
		{"PUT", "?five=y", `{"limit": 7}`, "hunter2"},
		{"GET", "", "", "hunter2"},
		{"PUT", "?five=x", "{", "hunter2"},
		{"PUT", "?free=x", `{"limit": 7}`, "hunter2"},
		{"PUT", "?five=x", `{"limit": 7}`, "wrong"},
		{"DELETE", "?five=x", "", "hunter2"},
	} {
		try(change.method, override, change.query, change.body, change.token)
	}
	try("GET", "/v1/overrides", "", "", "hunter2")
	try("GET", "/v1/overrides", "?limit=x", "", "hunter2")
	for _, status := range []string{"200", "400", "403", "404", "422"} {
		if !seen[override+" "+status] {
			t.Errorf("%s %s was not seen", override, status)
		}
	}
	for _, must := range []string{"/json 200", "/json 429", "/json 400", "/json 413", "/explain 200", "/explain 400", "/admin/reset 200", "/admin/reset 403", "/admin/drop 400", "/admin/remove 403", "/admin/remove 404"} {
		if !seen[must] {
			t.Errorf("%s was not seen", must)
		}
	}
}
