package local

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// slotRule lets n requests be in flight at once, each for a minute at most.
func slotRule(n tokens) *ratelimit.Rule {
	r := &ratelimit.Rule{Domain: "d", Limit: ratelimit.AtOnce(n, time.Minute), Coordination: ratelimit.DefaultCoordination()}
	r.Hold, r.Coordination.OnDeny = r.Limit.HoldsSlot(), ratelimit.DenyRefunds
	return r
}

func slotOf(r *ratelimit.Rule, key string, kind ratelimit.Kind, slot int) ratelimit.Ask {
	return ratelimit.Ask{Rule: r, Key: []byte(key), Cost: 1, Kind: kind, Window: ratelimit.Window(slot)}
}

// A node alone: a slot is taken once, given back once, undone exactly, and comes back when its time is over.
func TestSlotsOfANode(t *testing.T) {
	l, r := New(100, 0, time.Unix(1_800_000_000, 0)), slotRule(2)
	at := func(now time.Duration, kind ratelimit.Kind, slot int, over bool, charged, left tokens) {
		t.Helper()
		v := decideOne(l, instant(now), slotOf(r, "k", kind, slot))
		if v.OverLimit != over || v.Charged != charged || v.Remaining != left {
			t.Errorf("at %v: %+v, must be over %v, charged %d, left %d", now, v, over, charged, left)
		}
	}
	const take, give = ratelimit.Spend, ratelimit.Release
	at(0, take, 1, false, 1, 1)
	at(0, take, 1, false, 1, 1)
	at(1*time.Second, take, 2, false, 1, 0)
	at(2*time.Second, take, 3, true, 0, 0)
	at(2*time.Second, give, 3, false, 0, 0)
	at(2*time.Second, ratelimit.Refund, 0, false, 0, 0)
	at(2*time.Second, ratelimit.Charge, 2, false, 0, 0)
	at(3*time.Second, give, 1, false, 1, 1)
	at(3*time.Second, give, 1, false, 0, 1)
	at(3*time.Second, take, 3, false, 1, 0)
	l.Undo(0, []ratelimit.Ask{slotOf(r, "k", take, 3)}, []ratelimit.Verdict{{Charged: 1, Window: 3}})
	at(4*time.Second, take, 4, false, 1, 0)
	at(60*time.Second, take, 5, true, 0, 0) // 2 is in flight until 61 s
	at(61*time.Second, take, 5, false, 1, 0)
	if n := l.Stats().Accounts; n != 1 {
		t.Errorf("%d accounts", n)
	}
	if x := l.Look(t.Context(), instant(64*time.Second), &ratelimit.Ask{Rule: r, Key: []byte("k")}).Ledger; x == nil || x.Charged != 1 || x.Free != 1 {
		t.Errorf("it looks like %+v", x)
	}
	if err := l.Reset(t.Context(), instant(61*time.Second), &ratelimit.Ask{Rule: r, Key: []byte("k")}); err != nil {
		t.Fatal(err)
	}
	at(61*time.Second, take, 6, false, 1, 1)
}

// A part of a node's table keeps as many slots as one key may have, and refuses more, for tracked keys and for new
// ones. None is dropped for others.
func TestSlotsAreBounded(t *testing.T) {
	const most, clients = int(ratelimit.MaxConcurrency), 30_000
	l, r := New(64, 0, time.Unix(1_800_000_000, 0)), slotRule(ratelimit.MaxConcurrency)
	if n := len(l.tracked.shards); n != 1 {
		t.Fatalf("the table has %d parts", n)
	}
	key := func(i int) string { return fmt.Sprint(i % 6) }
	in := 0
	for i := range clients {
		if !decideOne(l, 0, slotOf(r, key(i), ratelimit.Spend, i+1)).OverLimit {
			in++
		}
	}
	if in != most || l.tracked.shards[0].slots != most {
		t.Errorf("%d slots are taken, and %d are counted, must be %d", in, l.tracked.shards[0].slots, most)
	}
	if v := decideOne(l, 0, slotOf(r, "new", ratelimit.Spend, clients+1)); !v.OverLimit {
		t.Error("a new key has a slot, and there is no room")
	}
	back := 0
	for i := range clients {
		back += int(decideOne(l, 0, slotOf(r, key(i), ratelimit.Release, i+1)).Charged)
	}
	if n := l.tracked.shards[0].slots; back != in || n != 0 {
		t.Errorf("%d slots of %d came back, and %d are counted", back, in, n)
	}
	for i := range most {
		decideOne(l, 0, slotOf(r, key(i), ratelimit.Spend, i+1))
	}
	ended := instant(r.Limit.Period())
	if v := decideOne(l, ended, slotOf(r, "new", ratelimit.Spend, clients+1)); v.OverLimit || l.tracked.shards[0].slots != 1 {
		t.Errorf("all slots have ended, %d are counted, and a new key has none: %+v", l.tracked.shards[0].slots, v)
	}
}
