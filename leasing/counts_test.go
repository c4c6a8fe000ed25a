package leasing

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// gauged is what a rule's gauges and counters say of the ledger.
func gauged(c *ratelimit.RuleCounters) string {
	return fmt.Sprintf("leased %d drifting %d stranded %d; over %d under %d; near %d beyond %d used up %d",
		c.Leased.Load(), c.Drifting.Load(), c.Stranded.Load(), c.OverAdmitted.Load(), c.UnderAdmitted.Load(), c.NearBound.Load(), c.BeyondBound.Load(), c.ShareUsedUp.Load())
}

// counts expects what the gauges and counters say.
func (s *nodeScript) counts(want string) {
	s.Helper()
	if got := gauged(s.rule.Counters); got != want {
		s.Errorf("got  %s\nwant %s", got, want)
	}
}

// An operator reads off how much lies at the nodes, of this window and the next,
// and what of it is stranded at nodes that are silent. When the key is over, or
// its window, nothing is left of it in the gauges.
func TestGaugesOfLeases(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Counters, s.rule.Coordination.Lease.TTL = &ratelimit.RuleCounters{}, time.Hour
	s.other(ratelimit.Claim{Seq: 1, Waiting: 30, TTL: time.Second})
	s.passes(time.Second)
	s.leased(20)
	s.counts("leased 20 drifting 0 stranded 30; over 0 under 0; near 0 beyond 0 used up 0")
	s.passes(43500 * time.Millisecond) // half a second before the window ends
	s.asks(0)
	s.exchange()
	s.counts("leased 39 drifting 0 stranded 30; over 0 under 0; near 0 beyond 0 used up 0")
	s.passes(time.Second)
	s.spends(1) // the gauges are as of the last claim or turn
	s.counts("leased 20 drifting 0 stranded 0; over 0 under 0; near 0 beyond 0 used up 0")
	s.passes(2 * time.Minute)
	s.sweeps()
	s.counts("leased 0 drifting 0 stranded 0; over 0 under 0; near 0 beyond 0 used up 0")
}

// Tokens that were refused here while others held them count as refused too
// many: as many as the others had, and no more.
func TestUnderAdmissionIsCounted(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Counters = &ratelimit.RuleCounters{}
	s.other(ratelimit.Claim{Seq: 1, Waiting: 93})
	r := s.asks(90)
	s.exchange()
	r.says(true, ratelimit.FromClaim)
	s.counts("leased 7 drifting 0 stranded 0; over 0 under 90; near 0 beyond 0 used up 0")
	s.asks(90).says(true, ratelimit.FromLease)
	s.counts("leased 7 drifting 0 stranded 0; over 0 under 93; near 0 beyond 0 used up 0")
	s.asks(90).says(true, ratelimit.FromLease)
	s.counts("leased 7 drifting 0 stranded 0; over 0 under 93; near 0 beyond 0 used up 0")
}

// Drift is shown while it is unconfirmed. What went over is counted as the ledger
// tells of it; a window counts once as near what its rule declares, from four
// fifths of it on, and once as beyond.
func TestDriftIsCounted(t *testing.T) {
	for _, c := range []struct {
		declared      tokens
		first, second string // near and beyond, when 5 are over, and when 8 are
	}{
		{10, "near 0 beyond 0", "near 1 beyond 0"},
		{8, "near 0 beyond 0", "near 1 beyond 0"},
		{6, "near 1 beyond 0", "near 1 beyond 1"},
		{5, "near 1 beyond 0", "near 1 beyond 1"},
		{4, "near 1 beyond 1", "near 1 beyond 1"},
	} {
		s, _ := newDriftScript(t, perMinute100)
		s.rule.Counters, s.rule.Coordination.DriftBudget = &ratelimit.RuleCounters{}, ratelimit.Share{Tokens: c.declared}
		s.drifts(6)
		s.counts("leased 0 drifting 6 stranded 0; over 0 under 0; near 0 beyond 0 used up 0")
		s.other(ratelimit.Claim{Seq: 1, Waiting: 98})
		s.other(ratelimit.Claim{Seq: 2, Window: s.ledger.Booked(&ratelimit.Claim{Key: string(keyOf(1))}).Current, Granted: 98, Spent: 98})
		b, _ := s.sends()
		s.drifts(3)
		s.settled(b, 0) // 1 + 6 + 98 are 5 over
		s.counts("leased 0 drifting 8 stranded 0; over 5 under 0; " + c.first + " used up 0")
		s.passes(3 * time.Second)
		s.sweeps()
		s.exchange()
		s.counts("leased 0 drifting 8 stranded 0; over 8 under 0; " + c.second + " used up 0")
	}
}

// A decision that waited, and then found the node's share used up, is counted:
// the drift budget is too small for this demand.
func TestUsedUpShareIsCounted(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.rule.Counters = &ratelimit.RuleCounters{}
	s.drifts(10)
	r := s.asks(1)
	s.counts("leased 0 drifting 10 stranded 0; over 0 under 0; near 0 beyond 0 used up 0")
	s.passes(2 * time.Millisecond)
	r.wait.TimeOver()
	r.decided()
	s.counts("leased 0 drifting 10 stranded 0; over 0 under 0; near 0 beyond 0 used up 1")
}

// What a node did, by what for: an operator asks why the ledger is so busy.
func TestFleetCounts(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL = time.Minute
	says := func(when, want string) {
		t.Helper()
		c := s.Stats()
		got := fmt.Sprintf("claims %d trips %d failed %d by %v; stale %d void %d recoveries %d; leases %d sizes %d; fallbacks %v breaker %v",
			c.Claims, c.RoundTrips, c.Failed, c.ClaimsBy, c.Stale, c.Void, c.Recoveries, c.Leases, c.LeaseSizes.Count, c.Fallbacks, c.BreakerOpen)
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", when, got, want)
		}
	}
	s.leased(20)
	says("a request waited", "claims 1 trips 1 failed 0 by [1 0 0 0 0]; stale 0 void 0 recoveries 0; leases 1 sizes 1; fallbacks [0 0 0 0 0 0] breaker false")
	s.spends(15)
	s.exchange()
	says("renewed", "claims 2 trips 2 failed 0 by [1 1 0 0 0]; stale 0 void 0 recoveries 0; leases 1 sizes 2; fallbacks [0 0 0 0 0 0] breaker false")
	s.passes(44500 * time.Millisecond)
	s.asks(0)
	s.exchange()
	says("the next window's", "claims 3 trips 3 failed 0 by [1 1 1 0 0]; stale 0 void 0 recoveries 0; leases 1 sizes 3; fallbacks [0 0 0 0 0 0] breaker false")
	s.passes(5 * time.Second)
	s.sweeps()
	s.exchange()
	says("given back", "claims 4 trips 4 failed 0 by [1 1 1 1 0]; stale 0 void 0 recoveries 0; leases 1 sizes 3; fallbacks [0 0 0 0 0 0] breaker false")
	s.ledger.Forget()
	r := s.asks(1)
	s.exchange()
	r.decided()
	for range breakAfter {
		s.passes(time.Minute)
		r := s.asks(1)
		b, _ := s.sends()
		b.Fail(errors.New("gone"))
		r.decided()
	}
	c := s.Stats()
	if c.Failed != breakAfter || !c.BreakerOpen || c.Fallbacks[ratelimit.FallbackError] != breakAfter || c.SyncAge != breakAfter*time.Minute {
		t.Errorf("three batches failed, a minute each: %+v", c)
	}
}
