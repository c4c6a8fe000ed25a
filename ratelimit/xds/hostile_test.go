package xds

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-gate/sluice/ratelimit/config"
)

// nest puts a message into another, as one of its fields.
func nest(number protowire.Number, inner []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), inner)
}

func repeat(field []byte, n int) []byte { return []byte(strings.Repeat(string(field), n)) }

// deepDescriptor is descriptors in one another.
func deepDescriptor(depth int, innermost []byte) []byte {
	b := innermost
	for range depth {
		b = nest(4, b)
	}
	return nest(3, b)
}

// Resources of 2 MB that would become hundreds are refused before they are built, by an error that fits a line.
func TestHostileResources(t *testing.T) {
	const size = 2 << 20
	value := nest(6, nil)
	for range 300 {
		value = nest(6, nest(1, value))
	}
	for name, c := range map[string]struct {
		resource []byte
		want     string
	}{
		"empty descriptors": {
			repeat(nest(3, nil), size/2),
			"the push holds more than 250000 descriptors, limits and values of metadata",
		},
		"empty below one": {nest(3, repeat(nest(4, nil), size/2)), "raise MAX_MEMORY"},
		"limits":          {nest(3, repeat(nest(3, nil), size/2)), "raise MAX_MEMORY"},
		"replacements":    {nest(3, nest(3, repeat(nest(5, nil), size/2))), "raise MAX_MEMORY"},
		"metadata": {
			nest(3, nest(metadataField, repeat(nest(1, nil), size/2))),
			"raise MAX_MEMORY",
		},
		"lists in metadata": {nest(3, nest(metadataField,
			nest(1, nest(2, nest(6, repeat(nest(1, nil), size/2)))))), "raise MAX_MEMORY"},
		"deep descriptors": {deepDescriptor(10_000, nil), "nested more than 208 deep"},
		"deep metadata": {
			nest(3, nest(metadataField, nest(1, nest(2, value)))),
			"nested more than 208 deep",
		},
		"descriptors, 100 deep": {deepDescriptor(99, nil), "nested deeper than 200: use fewer rules, or fewer levels"},
		"wide": {
			repeat(nest(3, nil), 80_000),
			"all files together have more than 50000 descriptors, from this one on",
		},
		"wide below deep": {
			deepDescriptor(95, repeat(nest(4, nil), 80_000)),
			"as a file it exceeds 8388608 bytes: use fewer rules",
		},
		"a name": {append(nest(1, repeat([]byte("x"), size)),
			nest(3, protowire.AppendVarint(protowire.AppendTag(nil, quotaMode, protowire.VarintType), 1))...), ""},
		"cut off": {[]byte{0x1a, 0xff}, "that is not a RateLimitConfig"},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			texts, err := textsOf([]*anypb.Any{{TypeUrl: TypeURL, Value: c.resource}}, nil, config.DefaultCaps())
			runtime.ReadMemStats(&after)
			if err == nil {
				if n := strings.Count(string(texts[0].Data), "key:"); n > config.DefaultCaps().Rules+1 {
					t.Errorf("%d descriptors were converted", n)
				}
			}
			if err == nil && c.want != "" {
				_, _, problems := config.Parse(texts, options())
				err = problems[0]
			}
			switch {
			case c.want == "" && (err != nil || len(texts[0].Name) > 300):
				t.Errorf("%v, a name of %d bytes", err, len(texts[0].Name))
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 400):
				t.Errorf("%.500v, want %s", err, c.want)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 96<<20 {
				t.Errorf("%d bytes of resources took %d MB", len(c.resource), got>>20)
			}
		})
	}
	all, err := textsOf(make([]*anypb.Any, 1000), nil, config.DefaultCaps())
	if err == nil || all != nil || len(err.Error()) > 4<<10 {
		t.Errorf("many bad resources: an error of %d bytes", len(err.Error()))
	}
}

// A response of empty resources is not even built.
func TestHostileResponse(t *testing.T) {
	var refused []error
	c := newCodec(config.DefaultCaps(), func(err error) { refused = append(refused, err) })
	for name, b := range map[string][]byte{
		"resources":     repeat(nest(2, nil), 1<<20),
		"their errors":  repeat(nest(7, nil), 1<<20),
		"their details": nest(7, nest(2, repeat(nest(3, nil), 1<<20))),
	} {
		refused = nil
		err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &discovery.DiscoveryResponse{})
		if err == nil || len(refused) != 1 || !strings.Contains(err.Error(),
			"the maximum of resources is 1000") {
			t.Errorf("%s: %v", name, err)
		}
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
		body, err := anypb.New(domain("a", limit("k", uint32(n))))
		if err != nil {
			t.Fatal(err)
		}
		h.pushes = append(h.pushes, &discovery.DiscoveryResponse{
			VersionInfo: fmt.Sprint(n), Nonce: fmt.Sprint(n),
			TypeUrl: TypeURL, Resources: []*anypb.Any{body},
		})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(server, h)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	begun := time.Now()
	store := run(t, Options{Server: l.Addr().String(), Interval: interval})
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
	c := NewClient(Options{
		Server: m.addr, NodeID: "n1", Credentials: insecure.NewCredentials(), MaxMessage: 4 << 20,
		Interval: time.Hour, Backoff: Backoff{Connect: time.Hour},
	})
	store := newStore(c, options())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Watch(ctx, store) }()
	m.acked("v1")
	m.push(domain("a", limit("k", 6))) // has to wait for an hour
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it has not ended")
	}
}
