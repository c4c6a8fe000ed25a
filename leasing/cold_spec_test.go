package leasing

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// crowd has so many other keys asked for under the rule, each with its own lease.
func (s *nodeScript) crowd(first, n uint64) {
	s.Helper()
	for k := first; k < first+n; k++ {
		v := make([]verdict, 1)
		w := s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(k), Cost: 1}}, v)
		for b := s.Batch(); b != nil; b = s.Batch() {
			s.settled(b, 0)
		}
		if w != nil && w.Advance(s.now) {
			s.Fatalf("key %d is not decided", k)
		}
	}
}

// What on_store_failure admitted is not forgotten with its key before the window is over:
// not in a table that is not full, either.
func TestColdOwedIsNotPurged(t *testing.T) {
	for _, others := range []uint64{0, 600} {
		s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
		s.ledger = ledger.NewMemory(10_000, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
		s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
		s.outage(50)
		s.passes(lease.ForgottenAfter + time.Second)
		s.crowd(2, others)
		r := s.asks(1)
		for !r.decided() {
			s.exchange()
		}
		if v := r.says(false, ratelimit.FromClaim); v.Remaining != 49 {
			t.Errorf("%d other keys in a table for 10,000: 50 of 100 were admitted in an outage a minute ago and 1 now, and %d are left", others, v.Remaining)
		}
	}
}

// Drift is not forgotten for as long as it counts: of a sliding window in the next one, of
// a bucket until it is repaid.
func TestColdDriftIsNotPurged(t *testing.T) {
	for _, others := range []uint64{0, 600} {
		s, _ := newDriftScript(t, sliding100)
		s.ledger = ledger.NewMemory(10_000, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
		s.drifts(9)
		b, _ := s.sends()
		b.Fail(errors.New("gone"))
		s.passes(lease.ForgottenAfter + 2*time.Second) // the window ended 17 s ago, and counts for 43 s more
		s.crowd(2, others)
		if !s.Drifting() {
			t.Errorf("%d other keys: 9 tokens of a sliding window are unconfirmed, count for 43 s more, and are forgotten", others)
		}

		s = newNodeScript(t, bucket100)
		s.ledger = ledger.NewMemory(10_000, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
		s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
		s.leased(1)
		s.outage(4000)
		s.passes(3 * time.Minute)
		s.crowd(2, others)
		if !s.Drifting() {
			t.Errorf("%d other keys: a bucket has lent 3,999 tokens, which takes it an hour to repay, and after 3 minutes they are forgotten", others)
		}
	}
}

// A sweep looks once at a cold key whose window is over, and not in each round again.
func TestColdEndedKeysAreLeftPacked(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Second, Requests: 10})
	s.rule.Counters = new(ratelimit.RuleCounters)
	s.KeepBusy(0)
	s.leased(5) // 1 is spent
	s.passes(time.Minute)
	s.sweeps()
	s.sweeps()
	sh, c := s.fleet.cell(keyOf(1))
	defer sh.mu.Unlock()
	if c.Val.slot != 0 {
		t.Fatal("it is busy")
	}
	for range 3 {
		s.now = s.now.Add(time.Minute)
		if sh.dueCold(s.now, c) {
			t.Fatal("the window is over since a minute and was swept, there is nothing to do, and each round unpacks the key and packs it again")
		}
	}
}

// Keys whose limit a reload has changed, and that were asked for while the ledger did not
// answer, become cold again like all others.
func TestColdReloadInAnOutage(t *testing.T) {
	const keys = 3000
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
	s.ledger = ledger.NewMemory(2*keys, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
	s.KeepBusy(4)
	s.rule.Coordination.Lease.TTL = time.Hour
	s.crowd(1, keys)
	changed := *s.rule
	changed.Limit.Requests = 12
	s.rule = &changed
	for k := range uint64(keys) {
		v := make([]verdict, 1)
		w := s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(1 + k), Cost: 1}}, v)
		for b := s.Batch(); b != nil; b = s.Batch() {
			b.Fail(errors.New("gone"))
		}
		if w != nil && w.Advance(s.now) {
			t.Fatalf("key %d is not decided", k)
		}
	}
	s.sweptFor(3, time.Hour) // the ledger is back
	busy := s.busyKeys()
	if busy > 8*len(s.fleet.shards) {
		t.Errorf("nobody asks for any of %d keys, nothing is under way, and %d are busy, each in %d bytes beside its packed place", keys, busy, unsafe.Sizeof(busyKey{}))
	}
}

// What a burst took is given back, or used: slots that no key is in are not kept for ever.
func TestColdSlotsAfterAWindow(t *testing.T) {
	const keys = 5000
	s := newNodeScript(t, perMinute100)
	s.ledger = ledger.NewMemory(2*keys, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = 2*time.Minute, 10
	s.crowd(1, keys)
	s.passes(44*time.Second + 500*time.Millisecond) // half a second before the window ends
	s.crowd(1, keys)                                // each has the next window's lease claimed
	s.sweptFor(10, time.Minute)
	busy, slots := 0, 0
	for i := range s.fleet.shards {
		busy, slots = busy+s.fleet.shards[i].busy.size, slots+len(s.fleet.shards[i].busy.chunks)*busySlots
	}
	if slots > keys/4 {
		t.Errorf("%d keys were asked for before a window ended ten minutes ago; %d are busy, and %d slots of %d bytes are kept", keys, busy, slots, unsafe.Sizeof(busyKey{}))
	}
}

// A key that is asked for most of all is among the hottest, wherever it is kept.
func TestColdHottestColdKey(t *testing.T) {
	for _, busy := range []int{1000, 1} {
		s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10_000})
		s.KeepBusy(busy)
		s.rule.Coordination.Lease.TTL = time.Hour
		s.leased(5000)
		s.rule.Coordination.Lease.Fixed = 1
		s.ledger = ledger.NewMemory(10_000, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
		s.crowd(2, 400)
		for range 1000 {
			s.passes(time.Millisecond)
			s.spends(1)
		}
		if hot := s.fleet.Hottest(s.now, 3); len(hot) == 0 || hot[0].Account != string(keyOf(1)) {
			t.Errorf("at most %d busy: a key that was asked for 1,000 times in the last second is not the hottest: %+v", busy, hot)
		}
	}
}

// A round of sweeps that is behind goes on with the next sweep.
func TestColdSweepsThatAreBehind(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	f := NewFleet(nil, 1, 4_000_000, func() instant { return s.now }, time.Unix(1_800_000_015, 0))
	// As after ten sweeps of a table with twice as many segments as those look at, and
	// the first after them.
	f.swept, f.behind = walk{shard: len(f.shards) / 2}, true
	if f.sweepPart(s.now, 1); f.swept.shard != 0 || f.behind {
		t.Errorf("half of the round before was left to do, and is not done: %+v", f.swept)
	}
}

// A key of which nothing is leased can be dropped (console: correct).
func TestColdDropOfAKeyWithoutALease(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	s.outage(5)
	s.fleet.Drop(s.now, keyOf(1))
	for b := s.Batch(); b != nil; b = s.Batch() {
		if c := b.Claims()[0]; c.Limit.Requests == 0 {
			t.Fatalf("a claim without a limit, which Memory divides by: %+v", c)
		}
		s.settled(b, 0)
	}
}

// A reload that gives a limit to another rule (its path is new, so its counters are) leaves
// no key busy for the rest of its window.
func TestColdRenamedRule(t *testing.T) {
	const keys = 3000
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1})
	s.ledger = ledger.NewMemory(2*keys, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
	s.KeepBusy(4)
	s.rule.Coordination.Lease.TTL, s.rule.Counters = time.Hour, new(ratelimit.RuleCounters)
	s.crowd(1, keys)
	s.crowd(1, keys) // all are refused
	renamed := *s.rule
	renamed.Path, renamed.Counters = "other", new(ratelimit.RuleCounters)
	s.rule = &renamed
	for k := range uint64(keys) {
		s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(1 + k), Cost: 1}}, make([]verdict, 1))
	}
	s.sweptFor(3, time.Hour)
	busy := s.busyKeys()
	if busy > 8*len(s.fleet.shards) {
		t.Errorf("nobody asks for any of %d keys, nothing is under way, and %d are busy", keys, busy)
	}
}

// A key is not dropped from a full table before the last word on its window is told,
// however far behind the sweeps are.
func TestColdLastWordOfAFullTable(t *testing.T) {
	for _, swept := range []bool{true, false} {
		s, d := newNodeScript(t, perMinute100), &shareOfTen{}
		s.Stepped = NewStepped(1, 7, func() instant { return s.now }, time.Unix(1_800_000_015, 0), func(time.Duration, func()) {}, func() float64 { return 0 })
		s.rule.Counters = new(ratelimit.RuleCounters)
		c := &s.rule.Coordination
		c.Mode, c.MaxNodes, c.CheckTimeout, c.LowWatermark = ratelimit.Approx, 2, 2*time.Millisecond, ratelimit.Share{PPM: 200_000}
		c.DriftBudget = ratelimit.Share{Tokens: 20}
		c.SyncInterval, c.Lease.TTL = 10*time.Second, time.Hour
		s.SetDrift(d)
		s.leased(1)
		s.drifts(4)
		b, _ := s.sends()
		b.Fail(errors.New("gone"))
		s.passes(46*time.Second + 100*time.Millisecond) // the window is over since 1.1 s
		if swept {
			s.sweeps()
		}
		final := 0
		for k := uint64(2); k < 12; k++ {
			s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(k), Cost: 1}}, make([]verdict, 1))
			for b := s.Batch(); b != nil; b = s.Batch() {
				for _, c := range b.Claims() {
					if c.Key == string(keyOf(1)) && c.Final && c.Spent == 5 {
						final++
					}
				}
				s.settled(b, 0)
			}
		}
		_, _, h := s.fleet.locked(keyOf(1))
		if h == nil && final != 1 {
			t.Errorf("swept %v: the key is gone, and the ledger was never told of 4 tokens over its lease", swept)
		}
	}
}

// A request that is about to wait while the node shuts down is decided, and not answered
// with a panic: release takes the place of its flight, after which the key may be dropped.
func TestColdEnqueueAfterRelease(t *testing.T) {
	now := instant(time.Hour)
	ledger := ledger.NewMemory(100, func() ledgerTime { return ledgertest.Epoch.Add(now.Sub(instant(time.Hour))) })
	f := NewFleet(ledger, 1, 1, func() instant { return now }, time.Unix(1_800_000_015, 0))
	l, rule := &f.lanes[0], testRule(perMinute100)
	rule.Coordination.Lease.Fixed = 5
	fl, _, _ := f.join(now, &ask{Rule: rule, Key: keyOf(1), Cost: 1})
	f.settle(l, []*flight{fl}) // it has a lease
	f.settle(l, nil)
	waits, launch, _ := f.join(now, &ask{Rule: rule, Key: keyOf(1), Cost: 50})
	if !launch {
		t.Fatal("it need not wait")
	}
	all, _ := f.releases(now, &walk{}) // Run has ended meanwhile
	f.settle(l, all[l])
	if other, _, _ := f.join(now, &ask{Rule: rule, Key: keyOf(2), Cost: 1}); other == nil {
		t.Fatal("there is no room for another key")
	}
	for len(l.queue) < cap(l.queue) {
		l.queue <- &flight{Flight: lease.Flight{Errand: lease.Errand{Beat: true}}}
	}
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%v", r)
		}
	}()
	f.enqueue(waits)
}

// sweptFor has so many stretches of time pass, each followed by rounds of sweeps whose
// claims are settled.
func (s *nodeScript) sweptFor(times int, each time.Duration) {
	for range times {
		s.passes(each)
		for range 3 * sweepParts {
			s.passes(sweepEvery)
			s.Sweep(s.now)
			for b := s.Batch(); b != nil; b = s.Batch() {
				s.settled(b, 0)
			}
		}
	}
}

// busyKeys is how many keys are busy.
func (s *nodeScript) busyKeys() (n int) {
	for i := range s.fleet.shards {
		n += s.fleet.shards[i].busy.size
	}
	return n
}
