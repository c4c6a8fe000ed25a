package leasing

import (
	"errors"
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

// In doubt for longer than two milliseconds, it decides; for less, the request
// waits.
func TestDoubtIsShortOrDecided(t *testing.T) {
	s, _ := turning(t, 40*time.Millisecond)
	n := s.next()
	s.passes(n.Start.Add(-2*time.Millisecond - 1).Sub(s.now))
	s.spends(1)
	s.passes(1)
	if r := s.asks(1); r.decided() {
		t.Errorf("2 ms before the next window has certainly begun: %+v", r.v[0])
	}
	s.quiet("both windows have their leases")
}

// What the next window's lease has, to the last token, may be spent in doubt.
func TestDoubtSpendsToTheLast(t *testing.T) {
	s, _ := turning(t, 40*time.Millisecond)
	n := s.next()
	n.Lease.Granted = 5
	s.passes(n.Over.Sub(s.now))
	s.asks(6).says(true, ratelimit.FromLease)
	s.spends(5)
	s.asks(1).says(true, ratelimit.FromLease)
	n.Lease.Granted, s.now = 20, n.Start.Add(-3*time.Millisecond)
	s.asks(17).says(true, ratelimit.FromLease) // 19 - 5 are left of this window
	s.spends(14)
}

// A lease lasts until its window may be over as the node knows it last: it has
// heard the ledger's clock better since.
func TestBetterNewsLengthensALease(t *testing.T) {
	s, end := turning(t, 40*time.Millisecond)
	b, _ := func() (*Batch, ratelimit.Claim) { s.spends(15); return s.sends() }()
	s.settled(b, 0) // no trip: the clock is known to the microsecond
	s.next().Over = end.Add(-time.Millisecond)
	s.passes(end.Add(-2 * time.Millisecond).Sub(s.now))
	s.spends(1)
}

// Windows follow each other without a request that waits for the ledger: each
// turn makes the next lease the current one, with its own time, and the one after
// it is claimed by the name that is free.
func TestWindowAfterWindow(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = 150*time.Second, 20
	s.leased(20)
	end := instant(time.Hour).Add(45 * time.Second)
	name := s.fleet.name
	for range 3 {
		s.passes(end.Add(-500 * time.Millisecond).Sub(s.now))
		s.asks(0)
		b, c := s.sends()
		if !c.Ahead || c.Holder != name^1 || c.Waiting != 0 {
			t.Fatalf("half a second before the window ends it sends %+v, by the name of the window's own lease (%d)", c, name)
		}
		s.settled(b, 0)
		s.spends(1)
		s.passes(time.Second)
		s.spends(2)
		s.quiet("the window has its lease")
		name ^= 1
		end = end.Add(time.Minute)
		s.passes(30 * time.Second)
		s.spends(1)
	}
}

// What is claimed for the next window is what lasts for two seconds at the
// demand of this one.
func TestNextWindowIsClaimedByDemand(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 41})
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(0)
	s.passes(4 * time.Second)
	r := s.asks(40)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.passes(40 * time.Second)
	s.asks(0)
	if _, c := s.sends(); !c.Ahead || c.Want != 3 { // 41 in 4 s, and 40 in 40, which says more: 1.2 a second
		t.Errorf("%+v", c)
	}
}

// A ledger that does not tell what time it is has no leases claimed ahead: nobody
// would know from when on they count. Nor is one kept that was given up.
func TestNextWindowNeedsAClock(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Hour, 20
	s.leased(20)
	s.passes(44500 * time.Millisecond)
	s.asks(0)
	b, _ := s.sends()
	g := make([]ratelimit.Grant, 1)
	s.ledger.Settle(s.Context(), b.Claims(), g)
	g[0].At = 0
	b.Answer(g)
	if n := s.next(); n != nil {
		t.Errorf("%+v", n)
	}
}

// A lease of another window than the one that was claimed is none of the next:
// from when on it counts nobody has said.
func TestNextWindowIsTheOneThatWasClaimed(t *testing.T) {
	for _, by := range []window{0, 1} {
		s := newNodeScript(t, perMinute100)
		s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Hour, 20
		s.leased(20)
		s.passes(44500 * time.Millisecond)
		s.asks(0)
		b, _ := s.sends()
		g := make([]ratelimit.Grant, 1)
		s.ledger.Settle(s.Context(), b.Claims(), g)
		g[0].Window += by
		b.Answer(g)
		if kept := s.next() != nil; kept != (by == 0) {
			t.Errorf("answered of %d windows later than claimed: kept %v", by, kept)
		}
	}
}

// Until when a next window's lease is renewed, and expires, is counted from when
// its claim was sent.
func TestNextLeaseIsCountedFromItsClaim(t *testing.T) {
	s, end := turning(t, 200*time.Millisecond)
	sent := end.Add(-900 * time.Millisecond)
	n := s.next()
	if got := n.After.Sub(sent); got != 30*time.Minute {
		t.Errorf("renewed %v after it was claimed, for an hour", got)
	}
	if n.Told != sent {
		t.Errorf("told %v after it was claimed", n.Told.Sub(sent))
	}
	if got := n.Expires.Sub(sent); got != 57*time.Minute {
		t.Errorf("expires %v after it was claimed, for an hour", got)
	}
}

// What the ledger said of a window is not old because the next began: heard is
// when the next one's lease was answered.
func TestTurnKeepsWhatWasHeard(t *testing.T) {
	s, end := turning(t, 0)
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.MaxStaleness = ratelimit.FailCached, 10*time.Second
	s.passes(end.Add(time.Second).Sub(s.now))
	s.spends(20)
	for b := s.Batch(); b != nil; b = s.Batch() {
		b.Fail(errors.New("gone"))
	}
	r := s.asks(30)
	if b := s.Batch(); b != nil {
		b.Fail(errors.New("gone"))
	}
	r.says(false, ratelimit.FromFallback)
}

// A lease that was claimed eagerly stays one when its window begins: what is spent
// of it is reported by half of its time.
func TestEagerLeaseOfTheNextWindow(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Reclaim, s.rule.Coordination.Lease.TTL = ratelimit.ReclaimEager, 20*time.Second
	s.rule.Coordination.Lease.Max, s.rule.Coordination.Lease.Fixed = 20, 20
	s.passes(40 * time.Second)
	s.leased(20)
	s.passes(4500 * time.Millisecond)
	s.asks(0)
	b, c := s.sends()
	if !c.Ahead || c.Reclaim != ratelimit.ReclaimEager {
		t.Fatalf("%+v", c)
	}
	s.settled(b, 0)
	s.passes(time.Second)
	s.spends(1)
	s.passes(8500 * time.Millisecond)
	for b := s.Batch(); b != nil; b = s.Batch() { // of the window before
		s.settled(b, 0)
	}
	s.passes(500*time.Millisecond - 1)
	s.quiet("half of its time is left")
	s.passes(1)
	if _, c := s.sends(); c.Spent != 1 {
		t.Errorf("%+v", c)
	}
}

// Where trips are long beside the period, the next window is claimed half a
// period before it begins at the earliest.
func TestNextWindowOfAShortPeriod(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Second, Requests: 100})
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Hour, 20
	s.asks(1)
	b, _ := s.sends()
	s.settled(b, 300*time.Millisecond)
	for _, c := range []struct {
		at    time.Duration // after the window began
		ahead bool
	}{{500*time.Millisecond - 1, false}, {500 * time.Millisecond, true}} {
		s.passes(instant(time.Hour).Add(c.at).Sub(s.now))
		s.asks(0)
		if b := s.Batch(); (b != nil) != c.ahead {
			t.Errorf("%v after the window began, of 1 s: claimed ahead %v, want %v", c.at, b != nil, c.ahead)
		}
	}

	s = newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Second, Requests: 100})
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(20)
	s.passes(749 * time.Millisecond)
	s.asks(0)
	s.quiet("it is early: more than a quarter of the period is left")
	s.passes(time.Millisecond)
	s.asks(0)
	s.exchange()
}

// Leases that last less than two seconds are claimed ahead by half of that: more
// would be over before it could be spent.
func TestNextWindowOfShortLeases(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Second, 20
	s.passes(44200 * time.Millisecond)
	s.leased(20)
	for _, c := range []struct {
		at    time.Duration
		ahead bool
	}{{44500*time.Millisecond - 1, false}, {44500 * time.Millisecond, true}} {
		s.passes(instant(time.Hour).Add(c.at).Sub(s.now))
		s.asks(0)
		if b := s.Batch(); (b != nil) != c.ahead {
			t.Errorf("at %v of 45 s: claimed ahead %v, want %v", c.at, b != nil, c.ahead)
		}
	}
}

// A lease that expires before its window ends does so although the next window's
// is there already.
func TestShortLeaseExpiresBeforeItsWindow(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Second, 20
	s.passes(44 * time.Second)
	s.leased(20)
	s.passes(500 * time.Millisecond)
	s.asks(0)
	if c, _ := s.exchange(); !c.Ahead {
		t.Fatalf("%+v", c)
	}
	s.passes(450*time.Millisecond - 1)
	s.spends(1)
	s.passes(1)
	if r := s.asks(1); r.decided() {
		t.Errorf("950 ms after a lease of a second was claimed, 50 ms before its window ends: %+v", r.v[0])
	}
}

// A node that has heard the ledger's clock better since, in the answer about the
// next window, spends this one's lease until it may be over as it knows now.
func TestNextLeaseTellsWhenThisOneEnds(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Hour, 20
	end := s.now.Add(45 * time.Second)
	s.asks(1)
	b, _ := s.sends()
	s.passes(20 * time.Millisecond)
	s.settled(b, 20*time.Millisecond)
	s.passes(end.Add(-900 * time.Millisecond).Sub(s.now))
	s.asks(0)
	s.exchange()
	s.passes(end.Add(-5 * time.Millisecond).Sub(s.now))
	s.spends(1)
}

// In doubt of which window it is, nothing but spending is decided: what is given
// back waits until that is known, and is not charged.
func TestDoubtChargesOnlyWhatIsSpent(t *testing.T) {
	s, _ := turning(t, 40*time.Millisecond)
	n := s.next()
	s.passes(n.Over.Sub(s.now))
	r := &nodeRequest{nodeScript: s, v: make([]verdict, 1)}
	r.wait = s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(1), Cost: 5, Kind: ratelimit.Refund}}, r.v)
	if r.decided() {
		t.Errorf("a refund in doubt: %+v", r.v[0])
	}
	s.passes(n.Start.Sub(s.now))
	s.spends(20)
}

// A key that was only looked at has a token claimed for its next window, too.
func TestNextWindowIsClaimedForWhoOnlyLooked(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Min = time.Hour, 0
	s.asks(0)
	s.exchange()
	s.passes(44500 * time.Millisecond)
	s.asks(0)
	if _, c := s.sends(); !c.Ahead || c.Want < 1 {
		t.Errorf("%+v", c)
	}
}

// The next window's lease of a key that nobody asks for is given back as any: its
// turn comes also when nobody looks.
func TestIdleLeaseOfTheNextWindowIsReturned(t *testing.T) {
	s, end := turning(t, 0)
	s.passes(end.Add(3 * time.Second).Sub(s.now))
	s.sweeps()
	if c, _ := s.exchange(); c.Returned != 20 || c.Holder != s.fleet.name^1 {
		t.Errorf("it claims %+v", c)
	}
}

// A lease counts as leased until its window is over, and not at that instant any
// more, when the sweep comes by.
func TestGaugeAtTheEndOfAWindow(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Counters, s.rule.Coordination.Lease.TTL = &ratelimit.RuleCounters{}, time.Hour
	s.leased(5)
	s.passes(s.keyHeld().Lease.Reset.Sub(s.now) - 1)
	s.keyHeld().Demand.LastUse = s.now // it is not idle
	s.sweeps()
	if n := s.rule.Counters.Leased.Load(); n == 0 {
		t.Error("nothing is leased, and the window goes on")
	}
	s.passes(1)
	s.sweeps()
	if n := s.rule.Counters.Leased.Load(); n != 0 {
		t.Errorf("%d are leased, and the window is over", n)
	}
}

// An idle lease is given back also when the ledger knows of all that was spent of it.
func TestIdleLeaseThatIsKnownIsReturned(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(20)
	h := s.keyHeld()
	h.Reported = h.Lease.Spent // as after a report
	s.passes(3 * time.Second)
	s.sweeps()
	if c, _ := s.exchange(); c.Returned != 19 {
		t.Errorf("it claims %+v", c)
	}
}

// While a node's last word on a key is under way, no other claim is made for it.
func TestLastWordsAreTheOnlyClaims(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(5)
	if claims := s.Release(s.now); len(claims) != 1 {
		t.Fatalf("%+v", claims)
	}
	s.asks(50)
	s.quiet("the last word is under way")
}
