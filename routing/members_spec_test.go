package routing

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/routing/wire"
)

// A node waits between dials: shortly while all start, and then twice as long each
// time, up to a second; half of that by chance.
func TestDialsPause(t *testing.T) {
	_, a := newPair(t)
	c := a.core
	m := c.members["b:1"]
	for _, x := range []struct {
		age      time.Duration
		failures int
		least    time.Duration
	}{
		{grace, 9, 50 * time.Millisecond},
		{grace + 1, 0, 50 * time.Millisecond},
		{grace + 1, 1, 50 * time.Millisecond},
		{grace + 1, 2, 100 * time.Millisecond},
		{grace + 1, 4, 400 * time.Millisecond},
		{grace + 1, 5, 500 * time.Millisecond},
		{grace + 1, 1 << 40, 500 * time.Millisecond},
	} {
		m.failures = x.failures
		for chance, want := range map[float64]time.Duration{0: x.least, 0.5: 2 * x.least, 1: 3 * x.least} {
			c.random = func() float64 { return chance }
			if got := c.pause(c.began.Add(x.age), m); got != want {
				t.Errorf("%d dials in a row have failed, %v after the start, by chance %v: it waits %v, want %v", x.failures, x.age, chance, got, want)
			}
		}
	}
}

// A node looks after itself soon again while something is to be said, or to be
// joined, or to be tried; otherwise now and then.
func TestTicks(t *testing.T) {
	for name, x := range map[string]struct {
		change func(c *core)
		want   time.Duration
	}{
		"nothing is to be done": {func(*core) {}, tickEvery},
		"somebody has not heard": {func(c *core) {
			c.members["b:1"].acked, c.members["b:1"].announcing = 0, true
			c.joined = c.clock().Add(-announceFast)
		}, tickSoon},
		"somebody has not heard that it has just joined": {func(c *core) {
			c.members["b:1"].acked, c.members["b:1"].announcing = 0, true
			c.joined = c.clock().Add(1 - announceFast)
		}, askAgain},
		"somebody has not heard that it is away": {func(c *core) {
			c.members["b:1"].acked, c.members["b:1"].announcing = 0, true
			c.present, c.left, c.joined = false, c.clock(), c.clock()
		}, tickSoon},
		"it has not joined": {func(c *core) { c.present, c.looked = false, false }, tickSoon},
		"one cannot be told": {func(c *core) {
			c.members["b:1"].acked = 0
			c.members["b:1"].ready.Store(false)
		}, tickEvery},
		"it has left": {func(c *core) {
			c.present, c.left = false, c.clock()
		}, tickEvery},
		"accounts are tried again": {func(c *core) { c.mover.state = stuck }, tickSoon},
		"it leaves": {func(c *core) {
			c.quitRing()
			c.left, c.members["b:1"].announcing = c.clock(), true
		}, tickSoon},
	} {
		s, a := newPair(t)
		c := a.core
		x.change(c)
		if got := c.tick(s.now).Sub(s.now); got != x.want {
			t.Errorf("%s: looked after again in %v, want %v", name, got, x.want)
		}
	}
	if tickEvery*2 != pingEvery || lapseAfter+pingEvery != TakeOver {
		t.Error("a node that looks after itself less often than it is heard takes itself for one that slept")
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

// A node that introduces itself is there: it was found and greeted then, and is dialled
// at once if there is no way to it. One too many is not known.
func TestGreeted(t *testing.T) {
	s, a := newPair(t)
	c := a.core
	m := c.members["b:1"]
	hello := func(addr string) *wire.Hello {
		return &wire.Hello{Version: version, Addr: addr, Incarnation: 77, Nonce: steppedNonce}
	}
	at := s.now.Add(time.Hour)
	m.failures = 3
	if c.applyHello(at, hello("b:1")); m.found != at || m.helloAt != at || m.failures != 3 || len(m.kick) != 0 {
		t.Errorf("%+v", m)
	}
	m.ready.Store(false)
	if c.applyHello(at, hello("b:1")); m.failures != 0 || len(m.kick) != 1 {
		t.Errorf("there is no way to it: %+v", m)
	}
	for i := range maxPeers {
		c.track(fmt.Sprint("c:", i))
	}
	c.applyHello(at, hello("x:1"))
	if len(c.members) != maxPeers || c.members["x:1"] != nil {
		t.Errorf("%d nodes are known", len(c.members))
	}
}

// A way that breaks was tried, and has failed once more; one that opens begins anew.
func TestWaysBreakAndOpen(t *testing.T) {
	s, a := newPair(t)
	c := a.core
	m := c.members["b:1"]
	for i := range 3 {
		m.announcing = true
		if c.closed(m); m.failures != i+1 || m.announcing {
			t.Errorf("closed %d times: %+v", i+1, m)
		}
	}
	m.announcing, m.holds, m.alive = true, false, false
	c.opened(s.now, m, &wire.Hello{Version: 2, Addr: "b:1", Incarnation: m.incarnation, Changes: m.changes})
	if m.failures != 0 || m.announcing || m.acked != 0 || !m.alive || !m.holds {
		t.Errorf("%+v", m)
	}
	c.opened(s.now, m, &wire.Hello{Version: 2, Addr: "b:1", Incarnation: m.incarnation, Absent: true, Changes: m.changes + 1})
	if m.alive || !m.holds || c.view.Load().ring.Has("b:1") {
		t.Errorf("it is not in the ring any more, and may have accounts still: %+v", m)
	}
	gone := &member{link: &link{addr: "x:1", pending: map[uint64]*call{}}}
	if c.opened(s.now, gone, &wire.Hello{Version: 2, Addr: "x:1"}); gone.ready.Load() {
		t.Error("a way opened to a node that was forgotten")
	}
}

// Another life of a node has changed nothing yet, and is done with nothing; it may have accounts if it is in the ring.
func TestAnotherLife(t *testing.T) {
	for _, alive := range []bool{true, false} {
		s, a := newPair(t)
		c := a.core
		m := c.members["b:1"]
		m.done, m.changes, m.alive, m.holds = 5, 7, alive, !alive
		before := m.incarnation
		for range 2 { // the second time it is the same
			c.mu.Lock()
			c.applyIncarnation(s.now, m, &wire.Hello{Incarnation: before + 1})
			c.unlock()
			if m.incarnation != before+1 || m.done+m.changes != 0 || m.holds != alive {
				t.Fatalf("alive %v: %+v", alive, m)
			}
			m.holds = alive
		}
		m.done, m.changes = 5, 7
		c.mu.Lock()
		c.applyIncarnation(s.now, m, &wire.Hello{Incarnation: before + 1})
		c.unlock()
		if m.done != 5 || m.changes != 7 {
			t.Errorf("it is the same life: %+v", m)
		}
	}
}

// What a node says in its welcome counts, unless it has said since that it joined or left.
func TestWelcomeOfBefore(t *testing.T) {
	for _, x := range []struct {
		heard, says uint64
		alive       bool
	}{{5, 4, true}, {5, 5, false}, {5, 6, false}} {
		s, a := newPair(t)
		c := a.core
		m := c.members["b:1"]
		m.changes = x.heard
		c.opened(s.now, m, &wire.Hello{Version: 2, Addr: "b:1", Incarnation: m.incarnation, Absent: true, Changes: x.says})
		if m.alive != x.alive {
			t.Errorf("it is absent by its change %d, and %d were heard: alive %v", x.says, x.heard, m.alive)
		}
	}
}

// A node that has left has nothing any more when it says so under the ring that this
// one sees; under another ring, it may take something in still.
func TestDoneOfOneThatHasLeft(t *testing.T) {
	for _, x := range []struct{ alive, same, holds bool }{{false, true, false}, {false, false, true}, {true, true, true}} {
		_, a := newPair(t)
		c := a.core
		m, digest := c.members["b:1"], c.view.Load().digest
		if m.alive, m.holds = x.alive, true; !x.same {
			digest++
		}
		if c.applyDone(&inlet{addr: "b:1", incarnation: m.incarnation}, digest, m.changes); m.holds != x.holds {
			t.Errorf("%+v: it may have accounts %v", x, m.holds)
		}
	}
}

// Who is found again is looked for again from then on.
func TestFoundAgain(t *testing.T) {
	s, a := newPair(t)
	c := a.core
	w := &wakes{hands: c.hands}
	c.hands = w
	m := c.members["b:1"]
	at := s.now.Add(time.Hour)
	c.discovered(at, []string{"b:1", "a:1"})
	if m.found != at || w.n != 1 || c.members["a:1"] != nil || c.stats.rejected[rejectedAddress].Load() != 0 {
		t.Errorf("found %v ago, woken %d times", at.Sub(m.found), w.n)
	}
}

// That a node owns keys is repeated a moment later to a peer that was too busy.
func TestPresenceIsSaidAgain(t *testing.T) {
	for _, x := range []struct{ joined, again time.Duration }{{announceFast, tickSoon}, {announceFast / 2, askAgain}} {
		s, a := newPair(t)
		c := a.core
		c.joined = s.now.Add(-x.joined)
		m := c.members["b:1"]
		m.acked, m.queue = 0, make([]*call, peerQueue)
		if c.tick(s.now); m.acked != 0 || m.announcing {
			t.Fatalf("it was too busy, and has acknowledged %d, announcing %v", m.acked, m.announcing)
		}
		m.queue = nil
		at := s.now.Add(x.again)
		if c.tick(at - 1); len(m.queue) > 0 {
			t.Error("it is told again at once")
		}
		if c.tick(at); len(m.queue) != 1 || !m.announcing {
			t.Errorf("%d calls wait to be said", len(m.queue))
		}
		if c.tick(at); len(m.queue) != 1 {
			t.Errorf("%d calls say the same", len(m.queue))
		}
		f := m.take(0)
		if p := f.GetPresences(); len(p) != 1 || !p[0].GetHere() || p[0].GetChanges() != c.changes {
			t.Fatalf("it is told %v", p)
		}
		m.replied([]*wire.Reply{{Id: f.GetPresences()[0].GetId(), Status: malformed}})
		if m.acked != 0 {
			t.Error("it did not take that in")
		}
		c.tick(s.now.Add(2 * x.again))
		f = m.take(0)
		m.replied([]*wire.Reply{{Id: f.GetPresences()[0].GetId()}})
		if m.acked != c.changes {
			t.Error("it has heard")
		}
		if c.tick(s.now.Add(4 * x.again)); len(m.queue) > 0 {
			t.Error("it has heard, and is told again")
		}
	}
}
