package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// inVain has a request wait for its whole time, and no answer come.
func (s *nodeScript) inVain(cost tokens) *nodeRequest {
	s.Helper()
	r := s.asks(cost)
	if r.decided() {
		s.Fatalf("it should wait for the ledger, and was decided: %+v", r.v[0])
	}
	s.passes(ratelimit.StoreDeadline)
	for r.wait.TimeOver() > 0 {
	}
	return r
}

// While the ledger answers, what waited in vain is refused where half of the limit or
// less was left when the key was last heard of. Another node may have spent it since,
// and what this node may admit in an outage would be over. When nothing has been
// heard for aliveFor, it is an outage.
func TestLateAnswerIsNoOutage(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.other(ratelimit.Claim{Seq: 1, Waiting: 60})
	s.leased(1) // 39 are left
	s.inVain(3).says(true, ratelimit.FromClaim)
	s.passes(aliveFor)
	s.inVain(3).says(false, ratelimit.FromFallback)
}

// Where more than half is left, or the key was never heard of, on_store_failure
// decides, as if there were an outage: the first request on a cold key passes. The
// second does not, before the ledger has been heard of the key; but with open.
func TestLateOnPlenty(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.Stepped.fleet.lanes[0].answered = s.now // the ledger answers others
	s.inVain(1).says(false, ratelimit.FromFallback)
	s.inVain(1).says(true, ratelimit.FromClaim)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	s.inVain(1).says(false, ratelimit.FromFallback)

	s = newNodeScript(t, perMinute100)
	s.other(ratelimit.Claim{Seq: 1, Waiting: 40})
	s.leased(1) // 59 are left
	s.inVain(3).says(false, ratelimit.FromFallback)
}

// The ledger is late and not gone when it has answered less than aliveFor ago, and has
// not failed since.
func TestLedgerThatIsAlive(t *testing.T) {
	for _, x := range []struct {
		answered, now instant
		failures      int
		alive         bool
	}{
		{1, 2, 0, true},
		{0, 2, 0, false}, // never
		{1, 2, 1, false},
		{1, 2, 2, false},
		{5, instant(aliveFor) + 4, 0, true},
		{5, instant(aliveFor) + 5, 0, false},
	} {
		l := &lane{answered: x.answered}
		l.breaker.failures = x.failures
		if l.alive(x.now) != x.alive {
			t.Errorf("%+v: alive %v", x, !x.alive)
		}
	}
}

// The ledger's clock was set just now for as long as others may not have told what they had. One that never was is
// not, also where this process is younger than that.
func TestClockThatWasJustSet(t *testing.T) {
	const learns = instant(ledger.RelearnTime)
	for _, x := range []struct {
		set, now instant
		just     bool
	}{
		{0, 1, false}, {0, learns - 1, false}, {1, 1, true}, {1, learns, true}, {1, learns + 1, false}, {learns, learns, true},
	} {
		l := &lane{set: x.set}
		if just := l.justSet(x.now); just != x.just {
			t.Errorf("set at %v, at %v: just set %v", x.set, x.now, just)
		}
	}
}

// What has waited in vain is decided by what is left of the key, as far as is known,
// and the rule's policy, while the ledger answers others.
func TestRefusedLateByWhatIsLeft(t *testing.T) {
	const waits = instant(ratelimit.StoreDeadline)
	for _, x := range []struct {
		what      string
		policy    ratelimit.FailurePolicy
		algorithm ratelimit.Algorithm
		left      tokens
		heard     instant // 0: never; below: so long before the request has waited for its whole time
		alive     bool
		late      bool
		refused   bool
	}{
		{"not enough is left", ratelimit.FailLocal, ratelimit.FixedWindow, 9, 5, true, true, true},
		{"not enough, and the policy admits", ratelimit.FailOpen, ratelimit.FixedWindow, 9, 1, true, true, true},
		{"not enough, and the ledger may be gone", ratelimit.FailLocal, ratelimit.FixedWindow, 9, 5, false, true, false},
		{"not enough, and it was never heard", ratelimit.FailOpen, ratelimit.FixedWindow, 9, 0, true, true, false},
		{"not enough, of a window that slides", ratelimit.FailLocal, ratelimit.SlidingWindow, 9, 5, true, true, false},
		{"half, of a window that slides", ratelimit.FailLocal, ratelimit.SlidingWindow, 50, -waits - 1, true, true, false},
		{"half, of a window that slides, heard while it waited", ratelimit.FailCached, ratelimit.SlidingWindow, 50, -waits, true, true, true},
		{"half, of a bucket, heard while it waited", ratelimit.FailCached, ratelimit.TokenBucket, 50, -waits, true, true, true},
		{"more than half of it", ratelimit.FailCached, ratelimit.TokenBucket, 51, -waits, true, true, false},
		{"half of it, and the policy admits", ratelimit.FailOpen, ratelimit.TokenBucket, 50, -waits, true, true, false},
		{"half of it, and the ledger may be gone", ratelimit.FailCached, ratelimit.TokenBucket, 50, -waits, false, true, false},
		{"half is left", ratelimit.FailLocal, ratelimit.FixedWindow, 50, 5, true, true, true},
		{"half is left, and there is time", ratelimit.FailLocal, ratelimit.FixedWindow, 50, 5, true, false, false},
		{"half is left, and the policy admits", ratelimit.FailOpen, ratelimit.FixedWindow, 50, 5, true, true, false},
		{"half is left, and the ledger may be gone", ratelimit.FailLocal, ratelimit.FixedWindow, 50, 5, false, true, false},
		{"half is left, and it was never heard", ratelimit.FailLocal, ratelimit.FixedWindow, 50, 0, true, true, false},
		{"more than half is left", ratelimit.FailLocal, ratelimit.FixedWindow, 51, 5, true, true, false},
	} {
		s := newRecallScript(t, hundredAMinute)
		s.asks(1)
		s.exchange()
		h := s.keyHeld()
		s.passes(ratelimit.StoreDeadline + 1)
		if h.Heard, h.Recalling = x.heard, false; x.heard < 0 {
			h.Heard = s.now + x.heard
		}
		h.Lease.Algorithm = x.algorithm
		h.Lease.Available = x.left - h.Lease.Unspent()
		for i := range s.fleet.lanes {
			if s.fleet.lanes[i].answered = s.now; !x.alive {
				s.fleet.lanes[i].answered = 0
			}
		}
		s.rule.Coordination.OnStoreFailure = x.policy
		before := h.Lease
		a := ask{Rule: s.rule, Key: keyOf(1), Cost: 10}
		v, ok := s.fleet.refusedLate(s.now, &a, x.late)
		if ok != x.refused {
			t.Errorf("%s: refused %v", x.what, ok)
		}
		if ok && (!v.OverLimit || v.Source != ratelimit.FromClaim || v.Charged != 0 || v.Remaining != x.left || v.ResetAfter != h.Lease.Reset.Sub(s.now)) {
			t.Errorf("%s: %+v", x.what, v)
		}
		if h.Lease != before {
			t.Errorf("%s: a refusal that knows too little has drained the lease", x.what)
		}
	}
}

// Of a key that was not heard of in this window, one request at a time is decided by
// the policy: while it is owed, others are refused for as long as a window, at most.
func TestRefusedLateWhileOneIsOwed(t *testing.T) {
	for _, x := range []struct {
		policy         ratelimit.FailurePolicy
		owed           tokens
		alive, refused bool
	}{
		{ratelimit.FailLocal, 1, true, true},
		{ratelimit.FailLocal, 0, true, false},
		{ratelimit.FailLocal, 1, false, false},
		{ratelimit.FailOpen, 1, true, false},
	} {
		s := newRecallScript(t, hundredAMinute)
		s.asks(1)
		s.exchange()
		h := s.keyHeld()
		s.passes(2 * time.Minute)
		h.Unplaced, s.rule.Coordination.OnStoreFailure = x.owed, x.policy
		for i := range s.fleet.lanes {
			if s.fleet.lanes[i].answered = s.now; !x.alive {
				s.fleet.lanes[i].answered = 0
			}
		}
		a := ask{Rule: s.rule, Key: keyOf(1), Cost: 1}
		v, ok := s.fleet.refusedLate(s.now, &a, true)
		want := verdict{}
		if x.refused {
			want = verdict{OverLimit: true, Source: ratelimit.FromClaim, ResetAfter: time.Minute}
		}
		if ok != x.refused || v != want {
			t.Errorf("%+v: refused %v, %+v", x, ok, v)
		}
	}
}

// What was refused by the ledger within the request's time is refused, whatever else is
// known; and what it said before that time is of no use for it.
func TestRefusedByWhatWasHeardInTime(t *testing.T) {
	for ago, refused := range map[time.Duration]bool{ratelimit.StoreDeadline: true, ratelimit.StoreDeadline + 1: false} {
		s := newRecallScript(t, hundredAMinute)
		s.asks(1)
		s.exchange()
		h := s.keyHeld()
		h.Lease.Available = 9 - h.Lease.Unspent()
		for i := range s.fleet.lanes {
			s.fleet.lanes[i].answered = 0 // the ledger may be gone
		}
		s.passes(ago)
		a := ask{Rule: s.rule, Key: keyOf(1), Cost: 10}
		if v, ok := s.fleet.refusedLate(s.now, &a, true); ok != refused || v.OverLimit != refused {
			t.Errorf("heard %v ago: refused %v, %+v", ago, ok, v)
		}
	}
}
