package routing

import (
	"testing"
	"time"
)

// A node is ready when it has joined, all have read that, and it has its keys, or when that has taken too long.
// A leaving one stays ready, because it still decides.
func TestWhenANodeIsReady(t *testing.T) {
	for i, x := range []struct {
		present, left, unconfirmed, stable bool
		since                              time.Duration
		want                               bool
	}{
		{true, false, false, true, 0, true},
		{false, false, false, true, 0, false},
		{false, true, false, true, 0, true},
		{true, true, false, true, 0, true},
		{true, false, true, true, time.Hour, false},
		{true, false, false, false, readyAfter, false},
		{true, false, false, false, readyAfter + 1, true},
	} {
		s := newScript(t, 1, 10)
		c := s.start("a:1").core
		c.present, c.wasStable, c.joined = x.present, x.stable, s.now
		if c.left = 0; x.left {
			c.left = s.now
		}
		c.unconfirmed.Store(x.unconfirmed)
		s.now = s.now.Add(x.since)
		if got := c.Ready(); got != x.want {
			t.Errorf("case %d, %+v: ready %v", i, x, got)
		}
	}
	c := newScript(t, 1, 10).start("a:1").core
	c.local, c.present, c.wasStable = nil, false, false
	if c.join(c.clock()); !c.Ready() {
		t.Error("with a store there is nothing to wait for")
	}
}

// A node joins when it has met all found nodes, or could not for long enough: those that no node has introduced
// count at once.
func TestWhenANodeJoins(t *testing.T) {
	for i, x := range []struct {
		ready, tried, looked bool
		age                  time.Duration
		greeted              time.Duration // ago; 0: never
		joins                bool
	}{
		{true, true, true, 0, 0, true},
		{true, true, false, 0, 0, false},
		{false, true, true, grace - 1, 0, false},
		{false, true, true, grace, 0, true},
		{false, false, true, readyAfter, 0, false},
		{false, true, true, readyAfter - 1, TakeOver - 1, false},
		{false, true, true, readyAfter - 1, TakeOver, true},
		{false, true, true, readyAfter, 1, true},
	} {
		s := newScript(t, 1, 10)
		n := s.start("a:1")
		c := n.core
		c.discovered(s.now, []string{"b:1"})
		m := c.members["b:1"]
		now := c.began.Add(x.age)
		m.ready.Store(x.ready)
		c.looked, c.present = x.looked, false
		if m.failures = 0; x.tried {
			m.failures = 1
		}
		if x.greeted != 0 {
			m.helloAt = now.Add(-x.greeted)
		}
		c.mu.Lock()
		c.mover.begin()
		if c.join(now); c.present {
			t.Errorf("case %d, %+v: it has accounts of before, and joins", i, x)
		}
		c.mover.end()
		c.join(now)
		joined := c.present
		c.mu.Unlock()
		if joined != x.joins {
			t.Errorf("case %d, %+v: joined %v", i, x, joined)
		}
	}
}

// A leaving node that still has accounts says how many.
func TestLeavingNodeCountsWhatItHas(t *testing.T) {
	s := newScript(t, 40, 10)
	s.ring("a:1", "b:1")
	s.fill(1, "a:1")
	a := s.nodes["a:1"]
	had := 0
	for k := range s.admitted {
		if a.local.Has(keyOf(k)) {
			had++
		}
	}
	b := s.nodes["b:1"]
	b.cut = true // nothing can be handed over
	s.breakAll("a:1", "b:1")
	s.play(10 * time.Millisecond)
	a.Leave(func() {})
	s.play(leaveWait + 50*time.Millisecond)
	if gone, n := a.gone(), a.rest(); gone || n != had {
		t.Errorf("gone: %v, and %d accounts are left of %d", gone, n, had)
	}
}

// A node may join and leave so often; each time all tables are walked through.
func TestNodesMayNotComeAndGoForEver(t *testing.T) {
	s, a := newPair(t)
	c := a.core
	m, from := c.members["b:1"], &inlet{addr: "b:1", incarnation: s.lives}
	says := func(at instant, is bool) bool { return c.applyPresence(at, from, is, m.changes) }
	for i := range mostTurns {
		if is := i%2 == 1; !says(s.now, is) || m.alive != is {
			t.Fatalf("turn %d of %d: alive %v", i+1, mostTurns, m.alive)
		}
	}
	if says(s.now, false) || !m.alive || c.stats.rejected[rejectedPresence].Load() != 1 {
		t.Errorf("it came and went too often: alive %v, %d rejected", m.alive, c.stats.rejected[rejectedPresence].Load())
	}
	if !says(s.now, true) {
		t.Error("it says what is so already")
	}
	if says(s.now.Add(turnsIn), false) || !says(s.now.Add(turnsIn+1), false) || m.alive {
		t.Errorf("its time has begun anew: alive %v", m.alive)
	}
}
