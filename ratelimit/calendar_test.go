package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// billed is a limit of billing months from a day on, in a time zone.
func billed(t testing.TB, day int, zone string) Limit {
	t.Helper()
	location, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCalendar(day, location)
	if err != nil {
		t.Fatal(err)
	}
	return Limit{Unit: Month, Requests: 1}.Billed(c)
}

// A billing month begins at the first minute of which clocks show the day or a later one, which is found minute by minute.
// Months are numbered without a gap. That holds for months that are known to be hard, and for random ones until the last
// time of a ledger's clock.
func TestBillingMonthsBeginAsClocksShow(t *testing.T) {
	begins := func(day int, zone string, year int, month time.Month) time.Time {
		l := billed(t, day, zone)
		shown := min(day, time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day())
		wanted := time.Date(year, month, shown, 0, 0, 0, 0, time.UTC)
		clock := l.Calendar.Local(LedgerTime(wanted.Add(-26 * time.Hour).UnixMicro()))
		for ; ; clock = clock.Add(time.Minute) {
			if y, m, d := clock.Date(); !time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(wanted) {
				break
			}
		}
		at := LedgerTime(clock.UnixMicro())
		w := Window(12*(year-1970)) + Window(month) + 1
		if l.WindowAt(at) != w || l.WindowAt(at-1) != w-1 || l.WindowEnd(w-1) != at || l.WindowAt(0) < 1 {
			t.Fatalf("%v: %v is in window %d, which begins at %v", l.Calendar, clock, l.WindowAt(at), l.Calendar.Local(l.WindowEnd(w-1)))
		}
		return clock.UTC()
	}
	for _, c := range []struct {
		day               int
		zone, begins, why string
	}{
		{15, "America/New_York", "2026-01-15T05:00:00Z", "in winter"},
		{15, "America/New_York", "2026-07-15T04:00:00Z", "in summer"},
		{1, "UTC", "2027-01-01T00:00:00Z", "a year ends"},
		{1, "Pacific/Kiritimati", "2025-12-31T10:00:00Z", "14 hours ahead: the old year in UTC"},
		{1, "Etc/GMT+12", "2026-01-01T12:00:00Z", "12 hours behind"},
		{31, "UTC", "2026-02-28T00:00:00Z", "the last day of a short month"},
		{31, "UTC", "2028-02-29T00:00:00Z", "of a leap year"},
		{29, "UTC", "2100-02-28T00:00:00Z", "2100 is none"},
		{31, "America/New_York", "2040-12-31T05:00:00Z", "the last day of one"},
		{1, "America/New_York", "2041-01-01T05:00:00Z", "a leap year ends"},
		{1, "Australia/Sydney", "2040-12-31T13:00:00Z", "a leap year ends in summer"},
		{31, "Asia/Kathmandu", "2026-04-29T18:15:00Z", "April has 30 days, at +05:45"},
		{1, "America/Asuncion", "2023-10-01T04:00:00Z", "midnight is left out: clocks go from 00:00 to 01:00"},
		{26, "Africa/Cairo", "2024-04-25T22:00:00Z", "midnight is left out"},
		{31, "Asia/Beirut", "2024-03-30T22:00:00Z", "midnight is left out"},
		{1, "America/Havana", "2026-11-01T04:00:00Z", "midnight is there twice: clocks go from 01:00 to 00:00"},
		{1, "America/St_Johns", "2009-11-01T02:30:00Z", "clocks go from 00:01 to 23:01 of the day before"},
		{30, "Pacific/Apia", "2011-12-30T10:00:00Z", "the day is left out: 29 December is followed by the 31st"},
	} {
		want, err := time.Parse(time.RFC3339, c.begins)
		if err != nil {
			t.Fatal(err)
		}
		local := want.Add(14 * time.Hour) // in the month, in each zone
		if got := begins(c.day, c.zone, local.Year(), local.Month()); !got.Equal(want) {
			t.Errorf("%d, %s, %s: it begins at %v, must at %v", c.day, c.zone, c.why, got, want)
		}
	}
	zones := strings.Fields("UTC America/New_York Pacific/Kiritimati Etc/GMT+12 America/Asuncion Africa/Cairo Asia/Beirut " +
		"America/Havana America/St_Johns Pacific/Apia Asia/Kathmandu Australia/Lord_Howe Europe/Dublin America/Sao_Paulo " +
		"Asia/Tehran Pacific/Chatham Africa/Casablanca Asia/Pyongyang America/Caracas Europe/Moscow Atlantic/Azores")
	rnd := rand.New(rand.NewPCG(18, 22))
	for range 2000 {
		begins(1+rnd.IntN(31), zones[rnd.IntN(len(zones))], 1971+rnd.IntN(141), time.Month(1+rnd.IntN(12)))
	}
}

// Windows of calendar months begin where the calendar's months do, follow each
// other without a gap, and are numbered without one.
func TestCalendarMonths(t *testing.T) {
	l := Limit{Unit: Month, Requests: 1}.Cut()
	for w := Window(0); w < 12*250; w++ {
		ends := LedgerTime(time.Date(1970, time.Month(1+w), 1, 0, 0, 0, 0, time.UTC).UnixMicro())
		if l.WindowEnd(w) != ends || l.WindowAt(ends-1) != w || l.WindowAt(ends) != w+1 {
			t.Fatalf("windows %d and %d, want %d, which ends at %d", l.WindowAt(ends-1), l.WindowAt(ends), w, ends)
		}
	}
	for _, other := range []Limit{{Unit: Month, Multiplier: 2}, {Unit: Month, Algorithm: SlidingWindow}, {Unit: Year}} {
		if other.Cut() != other {
			t.Errorf("%v became %v", other, other.Cut())
		}
	}
	if CalendarMonth.Wire() != 5 {
		t.Errorf("Envoy is told unit %d", CalendarMonth.Wire())
	}
}

func TestCalendarsAreRefused(t *testing.T) {
	for _, day := range []int{-1, 0, 32} {
		got, err := NewCalendar(day, time.UTC)
		want := fmt.Sprintf("day %d does not exist in a month: use 1 to 31", day)
		if err == nil || !strings.Contains(err.Error(), want) || got != 0 {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
	}
	if c := Calendar(0); c.Zone() != "" || c.String() != "no calendar" {
		t.Errorf("none is %v", c)
	}
}

// Limits are the same if their calendars are, and keys are apart where they are not.
func TestCalendarsTellLimitsApart(t *testing.T) {
	l := billed(t, 15, "Europe/Berlin")
	if l != billed(t, 15, "Europe/Berlin") || l.Unit.Wire() != 5 || l.Period() != 30*24*time.Hour {
		t.Errorf("%+v", l)
	}
	if s := l.String(); s != "1 per month from day 15, Europe/Berlin" {
		t.Error(s)
	}
	keys := map[string]Limit{}
	for _, other := range []Limit{
		l, billed(t, 16, "Europe/Berlin"), billed(t, 15, "UTC"), billed(t, 1, "UTC"),
		{Unit: Month},
		Limit{Unit: Month}.Cut(),
	} {
		key := string(AppendPrefix(nil, "d", other))
		if known, ok := keys[key]; ok {
			t.Errorf("%v and %v have the same keys", other, known)
		}
		keys[key] = other
	}
}

// Calendars may be made and asked at the same time.
func TestCalendarsAreShared(t *testing.T) {
	now := LedgerTime(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC).UnixMicro())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				other := billed(t, 1+j%31, "Europe/Berlin")
				at := now + LedgerTime(i*j)*LedgerTime(24*time.Hour/time.Microsecond)
				if w := other.WindowAt(at); at < other.WindowEnd(w-1) || at >= other.WindowEnd(w) {
					t.Errorf("%v: %d is not in window %d", other, at, w)
				}
			}
		})
	}
	wg.Wait()
}

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
