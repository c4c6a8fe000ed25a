package leasing

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// shareOfTen may drift by ten tokens, and remembers of which window it was asked.
type shareOfTen struct {
	heir   ratelimit.Fence
	begins ratelimit.LedgerTime
}

func (d *shareOfTen) Share(_ ratelimit.Instant, _ *ratelimit.Rule, begins ratelimit.LedgerTime) (ratelimit.Tokens, ratelimit.Fence) {
	d.begins = begins
	return 10, d.heir
}

// newDriftScript is a node under a rule of mode approx that has asked the ledger
// for one token, and spent it; plenty is left.
func newDriftScript(t testing.TB, l ratelimit.Limit) (*nodeScript, *shareOfTen) {
	s, d := newNodeScript(t, l), &shareOfTen{}
	c := &s.rule.Coordination
	c.Mode, c.MaxNodes, c.CheckTimeout, c.LowWatermark = ratelimit.Approx, 2, 2*time.Millisecond, ratelimit.Share{PPM: 200_000}
	c.SyncInterval, c.Lease.TTL, c.DriftBudget = 10*time.Second, time.Hour, ratelimit.Share{Tokens: 20}
	s.SetDrift(d)
	s.leased(1)
	return s, d
}

func (s *nodeScript) drifts(n tokens) { s.Helper(); s.asks(n).says(false, ratelimit.FromDrift) }

// waitsFor expects a request to be undecided, and to wait that long.
func (s *nodeScript) waitsFor(r *nodeRequest, d time.Duration) {
	s.Helper()
	if r.decided() {
		s.Fatalf("it should wait for the ledger, and was decided: %+v", r.v[0])
	}
	if got := r.wait.Patience(); got != d {
		s.Errorf("it waits for %v, and should for %v", got, d)
	}
}

// While plenty is left a request does not wait: it is drawn on the node's share,
// and reported. The ledger's answer confirms it, and the share is free again.
func TestDriftInsteadOfAClaim(t *testing.T) {
	s, d := newDriftScript(t, perMinute100)
	s.drifts(4)
	b, c := s.sends()
	if c.Spent != 5 || c.Granted != 1 {
		t.Errorf("4 tokens beyond the one that was granted: %+v", c)
	}
	if want := ledgertest.Epoch.Add(-15 * time.Second); d.begins != want {
		t.Errorf("the share was asked for of a window that began at %d, and it began at %d", d.begins, want)
	}
	s.drifts(6)
	s.waitsFor(s.asks(1), 2*time.Millisecond) // ten are unconfirmed
	s.settled(b, 0)                           // 4 are confirmed, and one is granted besides
	s.drifts(5)
	s.waitsFor(s.asks(1), 2*time.Millisecond)
}

// When little is left, it waits for the ledger for check_timeout first; then it
// drifts, if the share has as much, and otherwise waits on.
func TestDriftAfterWaiting(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.other(ratelimit.Claim{Seq: 1, Waiting: 79})
	s.passes(10 * time.Second)
	s.drifts(1)
	s.exchange() // 19 are left, which is less than a fifth
	a, b := s.asks(10), s.asks(3)
	s.waitsFor(a, 2*time.Millisecond)
	s.waitsFor(b, 2*time.Millisecond)
	s.passes(2 * time.Millisecond)
	if more := a.wait.TimeOver(); more != ratelimit.StoreDeadline-2*time.Millisecond {
		t.Errorf("it waits for %v more", more)
	}
	a.says(false, ratelimit.FromDrift)
	b.wait.TimeOver()
	if b.decided() {
		t.Errorf("its share is used up, and 3 more are had: %+v", b.v)
	}
	s.exchange()
	b.says(false, ratelimit.FromClaim)
}

// What was heard longer ago than sync_interval says nothing of how much is left.
func TestDriftOnOldNews(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.passes(10 * time.Second)
	s.drifts(1)
	s.exchange()
	s.passes(10 * time.Second)
	s.drifts(2)
	s.exchange()
	s.passes(10*time.Second + 1)
	s.waitsFor(s.asks(2), 2*time.Millisecond)
}

// A window's share is not the next one's: in a fixed window it is there anew. Of
// a sliding one, what was not confirmed before counts on, and the share is asked
// for of the window before, for that counts too.
func TestDriftInTheNextWindow(t *testing.T) {
	s, d := newDriftScript(t, perMinute100)
	s.drifts(10)
	s.sends() // and nothing is heard of it
	s.passes(46 * time.Second)
	r := s.asks(10)
	s.passes(2 * time.Millisecond)
	r.wait.TimeOver()
	r.says(false, ratelimit.FromDrift)
	if want := ledgertest.Epoch.Add(45 * time.Second); d.begins != want {
		t.Errorf("asked of a window that began at %d, and it began at %d", d.begins, want)
	}

	s, d = newDriftScript(t, sliding100)
	s.drifts(3)
	if want := ledgertest.Epoch.Add(-75 * time.Second); d.begins != want {
		t.Errorf("asked of a window that began at %d, and the one before began at %d", d.begins, want)
	}
}

// A bucket has no windows. What a tenant that crashed may have spent of its seat's
// share was never confirmed; its heir takes one share as spent before it drifts
// itself, once, and reports it.
func TestHeirTakesAShareAsSpent(t *testing.T) {
	s, d := newDriftScript(t, bucket100)
	d.heir = 5
	r := s.asks(1)
	s.waitsFor(r, 2*time.Millisecond)
	_, c := s.sends()
	if c.Spent != 11 {
		t.Errorf("one is spent, and the share of ten may have been: %+v", c)
	}
	if d.begins < ledgertest.Epoch {
		t.Error("a bucket has no windows")
	}

	s, d = newDriftScript(t, bucket100)
	d.heir = 5
	s.asks(1)
	s.exchange() // which confirms it
	s.drifts(7)
	if _, c = s.sends(); c.Spent > 20 {
		t.Errorf("a second share was taken as spent: %+v", c)
	}
}

// Without a share, or under another mode, a request waits for the ledger.
func TestDriftNeedsAShare(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.SetDrift(nil)
	s.waitsFor(s.asks(1), 2*time.Millisecond)
	s, _ = newDriftScript(t, perMinute100)
	s.rule.Coordination.Mode = ratelimit.Leasing
	s.waitsFor(s.asks(1), ratelimit.StoreDeadline)
}

// The ledger has lost its data, and confirms drift while it is told again what
// others had spent: with tokens that may be gone. The share stays used up until the
// window ends.
func TestDriftConfirmedByALedgerThatRelearns(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.drifts(10)
	s.ledger.Forget()
	_, g := s.exchange()
	if !g.Relearning || g.Granted < 11 {
		t.Fatalf("the ledger should notice the loss, and confirm 11: %+v", g)
	}
	if more := g.Granted - 11; more > 0 {
		s.spends(more)
	}
	r := s.asks(1)
	s.waitsFor(r, 2*time.Millisecond)
	s.passes(2 * time.Millisecond)
	r.wait.TimeOver()
	if r.decided() {
		t.Errorf("a second share was spent: %+v", r.v)
	}
	s.passes(46 * time.Second)
	r = s.asks(10)
	s.passes(2 * time.Millisecond)
	r.wait.TimeOver()
	r.says(false, ratelimit.FromDrift)
}

// late has the node asked for tokens, and the time that the request waits before it
// drifts pass.
func (s *nodeScript) late(cost tokens) *nodeRequest {
	r := s.asks(cost)
	s.passes(2 * time.Millisecond)
	if !r.decided() {
		r.wait.TimeOver()
	}
	return r
}

// Drift in a new window is reported by the node's other name, after the last word on
// the window before, by the name that had it.
func TestDriftIsReportedByTheOtherName(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.drifts(4)
	s.exchange()
	s.drifts(2)
	s.exchange()
	h := s.keyHeld()
	name, w := h.Name, h.Lease.Window
	h.Reported = 5 // the last report was lost
	s.passes(46 * time.Second)
	if v := s.late(3).says(false, ratelimit.FromDrift); v.ResetAfter < 58*time.Second || v.ResetAfter > 59*time.Second {
		t.Errorf("the new window ends in 59 s: %+v", v)
	}
	b := s.Batch()
	if b == nil || len(b.Claims()) != 2 {
		t.Fatalf("it sends %+v", b)
	}
	last, report := finalFirst(b.Claims())
	if !last.Final || last.Holder != name || last.Window != w || last.Spent != 7 {
		t.Errorf("the last word is %+v", last)
	}
	if report.Final || report.Holder != name^1 || report.Window != w+1 || report.Spent != 3 {
		t.Errorf("the report is %+v", report)
	}
}

// finalFirst are two claims, the last word on a window first.
func finalFirst(c []ratelimit.Claim) (last, other ratelimit.Claim) {
	if c[1].Final {
		return c[1], c[0]
	}
	return c[0], c[1]
}

// What the ledger knew of the last window it does not know of this one: drift that
// comes to as much has its own last word.
func TestLastWordAfterALastWord(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.drifts(4)
	s.exchange() // 5 are known
	s.passes(46 * time.Second)
	s.late(5).says(false, ratelimit.FromDrift)
	b, _ := s.sends()
	b.Fail(errors.New("lost"))
	s.passes(time.Minute)
	s.late(1).says(false, ratelimit.FromDrift)
	b = s.Batch()
	if b == nil || !slices.ContainsFunc(b.Claims(), func(c ratelimit.Claim) bool { return c.Final && c.Spent == 5 }) {
		t.Errorf("5 were spent that nobody knows of, and it sends %+v", b)
	}
}

// Where a window may be over or may not, nothing drifts: nobody could say in which.
func TestNoDriftInDoubt(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.passes(45 * time.Second)
	if r := s.late(1); r.decided() {
		t.Errorf("which window it is was heard of 45 s ago, to 4 ms: %+v", r.v[0])
	}
	s.passes(10 * time.Millisecond)
	s.late(1).says(false, ratelimit.FromDrift)
}

// While the next window's lease waits to become the current one, its name is taken:
// nothing drifts by it. Nor does it while that lease is claimed.
func TestNoDriftByATakenName(t *testing.T) {
	for what, take := range map[string]func(s *nodeScript, h *busyKey){
		"a lease": func(s *nodeScript, h *busyKey) {
			h.Next = &lease.NextLease{Over: s.now.Add(time.Hour), Start: s.now.Add(time.Hour), Lease: lease.Lease{Window: h.Lease.Window + 1}}
		},
		"a claim": func(_ *nodeScript, h *busyKey) {
			h.takes(&flight{Flight: lease.Flight{Errand: lease.Errand{Ahead: true}}, done: make(chan struct{})})
		},
	} {
		s, _ := newDriftScript(t, perMinute100)
		s.passes(46 * time.Second)
		take(s, s.keyHeld())
		if v, ok := s.fleet.drift(s.now, &ask{Rule: s.rule, Key: keyOf(1), Cost: 1}, lease.Fully); ok {
			t.Errorf("%s has the name: %+v", what, v)
		}
	}
}

// Drift that the ledger knows of, and had no tokens for, is not told again for
// idleness.
func TestKnownDriftIsNotToldAgain(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	g := s.other(ratelimit.Claim{Seq: 1, Waiting: 99})
	s.other(ratelimit.Claim{Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 99, Spent: 99})
	s.drifts(4)
	if _, g := s.exchange(); g.Granted != 1 {
		t.Fatalf("the limit is used up, and the ledger grants %+v", g)
	}
	s.passes(3 * time.Second)
	s.sweeps()
	s.quiet("the ledger knows of the 4")
}

// What of a sliding window counts in the next: what was charged there, and of that
// what the ledger had not confirmed.
func TestCarriedIntoTheNextWindow(t *testing.T) {
	for _, c := range []struct {
		spent, returned, carried, before tokens
		algorithm                        ratelimit.Algorithm
		into                             window
	}{
		{5, 3, 0, 7, ratelimit.SlidingWindow, 8},
		{9, 3, 2, 9, ratelimit.SlidingWindow, 8},
		{9, 3, 0, 0, ratelimit.SlidingWindow, 9},
		{9, 3, 0, 0, ratelimit.FixedWindow, 8},
	} {
		h := lease.Held{DriftKept: lease.DriftKept{Carried: 1, Before: 1}, Lease: lease.Lease{GrantedLimit: lease.GrantedLimit{Algorithm: c.algorithm}, Window: 7, Granted: 10, Spent: c.spent, Returned: c.returned}}
		if h.Carry(c.into); h.Carried != c.carried || h.Before != c.before {
			t.Errorf("%+v: carried %d, before %d", c, h.Carried, h.Before)
		}
	}
}

// The ledger's clock may be set back into the window before. Its account waits in the
// later one, and says so with each answer: what a node would drift in the earlier one
// is forgotten with the answer, and would be drifted again.
func TestNoDriftInAWindowBeforeTheLedgers(t *testing.T) {
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow} {
		limit := perMinute100
		limit.Algorithm = algorithm
		s, _ := newDriftScript(t, limit)
		s.drifts(1)
		s.exchange()
		s.keyHeld().Lease.Window++ // as an answer has told
		s.keyHeld().Lease.Reset = 0
		r := s.asks(1)
		s.passes(2 * time.Millisecond)
		if r.wait.TimeOver(); r.decided() {
			t.Errorf("%v: %+v", limit, r.v[0])
		}
	}
}

// Beyond what is left of a lease a share is spent, and only a share from the instant
// on at which the lease has expired.
func TestOverdraw(t *testing.T) {
	for _, c := range []struct {
		now         instant
		cost, share tokens
		ok          bool
	}{
		{99, 25, 10, true}, {99, 26, 10, false}, {100, 10, 10, true}, {100, 11, 10, false}, {99, 1, 0, false},
	} {
		l := lease.Lease{Granted: 20, Spent: 5, Deadline: 100}
		if ok := l.Overdraw(c.now, c.cost, c.share); ok != c.ok || ok != (l.Spent == 5+c.cost) {
			t.Errorf("%+v: %v, and the lease is %+v", c, ok, l)
		}
	}
}

// A window's last word is spared where nothing can have been over, to the last token
// that was left, and the claims of a window are few in any case.
func TestLastWordIsSpared(t *testing.T) {
	for _, c := range []struct {
		left, drifted tokens
		stretched     bool
		sync          time.Duration
		said          bool
	}{
		{51, 0, true, time.Second, false},
		{50, 0, true, time.Minute, true},
		{1, 0, true, time.Minute + 1, false},
		{0, 0, true, time.Minute + 1, true},
		{51, 1, true, time.Second, true},
		{51, 0, false, time.Minute, true},
		{51, 0, false, time.Minute + 1, false},
	} {
		s, _ := newDriftScript(t, perMinute100)
		s.rule.Coordination.SyncInterval = c.sync
		h := s.keyHeld()
		h.Lease.Available, h.Stretched, h.Reported = c.left, c.stretched, 0
		h.Lease.Spent = h.Lease.Granted + c.drifted
		h.Finish()
		s.fleet.do(h, s.now)
		if said := s.Batch() != nil; said != c.said {
			t.Errorf("%+v: said %v", c, said)
		}
	}
}

// someShare may drift by so many tokens, as an heir.
type someShare struct {
	tokens tokens
	heir   ratelimit.Fence
}

func (d someShare) Share(ratelimit.Instant, *ratelimit.Rule, ratelimit.LedgerTime) (ratelimit.Tokens, ratelimit.Fence) {
	return d.tokens, d.heir
}

// The smallest share is taken as spent by its heir, too.
func TestHeirOfOneToken(t *testing.T) {
	s, _ := newDriftScript(t, bucket100)
	s.SetDrift(someShare{1, 5})
	s.waitsFor(s.asks(1), 2*time.Millisecond)
	if _, c := s.sends(); c.Spent != 2 {
		t.Errorf("one is spent, and the share of one may have been: %+v", c)
	}
}

// A key for which the node has no room does not drift.
func TestNoRoomToDrift(t *testing.T) {
	s, d := newDriftScript(t, perMinute100)
	s.rule.Coordination.CheckTimeout = 0
	s.Stepped = NewStepped(1, 1, func() instant { return s.now }, time.Unix(1_800_000_015, 0), func(time.Duration, func()) {}, func() float64 { return 0 })
	s.SetDrift(d)
	s.leased(1)
	a := ask{Rule: s.rule, Key: keyOf(2), Cost: 1}
	if v, ok := s.fleet.drift(s.now, &a, lease.NotYet); ok {
		t.Errorf("%+v", v)
	}
}

// A report of drift that was lost is told when the key is idle, also of a key of which
// the ledger had known all.
func TestLostReportIsToldWhenIdle(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.keyHeld().Settled = true
	s.drifts(4)
	b, _ := s.sends()
	b.Fail(errors.New("lost"))
	s.passes(3 * time.Second)
	s.sweeps()
	if c, _ := s.exchange(); c.Spent != 5 {
		t.Errorf("it tells %+v", c)
	}
}

// So it is of a lease that was drawn, which is kept when idle while nothing is owed.
func TestLostDriftOfADrawnLeaseIsToldWhenIdle(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.Recalls()
	c := &s.rule.Coordination
	c.Mode, c.MaxNodes, c.CheckTimeout = ratelimit.Approx, 2, 2*time.Millisecond
	c.DriftBudget = ratelimit.Share{Tokens: 20}
	s.SetDrift(&shareOfTen{})
	o := s.other(ratelimit.Claim{Seq: 2, Waiting: 60})
	s.other(ratelimit.Claim{Seq: 4, Fence: o.Fence, Window: o.Window, Granted: 60, Spent: 60})
	r := s.asks(1)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	l := &s.keyHeld().Lease
	s.asks(l.Unspent()+4).says(false, ratelimit.FromDrift)
	b, _ := s.sends()
	b.Fail(errors.New("lost"))
	s.passes(3 * time.Second)
	s.sweeps()
	if c, _ := s.exchange(); c.Spent != c.Granted-c.Returned+4 {
		t.Errorf("it tells %+v", c)
	}
}

// A lease of the next window that owes something takes nothing from what is leased of
// this one.
func TestGaugeOfALeaseThatOwes(t *testing.T) {
	rule := testRule(perMinute100)
	rule.Counters = &ratelimit.RuleCounters{}
	h := lease.Held{Rule: rule, Lease: lease.Lease{Granted: 4}, Next: &lease.NextLease{Lease: lease.Lease{Granted: 5, Spent: 8}}}
	if h.Gauge(); rule.Counters.Leased.Load() != 4 {
		t.Errorf("%d are leased, want 4", rule.Counters.Leased.Load())
	}
	h.Next.Lease.Spent = 2
	if h.Gauge(); rule.Counters.Leased.Load() != 7 {
		t.Errorf("%d are leased, want 7", rule.Counters.Leased.Load())
	}
}

// What an heir took as spent it tells also when its claim was lost, and of a key of
// which the ledger had known all.
func TestHeirTellsWhenItsClaimWasLost(t *testing.T) {
	s, _ := newDriftScript(t, bucket100)
	s.SetDrift(someShare{10, 5})
	s.keyHeld().Settled = true
	s.asks(1)
	b, _ := s.sends()
	b.Fail(errors.New("lost"))
	s.passes(3 * time.Second)
	s.sweeps()
	if c, _ := s.exchange(); c.Spent != 11 {
		t.Errorf("it tells %+v", c)
	}
}
