package leasing

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// nodeScript is one node that the test drives, step by step, and a ledger in
// memory at the end of a wire. The node's clock starts at an hour, when the
// ledger's is at ledgertest.Epoch: 15 s into a minute, 0 s into a quarter.
type nodeScript struct {
	testing.TB
	*Stepped
	rule   *ratelimit.Rule
	ledger *ledger.Memory
	now    instant
	timers []nodeTimer
	jitter float64
}

type nodeTimer struct {
	at   instant
	call func()
}

func newNodeScript(t testing.TB, l ratelimit.Limit) *nodeScript {
	s := &nodeScript{TB: t, rule: testRule(l), now: instant(time.Hour)}
	s.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	s.ledger = ledger.NewMemory(100, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
	after := func(d time.Duration, call func()) { s.timers = append(s.timers, nodeTimer{s.now.Add(d), call}) }
	s.Stepped = NewStepped(1, 10_000, func() instant { return s.now }, time.Unix(1_800_000_015, 0), after, func() float64 { return s.jitter })
	return s
}

// passes moves the clock, and calls what was to be called by then, in order.
func (s *nodeScript) passes(d time.Duration) {
	end := s.now.Add(d)
	for {
		i := slices.IndexFunc(s.timers, func(t nodeTimer) bool { return t.at <= end })
		if i < 0 {
			s.now = end
			return
		}
		for j := range s.timers {
			if s.timers[j].at < s.timers[i].at {
				i = j
			}
		}
		t := s.timers[i]
		s.timers = slices.Delete(s.timers, i, i+1)
		s.now = max(s.now, t.at)
		t.call()
	}
}

// nodeRequest is a request for the node's one key.
type nodeRequest struct {
	*nodeScript
	wait *Wait
	v    []verdict
}

func (s *nodeScript) asks(cost tokens) *nodeRequest {
	r := &nodeRequest{nodeScript: s, v: make([]verdict, 1)}
	r.wait = s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(1), Cost: cost}}, r.v)
	return r
}

// decided tells whether the request has its verdict.
func (r *nodeRequest) decided() bool {
	if r.wait != nil && !r.wait.Advance(r.now) {
		r.wait = nil
	}
	return r.wait == nil
}

// says expects the verdict.
func (r *nodeRequest) says(over bool, source ratelimit.Source) verdict {
	r.Helper()
	if !r.decided() {
		r.Fatal("the request waits still")
	}
	if v := r.v[0]; v.OverLimit != over || v.Source != source {
		r.Fatalf("over limit %v by %s, and it should have been %v by %s: %+v", v.OverLimit, ratelimit.Sources[v.Source], over, ratelimit.Sources[source], v)
	}
	return r.v[0]
}

// spends expects a lease to have so many tokens, without asking.
func (s *nodeScript) spends(n tokens) {
	s.Helper()
	s.asks(n).says(false, ratelimit.FromLease)
}

// sends takes the batch that is to be sent now, which must have one claim.
func (s *nodeScript) sends() (*Batch, ratelimit.Claim) {
	s.Helper()
	b := s.Batch()
	if b == nil || len(b.Claims()) != 1 {
		s.Fatalf("no claim is to be sent, or several: %+v", b)
	}
	return b, b.Claims()[0]
}

// quiet expects that nothing is to be sent.
func (s *nodeScript) quiet(why string) {
	s.Helper()
	if b := s.Batch(); b != nil {
		s.Fatalf("%s, and it sends %+v", why, b.Claims())
	}
}

// settled has the ledger settle a batch now, and its answer travel for so long.
func (s *nodeScript) settled(b *Batch, back time.Duration) ratelimit.Grant {
	g := make([]ratelimit.Grant, len(b.Claims()))
	s.ledger.Settle(s.Context(), b.Claims(), g)
	s.passes(back)
	b.Answer(g)
	return g[0]
}

// exchange sends what is to be sent, and has it answered at once.
func (s *nodeScript) exchange() (ratelimit.Claim, ratelimit.Grant) {
	s.Helper()
	b, c := s.sends()
	return c, s.settled(b, 0)
}

// other is another node's claim at the ledger.
func (s *nodeScript) other(c ratelimit.Claim) ratelimit.Grant {
	c.Key, c.Limit, c.Holder, c.Want = string(keyOf(1)), s.rule.Limit, 99, max(c.Want, c.Waiting)
	if c.TTL == 0 {
		c.TTL = time.Hour
	}
	var g [1]ratelimit.Grant
	s.ledger.Settle(s.Context(), []ratelimit.Claim{c}, g[:])
	return g[0]
}

// leased has the node ask for one token, and the ledger grant it a lease of n.
func (s *nodeScript) leased(n tokens) ratelimit.Grant {
	s.Helper()
	s.rule.Coordination.Lease.Fixed = n
	r := s.asks(1)
	_, g := s.exchange()
	r.says(false, ratelimit.FromClaim)
	return g
}

// Requests that wait for one key wait behind one claim, which asks for all of
// them; those that come when it has left wait for the next. No request can need
// more than the limit and one.
func TestRequestsShareAClaim(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	a, b, c := s.asks(2), s.asks(3), s.asks(1000)
	batch, claim := s.sends()
	if claim.Waiting != 106 || claim.Want != 106 {
		t.Errorf("2, 3 and more than 100 wait, and the claim says %d of %d", claim.Waiting, claim.Want)
	}
	d := s.asks(7)
	s.quiet("a claim for the key is under way")
	s.settled(batch, time.Millisecond)
	a.says(false, ratelimit.FromClaim)
	b.says(false, ratelimit.FromClaim)
	d.says(false, ratelimit.FromClaim)
	c.says(true, ratelimit.FromClaim)
	if left := s.asks(88).says(false, ratelimit.FromLease).Remaining; left != 0 {
		t.Errorf("%d are left of 100, of which 2, 3, 7 and 88 were spent", left)
	}
}

// A request waits no longer than the store's deadline; the answer that comes
// later is no loss.
func TestRequestDoesNotWaitForEver(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailClosed
	r := s.asks(1)
	batch, _ := s.sends()
	if got := r.wait.Patience(); got != ratelimit.StoreDeadline {
		t.Errorf("it waits for %v", got)
	}
	s.passes(ratelimit.StoreDeadline)
	if more := r.wait.TimeOver(); more != 0 {
		t.Errorf("it would wait for %v more", more)
	}
	v := r.says(true, ratelimit.FromFallback)
	if v.Reason != ratelimit.FallbackDeadline || v.Charged != 0 || v.ResetAfter != time.Minute {
		t.Errorf("refused as %+v", v)
	}
	s.settled(batch, time.Millisecond)
	s.spends(1)
}

// What on_store_failure says, decides: at once when the answer is an error,
// without asking when the breaker is open. What was admitted so is reported as
// spent, in the window in which that was.
func TestStoreFails(t *testing.T) {
	for policy, want := range map[ratelimit.FailurePolicy]struct {
		over    bool
		charged tokens
		spent   tokens // as the next claim of the window says
	}{
		ratelimit.FailOpen: {false, 5, 21}, ratelimit.FailClosed: {true, 0, 1}, ratelimit.FailLocal: {false, 5, 21}, ratelimit.FailCached: {false, 5, 21},
	} {
		s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 1000})
		s.rule.Coordination.OnStoreFailure, s.rule.Coordination.MaxStaleness = policy, 10*time.Second
		s.leased(1)
		for range breakAfter {
			r := s.asks(5)
			b, _ := s.sends()
			b.Fail(errors.New("gone"))
			v := r.says(want.over, ratelimit.FromFallback)
			if v.Charged != want.charged || v.Reason != ratelimit.FallbackError {
				t.Errorf("%v: %+v", policy, v)
			}
		}
		if v := s.asks(5).says(want.over, ratelimit.FromFallback); v.Reason != ratelimit.FallbackBreaker || v.Charged != want.charged {
			t.Errorf("%v, the breaker is open: %+v", policy, v)
		}
		s.quiet("the breaker is open")
		s.passes(time.Second)
		r := s.asks(1)
		c, g := s.exchange()
		if c.Spent != want.spent {
			t.Errorf("%v: %d are reported as spent, and %d were", policy, c.Spent, want.spent)
		}
		if v := r.says(false, ratelimit.FromClaim); v.Remaining != 1000-want.spent-1 {
			t.Errorf("%v: %d of 1000 are left, of which %d were spent (granted %d)", policy, v.Remaining, want.spent+1, g.Granted)
		}
	}
}

// Without a lease nobody knows of which window it is what an outage admits. It
// is charged to the first window that is heard of, if that had begun by then.
func TestAnOutageIsChargedToItsWindow(t *testing.T) {
	for _, c := range []struct {
		pause time.Duration // 45 s before the window ends
		left  tokens
	}{{44 * time.Second, 94}, {46 * time.Second, 99}} {
		s := newNodeScript(t, perMinute100)
		s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
		r := s.asks(5)
		b, _ := s.sends()
		b.Fail(errors.New("gone"))
		r.says(false, ratelimit.FromFallback)
		s.passes(c.pause)
		for r = s.asks(1); !r.decided(); { // what it is granted first pays what is owed
			s.exchange()
		}
		if v := r.says(false, ratelimit.FromClaim); v.Remaining != c.left {
			t.Errorf("5 were admitted without the ledger, and 1 after %v: %d are left instead of %d", c.pause, v.Remaining, c.left)
		}
	}
}

// cached goes on against what was left when last heard, for max_staleness and no
// longer, and not into the next window.
func TestCachedGoesStale(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		over  bool
	}{{10 * time.Second, false}, {10*time.Second + 1, true}} {
		s := newNodeScript(t, perMinute100)
		s.rule.Coordination.OnStoreFailure, s.rule.Coordination.MaxStaleness = ratelimit.FailCached, 10*time.Second
		s.leased(1) // 99 were left
		s.passes(c.after)
		left := tokens(99)
		for _, cost := range []tokens{100, 90, 9} {
			r := s.asks(cost)
			if b := s.Batch(); b != nil { // the breaker lets two fail
				b.Fail(errors.New("gone"))
			}
			v := r.says(c.over || cost == 100, ratelimit.FromFallback)
			if v.OverLimit {
				continue
			}
			if left -= cost; v.Remaining != left || v.ResetAfter != 35*time.Second {
				t.Errorf("%d were to be left, 35 s before the window ends: %+v", left, v)
			}
		}
	}
}

// A lease is renewed in the background below half of its tokens, and at half of
// its time; requests go on meanwhile.
func TestLeaseIsRenewedInTheBackground(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.rule.Coordination.Lease.TTL = 10 * time.Second
	s.leased(100) // and one is spent
	s.spends(49)
	s.quiet("half is left")
	s.spends(1)
	c, g := s.exchange()
	if c.Spent != 51 || c.Waiting != 0 || g.Granted != 151 {
		t.Errorf("a lease of 100 is filled up: %+v granted %d", c, g.Granted)
	}
	s.passes(5*time.Second - 1)
	s.spends(1)
	s.quiet("half of its time is left")
	s.passes(1)
	s.spends(1)
	if c, _ = s.exchange(); c.Spent != 53 {
		t.Errorf("%+v", c)
	}
}

// When there is nothing to be had, and others hold tokens which they may give
// back, the ledger is asked every 50 to 100 ms and not for each request.
func TestShortageAsksSeldom(t *testing.T) {
	for jitter, pause := range map[float64]time.Duration{0: 50 * time.Millisecond, 1: 100 * time.Millisecond} {
		s := newNodeScript(t, perMinute100)
		s.jitter = jitter
		s.other(ratelimit.Claim{Seq: 1, Waiting: 98})
		r := s.asks(5)
		s.exchange()
		if v := r.says(true, ratelimit.FromClaim); v.Remaining != 2 || v.ResetAfter != pause {
			t.Errorf("2 of 5 are there, and others hold 98: %+v, want %v", v, pause)
		}
		s.passes(pause - 1)
		s.asks(3).says(true, ratelimit.FromLease)
		s.quiet("it has just asked")
		s.passes(1)
		r = s.asks(3)
		s.other(ratelimit.Claim{Seq: 2, Window: s.ledger.Booked(&ratelimit.Claim{Key: string(keyOf(1))}).Current, Granted: 98, Returned: 50})
		s.exchange()
		r.says(false, ratelimit.FromClaim)
	}
}

// The next window is claimed a second before it begins, by half of that later
// where chance says so, but early enough for two trips; once a window, and by
// the node's other name.
func TestNextWindowIsClaimedInTime(t *testing.T) {
	for _, c := range []struct {
		jitter     float64
		trip, lead time.Duration
	}{{0, 0, time.Second}, {1, 0, 500 * time.Millisecond}, {1, 600 * time.Millisecond, 1200 * time.Millisecond}} {
		s := newNodeScript(t, perMinute100)
		s.rule.Coordination.Lease.TTL, s.jitter = 2*time.Minute, c.jitter
		s.rule.Coordination.Lease.Fixed = 40
		s.asks(1)
		b, first := s.sends()
		s.settled(b, c.trip)
		end := instant(time.Hour).Add(45 * time.Second)
		s.passes(end.Add(-c.lead - time.Millisecond).Sub(s.now))
		s.spends(1)
		s.quiet("it is early")
		s.passes(time.Millisecond)
		s.spends(1)
		b, ahead := s.sends()
		if !ahead.Ahead || ahead.Window != first.Limit.WindowAt(ledgertest.Epoch)+1 || ahead.Holder != first.Holder^1 || ahead.Want != 40 {
			t.Errorf("%v before the end it claims %+v", c.lead, ahead)
		}
		s.settled(b, 0)
		s.spends(1)
		s.quiet("the next window has its lease")
		s.passes(c.lead + time.Millisecond)
		s.spends(40)
		r := s.asks(1)
		if claim, _ := s.exchange(); claim.Holder != ahead.Holder || claim.Spent != 40 {
			t.Errorf("in the next window it claims %+v", claim)
		}
		r.says(false, ratelimit.FromClaim)
	}
}

// A node stops spending a lease before the ledger takes it for expired: a
// twentieth of its time before, and a quarter where the ledger then gives its
// tokens to others; counted from when the claim was sent, however long the
// answer took.
func TestNodeStopsBeforeTheLedger(t *testing.T) {
	for reclaim, last := range map[ratelimit.Reclaim]time.Duration{
		ratelimit.ReclaimSafe: 9500 * time.Millisecond, ratelimit.ReclaimEager: 7500 * time.Millisecond,
	} {
		s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
		s.rule.Coordination.Reclaim, s.rule.Coordination.Lease.TTL = reclaim, 10*time.Second
		s.rule.Coordination.Lease.Fixed = 20
		r := s.asks(1)
		b, _ := s.sends()
		s.settled(b, 2*time.Second)
		r.says(false, ratelimit.FromClaim)
		s.passes(last - 2*time.Second - 1)
		s.spends(1)
		s.passes(1)
		if r := s.asks(1); r.decided() {
			t.Errorf("%v after the claim for 10 s was sent, reclaim: %v, the lease is spent: %+v", last, reclaim, r.v)
		}
	}
}
