package routing

import (
	"context"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// A node's own keys cost no allocation.
func TestOwnKeysDoNotAllocate(t *testing.T) {
	w := newRingWorld(t, 1)
	n := w.start(0, known)
	w.eventually("ready", n.Ready)
	a, v := []ask{{Rule: routed(1 << 30), Key: keyOf(1), Cost: 1}}, make([]verdict, 1)
	ctx := context.Background()
	if got := testing.AllocsPerRun(1000, func() { n.Decide(ctx, n.clock(), a, v) }); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

// deadlines notes until when it may decide.
type deadlines struct {
	ratelimit.Limiter
	until time.Time
	bound bool
}

func (d *deadlines) Decide(ctx context.Context, _ ratelimit.Instant, _ []ratelimit.Ask, _ []ratelimit.Verdict) {
	d.until, d.bound = ctx.Deadline()
}

// What has a time of its own is decided within that; what has none, within its caller's.
func TestDecidingHasItsTime(t *testing.T) {
	d := &deadlines{}
	if (baseOf{d}).decide(context.Background(), 1, 0, nil, nil); d.bound {
		t.Errorf("it has no time of its own, and decides until %v", d.until)
	}
	before := time.Now()
	(baseOf{d}).decide(context.Background(), 1, time.Hour, nil, nil)
	if !d.bound || d.until.Before(before.Add(time.Hour)) || d.until.After(time.Now().Add(time.Hour)) {
		t.Errorf("it has an hour, and decides until %v", d.until)
	}
}

// wakes counts the wake-ups of a core.
type wakes struct {
	driver
	n int
}

func (w *wakes) wake() { w.n++ }

// A node's announcements travel on two streams, and may arrive in another order. An announcement from before
// its last join or departure no longer counts: otherwise accounts on their way to it would begin again here.
func TestOldWordsOfANodeCountNoMore(t *testing.T) {
	s, n := newPair(t)
	a, b := n.core, n.core.members["b:1"]
	from, joined := &inlet{addr: "b:1", incarnation: b.incarnation}, b.changes
	if joined < 2 {
		t.Fatalf("b has joined, and says that it has changed %d times", joined)
	}
	if !a.applyPresence(s.now, from, false, joined-1) || !b.alive {
		t.Error("b is out of the ring for what it said before it joined")
	}
	alone := xxhash.Sum64String("a:1") // the ring without b
	if a.applyDone(from, alone, joined-1); b.done == alone {
		t.Error("b is done, by what it said before it joined")
	}
	if a.applyDone(from, alone, joined); b.done != alone {
		t.Error("b is not done, and says so")
	}
	if !a.applyPresence(s.now, from, false, joined+1) || b.alive || a.view.Load().digest != alone {
		t.Error("b is in the ring, and says that it has left")
	}
	if !b.mayHave(a.view.Load()) {
		t.Error("b has left, and may have accounts still: it was done before that")
	}
	a.applyHello(s.now, &wire.Hello{Addr: "b:1", Incarnation: 77}) // what its last life has said arrives after that
	if a.applyPresence(s.now, from, true, joined+2); b.alive || b.changes != 0 {
		t.Error("b is in the ring, for what its last life has said")
	}
}
