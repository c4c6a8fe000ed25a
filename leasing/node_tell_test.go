package leasing

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

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
		return ask{Rule: r}
	}
	a, b, long, other := rule(ratelimit.Approx, 3*time.Millisecond), rule(ratelimit.Approx, time.Millisecond), rule(ratelimit.Approx, time.Hour), rule(ratelimit.Leasing, time.Millisecond)
	for i, c := range []struct {
		asks []ask
		want time.Duration
	}{
		{[]ask{a, b}, 3 * time.Millisecond}, {[]ask{b, a}, 3 * time.Millisecond}, {[]ask{b, other}, time.Millisecond},
		{[]ask{b, long}, ratelimit.StoreDeadline}, {[]ask{other}, ratelimit.StoreDeadline},
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
	s.drifts(4)
	s.passes(44 * time.Second)
	if !s.Drifting() {
		t.Error("its window goes on")
	}
	s.passes(time.Second)
	if s.Drifting() {
		t.Error("its window is over")
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
		{110_000_901, 0}, {110_000_902, time.Microsecond}, {107_999_099, 0}, {107_999_098, -time.Microsecond},
		{120e6, 10*time.Second - 901*time.Microsecond},
		{90e6, -18*time.Second + 901*time.Microsecond},
	} {
		var known ledgerClock
		if step := known.heard(second, 2*second, 100e6); step != 0 {
			t.Errorf("heard for the first time: %v", step)
		}
		if step := known.heard(10*second, 11*second, c.hears); step != c.step {
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
	s = newNodeScript(t, perMinute100)
	s.leased(5)
	s.passes(2 * time.Minute)
	if claims := s.Release(s.now); len(claims) != 0 {
		t.Errorf("the window is over, and the ledger is told %+v", claims)
	}
}
