package leasing

import (
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What is under way, or is looked at by the clock, is not packed.
func TestWhatIsNotPacked(t *testing.T) {
	for what, change := range map[string]func(h *busyKey){
		"nothing":                     func(*busyKey) {},
		"a claim is under way":        func(h *busyKey) { h.takes(&flight{}) },
		"the next window has a lease": func(h *busyKey) { h.Next = &lease.NextLease{} },
		"a request rests":             func(h *busyKey) { h.recalled = &flight{done: make(chan struct{})} },
		"no rule":                     func(h *busyKey) { h.Rule = nil },
	} {
		s := newNodeScript(t, perMinute100)
		s.asks(1)
		s.exchange()
		h := s.keyHeld()
		change(h)
		if packed := h.shard.cool(h); packed != (what == "nothing") {
			t.Errorf("%s: packed %v", what, packed)
		}
	}
}

func TestTicksOf(t *testing.T) {
	for at, want := range map[instant]lease.Ticks{
		-instant(time.Hour): 0, // what is past is due
		0:                   0, 1: 1, instant(lease.Tick): 1, instant(lease.Tick) + 1: 2, lease.Never: lease.NeverDue, lease.Never - 1: lease.NeverDue,
		instant(lease.NeverDue) * instant(lease.Tick): lease.NeverDue, (instant(lease.NeverDue) - 1) * instant(lease.Tick): lease.NeverDue - 1,
	} {
		if got := lease.TicksOf(at); got != want {
			t.Errorf("%d is in tick %d, want %d", at, got, want)
		}
	}
}

// A sweep leaves cold keys packed that have nothing to do: in a table with room, those of
// which all is leased for long, and those whose window ended.
func TestSweepsLeaveColdKeysPacked(t *testing.T) {
	s := newRecallScript(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000})
	s.KeepBusy(0)
	s.asks(1)
	s.exchange()
	if h := s.keyHeld(); !h.Stretched || !h.Untold() || !h.shard.cool(h) {
		t.Fatal("it is not a key that a sweep might return")
	}
	sh, c := s.fleet.cell(keyOf(1))
	defer sh.mu.Unlock()
	for _, later := range []time.Duration{0, time.Second, time.Minute, 20 * time.Minute} {
		if s.now = s.now.Add(later); sh.dueCold(s.now, c) {
			t.Errorf("%v later: it is unpacked", later)
		}
	}
}

// Rules have numbers for as long as cold keys are of them, and those are used again.
func TestRuleNumbers(t *testing.T) {
	var n ruleNumbers
	a, b := testRule(perMinute100), testRule(perMinute100)
	if n.number(a) != 0 || n.number(b) != 1 || n.number(a) != 0 {
		t.Fatal("numbers are not in order")
	}
	n.leave(a)
	if n.number(a) != 0 {
		t.Error("a rule that is in use has another number now")
	}
	n.leave(a)
	n.leave(a)
	if len(n.numbers) != 1 || n.uses[0].rule != nil {
		t.Errorf("a rule that nobody uses is kept: %+v", n)
	}
	if c := testRule(perMinute100); n.number(c) != 0 || len(n.uses) != 2 {
		t.Errorf("its number is not used again: %+v", n)
	}
}

// However many keys are asked for, no more are busy than the table has slots for, but
// for those that have claims under way; and each is what it was when it is asked for
// again.
func TestColdKeysGoOn(t *testing.T) {
	const keys, most = 500, 4
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
	s.ledger = ledger.NewMemory(2*keys, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
	s.rule.Counters = new(ratelimit.RuleCounters)
	s.KeepBusy(most)
	asks := func(k uint64, cost tokens) verdict {
		v := make([]verdict, 1)
		w := s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(k), Cost: cost}}, v)
		for b := s.Batch(); b != nil; b = s.Batch() {
			s.settled(b, 0)
		}
		if w != nil && w.Advance(s.now) {
			t.Fatalf("key %d is not decided", k)
		}
		return v[0]
	}
	for round := range tokens(11) {
		for k := range uint64(keys) {
			if v := asks(k, 1); v.OverLimit != (round == 10) || v.Remaining != max(0, 9-round) {
				t.Fatalf("key %d, asked %d times before: %+v", k, round, v)
			}
		}
	}
	busy := s.busyKeys()
	if bound := 2 * most * len(s.fleet.shards); busy > bound || busy < most {
		t.Errorf("%d of %d keys are busy, and %d may be", busy, keys, bound)
	}
	s.passes(time.Hour)
	s.sweepAll()
	if left := s.rule.Counters.Leased.Load(); left != 0 {
		t.Errorf("the window is over, and %d tokens are leased still", left)
	}
	for k := range uint64(keys) {
		if v := asks(k, 10); v.OverLimit {
			t.Fatalf("key %d, in the next window: %+v", k, v)
		}
	}
}

func (s *nodeScript) sweepAll() {
	for range 2 * sweepParts {
		s.Sweep(s.now)
	}
}

// What a decision from a lease reads of it is one line of the processor's cache, the
// first of a slot, but for what it names in its answer.
func TestHitReadsTheFirstLine(t *testing.T) {
	var h busyLines
	if size := unsafe.Sizeof(h); size%64 != 0 {
		t.Errorf("slots are %d bytes, and begin anywhere in a line", size)
	}
	if end := unsafe.Offsetof(h.Lease) + unsafe.Offsetof(h.Lease.Burst) + 4; end > 64 {
		t.Errorf("what take reads ends at %d", end)
	}
}
