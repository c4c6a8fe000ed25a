package xds

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// Pushes are put in force and acknowledged. Bad ones are refused with their errors, and change nothing. The
// same bad one is refused again. A server that goes away and returns changes nothing either.
func TestPushes(t *testing.T) {
	m := newManager(t, "127.0.0.1:0")
	store := run(t, Options{
		Server: "dns:///" + m.addr, Headers: map[string]string{"x-tenant": "edge"},
		Metadata: map[string]any{"zone": "eu"},
	})
	begins := func(r *discovery.DiscoveryRequest) bool { return r.GetNode().GetId() == "n1" } // a stream
	first := m.until("the first request", begins)
	if zone := first.GetNode().GetMetadata().GetFields()["zone"].GetStringValue(); zone != "eu" ||
		first.GetTypeUrl() != TypeURL {
		t.Errorf("the first request is %v", first)
	}
	if err := store.Load(); err == nil || store.Rules() != nil {
		t.Errorf("rules before the first push: %v", err)
	}
	m.push(domain("a", limit("k", 5)), domain("b", limit("k", 7)))
	m.acked("v1")
	if requests(store, "a.k") != 5 || requests(store, "b.k") != 7 {
		t.Errorf("after the first push: %d %d", requests(store, "a.k"), requests(store, "b.k"))
	}
	for range 2 {
		m.push(domain("a", &rlsconf.RateLimitDescriptor{Value: "without a key"}))
		m.refused("descriptor has empty key")
	}
	m.push(&rlsconf.RateLimitConfig{Name: "one", Domain: "a"}, &rlsconf.RateLimitConfig{Name: "two", Domain: "a"})
	m.refused("duplicate domain 'a' in config file")
	if requests(store, "a.k") != 5 || requests(store, "b.k") != 7 {
		t.Errorf("after bad pushes: %d %d", requests(store, "a.k"), requests(store, "b.k"))
	}
	if loaded, failed := store.Loads(); loaded != 1 || failed != 2 { // the same again is not a new one
		t.Errorf("%d loads, %d failed", loaded, failed)
	}
	m.push(domain("a", limit("k", 6)))
	m.acked("v5")
	m.server.Stop()
	m.start(m.addr)
	m.until("a new stream", begins)
	m.acked("v5")
	m.push(domain("a", limit("k", 9)))
	m.acked("v6")
	if requests(store, "a.k") != 9 || requests(store, "b.k") != -1 {
		t.Errorf("after the server's return: %d %d", requests(store, "a.k"), requests(store, "b.k"))
	}
	m.push(domain("a", limit(strings.Repeat("k", 5<<20), 1)))
	m.until("a stream after a push that is too large", begins)
	if s := store.Status(); s.Good || !strings.Contains(s.Error, "larger than max") {
		t.Errorf("of a push that is too large, it says %+v", s)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.header != "edge" {
		t.Errorf("the header x-tenant is %q", m.header)
	}
}

// hasty pushes without waiting for answers.
type hasty struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	pushes []*discovery.DiscoveryResponse
	acked  chan string
}

func (h *hasty) StreamAggregatedResources(
	s discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	for _, p := range h.pushes {
		if err := s.Send(p); err != nil {
			return err
		}
	}
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		if r.GetErrorDetail() == nil {
			h.acked <- r.GetVersionInfo()
		}
	}
}

// A server that pushes without a pause has a few of its pushes loaded, the last among them.
func TestPushesAreCoalesced(t *testing.T) {
	const last, interval = 60, 100 * time.Millisecond
	h := &hasty{acked: make(chan string, last)}
	for n := 1; n <= last; n++ {
		h.pushes = append(h.pushes, &discovery.DiscoveryResponse{
			VersionInfo: fmt.Sprint(n), Nonce: fmt.Sprint(n),
			TypeUrl: TypeURL, Resources: []*anypb.Any{resourceOf(t, domain("a", limit("k", uint32(n))))},
		})
	}
	addr, _ := serve(t, "127.0.0.1:0", h)
	begun := time.Now()
	store := run(t, Options{Server: addr, Interval: interval})
	for version := ""; version != fmt.Sprint(last); {
		select {
		case version = <-h.acked:
		case <-time.After(20 * time.Second):
			t.Fatalf("the last push is not answered; the last that was is %q", version)
		}
	}
	loaded, failed := store.Loads()
	if most := uint64(time.Since(begun)/interval) + 2; loaded > most || failed != 0 ||
		store.Reloads().Coalesced != last-loaded {
		t.Errorf("%d loads and %d failed in %v, %+v", loaded, failed, time.Since(begun), store.Reloads())
	}
	if requests(store, "a.k") != last {
		t.Errorf("%d is in force", requests(store, "a.k"))
	}
}

// A client that ends while pushes come leaves nothing behind.
func TestWatchEnds(t *testing.T) {
	m := newManager(t, "127.0.0.1:0")
	m.push(domain("a", limit("k", 5)))
	run(t, Options{Server: m.addr, Interval: time.Hour})
	m.acked("v1")
	m.push(domain("a", limit("k", 6))) // has to wait for an hour
}

// Each attempt dials, so that a server that comes is found after the next pause, and not after those of gRPC.
func TestEachAttemptDials(t *testing.T) {
	var dialled, failed atomic.Int64
	s := httptest.NewUnstartedServer(nil) // it speaks no gRPC
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			dialled.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	tried := make(chan struct{})
	run(t, Options{Server: s.Listener.Addr().String(), OnState: func(error) {
		if failed.Add(1) == 10 {
			close(tried)
		}
	}})
	if <-tried; dialled.Load() < 10 {
		t.Errorf("in 10 attempts the server was dialled %d times", dialled.Load())
	}
}

// Pauses grow up to the longest, and begin anew after a stream that worked. Until one did, all are the same.
func TestBackoff(t *testing.T) {
	p := pauses{Backoff: Backoff{Connect: 3 * time.Second, First: time.Second, Longest: 6 * time.Second, Spread: 0.5}}
	for i, c := range []struct {
		pushes int
		random float64
		want   time.Duration
	}{
		{0, 0.5, 3 * time.Second},
		{0, 1, 4500 * time.Millisecond},
		{1, 0.5, time.Second},
		{0, 0.5, 2 * time.Second},
		{0, 0.5, 4 * time.Second},
		{0, 0.5, 6 * time.Second},
		{0, 1, 9 * time.Second},
		{0, 0, 3 * time.Second},
		{2, 0, 500 * time.Millisecond},
		{0, 0.5, 2 * time.Second},
	} {
		if got := p.after(c.pushes, c.random); got != c.want {
			t.Errorf("pause %d: %v, want %v", i, got, c.want)
		}
	}
	p.failures = 99
	if got := p.after(0, 0.5); got != 6*time.Second {
		t.Errorf("after a hundred failures: %v", got)
	}
}

// manager is a real go-control-plane server, and what clients told it.
type manager struct {
	*testing.T
	addr     string
	cache    cache.SnapshotCache
	server   *grpc.Server
	version  int
	mu       sync.Mutex
	requests []*discovery.DiscoveryRequest // guarded by mu
	header   string                        // guarded by mu
	news     chan struct{}
}

func newManager(t *testing.T, addr string) *manager {
	t.Helper()
	m := &manager{T: t, cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil), news: make(chan struct{}, 1000)}
	m.start(addr)
	return m
}

func (m *manager) start(addr string) {
	m.Helper()
	m.addr, m.server = serve(m.T, addr, server.NewServer(context.Background(), m.cache, server.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, _ int64, _ string) error {
			md, _ := metadata.FromIncomingContext(ctx)
			m.mu.Lock()
			defer m.mu.Unlock()
			m.header = strings.Join(md.Get("x-tenant"), ",")
			return nil
		},
		StreamRequestFunc: func(_ int64, r *discovery.DiscoveryRequest) error {
			m.mu.Lock()
			m.requests = append(m.requests, r)
			m.mu.Unlock()
			m.news <- struct{}{}
			return nil
		},
	}))
}

// serve serves until the test ends.
func serve(
	t *testing.T, addr string, ads discovery.AggregatedDiscoveryServiceServer,
) (at string, s *grpc.Server) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s = grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(s, ads)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String(), s
}

// push gives node n1 these domains.
func (m *manager) push(domains ...*rlsconf.RateLimitConfig) {
	m.Helper()
	m.version++
	resources := make([]types.Resource, 0, len(domains))
	for _, d := range domains {
		resources = append(resources, d)
	}
	s, err := cache.NewSnapshot(fmt.Sprint("v", m.version),
		map[resource.Type][]types.Resource{resource.RateLimitConfigType: resources})
	if err != nil {
		m.Fatal(err)
	}
	if err := m.cache.SetSnapshot(context.Background(), "n1", s); err != nil {
		m.Fatal(err)
	}
}

// until waits for a request that ok accepts. Those before it are dropped; those after it stay, for
// a client may have sent its next one before the first was looked at.
func (m *manager) until(what string, ok func(*discovery.DiscoveryRequest) bool) *discovery.DiscoveryRequest {
	m.Helper()
	for end := time.After(10 * time.Second); ; {
		m.mu.Lock()
		for i, r := range m.requests {
			if ok(r) {
				m.requests = m.requests[i+1:]
				m.mu.Unlock()
				return r
			}
		}
		m.mu.Unlock()
		select {
		case <-m.news:
		case <-end:
			m.Fatalf("no request: %s", what)
		}
	}
}

func (m *manager) acked(version string) {
	m.Helper()
	m.until("an ACK of "+version, func(r *discovery.DiscoveryRequest) bool {
		return r.GetVersionInfo() == version && r.GetResponseNonce() != "" && r.GetErrorDetail() == nil
	})
}

func (m *manager) refused(what string) {
	m.Helper()
	m.until("a NACK that says "+what, func(r *discovery.DiscoveryRequest) bool {
		return strings.Contains(r.GetErrorDetail().GetMessage(), what)
	})
}

func domain(name string, descriptors ...*rlsconf.RateLimitDescriptor) *rlsconf.RateLimitConfig {
	return &rlsconf.RateLimitConfig{Name: name, Domain: name, Descriptors: descriptors}
}

func limit(key string, n uint32) *rlsconf.RateLimitDescriptor {
	return &rlsconf.RateLimitDescriptor{
		Key:       key,
		RateLimit: &rlsconf.RateLimitPolicy{Unit: rlsconf.RateLimitUnit_MINUTE, RequestsPerUnit: n},
	}
}

// run has a client watch until the test ends. It ends then, whatever it waits for.
func run(t *testing.T, o Options) *config.Store {
	t.Helper()
	o.NodeID, o.Credentials, o.MaxMessage = "n1", insecure.NewCredentials(), 4<<20
	o.Backoff = Backoff{Connect: 20 * time.Millisecond, First: 20 * time.Millisecond, Longest: 50 * time.Millisecond}
	c := NewClient(o)
	store := newStore(c, options())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- store.Watch(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the client has not ended")
		}
	})
	return store
}

func requests(store *config.Store, path string) ratelimit.Tokens {
	for _, r := range store.Rules().All() {
		if r.Domain+"."+r.Path == path {
			return r.Limit.Requests
		}
	}
	return -1
}

func options() config.Options { return config.Options{Coordination: ratelimit.DefaultCoordination()} }

func newStore(s config.Source, o config.Options) *config.Store {
	return config.NewStore(s, o, slog.New(slog.DiscardHandler))
}

func convertOne(resource *anypb.Any, more *Additions) (config.Text, error) {
	return newConverter(more, config.DefaultCaps()).text(resource)
}

// wired is a message as it comes.
func wired(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func resourceOf(t testing.TB, c *rlsconf.RateLimitConfig) *anypb.Any {
	t.Helper()
	return &anypb.Any{TypeUrl: TypeURL, Value: wired(t, c)}
}

// nest puts a message into another, as one of its fields.
func nest(number protowire.Number, inner []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), inner)
}

func repeat(field []byte, n int) []byte { return []byte(strings.Repeat(string(field), n)) }

func equal(t *testing.T, text string, got, want []*ratelimit.Rule) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d rules, want %d:\n%s", len(got), len(want), text)
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("%+v, want %+v:\n%s", got[i], want[i], text)
		}
	}
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
