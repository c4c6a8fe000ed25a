package leasing

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// notPacked are the fields of held that a cold key does not have: it is packed only
// where they say nothing. All others must come back as they were, also those that
// somebody adds.
var notPacked = map[string]bool{
	".underWay": true, ".rule": true, ".next": true, ".todo": true,
	".gauges.of": true, ".name": true, ".fruits": true, ".demand.lastUse": true, // see TestPackedIsTheSame
	".lease.Requests": true, ".lease.Burst": true, ".lease.RequestsHigh": true, ".lease.BurstHigh": true, ".lease.Algorithm": true, ".lease.Period": true,
}

// fill sets every number of v by draw, and every bool.
func fill(v reflect.Value, path string, draw func() int64) {
	if notPacked[path] {
		return
	}
	v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
	switch v.Kind() { //nolint:exhaustive // a field of another kind fails the test
	case reflect.Struct:
		for i := range v.NumField() {
			name := "." + v.Type().Field(i).Name
			if v.Type().Field(i).Anonymous {
				name = ""
			}
			fill(v.Field(i), path+name, draw)
		}
	case reflect.Int64:
		v.SetInt(draw())
	case reflect.Uint64:
		v.SetUint(uint64(draw()))
	case reflect.Float64:
		v.SetFloat(float64(draw()) / 7)
	case reflect.Bool:
		v.SetBool(draw()&1 != 0)
	default:
		panic(fmt.Sprintf("what becomes of held%s when a key is cold?", path))
	}
}

// What is known of a key is the same after it was packed, whatever it is.
func TestPackedIsTheSame(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	rule := testRule(perMinute100)
	rule.Counters = new(ratelimit.RuleCounters)
	var s fleetShard
	s.open(keytable.NewArena(), 1000, 40)
	for range 20_000 {
		h := Held{rule: rule, name: 40 + ratelimit.Holder(rnd.IntN(2))}
		h.fruits = uint8(rnd.IntN(20))
		h.demand.lastUse = instant(rnd.Int64N(int64(1000 * time.Hour)))
		if rnd.IntN(2) == 0 {
			h.gauges.of = rule.Counters
		}
		switch rnd.IntN(4) {
		case 0:
		case 1:
			h.lease.SetLimit(&ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Day, Multiplier: 3, Requests: 1 << 35, Burst: 1<<36 + 5})
		default:
			h.lease.SetLimit(&rule.Limit)
		}
		few := rnd.IntN(2) == 0
		fill(reflect.ValueOf(&h).Elem(), "", func() int64 {
			switch n := rnd.IntN(6); {
			case n == 0 || few && n < 4:
				return 0
			case n == 1:
				return int64(never)
			case n == 2:
				return rnd.Int64N(1<<61) - 1<<60
			}
			return rnd.Int64N(1000) - 100
		})
		b := h.Pack(nil, s.rules.number(rule))
		var back Held
		back.Unpack(append(b, 0xff, 0xff, 0xff), rule, 40) // whatever lies behind
		if later := back.demand.lastUse.Sub(h.demand.lastUse); later < 0 || later >= tick {
			t.Fatalf("last used %v later", later)
		}
		if back.demand.lastUse = h.demand.lastUse; back != h {
			t.Fatalf("of %+v there is %+v", h, back)
		}
		s.rules.leave(rule)
	}
}

// What a cold key spends from its lease, a busy one would have spent just so: the same
// requests are admitted, with the same answers, and what is known afterwards is the same.
func TestColdSpendsAsBusy(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	rule := testRule(perMinute100)
	var s fleetShard
	s.open(keytable.NewArena(), 1000, 40)
	answered, asked := 0, 0
	for range 20_000 {
		now := instant(time.Hour)
		near := func() instant {
			return [...]instant{0, now - 1, now, now + 1, now.Add(time.Minute), never}[min(rnd.IntN(20), 4+rnd.IntN(2))]
		}
		few := func() tokens { return tokens(rnd.IntN(12)) }
		h := Held{rule: rule, name: 40}
		h.told, h.aheadAt = now-7, near()
		if rnd.IntN(5) == 0 {
			h.pause = near()
		}
		h.lease = lease.Lease{Granted: 10 + few(), Spent: few(), Returned: few() / 2, Available: few(), Deadline: near(), Reset: near(), Window: 3}
		h.renewal, h.settled = renewal{few(), near()}, rnd.IntN(2) == 0
		if rnd.IntN(10) > 0 {
			h.lease.SetLimit(&rule.Limit)
		}
		kept := h.Pack(nil, s.rules.number(rule))
		for range 3 {
			a := ask{Rule: rule, Cost: 1 + few()/3}
			asked++
			v, ok := spendPacked(kept, now, &a)
			busy := h
			want, would := busy.lease.Take(now, &a, false)
			plain := would && !want.OverLimit && now >= h.pause && now < h.aheadAt && !busy.due(now, busy.lease.Unspent())
			if ok != plain || ok && v != want {
				t.Fatalf("%+v\nanswers %+v %v, and when it is cold %+v %v", h, want, would, v, ok)
			}
			if ok {
				answered++
				h = busy
				h.demand.used += a.Cost
				h.demand.lastUse, h.settled = now, false
			}
			var back Held
			if back.Unpack(kept, rule, 40); back != h {
				t.Fatalf("%+v\nis when it was cold %+v", h, back)
			}
		}
		s.rules.leave(rule)
	}
	if answered < asked/20 || answered > asked/2 {
		t.Errorf("%d of %d were answered", answered, asked)
	}
}

// What is under way, or is looked at by the clock, is not packed.
func TestWhatIsNotPacked(t *testing.T) {
	for what, change := range map[string]func(h *busyKey){
		"nothing":                     func(*busyKey) {},
		"a claim is under way":        func(h *busyKey) { h.takes(&flight{}) },
		"the next window has a lease": func(h *busyKey) { h.next = &nextLease{} },
		"a request rests":             func(h *busyKey) { h.recalled = &flight{done: make(chan struct{})} },
		"no rule":                     func(h *busyKey) { h.rule = nil },
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
	for at, want := range map[instant]ticks{
		0: 0, 1: 1, instant(tick): 1, instant(tick) + 1: 2, never: neverDue, never - 1: neverDue,
		instant(neverDue) * instant(tick): neverDue, (instant(neverDue) - 1) * instant(tick): neverDue - 1,
	} {
		if got := ticksOf(at); got != want {
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
	if h := s.keyHeld(); !h.stretched || !h.untold() || !h.shard.cool(h) {
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
	if end := unsafe.Offsetof(h.lease) + unsafe.Offsetof(h.lease.Burst) + 4; end > 64 {
		t.Errorf("what take reads ends at %d", end)
	}
}
