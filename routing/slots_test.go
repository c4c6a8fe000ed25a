package routing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/ring"
)

// A slot that a node took without the key's owner comes back when its request ends, also if another key that the same
// request settles waits for its owner.
func TestSlotsOfAnOutageComeBack(t *testing.T) {
	s, a := newPair(t)
	s.rule.Limit = ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10, Algorithm: ratelimit.Concurrency}
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.MaxNodes = ratelimit.FailLocal, 10
	var keys [][]byte // of b:1
	for k := 0; len(keys) < 2; k++ {
		if a.view.Load().ring.Owner(ring.HashOf(keyOf(k))) == "b:1" {
			keys = append(keys, keyOf(k))
		}
	}
	both := func(kind ratelimit.Kind, slot ratelimit.Window) []verdict {
		asks, v := make([]ask, 2), make([]verdict, 2)
		for i := range asks {
			asks[i] = ask{Rule: s.rule, Key: keys[i], Kind: kind, Cost: 1, Window: slot}
		}
		a.Ask(asks, v, nil, func() {})
		s.play(100 * time.Millisecond)
		return v
	}
	outage := func(cut bool) {
		a.cut = cut
		s.breakAll("a:1", "b:1")
		s.play(500 * time.Millisecond)
	}
	outage(true)
	for i, v := range both(ratelimit.Spend, 7) {
		if v.OverLimit || v.Source != ratelimit.FromFallback {
			t.Fatalf("key %d: one slot of ten is this node's, and free: %+v", i, v)
		}
	}
	outage(false)
	both(ratelimit.Release, 7)
	outage(true)
	for i, v := range both(ratelimit.Spend, 8) {
		if v.OverLimit {
			t.Errorf("key %d: the only slot has come back, and is refused: %+v", i, v)
		}
	}
	both(ratelimit.Release, 8)
	outage(false)
	s.play(TakeOver)
	s.delay = 30 * time.Millisecond // the owner takes it too late, and another limit refuses the request
	slot := ask{Rule: s.rule, Key: keys[0], Cost: 1, Window: 9}
	late := s.one("a:1", slot)
	a.Undo([]ask{slot}, []verdict{late})
	s.play(time.Second)
	if v := s.one("b:1", ask{Key: keys[0], Kind: ratelimit.Peek}); late.Source != ratelimit.FromFallback || v.Remaining != 10 {
		t.Errorf("taken as %+v, and given back: %+v", late, v)
	}
}
