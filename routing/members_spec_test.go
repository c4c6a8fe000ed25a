package routing

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/routing/wire"
)

// A node waits between dials: shortly while all start, and then twice as long each
// time, up to a second; half of that by chance.
func TestDialsPause(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
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
	s.play(leaveTells + 50*time.Millisecond)
	if done, n := a.core.gone(true); done || n != had {
		t.Errorf("gone: %v, and %d accounts are left of %d", done, n, had)
	}
	if done, n := a.core.gone(false); done || n != 0 {
		t.Errorf("gone: %v, and %d are on their way", done, n)
	}
}

// A node is ready when it has joined, all have heard, and it has its keys; or when
// that has taken too long. One that leaves stays ready, for it still decides.
func TestWhenANodeIsReady(t *testing.T) {
	for i, x := range []struct {
		present, left, unheard, stable bool
		since                          time.Duration
		want                           bool
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
		c.present, c.left, c.wasStable, c.joined = x.present, x.left, x.stable, s.now
		c.unheard.Store(x.unheard)
		if got := c.isReady(s.now.Add(x.since)); got != x.want {
			t.Errorf("case %d, %+v: ready %v", i, x, got)
		}
	}
	s := newScript(t, 1, 10)
	c := s.start("a:1").core
	if c.local, c.present = nil, true; !c.isReady(s.now) {
		t.Error("with a store there is nothing to wait for")
	}
}

// Whom a node has met, it forgets a minute after it was last found or heard; whom
// it has not heard for longer than TakeOver owns nothing, and has nothing.
func TestWhoIsGone(t *testing.T) {
	const ever = 24 * time.Hour
	for i, x := range []struct {
		alive, holds  bool
		found, heard  time.Duration // ago
		known, holds2 bool
	}{
		{true, true, ever, TakeOver, true, true},
		{true, true, 0, TakeOver + 1, true, false},
		{false, true, 0, TakeOver, true, true},
		{false, true, 0, TakeOver + 1, true, false},
		{false, false, forgetAfter, ever, true, false},
		{false, false, forgetAfter + 1, ever, false, false},
		{false, false, ever, forgetAfter, true, false},
		{false, false, ever, forgetAfter + 1, false, false},
	} {
		s := newScript(t, 1, 10)
		s.now = s.now.Add(2 * ever)
		s.ring("a:1", "b:1")
		c := s.nodes["a:1"].core
		m := c.members["b:1"]
		m.alive, m.holds, m.found = x.alive, x.holds, s.now.Add(-x.found)
		m.heard.Store(int64(s.now.Add(-x.heard)))
		c.mu.Lock()
		c.bury(s.now)
		known := c.members["b:1"] == m
		c.unlock()
		if known != x.known || m.holds != x.holds2 || m.alive != (x.alive && x.holds2) {
			t.Errorf("case %d, %+v: known %v, holds %v, alive %v", i, x, known, m.holds, m.alive)
		}
	}
}

// A node joins when it has met everybody whom it found, or could not for long
// enough: at once are only those whom nobody has introduced.
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
		c.looks(s.now, []string{"b:1"})
		m := c.members["b:1"]
		now := c.began.Add(x.age)
		m.ready.Store(x.ready)
		m.tried, c.looked, c.present = x.tried, x.looked, false
		if x.greeted != 0 {
			m.greeted = now.Add(-x.greeted)
		}
		c.mu.Lock()
		c.join(now)
		joined := c.present
		c.posts = nil
		c.mu.Unlock()
		if joined != x.joins {
			t.Errorf("case %d, %+v: joined %v", i, x, joined)
		}
	}
}

// A way that breaks was tried, and has failed once more; one that opens begins
// anew.
func TestWaysBreakAndOpen(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
	m := c.members["b:1"]
	for i := range 3 {
		m.tried, m.pulled, m.telling = false, true, true
		if c.closed(m); m.failures != i+1 || !m.tried || m.pulled || m.telling {
			t.Errorf("closed %d times: %+v", i+1, m)
		}
	}
	m.telling = true
	c.opened(s.now, m, &wire.Hello{Version: 2, Addr: "b:1", Incarnation: m.incarnation, Weight: 3})
	if m.failures != 0 || m.telling || m.told != unknown || !m.alive || m.weight != 3 || !m.holds {
		t.Errorf("%+v", m)
	}
	c.opened(s.now, m, &wire.Hello{Version: 2, Addr: "b:1", Incarnation: m.incarnation, Weight: 3, Absent: true})
	if m.alive || !m.holds {
		t.Errorf("it is not in the ring any more, and may have accounts still: %+v", m)
	}
	gone := &member{link: &link{addr: "x:1", pending: map[uint64]*call{}}}
	if c.opened(s.now, gone, &wire.Hello{Version: 2, Addr: "x:1"}); gone.ready.Load() {
		t.Error("a way opened to a node that was forgotten")
	}
}

// A node looks after itself soon again while something is to be said, or to be
// joined, or to be tried; otherwise now and then.
func TestTicks(t *testing.T) {
	for name, x := range map[string]struct {
		change func(c *core)
		want   time.Duration
	}{
		"nothing is to be done":    {func(*core) {}, tickEvery},
		"somebody has not heard":   {func(c *core) { c.members["b:1"].told, c.members["b:1"].telling = unknown, true }, tickSoon},
		"it has not joined":        {func(c *core) { c.present, c.looked = false, false }, tickSoon},
		"accounts are tried again": {func(c *core) { c.mover.retry = c.clock().Add(time.Second) }, tickSoon},
		"it leaves": {func(c *core) {
			c.present, c.left, c.leftAt = false, true, c.clock()
			c.members["b:1"].telling = true
		}, tickSoon},
	} {
		s := newScript(t, 1, 10)
		s.ring("a:1", "b:1")
		c := s.nodes["a:1"].core
		x.change(c)
		if got := c.tick(s.now).Sub(s.now); got != x.want {
			t.Errorf("%s: looked after again in %v, want %v", name, got, x.want)
		}
	}
	if tickEvery*2 != pingEvery || lapseAfter+pingEvery != TakeOver {
		t.Error("a node that looks after itself less often than it is heard takes itself for one that slept")
	}
}

// Who has been an owner may have accounts, also when it is none any more.
func TestPresenceIsRemembered(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
	m := c.members["b:1"]
	m.alive, m.holds = false, false
	says := func(addr string, is bool) bool { return c.presence(s.now, &inlet{addr: addr}, is, 0) }
	if !says("b:1", true) || !m.alive || !m.holds {
		t.Errorf("%+v", m)
	}
	if !says("b:1", false) || m.alive || !m.holds {
		t.Errorf("%+v", m)
	}
	m.ready.Store(false)
	if says("b:1", true) || says("x:1", true) || m.alive {
		t.Error("without a way to it, it is no owner yet")
	}
	c.saidDone("b:1", c.view.Load().print, 0)
	if m.holds {
		t.Error("it has said that it has nothing")
	}
	var names []string
	for _, a := range []string{"z:1", "c:1", "y:1", "d:1"} {
		c.know(a)
	}
	c.each(func(m *member) { names = append(names, m.addr) })
	if fmt.Sprint(names) != "[b:1 c:1 d:1 y:1 z:1]" {
		t.Errorf("always in the same order: %v", names)
	}
}

// A node says in its greeting whether it owns keys.
func TestGreetingSaysWhoOwnsKeys(t *testing.T) {
	s := newScript(t, 1, 10)
	c := s.start("a:1").core
	for _, present := range []bool{true, false} {
		c.present = present
		if h := c.hello(nonce); h.GetAbsent() == present || h.GetAddr() != "a:1" || h.GetIncarnation() != c.incarnation || h.GetVersion() != version {
			t.Errorf("present %v: %v", present, h)
		}
	}
}

// A leaving node goes on to decide until all others have heard that it leaves, but
// no longer than half a second.
func TestWhenANodeDeparts(t *testing.T) {
	for _, x := range []struct {
		what         string
		after        time.Duration
		alive, ready bool
		told         presence
		leaves       bool
	}{
		{"it has not heard", leaveTells - 1, true, true, here, true},
		{"its time is over", leaveTells, true, true, here, false},
		{"it has heard", 0, true, true, away, false},
		{"it owns nothing", 0, false, true, here, false},
		{"it cannot be told", 0, true, false, here, false},
	} {
		s := newScript(t, 1, 10)
		s.ring("a:1", "b:1")
		c := s.nodes["a:1"].core
		c.leave(s.now)
		c.mu.Lock()
		m := c.members["b:1"]
		m.alive, m.told = x.alive, x.told
		m.ready.Store(x.ready)
		leaves := c.depart(s.now.Add(x.after))
		mine := c.view.Load().mine
		again := c.depart(s.now.Add(x.after))
		c.unlock()
		if leaves != x.leaves || mine != x.leaves || again != x.leaves {
			t.Errorf("%s: it leaves still %v, and is in its ring %v", x.what, leaves, mine)
		}
	}
}

// That a node has nothing of others counts as long as it has not joined or left
// since, whichever of its words said so.
func TestDoneOfBefore(t *testing.T) {
	for _, x := range []struct {
		changes, doneBy, said uint64
		counts                bool
	}{
		{5, 0, 4, false}, {5, 0, 5, true}, {3, 5, 4, false}, {3, 5, 5, true}, {5, 5, 0, true},
	} {
		s := newScript(t, 1, 10)
		s.ring("a:1", "b:1")
		c := s.nodes["a:1"].core
		m := c.members["b:1"]
		m.changes, m.doneBy, m.done = x.changes, x.doneBy, 7
		c.saidDone("b:1", 8, x.said)
		if (m.done == 8) != x.counts {
			t.Errorf("%+v: it is done under %d", x, m.done)
		}
	}
}

// A node that did not run says so to whoever looks after it, and for how long.
func TestLapseIsTold(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1")
	c, told := s.nodes["a:1"].core, ""
	c.options.OnPeer = func(addr string, err error) { told += fmt.Sprintf("%s%v\n", addr, err) }
	ticked := instant(c.ticked.Load())
	c.tick(ticked.Add(3*time.Second + 400*time.Microsecond))
	if want := "this node did not run for 3s: "; !strings.HasPrefix(told, want) || strings.Count(told, "\n") != 1 {
		t.Errorf("told %q, want %q", told, want)
	}
}

// That a node owns keys is said again to one who was too busy to hear it, in a
// moment.
func TestPresenceIsSaidAgain(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
	m := c.members["b:1"]
	m.told, m.queue = unknown, make([]*call, peerQueue)
	if c.tick(s.now); m.told == here || m.telling {
		t.Fatalf("it was too busy, and has heard: told %v, telling %v", m.told, m.telling)
	}
	m.queue = nil
	at := s.now.Add(tickSoon)
	if c.tick(at - 1); len(m.queue) > 0 {
		t.Error("it is told again at once")
	}
	if c.tick(at); len(m.queue) != 1 || !m.telling {
		t.Errorf("%d calls wait to be said", len(m.queue))
	}
	if c.tick(at); len(m.queue) != 1 {
		t.Errorf("%d calls say the same", len(m.queue))
	}
	f := m.take(0)
	if p := f.GetPresences(); len(p) != 1 || !p[0].GetHere() || p[0].GetChanges() != c.changes+1 {
		t.Fatalf("it is told %v", p)
	}
	m.replied([]*wire.Reply{{Id: f.GetPresences()[0].GetId(), Status: malformed}})
	if m.told == here {
		t.Error("it did not take that in")
	}
	c.tick(s.now.Add(2 * tickSoon))
	f = m.take(0)
	m.replied([]*wire.Reply{{Id: f.GetPresences()[0].GetId()}})
	if m.told != here {
		t.Error("it has heard")
	}
	if c.tick(s.now.Add(4 * tickSoon)); len(m.queue) > 0 {
		t.Error("it has heard, and is told again")
	}
}

// A node may join and leave so often; each time all tables are walked through.
func TestNodesMayNotComeAndGoForEver(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
	m, from := c.members["b:1"], &inlet{addr: "b:1"}
	says := func(at instant, is bool) bool { return c.presence(at, from, is, 0) }
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
