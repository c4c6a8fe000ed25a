package routing

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
	"github.com/sluice-gate/sluice/routing/wire"
)

// Strangers at the peers' port, who never introduce themselves and send the maximum of a first message, cost a
// bounded amount of memory, and peers continue.
func TestStrangersArePutOffInBounds(t *testing.T) {
	w := newRingWorld(t, 2)
	w.budget = 16 << 20
	nodes := w.ring(2)
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var attack sync.WaitGroup
	for range 12 {
		attack.Go(func() {
			_ = hostile.Unfinished(hostile.PeerMethod, hostile.TLS(nodes[0].addr), 16, 4<<20, 16<<10, 900*time.Millisecond)
		})
	}
	most := uint64(0)
	// The bound holds once a charge has returned. Each connection has at most one under way: a batch of 64 KB, in
	// which its 16 calls begin and are read, at up to 64 KB each. Each stranger has a connection, and one that ends.
	const underWay = 2 * 12 * (16 + 1) * 64 << 10
	ended := make(chan struct{})
	go func() { attack.Wait(); close(ended) }()
	for open := true; open; {
		runtime.ReadMemStats(&now)
		most = max(most, now.HeapAlloc)
		if held := nodes[0].budget.Held(); held > w.budget+underWay {
			t.Fatalf("strangers hold %d bytes, of %d and %d under way", held, w.budget, underWay)
		}
		select {
		case <-ended:
			open = false
		case <-time.After(5 * time.Millisecond):
		}
	}
	if grew := int64(most) - int64(before.HeapAlloc); grew > 256<<20 {
		t.Errorf("it grew by %d MB", grew>>20)
	}
	if nodes[0].budget.Heaviest.Load() == 0 {
		t.Error("nobody was closed: the attack was too small to show anything")
	}
	w.agree(nodes...)
}

// hangs is a limiter that does not decide before its end.
type hangs struct {
	ratelimit.Limiter
	end chan struct{}
}

func (h hangs) Decide(context.Context, ratelimit.Instant, []ratelimit.Ask, []ratelimit.Verdict) {
	<-h.end
}

// A peer's asks that wait do not hold up what comes behind them, such as the accounts that they wait for.
func TestAsksHoldUpNoOtherMessages(t *testing.T) {
	w, h := newRingWorld(t, 2), hangs{end: make(chan struct{})}
	n := w.make(0, known, nil)
	n.local, n.base = nil, baseOf{h}
	w.run(n, w.lis[0], nil)
	defer close(h.end)
	s, err := n.meet(t, &wire.Hello{Version: version, Addr: w.addrs[1], Nonce: newNonce(), Incarnation: 7}, known)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(1000) {
		_ = s.Send(&wire.Frame{Asks: []*wire.Ask{{Id: i + 1, Key: keyOf(1), Cost: 1, Rule: ruleBytes(routed(10))}}})
	}
	if f, err := say(s, &wire.Frame{Ping: 2000}); err != nil || f.GetReplies()[0].GetId() != 2000 {
		t.Errorf("a ping behind asks that wait is answered %v: %v", f, err)
	}
}

// fails is a limiter with a bug.
type fails struct{ ratelimit.Limiter }

func (fails) Decide(context.Context, ratelimit.Instant, []ratelimit.Ask, []ratelimit.Verdict) {
	panic("a bug")
}

// A bug that a peer's asks meet is counted, and ends neither the process nor the peer's conversation.
func TestBugsOfAsksAreContained(t *testing.T) {
	w := newRingWorld(t, 2)
	n := w.make(0, known, nil)
	n.local, n.base = nil, baseOf{fails{}}
	w.run(n, w.lis[0], nil)
	s, err := n.meet(t, &wire.Hello{Version: version, Addr: w.addrs[1], Nonce: newNonce(), Incarnation: 7}, known)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 { // of any owner
		_ = s.Send(&wire.Frame{Asks: []*wire.Ask{{Id: uint64(i) + 1, Key: keyOf(i), Cost: 1, Rule: ruleBytes(routed(10))}}})
	}
	if f, err := say(s, &wire.Frame{Ping: 2000}); err != nil || f.GetReplies()[0].GetId() != 2000 {
		t.Errorf("a ping behind asks that fail is answered %v: %v", f, err)
	}
	for n.stats.rejected[rejectedBug].Load() == 0 && s.Context().Err() == nil {
		runtime.Gosched()
	}
}
