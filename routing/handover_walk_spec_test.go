package routing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// What is refused waits until it may be tried again.
func TestRefusedAccountsAreTriedAgain(t *testing.T) {
	s, a := newPair(t)
	c, m, key := a.core, a.core.members["b:1"], a.ownedBy("b:1")
	a.has(key)
	m.paused = s.now.Add(tickSoon)
	c.mover.begin()
	for _, x := range []struct {
		at    instant
		state walk
	}{{s.now, stuck}, {m.paused - 1, stuck}, {m.paused, walked}} {
		for c.step(x.at) {
		}
		if c.mover.state != x.state || c.local.Has(key) != (x.state == stuck) || len(c.mover.underway) == 1 != (x.state == walked) {
			t.Errorf("at %v the walk is %v, want %v, and %d are on their way", x.at, c.mover.state, x.state, len(c.mover.underway))
		}
	}
}

// An account that has come back before its receipt is sent after it: until then its key is on its way, and not new.
func TestAccountIsSentOnceItsReceiptIsThere(t *testing.T) {
	s, a := newPair(t)
	c, m, key := a.core, a.core.members["b:1"], a.ownedBy("b:1")
	c.mover.begin()
	for range 2 {
		a.has(key) // the second one came in a parcel
		c.mover.once()
		for c.step(s.now) {
		}
	}
	first := m.take(0).GetParcel()
	if !c.local.Has(key) || m.take(0) != nil {
		t.Fatal("it is on its way twice")
	}
	c.received(m, &wire.Receipt{Number: first.GetNumber()})
	s.now = s.now.Add(tickSoon)
	for c.step(s.now) {
	}
	if c.local.Has(key) || len(c.mover.underway) != 1 || m.take(0).GetParcel() == nil {
		t.Error("it is not sent after the receipt")
	}
}

// A leaving node continues its handover while its heir gets 10,000 requests for other keys a second, each of
// which it must fetch.
func TestStepsWalkGoesOnBesideFetches(t *testing.T) {
	const keys, every, length = 20_000, 100 * time.Microsecond, time.Second
	s := newScript(t, keys, 10)
	s.delay, s.tail = time.Millisecond, 100*time.Microsecond
	s.ring("a:1", "b:1")
	a := s.nodes["a:1"]
	for k := range keys {
		if key := keyOf(k); a.view.Load().ring.Owner(ring.HashOf(key)) == "a:1" {
			a.has(key)
		} else {
			s.nodes["b:1"].has(key)
		}
	}
	gone := false
	a.Leave(func() { gone = true })
	s.until("the ring has turned", func() bool { return !a.core.view.Load().mine })
	order := s.rnd.Perm(keys)
	for i := range int(length / every) {
		s.in(time.Duration(i)*every, func() { s.ask("b:1", order[i], 1) })
	}
	s.play(length / 5)
	if left := a.accounts(); !gone || left > 0 {
		t.Errorf("after %v it has %d accounts left", length/5, left)
	}
	s.play(length)
	if asked := int(length / every); s.failed > asked/100 {
		t.Errorf("%d of %d requests failed", s.failed, asked)
	}
}

// A node has joined, and leaves before the parcels to it have arrived: the keys are the sender's again, and the
// accounts may come back. They are not new, though no other node has them.
func TestStepsOwnParcelsOutlastALeave(t *testing.T) {
	for _, ends := range []bool{false, true} {
		s := newScript(t, 400, 10)
		s.delay, s.tail = time.Millisecond, 0
		s.ring("a:1")
		s.fill(5, "a:1")
		s.addrs = append(s.addrs, "b:1")
		a := s.nodes["a:1"]
		a.Found(s.addrs)
		b := s.start("b:1")
		s.until("accounts are on their way", func() bool { return len(a.mover.underway) > 0 })
		a.end("b:1", true) // they are lost with the stream
		b.Leave(func() {
			if ends { // it is never met again
				s.crash("b:1")
			}
		})
		s.until("the ring has turned back", func() bool { return len(a.Stats().Members) == 1 })
		for range 20 {
			if a.view.Load().stable.Load() {
				break
			}
			s.play(time.Millisecond)
		}
		s.fill(6, "a:1") // 5 and 6 are more than 10
		s.play(2 * TakeOver)
		s.atMost(10)
		if n := a.accounts(); n != len(s.admitted) {
			t.Errorf("it ends %v: %d of %d accounts have come back", ends, n, len(s.admitted))
		}
	}
}

// A node leaves while the ring still has one that has crashed: what it cannot send there goes to the next owner.
func TestStepsCrashDuringALeave(t *testing.T) {
	s := newScript(t, 300, 10)
	s.ring("a:1", "b:1", "c:1")
	s.fill(5, s.addrs...)
	s.crash("c:1")
	s.play(10 * time.Millisecond)
	s.leaves("a:1")
	s.exact(5, "b:1") // of keys of the one that has crashed
	s.agree([]string{"b:1"})
}
