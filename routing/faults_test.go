package routing

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/ring"
)

// boundary is the next boundary of windows, as an instant of the script.
func (s *script) boundary(period time.Duration) time.Duration {
	wall := time.Unix(1_800_000_000, 0).UnixNano() + int64(s.now) - int64(time.Second)
	return time.Duration(s.now) + period - time.Duration(wall%int64(period))
}

func (s *script) to(at time.Duration) { s.play(at - time.Duration(s.now)) }

// outage has a and b out of each other's reach, by streams that break.
func (s *script) outage(a *scriptNode) {
	a.cut = true
	s.breakAll("a:1", "b:1")
	s.play(5 * time.Millisecond)
}

// An answer that comes between the end of a request's time and its decision without the owner is taken back.
func TestAnswerWhileATimeEnds(t *testing.T) {
	s, a := newPair(t)
	q := ask{Rule: s.rule, Key: a.ownedBy("b:1"), Cost: 4}
	r := a.newRequest(t.Context(), s.now, []ask{q}, make([]verdict, 1))
	call := r.forward(&q, "b:1")
	_, ok := r.read(s.now, &q, call) // decided(): the time is over, no answer
	a.Pump()
	s.play(20 * time.Millisecond) // the answer comes between the two looks at the call
	r.alone(s.now, 0, call)
	a.Pump()
	s.play(2 * time.Second)
	left := s.one("b:1", ask{Key: q.Key, Kind: ratelimit.Peek}).Remaining
	if r.verdicts[0].OverLimit && !ok && left != 10 {
		t.Errorf("it was refused, and %d of 10 are left", left)
	}
}

// The largest costs, admitted in place of an owner, give nothing back there.
func TestHugeCostsInAnOutage(t *testing.T) {
	s, a := newPair(t)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	key := a.ownedBy("b:1")
	n := s.admits("b:1", key, 12)
	s.outage(a)
	for range 2 {
		s.one("a:1", ask{Key: key, Cost: ratelimit.MaxTokens}) // package rls lets hits_addend be as much
	}
	a.cut = false
	s.play(3 * time.Second)
	if n += s.admits("b:1", key, 12); n > 10 {
		t.Errorf("%d of 10 are admitted by the owner", n)
	}
}

// What was admitted in place of an owner counts in the next sliding window, also if that has arrears of its own.
func TestArrearsOfTwoWindows(t *testing.T) {
	for _, more := range []bool{false, true} {
		s, a := newPair(t)
		s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
		s.rule.Limit.Unit, s.rule.Limit.Algorithm = ratelimit.Minute, ratelimit.SlidingWindow
		key := a.ownedBy("b:1")
		s.to(s.boundary(time.Minute) - 700*time.Millisecond)
		s.outage(a)
		s.one("a:1", ask{Key: key, Cost: 10})
		s.play(800 * time.Millisecond)
		if more {
			s.one("a:1", ask{Key: key, Cost: 1})
		}
		a.cut = false
		s.play(3 * time.Second)
		if left := s.one("b:1", ask{Key: key, Kind: ratelimit.Peek}).Remaining; left > 0 {
			t.Errorf("one more in the next window %v: %d of 10 are left", more, left)
		}
	}
}

// A credit of an admission whose window has ended counts in no other.
func TestUndoAfterATurn(t *testing.T) {
	s, a := newPair(t)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	s.rule.Limit.Unit = ratelimit.Minute
	q := ask{Rule: s.rule, Key: a.ownedBy("b:1"), Cost: 6}
	s.to(s.boundary(time.Minute) - 70*time.Millisecond)
	s.outage(a)
	v := s.one("a:1", q)
	s.play(20 * time.Millisecond) // the window turns
	a.Undo([]ask{q}, []verdict{v})
	n := s.admits("b:1", q.Key, 12)
	a.cut = false
	s.play(3 * time.Second)
	if n += s.admits("b:1", q.Key, 12); n != 10 {
		t.Errorf("%d of 10 are admitted in the next window", n)
	}
}

// A credit that counts nowhere does not cancel a later charge.
func TestCreditsBeforeCharges(t *testing.T) {
	s, a := newPair(t)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	key := a.ownedBy("b:1")
	s.outage(a)
	s.one("a:1", ask{Key: key, Cost: 8, Kind: ratelimit.Refund}) // of no usage: it counts nothing
	v := s.one("a:1", ask{Key: key, Cost: 8})
	a.cut = false
	s.play(3 * time.Second)
	if left := s.one("b:1", ask{Key: key, Kind: ratelimit.Peek}).Remaining; v.OverLimit || left != 2 {
		t.Errorf("8 were admitted, and %d of 10 are left", left)
	}
}

// An owner whose window has not begun yet books a charge later.
func TestChargesOfAWindowThatHasNotBegun(t *testing.T) {
	s, a := newPair(t)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	s.rule.Limit.Unit = ratelimit.Minute
	key, b, turn := a.ownedBy("b:1"), s.nodes["b:1"], s.boundary(time.Minute)
	s.to(turn - 5*time.Second)
	behind := time.Unix(1_800_000_000, 0).Add(time.Duration(s.now) - time.Second - 100*time.Millisecond)
	b.local.SyncClock(s.now, behind)
	s.one("b:1", ask{Key: key, Cost: 1})
	s.to(turn + 5*time.Millisecond)
	l := a.core.members["b:1"].link // for a moment, too many calls wait for the owner (errPeerBusy)
	real := l.pending
	l.pending = map[uint64]*call{}
	for i := range uint64(peerPending) {
		l.pending[1<<40+i] = nil
	}
	v := make([]verdict, 1)
	a.Decide(t.Context(), s.now, []ask{{Rule: s.rule, Key: key, Cost: 8}}, v)
	l.pending = real
	a.Pump()
	s.to(turn + time.Second)
	n := s.admits("b:1", key, 12)
	if n += int(v[0].Charged); n != 10 {
		t.Errorf("%d of 10 are admitted in the window; arrears empty: %v", n, a.arrears.len() == 0)
	}
}

// One node joins and another leaves, while streams break. A node that has left does not say that there is no account
// that it has sent away.
func TestJoinLeaveAndBrokenStreams(t *testing.T) {
	s, a := newPair(t)
	three, two := ring.Of([]string{"a:1", "b:1", "c:1"}), ring.Of([]string{"a:1", "c:1"})
	var key []byte
	for k := 0; ; k++ { // of b:1, and then of c:1
		key = keyOf(k)
		next := two.Owner(ring.HashOf(key)) == "c:1" && three.Owner(ring.HashOf(key)) == "c:1"
		if next && a.ownerOf(key) == "b:1" {
			break
		}
	}
	n := s.admits("b:1", key, 12)
	s.addrs = append(s.addrs, "c:1")
	c := s.start("c:1")
	for _, x := range s.addrs {
		s.nodes[x].Found(s.addrs)
	}
	for !c.present {
		s.play(10 * time.Microsecond)
	}
	for i := range 400 {
		s.in(time.Duration(i)*time.Millisecond, func() { s.breakAll("a:1", "c:1") })
	}
	s.play(20 * time.Millisecond)
	s.nodes["b:1"].Leave(func() {})
	for range 30 {
		s.play(10 * time.Millisecond)
		for range 12 {
			s.at2("a:1", key, &n)
		}
	}
	s.play(3 * time.Second)
	if n += s.admits("c:1", key, 12); n > 10 {
		t.Errorf("%d of 10 are admitted", n)
	}
}

func (s *script) at2(addr string, key []byte, n *int) {
	v := make([]verdict, 1)
	s.nodes[addr].Ask([]ask{{Rule: s.rule, Key: key, Cost: 1}}, v, nil, func() {
		if !v[0].OverLimit {
			*n++
		}
	})
}

// A late credit of a bucket is less what was refilled in its place.
func TestBucketsAreNotFilledTwice(t *testing.T) {
	s, a := newPair(t)
	s.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	s.rule.Limit = ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 100, Burst: 100}
	q := ask{Rule: s.rule, Key: a.ownedBy("b:1"), Cost: 100}
	v := s.one("a:1", q)
	s.outage(a)
	a.Undo([]ask{q}, []verdict{v})
	s.play(time.Second) // the bucket is full, by its refill
	n, began := 0, s.now
	drain := func() {
		for before := -1; before != n; {
			before = n
			s.at2("b:1", q.Key, &n)
		}
	}
	s.rule.Limit = q.Rule.Limit
	drain()
	for a.cut = false; a.arrears.len() != 0; drain() {
		s.play(10 * time.Millisecond)
	}
	if most := 100 + int(s.now.Sub(began)*100/time.Second); n > most {
		t.Errorf("%d are admitted in %v of a bucket of 100 and 100 a second: %d at most", n, s.now.Sub(began), most)
	}
}

// With a store, a late charge of the owner is taken back for a caller that has left, under each policy.
func TestUndoOfAnAdmissionWhoseCallerLeft(t *testing.T) {
	for _, policy := range []ratelimit.FailurePolicy{ratelimit.FailClosed, ratelimit.FailOpen} {
		s, a, _, ofB := newStorePair(t)
		s.rule.Coordination.OnStoreFailure = policy
		asks, v := []ask{{Rule: s.rule, Key: a.ownedBy("b:1"), Cost: 5}}, make([]verdict, 1)
		r := a.newRequest(t.Context(), s.now, asks, v)
		to := toOwner{r.forward(&asks[0], "b:1"), a.view.Load().peers["b:1"]}
		a.Pump()
		r.until = 0 // as sleep does when ctx has ended
		r.answered(0, &to, 0)
		a.Undo(asks, v) // as package rls does when its caller has gone
		s.play(time.Second)
		if said := ofB.spoken(); said != "asked 1 within 0s, undo 1 of source 0" {
			t.Errorf("%v: the owner is told %q", policy, said)
		}
	}
}

// A reset of a key that another node owns is an error.
func TestResetOfAnothersKey(t *testing.T) {
	s, a := newPair(t)
	key := a.ownedBy("b:1")
	s.one("b:1", ask{Key: key, Cost: 9})
	err, done := error(nil), false
	a.begin(&task{done: func() { done = true }}, func(ctx context.Context) {
		err = a.Reset(ctx, s.now, &ask{Rule: s.rule, Key: key})
	})
	a.Pump()
	s.play(2 * time.Second)
	if left := s.one("b:1", ask{Key: key, Kind: ratelimit.Peek}).Remaining; !done || err == nil && left != 10 {
		t.Errorf("done %v, error %v, and %d of 10 are left", done, err, left)
	}
}

// A peer that answers pings and no search keeps no memory of requests that have ended.
func TestFetchesWithoutAnAnswer(t *testing.T) {
	s, a := newPair(t)
	m, key := a.mayHave("b:1"), a.ownedBy("a:1")
	s.delay = time.Hour
	for range 2000 {
		a.Ask([]ask{{Rule: s.rule, Key: key, Cost: 1}}, make([]verdict, 1), nil, func() {})
		s.play(10 * time.Millisecond)
		m.lastSeen.Store(int64(s.now)) // it answers pings, and no fetch
	}
	s.play(100 * time.Millisecond)
	if n := len(a.fetches[string(key)].bells); n > 10 {
		t.Errorf("%d requests are open, and %d bells of requests are kept", len(a.tasks), n)
	}
}
