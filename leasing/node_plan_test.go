package leasing

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// next is the lease of the window to come, nil if there is none.
func (s *nodeScript) next() *lease.NextLease {
	sh, _, c := s.fleet.locked(keyOf(1))
	defer sh.mu.Unlock()
	return c.Next
}

// Where the ledger has nothing left, and nobody else holds any, a lease is spent
// to its end without asking for more. Where others hold some, it is renewed.
func TestNothingToBeHadIsNotAskedFor(t *testing.T) {
	for _, c := range []struct {
		elsewhere tokens
		reclaim   ratelimit.Reclaim
		asks      bool
	}{{0, ratelimit.ReclaimSafe, false}, {20, ratelimit.ReclaimSafe, true}, {0, ratelimit.ReclaimEager, true}} { // which would be another's
		s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
		s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed, s.rule.Coordination.Reclaim = 10*time.Second, 50, c.reclaim
		r := s.asks(49)
		b, claim := s.sends()
		answer := []ratelimit.Grant{{
			Seq: claim.Seq, Window: claim.Limit.WindowAt(ledgertest.Epoch), Fence: 1, Granted: 50, Outstanding: c.elsewhere,
			TTL: 10 * time.Second, ResetAfter: time.Hour, At: ledgertest.Epoch, Carried: true, Holders: 2,
		}}
		b.Answer(answer)
		r.says(false, ratelimit.FromClaim)
		for range 2 {
			s.passes(5 * time.Second) // half of its time
			s.asks(0)
			b := s.Batch()
			if (b != nil) != c.asks {
				t.Errorf("1 of 50 is left, %d are elsewhere: it asks: %v, and should: %v", c.elsewhere, b != nil, c.asks)
			}
			if b == nil {
				break
			}
			answer[0].Seq, answer[0].At = b.Claims()[0].Seq, answer[0].At.Add(5*time.Second)
			b.Answer(answer)
		}
	}
}

// Who was granted exactly what waited was refused nothing: the next request asks
// again at once.
func TestEnoughIsNoShortage(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.Fixed = 1
	s.other(ratelimit.Claim{Seq: 1, Waiting: 50})
	r := s.asks(20)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	if r := s.asks(40); r.decided() { // 30 are left at the ledger, and 50 are elsewhere
		t.Errorf("nobody was refused, and this was: %+v", r.v[0])
	}
	s.exchange()
}

// Who was refused asks again at once for what there is, though not for more.
func TestShortageLeavesWhatThereIs(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	r := s.asks(25)
	b, claim := s.sends()
	b.Answer([]ratelimit.Grant{{ // of a ledger that grants no more than a tenth at a time
		Seq: claim.Seq, Window: claim.Limit.WindowAt(ledgertest.Epoch), Fence: 1, Granted: 10, Available: 10, Outstanding: 1,
		TTL: claim.TTL, ResetAfter: time.Minute, At: ledgertest.Epoch, Carried: true, Holders: 2,
	}})
	r.says(true, ratelimit.FromClaim)
	s.asks(21).says(true, ratelimit.FromLease)
	if r := s.asks(20); r.decided() {
		t.Errorf("10 are here, and 10 at the ledger: %+v", r.v[0])
	}
}

// What an outage charged and was then undone is told, though the ledger knew all
// before it was undone.
func TestUndoIsTold(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.Lease.TTL = ratelimit.FailOpen, time.Hour
	s.leased(5)
	asks, v := s.outage(7)
	s.passes(3 * time.Second)
	s.sweeps()
	s.exchange()
	s.Undo(s.now, asks, v)
	s.sweeps()
	if c, _ := s.exchange(); c.Spent != 1 {
		t.Errorf("1 was spent, and 7 were undone: %+v", c)
	}
}

// A ledger that does not tell what time it is: the window lasts as long as it says
// from when the claim was sent.
func TestWindowOfALedgerWithoutAClock(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Hour, 20
	r := s.asks(1)
	b, _ := s.sends()
	g := make([]ratelimit.Grant, 1)
	s.ledger.Settle(s.Context(), b.Claims(), g)
	s.passes(2 * time.Second)
	g[0].At, g[0].ResetAfter = 0, 10*time.Second
	b.Answer(g)
	r.says(false, ratelimit.FromClaim)
	s.passes(8*time.Second - 1)
	s.spends(1)
	s.passes(1)
	if r := s.asks(1); r.decided() {
		t.Errorf("its window is over: %+v", r.v[0])
	}
}

// While a node knows that there is no use in asking, it does not renew either.
func TestShortageHoldsBackRenewal(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL = 60 * time.Millisecond
	s.other(ratelimit.Claim{Seq: 1, Waiting: 90})
	r := s.asks(11)
	s.exchange()
	r.says(true, ratelimit.FromClaim) // 10 are here
	s.passes(30 * time.Millisecond)   // half of its time
	s.spends(1)
	s.quiet("it was refused a moment ago")
	s.passes(20 * time.Millisecond)
	s.spends(1)
	s.exchange()
}

// A limit whose tokens come back one by one is not asked for each of them: a node
// whose demand would have used up what it got within 50 ms waits as long. A bucket
// never waits for more than half of what it takes to fill, for then it would lose
// some. A node that needs less asks at once, as does one that finds plenty.
func TestTokensAreLetGather(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  ratelimit.Limit
		perSec float64
		got    tokens
		left   tokens
		full   time.Duration
		pause  time.Duration
	}{
		{"sliding", sliding100, 100, 4, 0, time.Minute, lease.BackOff},
		{"sliding, needs less", sliding100, 80, 4, 0, time.Minute, 0},
		{"sliding, more than a hundredth is left", sliding100, 100, 4, 1, time.Minute, 0},
		{"sliding, of many", ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 1000}, 100, 4, 9, time.Minute, lease.BackOff},
		{"sliding, of many, a hundredth is left", ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 1000}, 100, 4, 10, time.Minute, 0},
		{"sliding, of few", ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 10}, 100, 4, 0, time.Minute, lease.BackOff},
		{"bucket", bucket100, 100, 4, 0, time.Minute, lease.BackOff},
		{"bucket, full soon", bucket100, 100, 4, 0, 60 * time.Millisecond, 30 * time.Millisecond},
		{"sliding, whose window is over soon", sliding100, 100, 4, 0, 60 * time.Millisecond, lease.BackOff},
		{"fixed", perMinute100, 100, 4, 0, time.Minute, 0},
	} {
		s := newNodeScript(t, c.limit)
		h := &lease.Held{Rule: s.rule, Demand: lease.Demand{PerSec: c.perSec}, Lease: lease.Lease{GrantedLimit: lease.GrantedLimit{Algorithm: c.limit.Algorithm}, Window: 1, Granted: 50 + c.got, Spent: 50, Reset: s.now.Add(time.Minute)}}
		h.Lease.SetLimit(&c.limit)
		fl := &lease.Flight{Claim: ratelimit.Claim{Limit: c.limit, Waiting: c.got, Granted: 50, Spent: 50}}
		h.Lease.Retry, h.Lease.RetryCost = 0, 77
		h.Plan(s.now, s.now, fl, &ratelimit.Grant{Carried: true, Granted: 50 + c.got, Available: c.left, TTL: time.Minute, ResetAfter: c.full, Holders: 1}, 0)
		if got := max(0, h.Lease.Retry.Sub(s.now)); got != c.pause {
			t.Errorf("%s: it waits for %v, and should for %v", c.name, got, c.pause)
		}
		if h.Lease.Retry = s.now.Add(10 * time.Second); c.pause > 0 {
			h.Plan(s.now, s.now, fl, &ratelimit.Grant{Carried: true, Granted: 50 + c.got, Available: c.left, TTL: time.Minute, ResetAfter: c.full, Holders: 1}, 0)
		}
		if got := h.Lease.Retry.Sub(s.now); got != 10*time.Second {
			t.Errorf("%s: the ledger said that there is nothing for 10 s, and it waits for %v", c.name, got)
		}
		if c.pause > 0 && h.Lease.RetryCost != 1 {
			t.Errorf("%s: what costs less than %d is asked for", c.name, h.Lease.RetryCost)
		}
	}
}

// What was spent while a claim travelled is reported in time, too, also when the
// lease is used up by it.
func TestEagerLeaseReportsWhatWasSpentMeanwhile(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 20})
	s.rule.Coordination.Reclaim, s.rule.Coordination.Lease.TTL = ratelimit.ReclaimEager, 10*time.Second
	s.rule.Coordination.Lease.Max = 100
	s.leased(20) // half of which it gets
	s.spends(6)
	b, c := s.sends()
	if c.Spent != 7 {
		t.Errorf("%+v", c)
	}
	g := make([]ratelimit.Grant, 1)
	s.ledger.Settle(s.Context(), b.Claims(), g)
	s.spends(3)
	for left := g[0].Granted - 10; left > 0; left-- {
		g[0].Granted-- // as if there were no more
	}
	b.Answer(g)
	s.passes(5*time.Second - 1)
	s.quiet("half of its time is left")
	s.passes(1)
	if _, c = s.sends(); c.Spent != 10 {
		t.Errorf("%+v", c)
	}
}

// A node that knows the ledger's clock well takes a window to go on until it ends
// there, however long the latest answer took.
func TestWindowLastsAsTheLedgersClockSays(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(10)
	s.spends(8)
	b, _ := s.sends()
	s.passes(2 * time.Second)
	s.settled(b, 2*time.Second)
	s.passes(45*time.Second - 4*time.Second - 100*time.Millisecond)
	s.spends(5)
}

// Under mode approx the ledger hears at once of what it has not granted. What is spent of a lease it knows as granted:
// that is told with the next claim, as in mode leasing, and not for sync_interval's sake.
func TestApproxTellsOfDriftAtOnce(t *testing.T) {
	s, _ := newDriftScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.rule.Coordination.Lease.Fixed, s.rule.Coordination.Lease.TTL = 100, time.Hour
	s.drifts(1)
	if c, _ := s.exchange(); c.Spent != c.Granted+1 {
		t.Errorf("what has drifted is told: %+v", c)
	}
	s.spends(1)
	s.passes(2 * s.rule.SyncInterval())
	s.spends(1)
	s.quiet("it is of the lease")
}

// A rule of mode approx whose ledger fails draws on the node's share first, also
// when little is left: that is what the share is for.
func TestOutageDrawsOnTheShareFirst(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailClosed
	s.other(ratelimit.Claim{Seq: 1, Waiting: 95})
	s.drifts(1)
	s.exchange()
	for _, c := range []struct {
		cost   tokens
		over   bool
		source ratelimit.Source
	}{{11, true, ratelimit.FromFallback}, {10, false, ratelimit.FromDrift}, {2, true, ratelimit.FromFallback}} {
		r := s.asks(c.cost)
		if b := s.Batch(); b != nil {
			b.Fail(errors.New("gone"))
		}
		r.says(c.over, c.source)
	}
}

// What an outage admitted is told when it is over, though nobody asks again: also
// when the ledger knew all before.
func TestIdleNodeTellsOfAnOutage(t *testing.T) {
	for _, policy := range []ratelimit.FailurePolicy{ratelimit.FailOpen, ratelimit.FailCached} {
		s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
		s.rule.Coordination.OnStoreFailure, s.rule.Coordination.MaxStaleness = policy, time.Minute
		s.rule.Coordination.Lease.TTL = time.Hour
		s.leased(5)
		s.passes(3 * time.Second)
		s.sweeps()
		s.exchange() // it gives back 4, and all is known
		r := s.asks(7)
		b, _ := s.sends()
		b.Fail(errors.New("gone"))
		r.says(false, ratelimit.FromFallback)
		s.passes(3 * time.Second)
		s.sweeps()
		if c, _ := s.exchange(); c.Spent != 8 {
			t.Errorf("%v: 8 were spent: %+v", policy, c)
		}
	}
}

// A bucket has no windows: whatever an outage admitted is charged to it.
func TestAnOutageIsChargedToABucket(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Day, Requests: 1, Burst: 100})
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.Lease.Fixed = ratelimit.FailOpen, 10
	r := s.asks(5)
	b, _ := s.sends()
	b.Fail(errors.New("gone"))
	r.says(false, ratelimit.FromFallback)
	s.passes(time.Minute)
	for r = s.asks(1); !r.decided(); {
		s.exchange()
	}
	if v := r.says(false, ratelimit.FromClaim); v.Remaining != 94 {
		t.Errorf("6 of 100 were spent, and %d are left", v.Remaining)
	}
}

// What was left in a window says nothing of the next one.
func TestCachedEndsWithItsWindow(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.MaxStaleness = ratelimit.FailCached, time.Hour
	s.leased(1)
	s.passes(46 * time.Second)
	r := s.asks(5)
	b, _ := s.sends()
	b.Fail(errors.New("gone"))
	r.says(true, ratelimit.FromFallback)
}

// A key for which there is no room is limited on this node alone, whatever
// on_store_failure says: it is not the store that failed. But closed stays closed.
func TestNoRoomIsNoOutage(t *testing.T) {
	for policy, admitted := range map[ratelimit.FailurePolicy]int{ratelimit.FailOpen: 3, ratelimit.FailCached: 3, ratelimit.FailLocal: 3, ratelimit.FailClosed: 0} {
		s := newNodeScript(t, perMinute100)
		s.rule.Coordination.OnStoreFailure, s.rule.Coordination.LocalCap = policy, 3
		got := 0
		for range 10 {
			a := ask{Rule: s.rule, Key: keyOf(1), Cost: 1}
			if v := s.fleet.fail(context.Background(), s.now, &a, ratelimit.FallbackTableFull); !v.OverLimit {
				got++
			}
		}
		if got != admitted {
			t.Errorf("%v: %d of 10 were admitted on this node alone, and local_cap is 3", policy, got)
		}
		a := ask{Rule: s.rule, Key: keyOf(2), Cost: 1}
		for range 10 { // of another key, and each is undone
			v := s.fleet.fail(context.Background(), s.now, &a, ratelimit.FallbackTableFull)
			if v.OverLimit != (admitted == 0) {
				t.Errorf("%v: %+v, and what was admitted before was undone", policy, v)
			}
			s.fleet.undoFallback(s.now, &a, &v)
		}
	}
}

// Undo takes back what an outage charged, once and no more: from what is booked
// for the ledger, from the budget of this node, and from what was left when last
// heard. It leaves alone what others paid, or another window.
func TestUndoOfWhatAnOutageCharged(t *testing.T) {
	for policy, budget := range map[ratelimit.FailurePolicy]tokens{ratelimit.FailOpen: 1 << 40, ratelimit.FailLocal: 5, ratelimit.FailCached: 94} {
		s := newNodeScript(t, perMinute100)
		c := &s.rule.Coordination
		c.OnStoreFailure, c.MaxStaleness, c.LocalCap, c.Lease.Fixed = policy, time.Hour, 5, 1
		r := s.asks(6)
		s.exchange()
		r.says(false, ratelimit.FromClaim)
		fails := func(cost tokens) ([]ask, []verdict) {
			r := s.asks(cost)
			if b := s.Batch(); b != nil {
				b.Fail(errors.New("gone"))
			}
			if !r.decided() {
				t.Fatal("it waits")
			}
			return []ask{{Rule: s.rule, Key: keyOf(1), Cost: cost}}, r.v
		}
		spent := func() tokens {
			sh, _, c := s.fleet.locked(keyOf(1))
			defer sh.mu.Unlock()
			return c.Lease.Spent
		}
		for range 10 {
			asks, v := fails(4)
			if v[0].OverLimit || spent() != 10 {
				t.Fatalf("%v: %+v, and %d are spent", policy, v[0], spent())
			}
			s.Undo(s.now, asks, v)
			if spent() != 6 {
				t.Fatalf("%v: %d are spent, of which 4 were undone", policy, spent()+4)
			}
		}
		if budget < 1<<40 { // none of the 4 is missing
			if _, v := fails(budget); v[0].OverLimit {
				t.Errorf("%v: %d are to be had, of which none is spent: %+v", policy, budget, v[0])
			}
			asks, v := fails(1)
			if !v[0].OverLimit {
				t.Errorf("%v: one more than %d: %+v", policy, budget, v[0])
			}
			s.Undo(s.now, asks, v) // a refusal that took nothing
			if _, v = fails(1); !v[0].OverLimit {
				t.Errorf("%v: one more than %d, after a refusal was undone: %+v", policy, budget, v[0])
			}
		}
	}
}

// A lease of which nothing is left is renewed when somebody asks for more, and not
// because its time passes.
func TestEmptyLeaseIsNotRenewed(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.rule.Coordination.Lease.TTL = 10 * time.Second
	r := s.asks(5)
	b, _ := s.sends()
	g := make([]ratelimit.Grant, 1)
	s.ledger.Settle(s.Context(), b.Claims(), g)
	g[0].Granted = 0
	b.Answer(g)
	r.decided()
	for b := s.Batch(); b != nil; b = s.Batch() {
		b.Answer(g)
	}
	s.passes(6 * time.Second)
	s.asks(0)
	s.quiet("nothing is left of the lease")
}

// A key of which nothing was heard has nothing left to go on against.
func TestCachedOfAnUnknownKey(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailCached
	a := ask{Rule: s.rule, Key: keyOf(2), Cost: 1}
	if v := s.fleet.fail(context.Background(), s.now, &a, ratelimit.FallbackError); !v.OverLimit || v.Charged != 0 {
		t.Errorf("%+v", v)
	}
}

// One token is as much as any: it is undone, too.
func TestUndoOfOne(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.LocalCap = ratelimit.FailLocal, 1
	for range 3 {
		r := s.asks(1)
		if b := s.Batch(); b != nil {
			b.Fail(errors.New("gone"))
		}
		r.says(false, ratelimit.FromFallback)
		s.Undo(s.now, []ask{{Rule: s.rule, Key: keyOf(1), Cost: 1}}, r.v)
	}
}

// What an outage admitted of a key of which no window was known yet, and was then
// undone, is not told to the ledger when it is back.
func TestUndoWithoutALease(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	for _, undone := range []bool{true, false} {
		r := s.asks(5)
		b, _ := s.sends()
		b.Fail(errors.New("gone"))
		r.says(false, ratelimit.FromFallback)
		if undone {
			s.Undo(s.now, []ask{{Rule: s.rule, Key: keyOf(1), Cost: 5}}, r.v)
		}
	}
	r := s.asks(1)
	for !r.decided() {
		s.exchange()
	}
	if v := r.says(false, ratelimit.FromClaim); v.Remaining != 94 {
		t.Errorf("5 and 1 were spent, 5 were undone, and %d of 100 are left", v.Remaining)
	}
}

// spent is what the node's lease of the key has spent.
func (s *nodeScript) spent() tokens {
	sh, _, c := s.fleet.locked(keyOf(1))
	defer sh.mu.Unlock()
	return c.Lease.Spent
}

// outage has the node decide on so much while its ledger fails.
func (s *nodeScript) outage(cost tokens) ([]ask, []verdict) {
	s.Helper()
	r := s.asks(cost)
	if b := s.Batch(); b != nil {
		b.Fail(errors.New("gone"))
	}
	r.says(false, ratelimit.FromFallback)
	return []ask{{Rule: s.rule, Key: keyOf(1), Cost: cost}}, r.v
}

// Of a bucket only that is undone which the ledger has not confirmed: the rest it
// has counted by now, and fills up again.
func TestUndoOfWhatABucketLentInAnOutage(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Day, Requests: 1, Burst: 100})
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.Lease.TTL = ratelimit.FailOpen, time.Hour
	s.leased(10) // one of which is spent
	asks, v := s.outage(12)
	if s.spent() != 13 {
		t.Fatalf("13 were spent: %d", s.spent())
	}
	s.Undo(s.now, asks, v)
	if s.spent() != 10 {
		t.Errorf("of 12 that an outage admitted 3 were beyond the lease, and %d are spent after they were undone, of 13", s.spent())
	}
}

// What is undone was charged in its own window, and no more than that was spent
// there still.
func TestUndoIsOfItsWindow(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.Lease.TTL = ratelimit.FailOpen, time.Hour
	s.leased(10)
	asks, v := s.outage(20)
	refund := []ask{{Rule: s.rule, Key: keyOf(1), Cost: 15, Kind: ratelimit.Refund}}
	if w := s.Ask(s.now, refund, make([]verdict, 1)); w != nil {
		t.Fatal("a refund waits")
	}
	if s.spent() != 6 {
		t.Fatalf("1 and 20 were spent, and 15 given back: %d", s.spent())
	}
	s.Undo(s.now, asks, v)
	if s.spent() != 0 {
		t.Errorf("6 were spent still, 20 are undone: %d", s.spent())
	}
	s.spends(10) // they are here again
	asks, v = s.outage(20)
	s.passes(time.Minute + time.Second)
	r := s.asks(5)
	for !r.decided() {
		s.exchange()
	}
	s.Undo(s.now, asks, v)
	if s.spent() != 5 {
		t.Errorf("5 were spent in this window, and %d are when what the last one admitted is undone", s.spent())
	}
}

// In an outage nothing is charged for a question, nor for what is given back, by
// whatever policy: nobody knows of what.
func TestOutageChargesOnlyWhatIsSpent(t *testing.T) {
	for _, policy := range []ratelimit.FailurePolicy{ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.FailLocal, ratelimit.FailCached} {
		for _, kind := range []ratelimit.Kind{ratelimit.Peek, ratelimit.Refund} {
			s := newNodeScript(t, perMinute100)
			s.rule.Coordination.OnStoreFailure = policy
			a := ask{Rule: s.rule, Key: keyOf(1), Cost: 1000, Kind: kind}
			v := s.fleet.fail(context.Background(), s.now, &a, ratelimit.FallbackError)
			if v.OverLimit || v.Charged != 0 || v.Source != ratelimit.FromFallback || v.ResetAfter != time.Minute {
				t.Errorf("policy %v, kind %v: %+v", policy, kind, v)
			}
		}
	}
}

// A refusal is believed for five seconds, and in windows of up to a minute for twice as long after each answer that
// confirms the one before, up to 20 s: keys beyond their limits make no more claims than that.
func TestRefusalIsAskedForAgainEverLater(t *testing.T) {
	for _, c := range []struct {
		unit ratelimit.Unit
		at   []int // seconds after the first refusal
	}{{ratelimit.Minute, []int{5, 15, 35}}, {ratelimit.Hour, []int{5, 10, 15, 20, 25, 30, 35, 40}}} {
		s := newNodeScript(t, ratelimit.Limit{Unit: c.unit, Requests: 100})
		s.Recalls()
		s.spentElsewhere()
		r := s.asks(1)
		s.exchange()
		r.says(true, ratelimit.FromClaim)
		first := s.now
		var at []int
		for range 43 {
			s.passes(time.Second)
			s.asks(1).says(true, ratelimit.FromLease)
			if b := s.Batch(); b != nil {
				at = append(at, int(s.now.Sub(first)/time.Second))
				s.settled(b, 0)
			}
		}
		if !slices.Equal(at, c.at) {
			t.Errorf("%v: asked again after %v s, want %v", s.rule.Limit, at, c.at)
		}
	}
}
