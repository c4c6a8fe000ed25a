package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// turning is a node that has leases of twenty tokens of this window and the next,
// one of this spent; every trip to the ledger takes so long, half of it there.
// The window ends at end.
func turning(t testing.TB, trip time.Duration) (s *nodeScript, end instant) {
	s = newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Hour, 20
	end = s.now.Add(45 * time.Second)
	exchange := func() {
		b, _ := s.sends()
		s.passes(trip / 2)
		s.settled(b, trip/2)
	}
	r := s.asks(1)
	exchange()
	r.says(false, ratelimit.FromClaim)
	s.passes(end.Add(-900 * time.Millisecond).Sub(s.now))
	s.asks(0)
	exchange()
	s.quiet("both windows have their leases")
	return s, end
}

// When a node knows the ledger's clock to a fraction of a millisecond, a request
// at the boundary waits for the next window to have begun, and not for the ledger.
func TestTurnWaitsForTheWindow(t *testing.T) {
	s, end := turning(t, 0)
	s.passes(end.Add(-time.Millisecond).Sub(s.now))
	s.spends(2)
	s.passes(time.Millisecond)
	r, other := s.asks(2), s.asks(3)
	if r.decided() || other.decided() {
		t.Fatalf("it is not known which window it is, and it was decided: %+v", r.v)
	}
	s.quiet("the next window has its lease")
	s.passes(time.Millisecond)
	if v := r.says(false, ratelimit.FromClaim); v.Window != perMinute100.WindowAt(ledgertest.Epoch)+1 || v.Charged != 2 {
		t.Errorf("%+v", v)
	}
	other.says(false, ratelimit.FromClaim)
	s.spends(15)
	if r := s.asks(1); r.decided() {
		t.Errorf("20 tokens of the next window were spent, and one more is to be had: %+v", r.v)
	}
}

// When it knows the clock less well, waiting would take too long: what both
// windows' leases have is spent of both, and what one of them has not is
// refused, for as long as that lasts.
func TestTurnInDoubtSpendsOfBoth(t *testing.T) {
	s, end := turning(t, 40*time.Millisecond)
	s.passes(end.Add(-50 * time.Millisecond).Sub(s.now))
	s.spends(2) // of this window: 17 are left, and 20 of the next
	s.passes(50 * time.Millisecond)
	s.spends(4)
	v := s.asks(14).says(true, ratelimit.FromLease) // 13 are left of this
	if v.Charged != 0 || v.ResetAfter < 15*time.Millisecond || v.ResetAfter > 30*time.Millisecond {
		t.Errorf("refused until the next window has begun, which was heard of to 20 ms: %+v", v)
	}
	s.spends(3)
	s.quiet("both windows have their leases")
	s.passes(v.ResetAfter - 1)
	s.asks(1).decided()
	s.quiet("the window is in doubt until then")
	s.passes(1)
	s.spends(13) // the other 7 were spent in doubt
	if r := s.asks(1); r.decided() {
		t.Errorf("one token too many of the next window: %+v", r.v)
	}
}

// What is not in doubt is not spent twice: before the window may be over, its
// own lease is, and the next one's is not touched.
func TestTurnLeavesTheNextLeaseAlone(t *testing.T) {
	s, end := turning(t, 40*time.Millisecond)
	s.passes(end.Add(-50 * time.Millisecond).Sub(s.now))
	s.spends(19)
	r := s.asks(1)
	if r.decided() {
		t.Fatalf("twenty tokens of this window were spent, and one more was had: %+v", r.v)
	}
	s.passes(100 * time.Millisecond)
	s.asks(20).says(false, ratelimit.FromLease)
}

// Under reclaim: eager, what is spent is reported by half of the lease's time,
// whether or not more requests come; what is spent after that, at once. Nothing
// is reported twice.
func TestEagerLeaseReportsInTime(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.rule.Coordination.Reclaim, s.rule.Coordination.Lease.TTL = ratelimit.ReclaimEager, 10*time.Second
	s.rule.Coordination.Lease.Max = 100
	s.leased(100)
	s.passes(5*time.Second - 1)
	s.quiet("half of its time is left")
	s.passes(1)
	c, _ := s.exchange()
	if c.Spent != 1 || c.Reclaim != ratelimit.ReclaimEager {
		t.Errorf("%+v", c)
	}
	s.passes(5 * time.Second)
	s.quiet("nothing was spent since")
	s.spends(1)
	if c, _ = s.exchange(); c.Spent != 2 {
		t.Errorf("%+v", c)
	}
	s.passes(7500*time.Millisecond - 1)
	if v := s.asks(1); !v.decided() {
		t.Error("a quarter of its time is left, and nothing is to be had")
	}
	if _, c := s.sends(); c.Spent != 3 {
		t.Errorf("%+v", c)
	}
	s.passes(1)
	if v := s.asks(1); v.decided() {
		t.Errorf("a lease that is reclaimed eagerly is spent in its last quarter: %+v", v.v)
	}
}

// sweeps looks at everything that the node has.
func (s *nodeScript) sweeps() {
	for range sweepParts {
		s.Sweep(s.now)
	}
}

// What was not used for two seconds is given back, once; a key that is used
// keeps its lease. Nothing is given back that the ledger knows of.
func TestIdleLeaseIsReturned(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(100)
	s.passes(2 * time.Second)
	s.sweeps()
	s.quiet("it was used two seconds ago")
	s.passes(1)
	s.sweeps()
	s.sweeps()
	c, g := s.exchange()
	if c.Spent != 1 || c.Returned != 99 || g.Available != 999 {
		t.Errorf("%+v, %d left", c, g.Available)
	}
	s.passes(time.Hour)
	s.sweeps()
	s.quiet("the ledger knows all")
}

// The last words of a node give back what it has of this window and of the next.
func TestNodeReleasesAll(t *testing.T) {
	s, _ := turning(t, 0)
	claims := s.Release(s.now)
	if len(claims) != 2 {
		t.Fatalf("it has leases of two windows, and its last words are %+v", claims)
	}
	left := map[bool]tokens{}
	for _, c := range claims {
		left[c.Ahead] = c.Granted - c.Spent - c.Returned
		if c.Ahead && c.Returned != 20 || !c.Ahead && c.Returned != 19 {
			t.Errorf("%+v", c)
		}
	}
	if len(left) != 2 {
		t.Errorf("one of this window and one of the next: %+v", claims)
	}
}
