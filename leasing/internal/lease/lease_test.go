package lease

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// leaseScript plays one lease against grants that the test makes up.
type leaseScript struct {
	testing.TB
	Lease
	rule  *ratelimit.Rule
	now   instant
	claim ratelimit.Claim
}

// newLeaseScript has a lease of so many tokens for 10 s of a minute that has 30
// more, of which ten seconds have passed; it starts at an hour.
func newLeaseScript(t testing.TB, algorithm ratelimit.Algorithm, granted tokens) *leaseScript {
	rule := testRule(ratelimit.Limit{Algorithm: algorithm, Unit: ratelimit.Minute, Requests: 100})
	if algorithm == ratelimit.TokenBucket {
		rule.Limit.Burst = 100
	}
	rule.Coordination.Lease.TTL = 10 * time.Second
	s := &leaseScript{TB: t, rule: rule, now: instant(time.Hour)}
	s.claims(0, granted)
	s.answered(ratelimit.Grant{Granted: granted, Available: 30, Fence: 1})
	return s
}

func (s *leaseScript) claims(waiting, want tokens) {
	s.claim = s.Lease.Claim(s.now, s.Lease.Seq+1, s.rule, waiting, want, Keeps) //nolint:staticcheck // the field claim hides the method
}

// answered has the claim answered at once. What the test does not say is as in
// newLeaseScript.
func (s *leaseScript) answered(g ratelimit.Grant) {
	if g.Seq == 0 {
		g.Seq = s.claim.Seq
	}
	if g.Window == 0 {
		g.Window = 7
	}
	if g.TTL == 0 {
		g.TTL = 10 * time.Second
	}
	if g.ResetAfter == 0 {
		g.ResetAfter = 50 * time.Second
	}
	g.Carried = s.claim.Window == g.Window
	s.Apply(s.now, &s.claim, &g, time.Second, s.now.Add(g.ResetAfter))
}

func (s *leaseScript) asks(kind ratelimit.Kind, cost tokens) (verdict, bool) {
	return s.Take(s.now, &ask{Rule: s.rule, Kind: kind, Cost: cost}, Keeps)
}

// spends expects that so many tokens are had here.
func (s *leaseScript) spends(n tokens) verdict {
	s.Helper()
	v, ok := s.asks(ratelimit.Spend, n)
	if !ok || v.OverLimit || v.Charged != n {
		s.Fatalf("%d tokens are not to be had: %+v %v, of %+v", n, v, ok, s.Lease)
	}
	return v
}

// spend is a request.
func (s *leaseScript) spend(n tokens) *ask { return &ask{Rule: s.rule, Kind: ratelimit.Spend, Cost: n} }

// mustAsk expects that the ledger has to be asked.
func (s *leaseScript) mustAsk(kind ratelimit.Kind, n tokens) {
	s.Helper()
	if v, ok := s.asks(kind, n); ok {
		s.Errorf("the ledger should have been asked, and the lease decided %+v", v)
	}
}

// denies expects a refusal without asking.
func (s *leaseScript) denies(n tokens) verdict {
	s.Helper()
	v, ok := s.asks(ratelimit.Spend, n)
	if !ok || !v.OverLimit {
		s.Errorf("%d tokens should have been refused at once: %+v %v", n, v, ok)
	}
	return v
}

func (s *leaseScript) holds(granted, spent, returned tokens) {
	s.Helper()
	if s.Granted != granted || s.Spent != spent || s.Returned != returned {
		s.Errorf("granted %d, spent %d, returned %d; it should be %d, %d, %d", s.Granted, s.Spent, s.Returned, granted, spent, returned)
	}
}

// A lease is spent to its last token, and what a verdict says is left counts
// what the ledger has, too.
func TestLeaseIsSpentToTheLast(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	if v := s.spends(3); v.Remaining != 32 || v.ResetAfter != 50*time.Second || v.Window != 7 {
		t.Errorf("2 are left here and 30 there, until the window ends in 50 s: %+v", v)
	}
	s.mustAsk(ratelimit.Spend, 3)
	s.spends(2)
	s.mustAsk(ratelimit.Spend, 1)
	s.holds(5, 5, 0)
}

// Nothing is spent from its deadline on, which is its time less the margin,
// counted from when the claim was sent. The next claim gives it back.
func TestLeaseEndsBeforeTheLedgerThinksSo(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	s.now = s.now.Add(9*time.Second - 1)
	s.spends(1)
	s.now++
	for kind := range ratelimit.Kind(3) {
		s.mustAsk(kind, 1)
	}
	s.claims(1, 1)
	if s.claim.Spent != 1 || s.claim.Returned != 4 || s.claim.Granted != 5 || s.claim.Fence != 1 || s.claim.Window != 7 {
		t.Errorf("4 of 5 tokens lie here after the deadline, and the claim says %+v", s.claim)
	}
}

// A window's lease ends with the window at the latest, however long its time.
func TestLeaseEndsWithItsWindow(t *testing.T) {
	for algorithm := range ratelimit.Algorithms {
		s := newLeaseScript(t, ratelimit.Algorithm(algorithm), 5)
		s.claims(0, 5)
		s.answered(ratelimit.Grant{Granted: 5, ResetAfter: 4 * time.Second})
		want := s.now.Add(4 * time.Second)
		if ratelimit.Algorithm(algorithm) == ratelimit.TokenBucket { // it does not end: in 4 s it is full
			want = s.now.Add(9 * time.Second)
		}
		if s.Deadline != want || s.Reset != s.now.Add(4*time.Second) {
			t.Errorf("%s: the deadline is in %v, and the reset in %v", ratelimit.Algorithms[algorithm], s.Deadline.Sub(s.now), s.Reset.Sub(s.now))
		}
	}
}

// Only the answer to the latest claim counts: an older one would bring back
// tokens that were given up since.
func TestLeaseHearsOnlyItsLatestClaim(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	s.claims(1, 1)
	before := s.Lease
	s.answered(ratelimit.Grant{Seq: s.claim.Seq - 1, Granted: 99})
	s.answered(ratelimit.Grant{Seq: s.claim.Seq + 1, Granted: 99})
	s.answered(ratelimit.Grant{Granted: 99, Err: ratelimit.ErrStaleClaim})
	if s.Lease != before {
		t.Errorf("it took in an answer that is not to its latest claim: %+v", s.Lease)
	}
	s.answered(ratelimit.Grant{Granted: 6, Fence: 2})
	s.holds(6, 0, 0)
	if s.Fence != 2 {
		t.Errorf("the fence of the latest grant is 2, and it has %d", s.Fence)
	}
}

// A new window begins with nothing spent, and nothing owed. A bucket has one
// life: what was spent of it stays.
func TestLeaseOfANewWindow(t *testing.T) {
	for algorithm := range ratelimit.Algorithms {
		s := newLeaseScript(t, ratelimit.Algorithm(algorithm), 5)
		s.spends(3)
		s.Returned, s.Debt = 1, 4
		s.claims(1, 1)
		s.answered(ratelimit.Grant{Granted: 8, Window: 8})
		if ratelimit.Algorithm(algorithm) == ratelimit.TokenBucket {
			s.holds(8, 3, 1)
			continue
		}
		s.holds(8, 0, 0)
		if s.Debt != 0 {
			t.Errorf("%s: %d hits are owed of a window that is over", ratelimit.Algorithms[algorithm], s.Debt)
		}
	}
}

// Where the ledger has said that there is nothing, until when, and nobody else
// holds any, requests are refused without asking: those that cost more than
// what there is.
func TestLeaseRefusesWithoutAsking(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	s.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	s.claims(8, 8)
	s.answered(ratelimit.Grant{Granted: 5, Available: 2, RetryAfter: 20 * time.Second})
	if v := s.denies(8); v.Charged != 0 || v.Remaining != 7 || v.ResetAfter != 20*time.Second {
		t.Errorf("8 of 5 here and 2 there: refused for 20 s, and nothing is taken: %+v", v)
	}
	s.mustAsk(ratelimit.Spend, 7) // 2 more than here: the ledger has them
	s.now = s.now.Add(9 * time.Second)
	s.denies(8) // what lies here since the deadline is had back by asking
	s.now = s.now.Add(11*time.Second - 1)
	s.denies(8)
	s.now++
	s.mustAsk(ratelimit.Spend, 8)
}

// As long as others hold tokens they may return them: then it asks.
func TestLeaseAsksWhileOthersHoldTokens(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 0)
	for _, c := range []struct {
		waiting tokens
		grant   ratelimit.Grant
	}{
		{8, ratelimit.Grant{RetryAfter: 20 * time.Second, Outstanding: 1}},
		{0, ratelimit.Grant{RetryAfter: 20 * time.Second}}, // nobody waited: nothing was refused
		{8, ratelimit.Grant{}},
	} {
		s.claims(c.waiting, 8)
		s.answered(c.grant)
		s.mustAsk(ratelimit.Spend, 8)
	}
}

// A ledger that is being told what it had forgotten grants nothing yet, whatever
// it says is left.
func TestLeaseWhileTheLedgerRelearns(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 0)
	s.claims(1, 1)
	s.answered(ratelimit.Grant{Available: 90, RetryAfter: time.Second, Relearning: true})
	s.denies(1)
	s.now = s.now.Add(time.Second)
	s.mustAsk(ratelimit.Spend, 1)
}

// A denial that charges drains what is left, and of a fixed window owes the
// rest: refunds pay that first. One that refunds takes nothing.
func TestDenialsDrain(t *testing.T) {
	for algorithm := range ratelimit.Algorithms {
		for onDeny := range ratelimit.OnDenies {
			s := newLeaseScript(t, ratelimit.Algorithm(algorithm), 5)
			s.rule.Coordination.OnDeny = ratelimit.OnDeny(onDeny)
			s.spends(1)
			v := s.Settled(s.now, &ask{Rule: s.rule, Kind: ratelimit.Spend, Cost: 9}, Keeps)
			charged, debt := tokens(4), tokens(5)
			if algorithm != int(ratelimit.FixedWindow) {
				debt = 0
			}
			if s.rule.Coordination.OnDeny != ratelimit.DenyCharges {
				charged, debt = 0, 0
			}
			if !v.OverLimit || v.Charged != charged || v.Source != ratelimit.FromClaim || s.Debt != debt || s.Spent != 1+charged {
				t.Errorf("%s, on_deny %s: 9 of 4 were refused: %+v, of %+v", ratelimit.Algorithms[algorithm], ratelimit.OnDenies[onDeny], v, s.Lease)
			}
		}
	}
}

// What is owed is paid first, so that a counter above its limit comes down as
// envoyproxy/ratelimit's does; then a window has its tokens back here. A bucket
// has them back at the ledger, which alone knows how full it is.
func TestRefunds(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	s.Settled(s.now, &ask{Rule: s.rule, Kind: ratelimit.Spend, Cost: 7}, Keeps) // drains 5, owes 2
	if v, ok := s.asks(ratelimit.Peek, 0); !ok || v.OverLimit {
		t.Errorf("30 are left at the ledger: %+v %v", v, ok)
	}
	s.Available = 0
	if v, ok := s.asks(ratelimit.Peek, 0); !ok || !v.OverLimit {
		t.Errorf("7 hits of 5 are over the limit: %+v %v", v, ok)
	}
	for _, c := range []struct{ refund, debt, spent, left tokens }{{1, 1, 5, 0}, {3, 0, 3, 2}, {99, 0, 0, 5}} {
		if v, ok := s.asks(ratelimit.Refund, c.refund); !ok || v.OverLimit || v.Charged != 0 || v.Remaining != c.left || s.Debt != c.debt || s.Spent != c.spent {
			t.Errorf("after a refund of %d: %+v, of %+v", c.refund, v, s.Lease)
		}
	}
	if v, _ := s.asks(ratelimit.Peek, 0); v.OverLimit {
		t.Errorf("nothing is spent, and it is over the limit: %+v", v)
	}

	b := newLeaseScript(t, ratelimit.TokenBucket, 5)
	b.spends(4)
	if v, ok := b.asks(ratelimit.Refund, 3); !ok || v.Remaining != 31 {
		t.Errorf("1 is left here and 30 there, and the 3 are on their way: %+v %v", v, ok)
	}
	b.holds(5, 1, 3)
}

// A bucket's drift had not been granted: giving it back returns nothing.
func TestRefundOfDrift(t *testing.T) {
	s := newLeaseScript(t, ratelimit.TokenBucket, 5)
	s.Overdraw(s.now, 8, 10)
	s.refund(4, Returns)
	s.holds(5, 4, 1)
}

// A refund makes it worth asking again before the time that the ledger said.
func TestRefundEndsARefusal(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	s.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	s.spends(5)
	s.claims(1, 1)
	s.answered(ratelimit.Grant{Granted: 5, RetryAfter: 20 * time.Second})
	s.Available = 0
	s.denies(1)
	s.asks(ratelimit.Refund, 1)
	s.spends(1)
	s.mustAsk(ratelimit.Spend, 1)
}

// Undo takes back what a verdict charged, also what it owed; not when the
// window has turned since, whose tokens others have paid.
func TestUndoWithinItsWindow(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	a := &ask{Rule: s.rule, Kind: ratelimit.Spend, Cost: 2}
	v := s.spends(2)
	s.Undo(a, &v, Keeps)
	s.holds(5, 0, 0)
	s.spends(1)
	a.Cost = 9
	v = s.Settled(s.now, a, Keeps) // drains 4, owes 5
	s.addDebt(a, 2)                // another's
	s.Undo(a, &v, Keeps)
	s.holds(5, 1, 0)
	if s.Debt != 2 {
		t.Errorf("%d hits are owed, and 2 of them are another's", s.Debt)
	}
	v = s.spends(3)
	s.claims(1, 1)
	s.answered(ratelimit.Grant{Granted: 6, Window: 8})
	s.spends(4)
	s.Undo(a, &v, Keeps)
	s.holds(6, 4, 0)
}

// Undo takes back no more than the verdict charged: no debt where the request owed none, for it was
// admitted, or only looked, or nobody charges denials now; and no more than is spent still, where
// another has had a refund meanwhile.
func TestUndoTakesBackOnlyItsOwn(t *testing.T) {
	for _, c := range []struct {
		name    string
		undoes  func(s *leaseScript)
		debt    tokens
		spentAt tokens
	}{
		{"an admitted request", func(s *leaseScript) { v := s.spends(2); s.Undo(s.spend(2), &v, Keeps) }, 5, 0},
		{"a look", func(s *leaseScript) {
			a := &ask{Rule: s.rule, Kind: ratelimit.Peek, Cost: 3}
			v, _ := s.Take(s.now, a, Keeps)
			s.Undo(a, &v, Keeps)
		}, 5, 0},
		{"a refusal that was not charged, for on_deny was changed", func(s *leaseScript) {
			s.rule.Coordination.OnDeny = ratelimit.DenyRefunds
			v := s.Deny(s.now, s.spend(20))
			s.Undo(s.spend(20), &v, Keeps)
		}, 5, 0},
		{"a refusal that was not charged, for others had tokens", func(s *leaseScript) {
			s.Split = true
			v := s.Deny(s.now, s.spend(20))
			s.Undo(s.spend(20), &v, Keeps)
		}, 5, 0},
		{"an admitted request of which another was refunded a part", func(s *leaseScript) {
			s.Debt = 0
			v := s.spends(3)
			s.asks(ratelimit.Refund, 2)
			s.Undo(s.spend(3), &v, Keeps)
		}, 0, 0},
	} {
		s := newLeaseScript(t, ratelimit.FixedWindow, 10)
		s.Debt = 5
		c.undoes(s)
		if s.Debt != c.debt || s.Spent != c.spentAt {
			t.Errorf("%s: %d are owed and %d spent, and it should be %d and %d", c.name, s.Debt, s.Spent, c.debt, c.spentAt)
		}
	}
}

// A counter that stands exactly at its limit is not over it: a look says so only once a denial was
// charged beyond, be it of one hit.
func TestLookAtAnEmptyLease(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	s.Available = 0
	s.spends(5)
	for _, c := range []struct {
		debt tokens
		over bool
	}{{0, false}, {1, true}} {
		s.Debt = c.debt
		if v, ok := s.asks(ratelimit.Peek, 0); !ok || v.OverLimit != c.over {
			t.Errorf("with %d charged beyond the limit a look answers %+v %v", c.debt, v, ok)
		}
	}
	s.refund(2, Keeps) // one pays the debt, one is left
	if v, ok := s.asks(ratelimit.Peek, 0); !ok || v.OverLimit || v.Remaining != 1 {
		t.Errorf("with one left a look answers %+v %v", v, ok)
	}
}

// A lease keeps the limit that it was granted under, whichever there may be: the next claim gives
// back under it, and windows are counted by it.
func TestLeaseKeepsItsLimit(t *testing.T) {
	const leapYear = 366 * 24 * 60 * 60
	for _, x := range []ratelimit.Limit{
		{Unit: ratelimit.Second, Requests: 1},
		{Unit: ratelimit.Second, Multiplier: leapYear, Requests: ratelimit.MaxLimit},
		{Unit: ratelimit.Minute, Multiplier: 3, Requests: 1 << 33},
		{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Year, Requests: 1<<32 - 1},
		{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Hour, Requests: 7, Burst: ratelimit.MaxLimit},
		{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Day, Requests: 1 << 39, Burst: 1<<32 + 1},
	} {
		var l GrantedLimit
		if l.SetLimit(&x); l.Limit() != x {
			t.Errorf("%+v has become %+v", x, l.Limit())
		}
		if !l.under(&x) {
			t.Errorf("%+v: the lease does not know its own limit", x)
		}
	}
}

// A limit that was changed asks the ledger, and gives back what was had under
// the other.
func TestLeaseOfAChangedLimit(t *testing.T) {
	for _, change := range []func(*ratelimit.Limit){func(l *ratelimit.Limit) { l.Requests++ }, func(l *ratelimit.Limit) { l.Burst++ }} {
		s := newLeaseScript(t, ratelimit.TokenBucket, 5)
		s.spends(2)
		changed := *s.rule
		change(&changed.Limit)
		s.rule = &changed
		for kind := range ratelimit.Kind(3) {
			s.mustAsk(kind, 1)
		}
		s.claims(1, 1)
		if s.claim.Returned != 3 || s.claim.Limit != changed.Limit {
			t.Errorf("3 tokens are held under another limit, and the claim says %+v", s.claim)
		}
	}
}

// The last claim of a lease gives back all that is unspent. A bucket that has
// had the time to fill says so.
func TestRelease(t *testing.T) {
	s := newLeaseScript(t, ratelimit.TokenBucket, 5)
	s.spends(2)
	for _, after := range []time.Duration{50*time.Second - 1, 1} {
		s.now = s.now.Add(after)
		c := s.Release(s.now, 9)
		if c.Seq != 9 || c.Granted != 5 || c.Spent != 2 || c.Returned != 3 || c.Window != 7 || c.Fence != 1 || c.Limit != s.rule.Limit || c.Refilled != (after == 1) {
			t.Errorf("%v before it was full: %+v", after, c)
		}
	}
	s.answered(ratelimit.Grant{Seq: 9, Granted: 5})
	if s.Unspent() != 0 || s.Fence != 0 {
		t.Errorf("the answer to its last claim was not heard: %+v", s.Lease)
	}
}

// A limit that asks for each decision gives back at once what it was granted
// beyond the cost, and counts it as there.
func TestContinuousLeaseKeepsNothing(t *testing.T) {
	s := newLeaseScript(t, ratelimit.SlidingWindow, 0)
	a := &ask{Rule: s.rule, Kind: ratelimit.Spend, Cost: 2}
	s.claims(2, 5)
	s.answered(ratelimit.Grant{Granted: 5, Available: 10})
	if v := s.Settled(s.now, a, Returns); v.OverLimit || v.Charged != 2 || v.Remaining != 13 {
		t.Errorf("2 of 5 granted, and 10 more at the ledger: %+v", v)
	}
	s.holds(5, 2, 3)
	for _, kind := range []ratelimit.Kind{ratelimit.Spend, ratelimit.Peek} {
		if _, ok := s.Take(s.now, &ask{Rule: s.rule, Kind: kind, Cost: 2}, Returns); ok {
			t.Errorf("a limit that asks for each decision did not ask for one of kind %d", kind)
		}
	}
	a.Kind, a.Cost = ratelimit.Refund, 1
	if v := s.Settled(s.now, a, Returns); v.OverLimit || v.Remaining != 14 {
		t.Errorf("one is given back, beside 13: %+v", v)
	}
}

// From the instant that the ledger named on, a refusal tells of the window's end
// and no more of that instant.
func TestRefusalTellsWhenToComeBack(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 0)
	s.claims(8, 8)
	s.answered(ratelimit.Grant{RetryAfter: 20 * time.Second})
	a := &ask{Rule: s.rule, Kind: ratelimit.Spend, Cost: 8}
	s.now = s.now.Add(20*time.Second - 1)
	if v := s.Settled(s.now, a, Keeps); v.ResetAfter != 1 {
		t.Errorf("a nanosecond before: %v", v.ResetAfter)
	}
	s.now++
	if v := s.Settled(s.now, a, Keeps); v.ResetAfter != 30*time.Second {
		t.Errorf("30 s before the window ends: %v", v.ResetAfter)
	}
}

// A bucket that has had the time to fill knows more than its lease does: it is
// asked, and told so.
func TestLeaseOfABucketThatIsFull(t *testing.T) {
	s := newLeaseScript(t, ratelimit.TokenBucket, 5)
	s.claims(0, 5)
	s.answered(ratelimit.Grant{Granted: 5, ResetAfter: 4 * time.Second})
	s.now = s.now.Add(4*time.Second - 1)
	s.spends(1)
	if s.claims(1, 1); s.claim.Refilled {
		t.Error("it has not had the time to fill")
	}
	s.now++
	for kind := range ratelimit.Kind(3) {
		s.mustAsk(kind, 1)
	}
	if s.claims(1, 1); !s.claim.Refilled {
		t.Error("it has had the time to fill, and the claim does not say so")
	}
}

// What was drifted does not make a request dearer than it is: the ledger said
// from which cost on there is no use in asking.
func TestRefusalCountsWhatIsAsked(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 0)
	s.claims(8, 8)
	s.answered(ratelimit.Grant{Available: 2, RetryAfter: 20 * time.Second})
	s.Spent = 3 // without the ledger
	s.mustAsk(ratelimit.Spend, 2)
	s.denies(3)
}

// Whose totals an answer is about does not hang on numbers alone. A lease that
// began a window while its claim was under way keeps what it has spent of that;
// when the ledger's clock has gone back, a window of the same number is another.
func TestTotalsAreOfTheirWindow(t *testing.T) {
	for _, c := range []struct {
		name     string
		began    window // meanwhile, 0: none
		answered window
		carried  bool
		spent    tokens
	}{
		{"the claim's window goes on", 0, 7, true, 3},
		{"another window of that number", 0, 7, false, 0},
		{"the next window", 0, 8, false, 0},
		{"the window that it began meanwhile", 8, 8, false, 3},
		{"neither", 8, 9, false, 0},
	} {
		s := newLeaseScript(t, ratelimit.FixedWindow, 5)
		s.claims(1, 1)
		s.Spent = 3
		if c.began > 0 {
			s.Window = c.began
		}
		g := ratelimit.Grant{Seq: s.claim.Seq, Window: c.answered, Granted: 5, TTL: 10 * time.Second, ResetAfter: time.Minute, Carried: c.carried}
		s.Apply(s.now, &s.claim, &g, time.Second, s.now.Add(time.Minute))
		if s.Spent != c.spent || s.Window != c.answered {
			t.Errorf("%s: %d are spent of window %d, and it should be %d of %d", c.name, s.Spent, s.Window, c.spent, c.answered)
		}
	}
}

// All of what is refunded may have been drift: then nothing goes back.
func TestRefundWithinDrift(t *testing.T) {
	s := newLeaseScript(t, ratelimit.TokenBucket, 5)
	s.Overdraw(s.now, 8, 10)
	s.refund(2, Returns)
	s.holds(5, 6, 0)
	s.refund(1, Returns)
	s.holds(5, 5, 0)
	s.refund(1, Returns)
	s.holds(5, 4, 1)
}

// A denial drains what it costs, and no more: a lease that has expired may hold
// more than that, and it may not be spent.
// What a bucket confirms as spent, it no longer holds refills back for. When that
// spending was taken back meanwhile, the token is the bucket's again, not the
// lease's, which would have it beside a bucket that is full.
func TestUndoneDriftGoesBackToTheBucket(t *testing.T) {
	s := newLeaseScript(t, ratelimit.TokenBucket, 5)
	s.Spent = 7 // two of them unasked
	s.claims(0, 0)
	s.Unspend(1, Returns)
	s.answered(ratelimit.Grant{Granted: 7, Fence: 2, Window: 7})
	if s.Unspent() != 0 || s.Returned != 1 || s.Spent != 6 {
		t.Errorf("of 7 granted, %d spent and %d given back: %d can be spent", s.Spent, s.Returned, s.Unspent())
	}
	s.claims(0, 0)
	s.Unspend(2, Returns) // not unasked: given back at once, and not once more
	s.answered(ratelimit.Grant{Granted: 7, Fence: 3, Window: 7})
	if s.Unspent() != 0 || s.Returned != 3 {
		t.Errorf("%d were given back instead of 3, %d can be spent", s.Returned, s.Unspent())
	}
}

// Of what drifted and was undone, the bucket gets back what it has confirmed, and no more: the rest it
// never had. What had been given back before makes no difference.
func TestUndoneDriftIsReturnedAsFarAsItIsConfirmed(t *testing.T) {
	for _, c := range []struct {
		name                                   string
		spent, returned, undone, granted, back tokens
	}{
		{"all was confirmed", 9, 0, 3, 9, 3},
		{"a part was confirmed", 9, 0, 3, 6, 1},
		{"nothing was confirmed", 9, 0, 3, 5, 0},
		{"a part was undone", 9, 0, 2, 9, 2},
		{"some had been given back", 7, 2, 3, 9, 3},
	} {
		s := newLeaseScript(t, ratelimit.TokenBucket, 5)
		s.Spent, s.Returned = c.spent, c.returned
		s.claims(0, 0)
		s.Unspend(c.undone, Returns)
		s.answered(ratelimit.Grant{Granted: c.granted, Fence: 2, Window: 7})
		if got := s.Returned - c.returned; got != c.back {
			t.Errorf("%s: %d are given back, and not %d", c.name, got, c.back)
		}
	}
}

// A denial drains nothing where more was spent than was granted: what drifted is not given back by it.
func TestDenialOfALeaseThatOwes(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	s.Spent = 7
	if v := s.Deny(s.now, s.spend(3)); v.Charged != 0 || s.Spent != 7 {
		t.Errorf("charged %d, and %d are spent", v.Charged, s.Spent)
	}
}

// A bucket has no more than its burst, whatever is refunded: what is unspent here is a part of that.
func TestRefundFillsABucketToItsBurst(t *testing.T) {
	for _, c := range []struct{ available, want tokens }{{50, 58}, {90, 96}} {
		s := newLeaseScript(t, ratelimit.TokenBucket, 12)
		s.spends(8)
		s.Available = c.available
		a := s.spend(8)
		a.Kind = ratelimit.Refund
		s.Settled(s.now, a, Returns)
		if s.Available != c.want+4 {
			t.Errorf("of %d at the ledger and 8 that are refunded, %d are there", c.available, s.Available)
		}
	}
}

// A bucket of a limit of 0 takes a period for each token, and not for ever.
func TestBucketThatNeverRefills(t *testing.T) {
	if d := RefillTime(5, &ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute}); d != 5*time.Minute {
		t.Errorf("5 tokens take %v", d)
	}
}

func TestDenialDrainsNoMoreThanItsCost(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	s.now = s.now.Add(9 * time.Second)
	v := s.Settled(s.now, &ask{Rule: s.rule, Kind: ratelimit.Spend, Cost: 3}, Keeps)
	if !v.OverLimit || v.Charged != 3 || s.Debt != 0 {
		t.Errorf("3 of 5 that may not be spent any more: %+v, %d owed", v, s.Debt)
	}
}

// What is owed does not fall below nothing: a refund has paid it before the
// denial was undone.
func TestDebtEndsAtNothing(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	a := &ask{Rule: s.rule, Kind: ratelimit.Spend, Cost: 10}
	v := s.Settled(s.now, a, Keeps) // drains 5, owes 5
	s.refund(3, Keeps)
	s.Undo(a, &v, Keeps)
	s.holds(5, 0, 0)
	if s.Debt != 0 {
		t.Errorf("%d are owed", s.Debt)
	}
}

// Less than nothing is nothing, to who asks what is left.
func TestNothingIsLeftOfDrift(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 5)
	s.Spent, s.Available = 9, 3
	if v := s.peek(s.now); v.Remaining != 0 {
		t.Errorf("%+v", v)
	}
}

// A bucket that is full, and grants nothing while the ledger relearns, is not
// asked again before that is over.
func TestFullBucketThatRelearns(t *testing.T) {
	s := newLeaseScript(t, ratelimit.TokenBucket, 0)
	s.claims(1, 1)
	g := ratelimit.Grant{Seq: s.claim.Seq, Window: 7, Carried: true, Available: 100, RetryAfter: time.Second, Relearning: true, TTL: 10 * time.Second}
	s.Apply(s.now, &s.claim, &g, time.Second, s.now)
	s.denies(1)
	s.now = s.now.Add(time.Second)
	s.mustAsk(ratelimit.Spend, 1)
}

// Who asked for all or nothing knows of nothing that costs less.
func TestDirectRefusal(t *testing.T) {
	s := newLeaseScript(t, ratelimit.FixedWindow, 0)
	s.claim = s.Lease.Claim(s.now, s.Lease.Seq+1, s.rule, 8, 8, Returns) //nolint:staticcheck // the field claim hides the method
	s.answered(ratelimit.Grant{Available: 2, RetryAfter: 20 * time.Second})
	s.denies(8)
	s.mustAsk(ratelimit.Spend, 7)
}
