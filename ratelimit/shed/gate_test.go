package shed

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

const (
	patience = 20 * time.Millisecond
	start    = ratelimit.Instant(time.Hour)
)

// clocked is a gate and the clock that it is stepped by.
type clocked struct {
	*Gate
	testing.TB
	now ratelimit.Instant
}

func newClocked(t testing.TB) *clocked { return &clocked{NewGate(patience), t, start} }

func (c *clocked) pass(d time.Duration) { c.now = c.now.Add(d) }

// arrive has n calls arrive at once, and returns how many of them are let in.
func (c *clocked) arrive(n int) (begun int) {
	for range n {
		if reason := c.Arrive(c.now, patience); reason == Begun {
			begun++
		}
	}
	return begun
}

// serve has n calls that wait begin and end, one each d.
func (c *clocked) serve(n int, d time.Duration) {
	for range n {
		c.pass(d)
		c.Begin(c.now)
		c.End()
	}
}

// A burst that can be begun within half of its callers' patience is let in whole,
// again and again: each of these takes 8 ms.
func TestBurstsAreLetIn(t *testing.T) {
	c := newClocked(t)
	for burst := range 50 {
		if got := c.arrive(800); got != 800 {
			t.Fatalf("burst %d: %d of 800 calls were let in", burst, got)
		}
		c.serve(800, 10*time.Microsecond)
		c.pass(30 * time.Millisecond)
	}
	if s := c.Stats(); s.Shed != [len(Reasons)]uint64{} || s.Waiting != 0 || s.InFlight != 0 {
		t.Errorf("after bursts that ended: %+v", s)
	}
	if d := c.Pause(c.now); d != 0 {
		t.Errorf("connections stay unread for %v", d)
	}
}

// What would wait longer than that is refused at once: 10 ms are a thousand calls.
func TestMoreThanABurstIsRefused(t *testing.T) {
	c := newClocked(t)
	c.arrive(100)
	c.serve(100, 10*time.Microsecond)
	if got := c.arrive(5000); got < 950 || got > 1050 {
		t.Errorf("%d of 5,000 calls were let in, 1,000 can begin within 10 ms", got)
	}
	if s := c.Stats(); s.Shed[Overload] < 3900 || s.Shed[Deadline] != 0 {
		t.Errorf("shed %v", s.Shed)
	}
}

// Twice what can be served, for a second. After 100 ms no call waits longer than a
// quarter of its patience, and those that serve are never without work.
func TestStandingQueueIsShort(t *testing.T) {
	c := newClocked(t)
	each := 20 * time.Microsecond
	for range 1000 { // milliseconds
		c.arrive(100)
		if s := c.Stats(); c.now.Sub(start) > 200*time.Millisecond {
			if wait := time.Duration(s.Waiting) * each; wait > patience/standingShare+time.Millisecond || s.Waiting < 50 {
				t.Fatalf("after %v calls wait for %v", c.now.Sub(start), wait)
			}
		}
		c.serve(50, each)
	}
	// The overload ends, and with it the stricter bound.
	c.serve(c.Stats().Waiting, each)
	c.pass(time.Second)
	if got := c.arrive(400); got != 400 {
		t.Errorf("after the overload %d of a burst of 400 were let in", got)
	}
}

// A caller in a hurry is told at once that it will not be answered in time, while
// another one, that waits longer, is let in.
func TestDeadlines(t *testing.T) {
	c := newClocked(t)
	c.arrive(500)
	c.serve(500, 10*time.Microsecond)
	c.arrive(500) // 5 ms of work
	if reason := c.Arrive(c.now, 2*time.Millisecond); reason != Deadline {
		t.Errorf("a caller that waits 2 ms: %q", Reasons[reason])
	}
	if reason := c.Arrive(c.now, patience); reason != Begun {
		t.Errorf("a caller that waits 20 ms: %q", Reasons[reason])
	}
	for _, late := range []time.Duration{0, -time.Second} {
		if reason := newClocked(t).Arrive(start, late); reason != Deadline {
			t.Errorf("a caller that waits %v: %q", late, Reasons[reason])
		}
	}
}

// A stopped machine is no slow one: after a second of standstill with calls that
// wait, a burst of 200 is let in as before.
func TestStandstillIsForgotten(t *testing.T) {
	c := newClocked(t)
	c.arrive(20)
	c.serve(20, 50*time.Millisecond)
	if c.each == 0 {
		t.Fatal("the standstill was not measured")
	}
	for range 10 {
		if got := c.arrive(200); got != 200 {
			t.Errorf("%d of 200 calls are let in after a standstill", got)
		}
		c.serve(c.Stats().Waiting, 10*time.Microsecond)
	}
	if got := c.arrive(700); got != 700 {
		t.Errorf("%d of 700 calls are let in", got)
	}
}

// A client whose calls die between their arrival and their beginning, twenty for each
// of another client's, has none of the other's refused.
func TestLostCallsAreFound(t *testing.T) {
	for name, each := range map[string]time.Duration{"busy": 20 * time.Microsecond, "quiet": 5 * time.Millisecond} {
		c := newClocked(t)
		c.arrive(100)
		c.serve(100, 20*time.Microsecond)
		for i := range 5000 {
			for range 20 {
				_, _ = c.Gate.arrive(c.now, patience, i%2 == 0) // it is followed, and never begins
			}
			reason, mark := c.Gate.arrive(c.now, patience, true)
			if reason != Begun {
				t.Fatalf("%s: call %d is refused, %d wait, it says", name, i, c.Stats().Waiting)
			}
			c.pass(each)
			if mark != 0 {
				c.Followed(mark)
			}
			c.Begin(c.now)
			c.End()
		}
		if n := c.Stats().Waiting; n > 300 {
			t.Errorf("%s: %d calls wait, it says; none does", name, n)
		}
	}
}

// Refusals are paid for one connection after the other, and none waits longer than
// half of its callers' patience.
func TestPauses(t *testing.T) {
	c := newClocked(t)
	c.each = 20_000
	c.measured = c.now
	c.waiting = 10_000
	c.arrive(100) // 0.35 of 20 us each, at 15 % of the time: 4.7 ms
	first := c.Pause(c.now)
	if first < 4*time.Millisecond || first > 5*time.Millisecond {
		t.Errorf("the first connection stays unread for %v", first)
	}
	c.arrive(50)
	if second := c.Pause(c.now); second < first+2*time.Millisecond {
		t.Errorf("the second connection stays unread for %v, the first for %v", second, first)
	}
	c.arrive(5000)
	if third := c.Pause(c.now); third != patience/pauseShare {
		t.Errorf("the third connection stays unread for %v", third)
	}
	if d := c.Pause(c.now); d != 0 {
		t.Errorf("a connection that refused nothing stays unread for %v", d)
	}
}

func TestGateDoesNotAllocate(t *testing.T) {
	c := newClocked(t)
	if n := testing.AllocsPerRun(1000, func() {
		c.arrive(1)
		c.serve(1, time.Microsecond)
		c.Pause(c.now)
	}); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

func BenchmarkGate(b *testing.B) {
	c := newClocked(b)
	for b.Loop() {
		c.Arrive(c.now, patience)
		c.Begin(c.now)
		c.End()
	}
}
