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
	own int // calls of its connection inside
}

func newClocked(t testing.TB) *clocked { return &clocked{Gate: NewGate(patience), TB: t, now: start} }

func (c *clocked) pass(d time.Duration) { c.now = c.now.Add(d) }

// arrive has n calls arrive at once, and returns how many of them are let in.
func (c *clocked) arrive(n int) (begun int) {
	for range n {
		if c.Arrive(c.now, c.own, patience) {
			begun++
			c.own++
		}
	}
	return begun
}

// leave has n calls leave.
func (c *clocked) leave(n int) {
	c.own -= n
	c.Leave(c.now, c.own, n)
}

// serve has n calls that are inside answered, one each d.
func (c *clocked) serve(n int, d time.Duration) {
	for range n {
		c.pass(d)
		c.leave(1)
	}
}

// measure sets the gate's time of a call to d.
func (c *clocked) measure(d time.Duration) {
	for range 60 {
		c.arrive(100)
		c.serve(c.Stats().Waiting, d)
	}
}

// A burst that can be answered within the share of its callers' patience is let in whole, again and again.
func TestBurstsAreLetIn(t *testing.T) {
	c := newClocked(t)
	each := 10 * time.Microsecond
	burst := int(patience / burstShare / each)
	for i := range 50 {
		if got := c.arrive(burst); got != burst {
			t.Fatalf("burst %d: %d of %d calls were let in", i, got, burst)
		}
		c.serve(burst, each)
		c.pass(30 * time.Millisecond)
	}
	if s := c.Stats(); s.Shed != [len(Reasons)]uint64{} || s.Waiting != 0 || s.InFlight != 0 {
		t.Errorf("after bursts that ended: %+v", s)
	}
}

// What would wait for longer is refused at once, and as soon as there is room again as many are let in.
func TestMoreThanABurstIsRefused(t *testing.T) {
	c := newClocked(t)
	each := 10 * time.Microsecond
	room := int(patience / burstShare / each)
	c.measure(each)
	if got := c.arrive(5000); got < room || got > room+2 {
		t.Errorf("%d of 5,000 calls were let in, %d can be answered in time", got, room)
	}
	if s := c.Stats(); int(s.Shed[Overload]) < 4990-room || s.Shed[Deadline] != 0 {
		t.Errorf("shed %v", s.Shed)
	}
	c.serve(100, each)
	if got := c.arrive(5000); got < 98 || got > 102 {
		t.Errorf("when 100 have left, %d are let in", got)
	}
}

// A slow node lets in fewer, and a fast one more: what was measured is followed, both ways.
func TestTheNodesSpeedIsFollowed(t *testing.T) {
	c := newClocked(t)
	for _, each := range []time.Duration{10 * time.Microsecond, 40 * time.Microsecond, 5 * time.Microsecond} {
		c.measure(each)
		room := int(patience / burstShare / each)
		if got := c.arrive(10_000); got < room*9/10 || got > room*11/10 {
			t.Errorf("at %v each, %d are let in, %d can be answered in time", each, got, room)
		}
		c.serve(c.Stats().Waiting, each)
	}
	const each = 18 * time.Microsecond
	room := int(patience / burstShare / each)
	c.arrive(50)
	for range 200 { // now in batches, one soon after the other, while others arrive
		c.arrive(50)
		c.pass(each)
		c.leave(20)
		c.pass(49 * each)
		c.leave(30)
	}
	if got := 50 + c.arrive(10_000); got < room*9/10 || got > room*11/10 {
		t.Errorf("of calls that leave in batches, %d are let in, %d can be answered in time", got, room)
	}
}

// Calls that wait for their decision, as for a store, have left: however many they are, they are no reason to refuse
// others.
func TestWaitingForADecisionIsNotInside(t *testing.T) {
	c := newClocked(t)
	c.measure(10 * time.Microsecond)
	for range 100 {
		if got := c.arrive(100); got != 100 {
			t.Fatalf("with %d calls that wait for a store, %d of 100 are let in", c.Stats().InFlight, got)
		}
		for range 100 {
			c.Begin()
		}
		c.leave(100)
	}
	if s := c.Stats(); s.InFlight != 10_000 || s.Waiting != 0 {
		t.Errorf("meanwhile %+v", s)
	}
}

// Twice what can be answered, for a second. After 100 ms no call is inside for longer than a
// quarter of its patience, and those that serve are never without work.
func TestStandingQueueIsShort(t *testing.T) {
	c := newClocked(t)
	each := 20 * time.Microsecond
	for range 1000 { // milliseconds
		c.arrive(100)
		if s := c.Stats(); c.now.Sub(start) > 2*standing {
			if wait := time.Duration(s.Waiting) * each; wait > patience/standingShare+time.Millisecond || s.Waiting < 50 {
				t.Fatalf("after %v calls wait for %v", c.now.Sub(start), wait)
			}
		}
		c.serve(50, each)
	}
	// The overload ends, and with it the stricter bound.
	c.serve(c.Stats().Waiting, each)
	c.pass(stale / 2)
	if room := int(patience/burstShare/each) * 9 / 10; c.arrive(room) != room {
		t.Errorf("after the overload %d of a burst of %d were let in", c.Stats().Waiting, room)
	}
}

// Callers are refused by how long they wait themselves, and by no more than the bound.
func TestPatience(t *testing.T) {
	c := newClocked(t)
	c.measure(10 * time.Microsecond)
	c.arrive(400) // 4 ms
	if c.Arrive(c.now, c.own, 2*time.Millisecond) {
		t.Error("a caller that waits 2 ms is let in")
	}
	if s := c.Stats(); s.Shed[Deadline] != 1 || s.Shed[Overload] != 0 {
		t.Errorf("a caller in a hurry: shed %v", s.Shed)
	}
	if c.Arrive(c.now, c.own, 6*time.Millisecond) {
		t.Error("a caller that waits 6 ms is let in")
	}
	if s := c.Stats(); s.Shed[Overload] != 1 {
		t.Errorf("a caller that waits 6 ms: shed %v", s.Shed)
	}
	if !c.Arrive(c.now, c.own, patience) {
		t.Error("a caller that waits 20 ms is refused")
	}
	c.arrive(1000)
	if c.Arrive(c.now, c.own, time.Hour) {
		t.Error("a caller that waits an hour is let in beyond the bound")
	}
	for _, late := range []time.Duration{0, -time.Second} {
		if newClocked(t).Arrive(start, 0, late) {
			t.Errorf("a caller that waits %v is let in", late)
		}
	}
}

// A machine that stood still is no slow one: after it did with calls inside, a burst is let in as before.
func TestStandstillIsForgotten(t *testing.T) {
	c := newClocked(t)
	c.arrive(3 * fewest)
	c.serve(3*fewest, 500*time.Microsecond)
	if c.each == 0 {
		t.Fatal("the standstill was not measured")
	}
	burst := int(patience / burstShare / likely / 2)
	for range 10 {
		if got := c.arrive(burst); got != burst {
			t.Errorf("%d of %d calls are let in after a standstill", got, burst)
		}
		c.serve(c.Stats().Waiting, 10*time.Microsecond)
	}
	c.measure(10 * time.Microsecond)
	if got := c.arrive(4 * burst); got != 4*burst {
		t.Errorf("%d of %d calls are let in", got, 4*burst)
	}
}

// Slow calls are dropped from the measurement when they are old, and fast ones are not: a flood after a pause
// is refused at once.
func TestOldMeasurements(t *testing.T) {
	for _, x := range []struct{ each, then time.Duration }{{100 * time.Microsecond, likely}, {20 * time.Microsecond, 20 * time.Microsecond}} {
		c := newClocked(t)
		c.measure(x.each)
		c.pass(2 * stale)
		room := int(patience / burstShare / x.then)
		if got := c.arrive(5000); got < room*9/10 || got > room*11/10 {
			t.Errorf("after calls of %v and a pause, %d are let in, want %d", x.each, got, room)
		}
	}
}

// However slowly calls leave, a burst of twenty is let in: no caller can make the node seem slower.
func TestMeasurementIsBounded(t *testing.T) {
	c := newClocked(t)
	for range 100 { // as calls that linger
		c.arrive(100)
		c.pass(100 * time.Millisecond)
		c.leave(c.own)
	}
	if got := c.arrive(20); got != 20 {
		t.Errorf("%d of 20 calls are let in", got)
	}
}

// A connection that fills the bound, and of which no call leaves, shuts out only itself. Another one is
// admitted with its share, and refused beyond it.
func TestOneConnectionShutsOutNoOther(t *testing.T) {
	c := newClocked(t)
	c.measure(100 * time.Microsecond)
	c.arrive(5000)
	if c.arrive(1) != 0 {
		t.Fatal("who floods is still let in")
	}
	room := int(patience / burstShare / (100 * time.Microsecond))
	own := 0
	for c.Arrive(c.now, own, patience) {
		own++
	}
	// An eighth, for there are two; half as many where the flood has been found to be no burst.
	if own < room/16 || own > room/8 {
		t.Errorf("%d calls of another connection are let in, a quarter of its share is %d", own, room/8)
	}
	c.Leave(c.now, 0, own)
	c.Leave(c.now, 0, c.own)
	if c.callers != 0 {
		t.Errorf("no call is inside, and of %d connections are some, says the gate", c.callers)
	}
}

// A connection with more calls inside than all others together may have 5 ms of work there, from a call of another
// connection on. When the other has been silent for a while, a burst is let in again.
func TestFloodLeavesRoomForOthers(t *testing.T) {
	c := newClocked(t)
	each := 10 * time.Microsecond
	burst, few := int(patience/burstShare/each), int(crowded/each)
	c.measure(each)
	if got := c.arrive(burst); got != burst {
		t.Fatalf("alone, %d of a burst of %d are let in", got, burst)
	}
	c.serve(burst-fewest, each)
	if !c.Arrive(c.now, 0, patience) {
		t.Error("another connection is shut out")
	}
	if c.arrive(burst); c.own < few-1 || c.own > few+1 {
		t.Errorf("%d calls of a flood are inside, and %d may be", c.own, few)
	}
	c.Leave(c.now, 0, 1)
	c.serve(c.own, each)
	if c.callers != 0 {
		t.Errorf("no call is inside, and of %d connections are some, says the gate", c.callers)
	}
	c.pass(standing)
	if got := c.arrive(burst); got != burst {
		t.Errorf("alone again, %d of a burst of %d are let in", got, burst)
	}
}

func TestGateDoesNotAllocate(t *testing.T) {
	c := newClocked(t)
	if n := testing.AllocsPerRun(1000, func() {
		c.Arrive(c.now, c.own, patience)
		c.Begin()
		c.End()
		c.Leave(c.now, 0, 1)
	}); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}
