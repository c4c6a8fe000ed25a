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
		c.posts = nil
		c.mu.Unlock()
		if joined != x.joins {
			t.Errorf("case %d, %+v: joined %v", i, x, joined)
		}
	}
}

// A node that did not run for longer than TakeOver owns no keys. It is out of its own ring, walks through all
// its accounts, and reports all of them when it joins again. A node without keys does none of that.
func TestLapse(t *testing.T) {
	s, a := newPair(t)
	c := a.core
	m, changes, told := c.members["b:1"], c.changes, 0
	c.options.OnPeer = func(string, error) { told++ }
	lapse := func() {
		c.mu.Lock()
		c.lapse(s.now, time.Hour)
		c.posts = nil
		c.mu.Unlock()
	}
	ticked := instant(c.ticked.Load())
	if c.tick(ticked.Add(lapseAfter)); told != 0 || !c.present {
		t.Error("others have waited for it")
	}
	m.lastSeen.Store(1)
	if lapse(); c.present || c.changes != changes+1 || told != 1 || m.acked == c.changes || instant(m.lastSeen.Load()) != s.now {
		t.Errorf("present %v, %d changes, told %d times", c.present, c.changes-changes, told)
	}
	if v := c.view.Load(); v.mine || v.ring.Has("a:1") || c.mover.state != walking {
		t.Errorf("it is in its ring %v, and does not look for accounts of others", v.mine)
	}
	if lapse(); told != 1 || c.changes != changes+1 {
		t.Error("it owned nothing, and lapses")
	}
}

// A leaving node has gone when it is out of its ring, and has nothing any more.
func TestWhoHasGone(t *testing.T) {
	for _, x := range []struct{ mine, clean, gone bool }{{true, true, false}, {true, false, false}, {false, false, false}, {false, true, true}} {
		_, a := newPair(t)
		c := a.core
		c.view.Store(&view{ring: c.view.Load().ring, mine: x.mine})
		if !x.clean {
			c.mover.underway[5] = "b:1"
		}
		if gone := c.gone(); gone != x.gone {
			t.Errorf("%+v: gone %v", x, gone)
		}
	}
}

// After it has joined, a node without a store decides when others have acknowledged that. With one, it decides at once,
// and no handover completes its ring.
func TestJoinIsAcknowledgedFirst(t *testing.T) {
	for _, store := range []bool{false, true} {
		s := newScript(t, 1, 10)
		c := s.start("a:1").core
		if c.present, c.looked = false, true; store {
			c.local = nil
		}
		c.unconfirmed.Store(store)
		c.mu.Lock()
		m := &member{link: &link{wake: func() {}}, holds: true}
		m.ready.Store(true)
		c.members["b:1"] = m
		c.join(s.now)
		c.unlock()
		if c.view.Load().stable.Load() != store {
			t.Errorf("store %v: another node may have accounts", store)
		}
		if !c.present || c.unconfirmed.Load() == store || c.joined != s.now {
			t.Errorf("store %v: present %v, unconfirmed %v", store, c.present, c.unconfirmed.Load())
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
