package leasing

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// stale answers a batch of one claim as the ledger does that has moved on.
func stale(b *Batch) { b.Answer([]ratelimit.Grant{{Err: ratelimit.ErrStaleClaim}}) }

// A node that holds the next window's lease says so with each claim. When the
// ledger answers that the window is over, it is: the node believed otherwise only
// because the ledger's clock had been set, and goes on with the next lease.
func TestTheLedgerSaysThatTheWindowIsOver(t *testing.T) {
	s, _ := turning(t, 0)
	s.spends(15)
	b, c := s.sends()
	if !c.Ahead {
		t.Fatalf("a claim of this window or of none: %+v", c)
	}
	stale(b)
	s.spends(20) // the next lease's
}

// Such an answer says nothing of the window that has begun meanwhile.
func TestTheLedgerSaysThatTheLastWindowIsOver(t *testing.T) {
	s, end := turning(t, 0)
	s.spends(15)
	b, _ := s.sends()
	s.passes(end.Add(time.Second).Sub(s.now))
	s.spends(1)
	stale(b)
	s.spends(19)
}

// Nor does it where any window was asked for: then only the claim was too old.
func TestAClaimThatIsTooOld(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(20)
	s.spends(15)
	b, c := s.sends()
	if c.Ahead {
		t.Fatalf("%+v", c)
	}
	stale(b)
	s.spends(4)
	if n := s.Stats().Stale; n != 1 {
		t.Errorf("%d claims were stale", n)
	}
}

// A claim that was stale is sent again for those who wait behind it.
func TestStaleClaimIsSentAgain(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	r := s.asks(3)
	b, _ := s.sends()
	stale(b)
	if r.decided() {
		t.Fatalf("nobody has granted anything: %+v", r.v[0])
	}
	s.exchange()
	r.says(false, ratelimit.FromClaim)
}

// An operator is told of each batch of which nothing was answered, and of none
// other; so is the breaker.
func TestFailuresAreTold(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailClosed
	var told []error
	s.fleet.OnFailure = func(err error) { told = append(told, err) }
	gone := errors.New("gone")
	for range 2 {
		r := s.asks(1)
		b, _ := s.sends()
		b.Fail(gone)
		r.says(true, ratelimit.FromFallback)
	}
	if len(told) != 2 || !errors.Is(told[0], gone) || s.Stats().Failed != 2 {
		t.Errorf("two batches failed, and it was told %v", told)
	}
	l := &s.fleet.lanes[0]
	s.fleet.judge(l, []ratelimit.Grant{{Err: gone}, {}}, nil)
	s.fleet.judge(l, []ratelimit.Grant{{Err: ratelimit.ErrStaleClaim}}, nil)
	s.fleet.judge(l, nil, nil)
	if len(told) != 2 {
		t.Errorf("the ledger answered, and it was told %v", told)
	}
	for range breakAfter - 1 {
		s.fleet.judge(l, nil, gone) // only to be heard
	}
	if len(told) != 2+breakAfter-1 || s.Stats().BreakerOpen {
		t.Errorf("told %v, breaker open %v", told, s.Stats().BreakerOpen)
	}
	s.fleet.judge(l, nil, gone)
	if !s.Stats().BreakerOpen || !l.memory.failed {
		t.Error("three batches in a row failed")
	}
}

// Decisions without the ledger are counted by why.
func TestFallbacksAreCounted(t *testing.T) {
	for err, want := range map[error]ratelimit.FallbackReason{
		context.DeadlineExceeded: ratelimit.FallbackDeadline, errBreaker: ratelimit.FallbackBreaker,
		errQueueFull: ratelimit.FallbackQueueFull, errors.New("gone"): ratelimit.FallbackError,
	} {
		s := newNodeScript(t, perMinute100)
		r := s.asks(1)
		b, _ := s.sends()
		b.Fail(fmt.Errorf("the batch: %w", err))
		if v := r.says(false, ratelimit.FromFallback); v.Reason != want {
			t.Errorf("%v: %+v", err, v)
		}
		x := s.Stats().Fallbacks
		for reason, n := range x {
			if (n == 1) != (ratelimit.FallbackReason(reason) == want) || n > 1 {
				t.Errorf("%v: counted %v", err, x)
			}
		}
	}
}

// A request waits as long as the most patient of its rules of mode approx lets it,
// but for no longer than for any ledger; others wait that long in any case.
func TestRequestsPatience(t *testing.T) {
	rule := func(mode ratelimit.Mode, d time.Duration) ask {
		r := testRule(perMinute100)
		r.Coordination.Mode, r.Coordination.CheckTimeout = mode, d
		r.Coordination.DriftBudget = ratelimit.Share{Tokens: 20}
		return ask{Rule: r}
	}
	a, b, long, other := rule(ratelimit.Approx, 3*time.Millisecond), rule(ratelimit.Approx, time.Millisecond), rule(ratelimit.Approx, time.Hour), rule(ratelimit.Leasing, time.Millisecond)
	for i, c := range []struct {
		asks []ask
		want time.Duration
	}{
		{[]ask{a, b}, 3 * time.Millisecond},
		{[]ask{b, a}, 3 * time.Millisecond},
		{[]ask{b, other}, time.Millisecond},
		{[]ask{b, long}, ratelimit.StoreDeadline},
		{[]ask{other}, ratelimit.StoreDeadline},
	} {
		v := make([]verdict, len(c.asks))
		for i := range v {
			v[i].Err = errUndecided
		}
		if got := checkTime(c.asks, v); got != c.want {
			t.Errorf("case %d: %v, want %v", i, got, c.want)
		}
	}
	if got := checkTime([]ask{a, b}, []verdict{{}, {Err: errUndecided}}); got != time.Millisecond {
		t.Errorf("only the second waits: %v", got)
	}
}

// A node drifts while it has spent what the ledger has not confirmed, in a window
// that goes on.
func TestNodeDrifts(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	if s.Drifting() {
		t.Error("the ledger has confirmed all")
	}
	s.drifts(4)
	if !s.Drifting() {
		t.Error("4 are unconfirmed")
	}
	s.exchange()
	if s.Drifting() {
		t.Error("4 were confirmed")
	}
	s.drifts(2) // one of which is leased
	s.passes(44 * time.Second)
	if !s.Drifting() {
		t.Error("its window goes on")
	}
	s.passes(time.Second)
	if s.Drifting() {
		t.Error("its window is over")
	}
}

// Until when unconfirmed spending counts: of a fixed window until its end; of a
// sliding one, and of what is carried into a window, until the end of the next; of a
// bucket until it is full by the ledger, which does not know of it, and has refilled
// that besides. Who leaves earlier leaves a seat that is tainted.
func TestUnconfirmedSpendingCounts(t *testing.T) {
	const reset = instant(time.Hour)
	spent := func(l ratelimit.Limit) lease.Held {
		h := lease.Held{Lease: lease.Lease{Granted: 1, Spent: 3, Window: 7, Reset: reset}}
		h.Lease.SetLimit(&l)
		return h
	}
	carried := lease.Held{DriftKept: lease.DriftKept{Carried: 2}, Lease: lease.Lease{Reset: reset}}
	for name, c := range map[string]struct {
		h    lease.Held
		last time.Duration // after reset
	}{
		"fixed_window":   {spent(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10}), 0},
		"sliding_window": {spent(ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 10}), time.Minute},
		"token_bucket":   {spent(ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 10, Burst: 10}), 12 * time.Second},
		"carried":        {carried, 0},
	} {
		end := reset.Add(c.last)
		if !c.h.Drifting(end-1) || c.h.Drifting(end) {
			t.Errorf("%s: it should count until %v after the reset", name, c.last)
		}
		c.h.Lease.Spent, c.h.Carried = c.h.Lease.Granted, 0
		if c.h.Drifting(0) {
			t.Errorf("%s: all is confirmed", name)
		}
	}
}

// A bucket that owes what the ledger has not confirmed tells it when it leaves, also
// when the bucket is full by what it was last told.
func TestLastWordOfABucketThatOwes(t *testing.T) {
	s, _ := newDriftScript(t, bucket100)
	s.drifts(4)
	s.keyHeld().Lease.Reset = s.now // of an answer that came since, and did not confirm it
	if claims := s.Release(s.now); len(claims) != 1 || !claims[0].Last {
		t.Errorf("%+v", claims)
	}
}

// How far the ledger's clock was set, at least: what was known, widened by what
// clocks drift, and what was heard now leave that gap.
func TestLedgerClockTellsItsSteps(t *testing.T) {
	second := instant(time.Second)
	for _, c := range []struct {
		hears ledgerTime // 10 to 11 s after it said 100 s, from 1 to 2 s
		step  time.Duration
	}{
		{110e6, 0},
		// It was known to be 98 s ahead at least, and 99.000001 at most, give or take
		// 900 us since.
		{110_000_901, 0},
		{110_000_902, time.Microsecond},
		{107_999_099, 0},
		{107_999_098, -time.Microsecond},
		{120e6, 10*time.Second - 901*time.Microsecond},
		{90e6, -18*time.Second + 901*time.Microsecond},
	} {
		var known lease.LedgerClock
		if step := known.Heard(second, 2*second, 100e6); step != 0 {
			t.Errorf("heard for the first time: %v", step)
		}
		if step := known.Heard(10*second, 11*second, c.hears); step != c.step {
			t.Errorf("%d us: a step of %v, want %v", c.hears, step, c.step)
		}
	}
}

// A rule that is audited has each of its claims recorded, with what it declares,
// and the answer shown; others have not.
func TestAuditedClaims(t *testing.T) {
	for _, audited := range []bool{true, false} {
		s := newNodeScript(t, perMinute100)
		s.rule.Coordination.Audit = audited
		shown := 0
		s.fleet.OnAudit = func(c *ratelimit.Claim, g *ratelimit.Grant) {
			if shown++; c.Waiting != 3 || g.Granted < 3 {
				t.Errorf("%+v %+v", c, g)
			}
		}
		r := s.asks(3)
		c, _ := s.exchange()
		r.says(false, ratelimit.FromClaim)
		if (shown == 1) != audited || (c.Audit != "") != audited || audited && c.Audit != s.rule.AuditName() || audited && c.AuditBound != s.rule.DeclaredOver() {
			t.Errorf("audited %v: shown %d times, %+v", audited, shown, c)
		}
	}
}

// A node's last words say that they are; what the ledger knows all of is not said
// again, nor of a window that is over.
func TestLastWords(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(5)
	claims := s.Release(s.now)
	if len(claims) != 1 || !claims[0].Last || claims[0].Returned != 4 {
		t.Errorf("%+v", claims)
	}
	s = newNodeScript(t, perMinute100)
	s.leased(1)
	s.passes(3 * time.Second)
	s.sweeps()
	s.exchange() // all is known
	if claims := s.Release(s.now); len(claims) != 0 {
		t.Errorf("the ledger knows all, and is told %+v", claims)
	}
	s = newNodeScript(t, bucket100)
	s.leased(5)
	if claims := s.Release(s.now); len(claims) != 1 || claims[0].Returned != 4 {
		t.Errorf("of a bucket: %+v", claims)
	}
	s = newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 2, Requests: 100})
	s.leased(5)
	if claims := s.Release(s.now); len(claims) != 1 || claims[0].Limit != s.rule.Limit {
		t.Errorf("the limit is %+v, and the last words are %+v", s.rule.Limit, claims)
	}
	s = newNodeScript(t, perMinute100)
	s.leased(5)
	sh, _, c := s.fleet.locked(keyOf(1))
	end := c.Lease.Reset
	sh.mu.Unlock()
	s.passes(end.Sub(s.now))
	if claims := s.Release(s.now); len(claims) != 0 {
		t.Errorf("the window is over, and the ledger is told %+v", claims)
	}
}

// fills has so many claims wait that no more may, and returns what lets them go.
func (s *nodeScript) fills() (empties func()) {
	l := &s.fleet.lanes[0]
	for len(l.queue) < cap(l.queue) {
		l.queue <- &flight{Flight: lease.Flight{Errand: lease.Errand{Beat: true}}}
	}
	return func() {
		for len(l.queue) > 0 {
			<-l.queue
		}
	}
}

// Where too many claims wait, a request is decided without the ledger, at once,
// and a lease is not renewed; when they have gone, the next claim is sent.
func TestTooManyClaimsWait(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.Lease.TTL = ratelimit.FailClosed, time.Hour
	empties := s.fills()
	if v := s.asks(1).says(true, ratelimit.FromFallback); v.Reason != ratelimit.FallbackQueueFull {
		t.Errorf("%+v", v)
	}
	empties()
	s.leased(20)
	empties = s.fills()
	s.spends(15)
	empties()
	s.quiet("there was no room for a renewal")
	s.spends(1)
	if c, _ := s.exchange(); c.Spent != 17 {
		t.Errorf("%+v", c)
	}
	s.passes(44500 * time.Millisecond)
	empties = s.fills()
	s.asks(0)
	empties()
	s.asks(0)
	if c, _ := s.exchange(); !c.Ahead {
		t.Errorf("there was no room for the next window's claim, and now there is: %+v", c)
	}
}

// A request of which a part is decided is not charged for that again while the
// rest waits; nor does who looks twice wait twice.
func TestEachAskIsChargedOnce(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(20)
	r := &nodeRequest{nodeScript: s, v: make([]verdict, 2)}
	r.wait = s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(1), Cost: 3}, {Rule: s.rule, Key: keyOf(2), Cost: 7}}, r.v)
	for range 3 {
		if r.decided() {
			t.Fatalf("%+v", r.v)
		}
	}
	if s.spent() != 4 {
		t.Errorf("1 and 3 were spent: %d", s.spent())
	}
	if c, _ := s.exchange(); c.Waiting != 7 {
		t.Errorf("7 wait: %+v", c)
	}
	r.says(false, ratelimit.FromLease)
}

// Who has waited for check_timeout drifts, and who cannot waits as for any ledger;
// then on_store_failure decides.
func TestDriftThenLate(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailClosed
	s.drifts(10)
	r := s.asks(1)
	s.waitsFor(r, 2*time.Millisecond)
	s.passes(2 * time.Millisecond)
	if more := r.wait.TimeOver(); more != ratelimit.StoreDeadline-2*time.Millisecond || r.decided() {
		t.Errorf("it waits for %v more: %+v", more, r.v[0])
	}
	s.passes(ratelimit.StoreDeadline)
	if more := r.wait.TimeOver(); more != 0 {
		t.Errorf("its time is over, and it waits for %v more", more)
	}
	r.says(true, ratelimit.FromFallback)
}

// A ledger that does not tell of its epochs tells with an account that it has
// forgotten: that counts as one loss, however many keys say so, and all is told
// again. One that tells of epochs has said so already.
func TestForgottenAccountsAreOneLoss(t *testing.T) {
	for _, hears := range []bool{false, true} {
		s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
		if hears {
			s.Hears()
		}
		s.rule.Coordination.Lease.TTL = time.Hour
		answer := func() {
			b, c := s.sends()
			at := ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour)))
			b.Answer([]ratelimit.Grant{{
				Seq: c.Seq, Window: c.Limit.WindowAt(at), Fence: c.Fence + 1, Granted: c.Granted + 1, Relearning: true, TTL: c.TTL, ResetAfter: time.Hour, At: at, Carried: true,
			}})
		}
		for i, want := range []uint64{1, 1, 2} {
			r := s.asks(1)
			answer()
			r.says(false, ratelimit.FromClaim)
			if hears {
				want = 0
			}
			if got := s.Stats().Recoveries; got != want {
				t.Errorf("hears of epochs %v, answer %d: %d losses, want %d", hears, i+1, got, want)
			}
			if i == 1 {
				s.passes(ledger.RelearnTime + time.Second)
			}
		}
	}
}

// What a claim settled of drift is told: of a claim that had none nothing, nor of
// one that was not answered.
func TestReconciliations(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	var told []lease.Reconciliation
	s.fleet.OnReconcile = func(r lease.Reconciliation) { told = append(told, r) }
	s.drifts(6)
	b, c := s.sends()
	b.Fail(errors.New("gone"))
	if len(told) != 0 {
		t.Errorf("nobody has answered, and it was told %+v", told)
	}
	s.drifts(1)
	s.rule.Coordination.Lease.Fixed = 20
	_, g := s.exchange() // 7 are confirmed, and more is granted besides
	if len(told) != 1 {
		t.Fatalf("told %+v", told)
	}
	if r := told[0]; r.Rule != s.rule || r.Key != c.Key || r.Window != g.Window || r.Fence != g.Fence || r.Drift != 7 || r.Confirmed != 7 || r.Over != 0 || r.Available != g.Available {
		t.Errorf("%+v", r)
	}
	s.rule.Coordination.CheckTimeout = time.Second
	for r := s.asks(1); !r.decided(); {
		s.exchange()
	}
	if len(told) != 1 {
		t.Errorf("nothing drifted, and it was told %+v", told[1:])
	}
}

// The last word on a window says of which it is, whose, and what was spent in it,
// as the ledger knows the lease.
func TestLastWordIsWhole(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.rule.Coordination.Audit = true
	s.drifts(4)
	before, g := s.exchange()
	s.drifts(3)
	s.sends() // and nothing is heard of it
	s.passes(46 * time.Second)
	r := s.asks(1)
	s.passes(2 * time.Millisecond)
	r.wait.TimeOver()
	if v := r.says(false, ratelimit.FromDrift); v.Window != g.Window+1 {
		t.Errorf("of window %d, and the last was %d", v.Window, g.Window)
	}
	b := s.Batch()
	if b == nil || !b.Claims()[0].Final {
		t.Fatalf("the window is over: %+v", b)
	}
	c := b.Claims()[0]
	want := ratelimit.Claim{
		Key: before.Key, Limit: s.rule.Limit, Holder: before.Holder, Seq: c.Seq, Fence: g.Fence, Window: g.Window, Granted: g.Granted, Spent: 8,
		TTL: time.Second, Tally: true, Final: true, Audit: s.rule.AuditName(), AuditBound: s.rule.DeclaredOver(),
	}
	if c != want {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	var told []lease.Reconciliation
	s.fleet.OnReconcile = func(r lease.Reconciliation) { told = append(told, r) }
	b.Answer([]ratelimit.Grant{{Seq: c.Seq, Window: c.Window, Fence: c.Fence, Granted: c.Granted, Carried: true, OverAdmitted: 3, At: ledgertest.Epoch}})
	if len(told) != 1 || told[0].Key != before.Key || told[0].Window != g.Window || told[0].Over != 3 {
		t.Errorf("what the last word has settled is told as %+v", told)
	}
	if by := s.Stats().ClaimsBy; by[ratelimit.ClaimFinal] != 1 {
		t.Errorf("%v", by)
	}
	s.asks(1)
	s.quiet("the claim before the last word is under way still")
}

// A lease that is over is claimed anew by the same name, with what was spent in its
// window; only a bucket fills up.
func TestLeaseIsClaimedAnew(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.leased(5)
	s.passes(46 * time.Second)
	s.asks(1)
	if _, c := s.sends(); c.Holder != s.fleet.name || c.Window != perMinute100.WindowAt(ledgertest.Epoch) || c.Spent != 1 || c.Returned != 4 || c.Refilled {
		t.Errorf("%+v", c)
	}
	s = newNodeScript(t, bucket100)
	s.leased(5)
	s.passes(2 * time.Minute)
	s.asks(1)
	if _, c := s.sends(); !c.Refilled {
		t.Errorf("%+v", c)
	}
}

// A bucket does not owe for ever what an outage admitted: what is beyond the node's
// share is forgiven. A window's end does the same for others.
func TestBucketIsForgiven(t *testing.T) {
	for algorithm, want := range map[ratelimit.Algorithm]tokens{ratelimit.TokenBucket: 15, ratelimit.FixedWindow: 40, ratelimit.SlidingWindow: 40} {
		l := lease.Lease{GrantedLimit: lease.GrantedLimit{Algorithm: algorithm}, Granted: 10, Spent: 40}
		for range 2 {
			if l.Forgive(5); l.Spent != want {
				t.Errorf("algorithm %v: %d are spent, want %d", algorithm, l.Spent, want)
			}
		}
		l.Spent = 12
		if l.Forgive(5); l.Spent != 12 {
			t.Errorf("algorithm %v: 2 are within the share, and %d are spent", algorithm, l.Spent)
		}
	}
}

// What was admitted without the ledger at the beginning of a window, before its
// lease was the current one, is charged to that lease.
func TestAnOutageAtTheTurnIsCharged(t *testing.T) {
	s, end := turning(t, 0)
	s.passes(end.Add(time.Second).Sub(s.now))
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	a := ask{Rule: s.rule, Key: keyOf(1), Cost: 5}
	if v := s.fleet.fail(context.Background(), s.now, &a, ratelimit.FallbackError); v.Charged != 5 {
		t.Fatalf("%+v", v)
	}
	s.spends(15)
	if r := s.asks(1); r.decided() {
		t.Errorf("20 were granted, of which 5 and 15 are spent: %+v", r.v[0])
	}
}

// A rule of mode approx whose window is over without a lease of the next begins
// anew by its other name, so that the last word on the one before can be told.
func TestApproxBeginsAnewByItsOtherName(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.drifts(4)
	before, _ := s.exchange()
	s.SetDrift(nil)
	s.passes(46 * time.Second)
	r := s.asks(1)
	c, _ := s.exchange()
	if c.Holder != before.Holder^1 || c.Window != 0 || c.Granted != 0 || c.Spent != 0 || c.Ahead {
		t.Errorf("%+v, and before %+v", c, before)
	}
	if v := r.says(false, ratelimit.FromClaim); v.Remaining != 99 {
		t.Errorf("%+v", v)
	}
}

// A renewal does not stand for the claim for the next window.
func TestRenewedLeaseHasItsNextWindowClaimed(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(20)
	s.spends(15)
	s.exchange()
	s.passes(44500 * time.Millisecond)
	s.asks(0)
	if c, _ := s.exchange(); !c.Ahead {
		t.Errorf("%+v", c)
	}
}

// A claim that waited to be sent while its window ended is about the next one, by
// the name that its lease has.
func TestClaimThatWaitedIsAboutTheNextWindow(t *testing.T) {
	s, end := turning(t, 0)
	name := s.fleet.name
	s.spends(15) // has a claim wait
	s.passes(end.Add(time.Second).Sub(s.now))
	if _, c := s.sends(); c.Holder != name^1 || c.Window != perMinute100.WindowAt(ledgertest.Epoch)+1 || c.Spent != 0 {
		t.Errorf("%+v", c)
	}
}

// The smallest lease is one, too; what is void is none.
func TestSmallLeasesAndVoidOnes(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.leased(1)
	if x := s.Stats(); x.LeaseSizes.Count != 1 || x.Void != 0 {
		t.Errorf("%+v", x)
	}
	s.asks(1)
	b, c := s.sends()
	b.Answer([]ratelimit.Grant{{Seq: c.Seq, Window: c.Window, Fence: c.Fence + 1, Granted: c.Spent, Void: true, Carried: true, TTL: c.TTL, ResetAfter: time.Minute, At: ledgertest.Epoch}})
	if x := s.Stats(); x.LeaseSizes.Count != 1 || x.Void != 1 {
		t.Errorf("%+v", x)
	}
	s.asks(1)
	b, c = s.sends()
	b.Answer([]ratelimit.Grant{{Seq: c.Seq, Window: c.Window, Fence: c.Fence + 1, Granted: c.Granted + 1, Carried: true, TTL: c.TTL, ResetAfter: time.Minute, At: ledgertest.Epoch}})
	if x := s.Stats(); x.LeaseSizes.Count != 2 || x.LeaseSizes.Sum != 2 {
		t.Errorf("two leases of one are counted as %+v", x.LeaseSizes)
	}
}

// Who looks at the ledger's clock from an instant before it was last heard knows no
// less of it, and no more.
func TestLedgerClockOfAMomentAgo(t *testing.T) {
	var c lease.LedgerClock
	c.Heard(instant(time.Hour), instant(time.Hour).Add(time.Second), 100e6)
	if w := c.Widened(c.At.Add(-time.Minute)); w.Lo != c.Lo || w.Hi != c.Hi {
		t.Errorf("%+v, was %+v", w, c)
	}
}

// A key of which nothing is known drifts at once where nothing is to be waited for,
// but only what is spent; and only if it is known what time it is at the ledger.
func TestNewKeyDriftsAtOnce(t *testing.T) {
	s, d := newDriftScript(t, perMinute100)
	s.rule.Coordination.CheckTimeout, d.heir = 0, 5 // of a window nobody inherits
	asks := func(k uint64, kind ratelimit.Kind) *nodeRequest {
		r := &nodeRequest{nodeScript: s, v: make([]verdict, 1)}
		r.wait = s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(k), Cost: 10, Kind: kind}}, r.v)
		return r
	}
	asks(2, ratelimit.Spend).says(false, ratelimit.FromDrift)
	if r := asks(3, ratelimit.Refund); r.decided() {
		t.Errorf("what is given back is decided by nobody: %+v", r.v[0])
	}
	fresh := newNodeScript(t, perMinute100)
	fresh.passes(10 * time.Second)
	fresh.rule = s.rule
	fresh.SetDrift(d)
	if r := fresh.asks(1); r.decided() {
		t.Errorf("nobody knows which window it is: %+v", r.v[0])
	}
}

// What was booked for the ledger is told, and then nothing is left to undo of it.
func TestUndoOfWhatWasTold(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.Lease.Fixed = ratelimit.FailOpen, 1
	asks, v := s.outage(5)
	for range 2 {
		for r := s.asks(1); !r.decided(); {
			s.exchange()
		}
		s.Undo(s.now, asks, v)
	}
	if s.spent() != 7 {
		t.Errorf("5 and twice 1 were spent: %d", s.spent())
	}
}

// All keys' leases are given back with the last words.
func TestLastWordsOfAllKeys(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Hour, 5
	const keys = 1500
	s.ledger = ledger.NewMemory(keys, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
	for k := range uint64(keys) {
		s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(k), Cost: 0}}, make([]verdict, 1))
		for b := s.Batch(); b != nil; b = s.Batch() {
			s.settled(b, 0)
		}
	}
	if got := len(s.Release(s.now)); got != keys {
		t.Errorf("%d of %d keys are given back", got, keys)
	}
}

// A next window's lease is given back by who stops, also when of the window before
// all was told.
func TestLastWordsAfterATurn(t *testing.T) {
	s, end := turning(t, 0)
	s.spends(19)
	for b := s.Batch(); b != nil; b = s.Batch() { // it is renewed
		s.settled(b, 0)
	}
	h := func() *busyKey {
		sh, _, h := s.fleet.locked(keyOf(1))
		defer sh.mu.Unlock()
		return h
	}()
	h.Settled = true // as if nothing were left
	s.passes(end.Add(time.Second).Sub(s.now))
	claims := s.Release(s.now)
	if len(claims) != 1 || claims[0].Returned != 20 {
		t.Errorf("%+v", claims)
	}
}

// What an idle key gives back is counted as that, though a request came while it
// was told.
func TestReturnIsCountedAsOne(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.rule.Coordination.Lease.TTL = time.Hour
	s.leased(20)
	s.passes(3 * time.Second)
	s.sweeps()
	b, c := s.sends()
	if c.Returned != 19 {
		t.Fatalf("%+v", c)
	}
	r := s.asks(3)
	s.settled(b, 0)
	if r.decided() {
		t.Fatalf("%+v", r.v[0])
	}
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	if by := s.Stats().ClaimsBy; by[ratelimit.ClaimReturn] != 1 || by[ratelimit.ClaimWaiting] != 2 {
		t.Errorf("%v", by)
	}
}

// Of a sliding window's last one counts on what was spent there and not confirmed:
// the share is less by that, and the ledger is told what was charged before.
func TestSlidingDriftCarriesOn(t *testing.T) {
	s, _ := newDriftScript(t, sliding100)
	s.drifts(4)
	b, c := s.sends()
	g := []ratelimit.Grant{{ // the ledger has nothing left, and confirms none
		Seq: c.Seq, Window: s.ledger.Booked(&ratelimit.Claim{Key: string(keyOf(1))}).Current, Fence: c.Fence + 1, Granted: c.Granted, TTL: c.TTL, ResetAfter: time.Minute, At: ledgertest.Epoch, Carried: true, Holders: 2,
	}}
	b.Answer(g)
	s.passes(46 * time.Second)
	late := func(cost tokens) *nodeRequest {
		r := s.asks(cost)
		s.passes(2 * time.Millisecond)
		if !r.decided() {
			r.wait.TimeOver()
		}
		return r
	}
	if r := late(7); r.decided() {
		t.Errorf("4 of the share of 10 are spent in the window before: %+v", r.v[0])
	}
	late(6).says(false, ratelimit.FromDrift)
	if _, c := s.sends(); c.Before != 5 {
		t.Errorf("5 were charged in the window before: %+v", c)
	}
}

// A bucket has one window, and is full again when all that fits has come back.
func TestNewBucketDrifts(t *testing.T) {
	for _, l := range []ratelimit.Limit{bucket100, {Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Hour, Requests: 1, Burst: 100}} {
		s, _ := newDriftScript(t, l)
		s.rule.Coordination.CheckTimeout = 0
		r := &nodeRequest{nodeScript: s, v: make([]verdict, 1)}
		r.wait = s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(2), Cost: 10}}, r.v)
		full := time.Duration(float64(l.Burst) / float64(l.Requests) * float64(l.Period()))
		if v := r.says(false, ratelimit.FromDrift); v.Window != 1 || v.ResetAfter != full {
			t.Errorf("%+v", v)
		}
	}
}

// What is left of a lease that has expired is not spent beside the share.
func TestExpiredLeaseIsNoShare(t *testing.T) {
	for cost, ok := range map[tokens]bool{10: true, 11: false} {
		s, _ := newDriftScript(t, perMinute100)
		s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Second, 20
		s.drifts(2)
		s.exchange()
		s.passes(950 * time.Millisecond)
		if r := s.asks(cost); r.decided() != ok {
			t.Errorf("%d tokens beside an expired lease, and the share is 10: %+v", cost, r.v[0])
		}
	}
}

// A refund of what was never spent does not end a refusal.
func TestEmptyRefundEndsNoRefusal(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	g := s.other(ratelimit.Claim{Seq: 1, Waiting: 100})
	s.other(ratelimit.Claim{Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 100, Spent: 100})
	s.rule.Coordination.Lease.TTL = time.Hour
	r := s.asks(1)
	s.exchange()
	r.says(true, ratelimit.FromClaim)
	s.asks(1).says(true, ratelimit.FromLease)
	s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(1), Cost: 5, Kind: ratelimit.Refund}}, make([]verdict, 1))
	s.asks(1).says(true, ratelimit.FromLease)
}

// A bucket that takes long to fill is told of at half of the lease's time all the
// same.
func TestLargeBucketIsToldInTime(t *testing.T) {
	d := lease.Demand{PerSec: 1000}
	l := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Hour, Requests: 100, Burst: 100_000}
	r := d.Renewal(instant(time.Hour), instant(time.Hour), 10, &l, &ratelimit.Grant{TTL: 10 * time.Second, ResetAfter: 10 * time.Hour, Holders: 1})
	if got := r.After.Sub(instant(time.Hour)); got != 5*time.Second {
		t.Errorf("told after %v", got)
	}
}
