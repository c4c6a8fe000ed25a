package ratelimit

import (
	"testing"
	"time"
)

// fakeClocks are a machine's two clocks.
type fakeClocks struct{ running, elapsed time.Duration }

func (f *fakeClocks) clock() Clock {
	return NewClock(func() time.Duration { return f.running }, func() time.Duration { return f.elapsed })
}

func (f *fakeClocks) pass(d time.Duration) { f.running, f.elapsed = f.running+d, f.elapsed+d }

// A machine sleeps for an hour. The first reading afterwards says so, and time
// goes on from there; what it read before stays before.
func TestClockGoesOnThroughASuspension(t *testing.T) {
	f := &fakeClocks{running: time.Minute, elapsed: 3 * time.Minute}
	now := f.clock()
	f.pass(5 * time.Millisecond)
	before := now()
	f.elapsed += time.Hour
	f.pass(2 * time.Millisecond) // while processes are stopped, and started again
	if slept := now().Sub(before); slept != time.Hour+2*time.Millisecond {
		t.Errorf("after an hour of sleep the clock went on by %v", slept)
	}
	f.pass(time.Second)
	if d := now().Sub(before); d != time.Hour+time.Second+2*time.Millisecond {
		t.Errorf("a second later it had gone on by %v", d)
	}
}

// A goroutine that is stopped between its two readings has not slept, and a
// clock that was ahead of the other from the start is not taken for a sleep.
func TestClockIsNotMisled(t *testing.T) {
	f := &fakeClocks{elapsed: 42 * time.Hour}
	stop := time.Duration(0)
	now := NewClock(func() time.Duration { return f.running }, func() time.Duration {
		e := f.elapsed
		f.pass(stop) // after this reading, before the next of the other
		return e
	})
	last := now()
	for range 100 {
		stop = 100 * time.Millisecond
		f.pass(time.Millisecond)
		if got := now(); got < last {
			t.Fatalf("the clock went back from %d to %d", last, got)
		} else {
			last = got
		}
	}
	if total := Instant(f.running + time.Second); last > total {
		t.Errorf("the clock shows %v more than has passed", last.Sub(total))
	}
}

func TestClockAllocatesNothing(t *testing.T) {
	now := MonotonicClock()
	last := now()
	if n := testing.AllocsPerRun(1000, func() {
		if got := now(); got < last {
			t.Error("the clock went back")
		} else {
			last = got
		}
	}); n != 0 {
		t.Errorf("a reading allocates %v times", n)
	}
}
