package routing_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// With a store, owners lease from it, and any node may.

// newStorePair is a pair of nodes on a store, and a key of b:1.
func newStorePair(t *testing.T, hotRate float64) (w *world, a, b *node, key []byte) {
	w = newWorld(t, 1, 100)
	w.ledger = account.NewMemory(w.here)
	w.hotRate = hotRate
	w.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	w.ring("a:1", "b:1")
	w.play(3 * time.Second) // the store's epoch is old enough
	return w, w.nodes["a:1"], w.nodes["b:1"], keyIn(0, "b:1", "a:1")
}

// rest is how much the owner of a key admits, and then node a:1 alone, of what it has in hand.
func (w *world) rest(owner string, key []byte) int {
	n := w.admits(owner, key, 120)
	w.nodes["a:1"].cut = true
	return n + w.admits("a:1", key, 10)
}

// Keys of this node's own are decided here, and others by their owners.
func TestOwnersLease(t *testing.T) {
	w, a, b, theirs := newStorePair(t, 1e9)
	mine := keyIn(0, "a:1", "b:1")
	for _, keys := range [][][]byte{{mine, mine}, {mine, theirs, mine}, {theirs, theirs}} {
		asks, forwarded := []ask{}, 0
		for _, key := range keys {
			asks = append(asks, ask{Key: key, Cost: 5})
		}
		b.said = nil
		for i, v := range w.all("a:1", asks...) {
			owner := slices.Equal(keys[i], theirs)
			if v.OverLimit || v.Charged != 5 || (v.Source == ratelimit.FromOwner) != owner {
				t.Errorf("key %d: %+v", i, v)
			}
			if owner {
				forwarded++
			}
		}
		if len(b.said) != forwarded || len(a.said) > 0 {
			t.Errorf("of %d keys the owner has decided %q", len(keys), b.said)
		}
	}
}

// A node leases in place of an owner that is late or cut off. What the owner charged late is taken back there.
func TestOwnersThatAreLateArePassedBy(t *testing.T) {
	for _, x := range []struct {
		what    string
		play    func(w *world, a, b *node)
		said    string // what the owner has decided and taken back
		instead uint64 // requests that were leased in its place
	}{
		{"it is late", func(w *world, _, _ *node) { w.delay = late }, "[5 of 5 undo 5]", 1},
		{"it is cut off", func(_ *world, a, _ *node) { a.cut = true }, "[]", 1},
		{"streams break", func(w *world, _, _ *node) { w.breakAll("a:1", "b:1"); w.play(time.Microsecond) }, "[]", 1},
	} {
		w, a, b, key := newStorePair(t, 1e9)
		x.play(w, a, b)
		v := w.one("a:1", ask{Key: key, Cost: 5})
		if v.OverLimit || v.Source == ratelimit.FromOwner || v.Source == ratelimit.FromFallback || v.Charged != 5 {
			t.Errorf("%s: %+v", x.what, v)
		}
		w.delay, a.cut = 100*time.Microsecond, false
		w.play(4 * time.Second)
		if said := fmt.Sprint(b.said); said != x.said || a.Stats().Instead != x.instead {
			t.Errorf("%s: the owner says %s, and %d were leased in its place", x.what, said, a.Stats().Instead)
		}
		if v := w.one("a:1", ask{Key: key, Cost: 5}); v.Source != ratelimit.FromOwner {
			t.Errorf("%s: the owner answers again, and is not asked: %+v", x.what, v)
		}
		if n := w.rest("b:1", key); n != 90 {
			t.Errorf("%s: after 10 of 100 the owner admits %d more", x.what, n)
		}
	}
}

// An owner that has not answered in half of a request's time is passed by at once.
func TestSilentOwnersAreNotWaitedFor(t *testing.T) {
	w, a, _, key := newStorePair(t, 1e9)
	a.cut = true
	for i, most := range []time.Duration{ratelimit.StoreDeadline, 0, 0} {
		v, began, took := make([]verdict, 1), w.now, time.Hour
		a.do(func() { a.Ask([]ask{{Rule: w.rule, Key: key, Cost: 1}}, v, nil, func() { took = w.now.Sub(began) }) })
		w.play(50 * time.Millisecond)
		if took > most+time.Millisecond || v[0].OverLimit {
			t.Errorf("request %d took %v: %+v", i, took, v[0])
		}
	}
}

// A refund that cannot leave for the key's owner is booked by this node, and so is one that is refused there because
// the ring has changed. One that may have arrived is not: it would count twice.
func TestRefundWithoutItsOwnerIsBookedOnce(t *testing.T) {
	for _, x := range []struct {
		what, owner string // at the end
		play        func(w *world, a, b *node)
		rest        int
	}{
		{"it cannot leave", "b:1", func(_ *world, a, _ *node) { a.reach(false) }, 55},
		{"it may have arrived", "b:1", func(w *world, _, _ *node) { w.delay = late }, 55},
		{"its owner has left, which is news", "a:1", func(w *world, _, b *node) {
			w.carries = func(_, _ string, f *wire.Frame) bool { return len(f.GetPresences()) == 0 }
			b.do(func() { b.Leave(func() {}) })
			w.play(time.Millisecond)
		}, 55 - 6}, // it keeps its lease
	} {
		w, a, b, key := newStorePair(t, 1e9)
		w.one("b:1", ask{Key: key, Cost: 50})
		x.play(w, a, b)
		v := w.one("a:1", ask{Key: key, Kind: ratelimit.Refund, Cost: 5})
		w.delay, b.cut = 100*time.Microsecond, false
		w.carries = func(string, string, *wire.Frame) bool { return true }
		a.reach(true)
		w.play(4 * time.Second)
		if n := w.rest(x.owner, key); v.OverLimit || n != x.rest {
			t.Errorf("%s: %d are admitted after 50 of 100 and a refund of 5: %+v", x.what, n, v)
		}
	}
}

// A charge is taken back at the owner of the key now, or where it was made.
func TestUndoWithAStore(t *testing.T) {
	for _, x := range []struct {
		owner, other string
		alone        bool // this node was cut off from the owner
		said         string
	}{
		{"b:1", "a:1", false, "[5 of 5 undo 5]"},
		{"a:1", "b:1", false, "[]"},
		{"b:1", "a:1", true, "[]"},
	} {
		w, a, b, _ := newStorePair(t, 1e9)
		key := keyIn(0, x.owner, x.other)
		a.cut = x.alone
		spent := ask{Key: key, Cost: 5, Rule: w.rule}
		v := w.one("a:1", spent)
		a.do(func() { a.Undo([]ask{spent}, []verdict{v}) })
		a.cut = false
		w.play(4 * time.Second)
		said := fmt.Sprint(b.said)
		if n := w.rest(x.owner, key); said != x.said || n != 100 {
			t.Errorf("%+v: the owner says %s, and %d of 100 are admitted", x, said, n)
		}
	}
}

// What a node admits without an answer, in place of an owner that is late, is refused after all. It stands if the rule
// would rather admit.
func TestAdmittedWithoutOwnerOrStore(t *testing.T) {
	for policy, admitted := range map[ratelimit.FailurePolicy]bool{
		ratelimit.FailLocal: false, ratelimit.FailClosed: false, ratelimit.FailOpen: true,
	} {
		w, a, _, key := newStorePair(t, 1e9)
		w.rule.Coordination.OnStoreFailure = policy
		a.store.Nodes = func() int { return 1 }
		a.deaf, w.delay = true, late
		v := w.one("a:1", ask{Key: key, Cost: 5})
		if v.OverLimit == admitted || v.Source != ratelimit.FromFallback {
			t.Errorf("%v: %+v", policy, v)
		}
		v = w.one("a:1", ask{Key: keyIn(0, "a:1", "b:1"), Cost: 5})
		if v.OverLimit != (policy == ratelimit.FailClosed) {
			t.Errorf("%v, a key of its own: %+v", policy, v)
		}
	}
}

// Each node leases a key that its owner has called hot.
func TestHotKeysAreLeasedHere(t *testing.T) {
	w, a, _, key := newStorePair(t, 5)
	for range 100 {
		w.one("a:1", ask{Key: key, Cost: 1})
	}
	if s := a.Stats(); s.Hot == 0 || len(s.HotHere) != 1 || w.nodes["b:1"].Stats().HotKeys == nil {
		t.Errorf("%+v", s)
	}
}
