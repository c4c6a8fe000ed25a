package realenvoy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gate/sluice/bench/envoy"
)

// What stands in for Envoy's filter makes the calls that Envoy makes: the same rows, with the same client and service.
func TestStreamDoneStandIn(t *testing.T) { playDone(t, standInWorld) }

// standIn is between a client and a service, with a filter for each path.
type standIn struct {
	filters map[string]*envoy.Filter
	service string // HOST:PORT
	mu      sync.Mutex
	ended   []Access // guarded by mu
}

// standInWorld is doneWorld without an Envoy.
func standInWorld(t *testing.T, deny bool) (*world, *tap) {
	t.Helper()
	w := &world{T: t, rules: doneRules, handler: serveDone, flags: []string{"--response-dynamic-metadata"}}
	w.behind()
	p := newTap(t, w.fleet.Nodes[0].Address)
	conn, err := grpc.NewClient("passthrough:///"+p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.need(err)
	t.Cleanup(func() { conn.Close() })
	s := &standIn{filters: map[string]*envoy.Filter{}, service: w.backend.Address}
	for _, r := range doneRows(t) {
		entries, err := envoy.ParseEntries(r.config)
		w.need(err)
		s.filters["/"+r.id] = &envoy.Filter{
			Domain: "edge", Entries: entries, InRoute: r.with == "in the route", Timeout: time.Second, FailureModeDeny: deny,
			Service: func() rls.RateLimitServiceClient { return rls.NewRateLimitServiceClient(conn) },
		}
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	w.asks(server.URL, func() ([]Access, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Clone(s.ended), nil
	})
	return w, p
}

// ServeHTTP passes on what the filter lets pass.
func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, stream := s.filters[r.URL.Path], &envoy.Stream{Request: r.Header}
	status := f.Begin(r.Context(), stream)
	switch status {
	case 0:
	case http.StatusOK:
		status = s.pass(w, r, stream)
	default:
		w.WriteHeader(status)
	}
	_ = f.End(stream)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, Access{ID: r.Header.Get("x-test-id"), Code: status})
}

// pass has the service answer. It returns the status, 0 where the client has gone.
func (s *standIn) pass(w http.ResponseWriter, r *http.Request, stream *envoy.Stream) int {
	q, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+s.service+r.URL.Path, http.NoBody)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return http.StatusInternalServerError
	}
	a, err := http.DefaultTransport.RoundTrip(q)
	if r.Context().Err() != nil {
		return 0
	}
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return http.StatusServiceUnavailable
	}
	defer a.Body.Close()
	stream.Response = a.Header
	w.WriteHeader(a.StatusCode)
	_ = http.NewResponseController(w).Flush()
	n, _ := io.Copy(w, a.Body)
	stream.Sent = int(n)
	return a.StatusCode
}
