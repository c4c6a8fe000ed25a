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

// What Get says, Set reads; and every field has a text.
func TestCoordinationFieldsAreReadAsWritten(t *testing.T) {
	for field, texts := range map[string][]string{
		"mode": ModeNames(), "lease.size": {"auto", "17"},
		"reclaim":      Reclaims[:],
		"drift_budget": {"0", "250", "0.5%", "100%"}, "max_nodes": {"1", "30"},
		"check_timeout": {"0s", "2ms"}, "on_store_failure": FailurePolicies[:],
		"on_deny": OnDenies[:], "audit": {"true", "false"},
	} {
		for _, text := range texts {
			c := DefaultCoordination()
			if err := c.Set(field, text); err != nil || c.Get(field) != text {
				t.Errorf("%s: %s is written %q (%v)", field, text, c.Get(field), err)
			}
		}
	}
	c := DefaultCoordination()
	for _, field := range CoordinationFields {
		again := Coordination{}
		if err := again.Set(field, c.Get(field)); err != nil || again.Get(field) != c.Get(field) {
			t.Errorf("the default of %s is %q: %v", field, c.Get(field), err)
		}
	}
	if got := c.Get("nonsense"); got != "" {
		t.Errorf("a field that is none: %q", got)
	}
}

func TestNearest(t *testing.T) {
	units := []string{"second", "minute", "hour", "day", "week", "month", "year"}
	keys := []string{"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric"}
	for said, want := range map[string]string{
		"secnod": "second", "seconds": "second", "sec": "second", "s": "second", "h": "hour", "Minutes": "minute",
		"monthh": "month", "fortnight": "", "m": "", "": "", "dayy": "day",
	} {
		if got := Nearest(said, units); got != want {
			t.Errorf("unit %q: %q, want %q", said, got, want)
		}
	}
	for said, want := range map[string]string{
		"ratelimit": "rate_limit", "rate-limit": "rate_limit", "rateLimits": "rate_limit", "descriptor": "descriptors",
		"desciptors": "descriptors", "vlaue": "value", "shadowMode": "shadow_mode", "foo": "", "kye": "key",
		"a name that is far too long to be a misspelling of one": "",
	} {
		if got := Nearest(said, keys); got != want {
			t.Errorf("key %q: %q, want %q", said, got, want)
		}
	}
	if got := Nearest("ab", []string{"aa", "bb"}); got != "" {
		t.Errorf("of two that are as near: %q", got)
	}
}
