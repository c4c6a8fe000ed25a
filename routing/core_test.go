package routing

import (
	"context"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// What a message says of a rule is what the rule says, as far as its owner must
// know: under mode routing, reclaim: eager never credits an owner's lease. What
// version 1 says, without a mode, is routed.
func TestRuleTravelsWithItsMode(t *testing.T) {
	var rules ruleCache
	for mode := range ratelimit.Modes {
		r := routed(1000)
		r.Coordination.Mode, r.Coordination.Reclaim = ratelimit.Mode(mode), ratelimit.ReclaimEager
		got, err := rules.get(ruleMessage(r))
		if err != nil {
			t.Fatal(err)
		}
		if got.Coordination.Mode != r.Coordination.Mode || got.Coordination.Eager() != r.Coordination.Eager() {
			t.Errorf("%v: the owner has mode %v, eager %v", r.Coordination.Mode, got.Coordination.Mode, got.Coordination.Eager())
		}
	}
	old := ruleMessage(routed(1000))
	old.Mode, old.Eager = 0, true
	if got, err := rules.get(old); err != nil || got.Coordination.Mode != ratelimit.Routing || got.Coordination.Eager() {
		t.Errorf("version 1: %+v, %v", got, err)
	}
	old.Mode = 99
	if _, err := rules.get(old); err == nil {
		t.Error("a mode that there is not was read")
	}
}

// A weight without bound would be a ring without bound.
func TestWeightIsBounded(t *testing.T) {
	h := &wire.Hello{Version: version, Addr: "a:1", Nonce: newNonce(), Weight: maxWeight}
	if err := check(h); err != nil {
		t.Error(err)
	}
	h.Weight++
	if err := check(h); err == nil {
		t.Error("it was let in")
	}
}

// What was charged without an owner goes back to where it was charged, and never
// to the account, which was not charged.
func TestUndoOfAFallback(t *testing.T) {
	w := newRingWorld(t, 1)
	n := w.start(0, known)
	w.eventually("ready", n.Ready)
	rule := routed(10)
	rule.Coordination.OnStoreFailure = ratelimit.FailLocal
	rule.Coordination.LocalCap = 5
	if v := n.ask(rule, 1, 10); v.OverLimit {
		t.Fatal(v)
	}
	a := []ask{{Rule: rule, Key: keyOf(1), Cost: 5}}
	for range 3 { // the node's share holds 5 at a time
		v := []verdict{n.fail(context.Background(), w.clock(), &a[0])}
		if v[0].OverLimit || v[0].Source != ratelimit.FromFallback {
			t.Fatalf("%+v", v)
		}
		n.Undo(w.clock(), a, v)
	}
	if v := n.ask(rule, 1, 1); !v.OverLimit {
		t.Errorf("the account got back what it was not charged: %+v", v)
	}
}

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

// What a node says of itself travels on two streams, so that it may be heard in
// another order than it was said. What it said before it joined or left last counts
// no more: otherwise accounts that are on their way to it were begun anew here.
func TestOldWordsOfANodeCountNoMore(t *testing.T) {
	s := newScript(t, 10, 10)
	s.addrs = []string{"a", "b"}
	for _, addr := range s.addrs {
		s.start(addr)
	}
	a := s.nodes["a"].core
	s.until("both are in the ring", func() bool { return a.isReady(s.now) && len(a.view.Load().ring.Members()) == 2 })
	b := a.members["b"]
	from, joined := &inlet{addr: "b", incarnation: b.incarnation}, b.changes
	if joined < 2 {
		t.Fatalf("b has joined, and says that it has changed %d times", joined)
	}
	if !a.presence(s.now, from, false, joined-1) || !b.alive {
		t.Error("b is out of the ring for what it said before it joined")
	}
	alone := ringOf([]Member{{"a", 1}})
	if a.saidDone("b", 42, joined-1); b.done == 42 {
		t.Error("b is done, by what it said before it joined")
	}
	if a.saidDone("b", 42, joined); b.done != 42 {
		t.Error("b is not done, and says so")
	}
	if !a.presence(s.now, from, false, joined+1) || b.alive || len(a.view.Load().ring.Members()) != len(alone.Members()) {
		t.Error("b is in the ring, and says that it has left")
	}
	b.done, b.doneBy = a.view.Load().print, joined
	if !b.mayHave(a.view.Load()) {
		t.Error("b has left, and may have accounts still: it was done before that")
	}
}
