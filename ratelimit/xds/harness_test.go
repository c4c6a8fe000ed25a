package xds

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
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
