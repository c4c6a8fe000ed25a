package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// newReserveScript is a node under a rule of 1,000 a minute, of which 10 are held back for five nodes. It knows
// what time it is at the ledger, and nothing else. seat says that it has one.
func newReserveScript(t testing.TB, seat bool) *nodeScript {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 1000})
	s.ledger = roomyLedger(s)
	s.Gathers()
	s.Recalls()
	c := &s.rule.Coordination
	c.Lease.Auto, c.Lease.Reserve, c.MaxNodes = true, ratelimit.Share{PPM: 10_000}, 5
	s.rule.Prepare()
	if seat {
		s.SetDrift(shareOfTwo{})
	}
	other := testRule(perMinute100)
	r := &nodeRequest{nodeScript: s, v: make([]verdict, 1)}
	r.wait = s.Ask(s.now, []ask{{Rule: other, Key: keyOf(99), Cost: 1}}, r.v)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	return s
}

// shareOfTwo is a seat: a fifth of ten tokens.
type shareOfTwo struct{}

func (shareOfTwo) Share(_ ratelimit.Instant, r *ratelimit.Rule, _ ratelimit.LedgerTime) (ratelimit.Tokens, ratelimit.Fence) {
	return r.DriftShare(), 0
}

// The first request of a key is admitted from the reserve, and who asks sees the whole limit. The claim goes with
// others, up to the limit less the reserve.
func TestFirstRequestOfAReserve(t *testing.T) {
	s := newReserveScript(t, true)
	asks, v := []ask{{Rule: s.rule, Key: keyOf(1), Cost: 1}}, make([]verdict, 1)
	if w := s.Ask(s.now, asks, v); w != nil {
		t.Fatal("it waits")
	}
	if v[0].OverLimit || v[0].Source != ratelimit.FromDrift || v[0].Remaining != 999 || asks[0].Rule != s.rule {
		t.Errorf("%+v of %v", v[0], asks[0].Rule.Limit)
	}
	s.quiet("nobody waits")
	s.passes(lease.LongCompany)
	if _, c := s.sends(); c.Limit.Requests != 990 || c.Spent != 1 || c.Tally {
		t.Errorf("%+v", c)
	}
}

// Without a seat a node waits for the ledger, and has no more than the others leave of its part.
func TestReserveWithoutASeat(t *testing.T) {
	s := newReserveScript(t, false)
	r := s.asks(1)
	s.waitsFor(r, 15*time.Millisecond)
	if c, _ := s.exchange(); c.Limit.Requests != 990 {
		t.Errorf("%+v", c)
	}
	if v := r.says(false, ratelimit.FromClaim); v.Remaining != 999 {
		t.Errorf("%+v", v)
	}
	if r.v[0].OverLimit || s.rule.Limit.Requests != 1000 {
		t.Errorf("%+v", r.v[0])
	}
}

// usedUp has another node spend all that the ledger grants, and this one be refused.
func (s *nodeScript) usedUpAtLedger() {
	s.Helper()
	whole := s.rule
	s.rule = whole.AtLedger()
	s.other(ratelimit.Claim{Seq: 1, Waiting: 990})
	at := s.ledger.Booked(&ratelimit.Claim{Key: string(keyOf(1))}).Current
	s.other(ratelimit.Claim{Seq: 2, Window: at, Granted: 990, Spent: 990})
	s.rule = whole
}

// What the ledger refuses, the node admits from its reserve: its own share, and no more. The denials that were
// turned into admissions have charged nothing.
func TestReserveIsSpentInTheEnd(t *testing.T) {
	s := newReserveScript(t, true)
	charges := *s.rule
	charges.Coordination.OnDeny, charges.Counters = ratelimit.DenyCharges, new(ratelimit.RuleCounters)
	s.rule = &charges
	s.usedUpAtLedger()
	s.asks(1).says(false, ratelimit.FromDrift) // nothing is known of the key
	r := s.asks(1)
	s.exchange()
	r.says(false, ratelimit.FromDrift) // the ledger had nothing, and of the share one is left
	for range 3 {
		s.passes(time.Millisecond)
		s.asks(1).says(true, ratelimit.FromLease)
	}
	if h := s.keyHeld(); h.Lease.Drifted() != 2 || h.Lease.Debt != 3 {
		t.Errorf("%d have drifted, and denials have charged %d", h.Lease.Drifted(), h.Lease.Debt)
	}
	if n := s.rule.Counters.OverAdmitted.Load(); n != 0 {
		t.Errorf("%d count as over the limit", n)
	}
}

// The share is one node's: it is not spent for a request that costs more, nor to peek, and undone it is there again.
func TestReserveOfLargeRequests(t *testing.T) {
	s := newReserveScript(t, true)
	s.usedUpAtLedger()
	r := s.asks(3)
	s.exchange()
	r.says(true, ratelimit.FromClaim)
	asks, v := []ask{{Rule: s.rule, Key: keyOf(1), Cost: 2}}, make([]verdict, 1)
	if w := s.Ask(s.now, asks, v); w != nil || v[0].OverLimit || v[0].Charged != 2 {
		t.Fatalf("%+v", v[0])
	}
	s.asks(1).says(true, ratelimit.FromLease)
	s.Undo(s.now, asks, v)
	if asks[0].Rule != s.rule {
		t.Error("the ask has another rule")
	}
	r = s.asks(2)
	s.exchange()
	r.says(false, ratelimit.FromDrift)
	s.asks(1).says(true, ratelimit.FromLease)
}

// decidesIn has a request wait, with the ledger answering at once and rests of half a millisecond, until it is decided.
func (r *nodeRequest) decidesIn(each func(passed time.Duration)) (passed time.Duration) {
	r.Helper()
	began, end := r.now, r.now.Add(r.wait.Patience())
	for range 100 {
		if b := r.Batch(); b != nil {
			r.settled(b, 0)
		}
		if r.decided() {
			return r.now.Sub(began)
		}
		r.passes(500 * time.Microsecond)
		each(r.now.Sub(began))
		if r.now >= end && !r.decided() {
			end = end.Add(r.wait.TimeOver())
		}
	}
	r.Fatal("it is never decided")
	return 0
}

// While others give back, a request waits for that as long as without a reserve.
func TestReserveWaitsForWhatIsRecalled(t *testing.T) {
	s := newReserveScript(t, false)
	at := s.rule.AtLedger()
	other := ratelimit.Claim{Key: string(keyOf(1)), Limit: at.Limit, Holder: 99, Seq: 1, Waiting: 989, Want: 989, TTL: time.Hour, Recall: true, Stretch: true}
	var g [1]ratelimit.Grant
	s.ledger.Settle(s.Context(), []ratelimit.Claim{other}, g[:])
	r := s.asks(5)
	took := r.decidesIn(func(passed time.Duration) {
		if passed == 4*time.Millisecond {
			back := other
			back.Seq, back.Waiting, back.Want, back.Window, back.Fence = 2, 0, 0, g[0].Window, g[0].Fence
			back.Granted, back.Spent, back.Returned = g[0].Granted, 900, g[0].Granted-900
			s.ledger.Settle(s.Context(), []ratelimit.Claim{back}, make([]ratelimit.Grant, 1))
		}
	})
	if r.v[0].OverLimit || took < 4*time.Millisecond {
		t.Errorf("after %v: %+v", took, r.v[0])
	}
}

// In the end a share is spent request by request, and told of in company: not by a claim for each, for the ledger
// has nothing to confirm it with.
func TestSparedRequestsHaveNoClaimsOfTheirOwn(t *testing.T) {
	s := newReserveScript(t, true)
	s.rule = &ratelimit.Rule{Limit: s.rule.Limit, Coordination: s.rule.Coordination, Counters: new(ratelimit.RuleCounters)}
	s.rule.Limit.Requests, s.rule.Coordination.Lease.Reserve = 10_000, ratelimit.Share{PPM: 100_000} // 200 are the share
	part := s.rule.AtLedger()
	var g [1]ratelimit.Grant
	all := ratelimit.Claim{Key: string(keyOf(1)), Limit: part.Limit, Holder: 99, Seq: 1, Waiting: 9000, Want: 9000, TTL: time.Hour}
	s.ledger.Settle(s.Context(), []ratelimit.Claim{all}, g[:])
	all.Seq, all.Window, all.Fence, all.Granted, all.Spent, all.Waiting = 2, g[0].Window, g[0].Fence, 9000, 9000, 0
	s.ledger.Settle(s.Context(), []ratelimit.Claim{all}, g[:])
	s.asks(1).says(false, ratelimit.FromDrift)
	claims, spared := 0, 0
	for range 300 {
		r := s.asks(1)
		for b := s.Batch(); b != nil; b = s.Batch() {
			claims += len(b.Claims())
			s.settled(b, 0)
		}
		if r.decided() && !r.v[0].OverLimit {
			spared++
		}
		s.passes(time.Millisecond)
	}
	if spared != 199 || claims > 2 {
		t.Errorf("%d of a share of 200, and one before, with %d claims", spared, claims)
	}
	if n := s.rule.Counters.UnderAdmitted.Load(); n != 0 {
		t.Errorf("%d count as refused while others held some", n)
	}
}

// What is left by a refusal can be had: the ledger's part, and not its share of the whole.
func TestRemainingOfARefusalCanBeHad(t *testing.T) {
	s := newReserveScript(t, false)
	take := func(n tokens) verdict {
		r := s.asks(n)
		if !r.decided() {
			r.decidesIn(func(time.Duration) {})
		}
		return r.v[0]
	}
	if v := take(450); v.OverLimit {
		t.Fatalf("%+v", v)
	}
	v := take(800)
	if !v.OverLimit || v.Remaining != 540 {
		t.Errorf("%+v", v)
	}
	if v := take(v.Remaining); v.OverLimit || v.Remaining != 0 {
		t.Errorf("%+v", v)
	}
}

// A node that has told the ledger all drifts no more.
func TestEndedNodeDoesNotDrift(t *testing.T) {
	s := newReserveScript(t, true)
	s.asks(1).says(false, ratelimit.FromDrift)
	s.fleet.ended.Store(true) // as releaseAll does
	s.waitsFor(s.asksOf(2), 15*time.Millisecond)
}

// What the reserve had is not counted as refused while others held tokens; what it had not is.
func TestSparedIsNotUnderAdmitted(t *testing.T) {
	s := newReserveScript(t, true)
	s.rule = &ratelimit.Rule{Limit: s.rule.Limit, Coordination: s.rule.Coordination, Counters: new(ratelimit.RuleCounters)}
	others := ratelimit.Claim{Key: string(keyOf(1)), Limit: s.rule.AtLedger().Limit, Holder: 99, Seq: 1, Waiting: 990, Want: 990, TTL: time.Hour}
	s.ledger.Settle(s.Context(), []ratelimit.Claim{others}, make([]ratelimit.Grant, 1))
	under := func(want uint64) {
		t.Helper()
		if n := s.rule.Counters.UnderAdmitted.Load(); n != want {
			t.Errorf("%d tokens count as refused while others held some, want %d", n, want)
		}
	}
	s.asks(1).says(false, ratelimit.FromDrift)
	r := s.asks(1)
	r.decidesIn(func(time.Duration) {})
	r.says(false, ratelimit.FromDrift)
	under(0)
	r = s.asks(1)
	if !r.decided() {
		r.decidesIn(func(time.Duration) {})
	}
	if !r.v[0].OverLimit {
		t.Fatalf("%+v", r.v[0])
	}
	under(1)
}
