package ratelimit

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Calendar cuts billing months by a day of the month in a time zone. Its windows begin on that day there, at
// any offset of the zone.
//
// A billing month begins at the first instant at which clocks in the zone show that day or a later one. That
// is the first midnight where there are two, and the end of the gap where clocks leave midnight out. In a
// month without that day, the last day stands in: for day 31 the 30th of April, and the 28th or 29th of
// February.
//
// A Calendar is a number that this process gave to the day and the zone, so that a [Limit] stays small and
// comparable. It must not leave the process. The zero Calendar is none. The process keeps all Calendars, at
// most MostCalendars. All methods are safe for concurrent use.
type Calendar uint16

// MostCalendars is the largest number of a process: 31 for each of a thousand zones. The IANA database has
// some 600.
const MostCalendars = 1 << 15

// NewCalendar returns the calendar of a day, 1 to 31, and a time zone. Zones of one name
// are one zone: the first of them counts.
func NewCalendar(day int, zone *time.Location) (Calendar, error) {
	if day < 1 || day > 31 {
		return 0, fmt.Errorf("invalid billing period: day %d does not exist in a month: use 1 to 31", day)
	}
	for {
		all := calendars.Load()
		for i, k := range (*all)[1:] {
			if k.day == day && k.zone.String() == zone.String() {
				return Calendar(i + 1), nil
			}
		}
		if len(*all) >= MostCalendars {
			return 0, fmt.Errorf("invalid billing period: the process has %d others, which is the maximum: restart "+
				"it to use new ones", len(*all)-1)
		}
		// A copy, because other goroutines read the list without a lock. If one was faster, the loop begins anew.
		more := slices.Concat(*all, []calendar{{day, zone}})
		if calendars.CompareAndSwap(all, &more) {
			return Calendar(len(*all)), nil
		}
	}
}

// Day is the day of the month, 1 to 31.
func (c Calendar) Day() int { return c.get().day }

// Zone is the name of the time zone; that of no calendar is "".
func (c Calendar) Zone() string {
	if c == 0 {
		return ""
	}
	return c.get().zone.String()
}

// String is how people write it.
func (c Calendar) String() string {
	if c == 0 {
		return "no calendar"
	}
	return fmt.Sprintf("from day %d, %s", c.Day(), c.Zone())
}

// Local returns t as clocks of the calendar's zone show it.
func (c Calendar) Local(t LedgerTime) time.Time { return time.UnixMicro(int64(t)).In(c.get().zone) }

// Begins are the times at which the n windows after t begin, as clocks of the calendar's
// zone show them.
func (c Calendar) Begins(t time.Time, n int) []time.Time {
	k, begins := c.get(), make([]time.Time, n)
	w := k.at(LedgerTime(t.UnixMicro()))
	for i := range begins {
		begins[i] = c.Local(k.cut(w + Window(i)))
	}
	return begins
}

func (c Calendar) get() calendar { return (*calendars.Load())[c] }

// calendar is what a Calendar stands for.
type calendar struct {
	day  int
	zone *time.Location
}

// at is the window of a time. Windows are named after the month that they end in, counted from January 1970, which is
// 1: so no time from 1970 on is before window 1. Keys remember their window, so that few requests need it anew.
func (k calendar) at(t LedgerTime) Window {
	local := time.UnixMicro(int64(t)).In(k.zone)
	w := Window(local.Year()-1970)*12 + Window(local.Month()) // the window before has ended: clocks show a later day
	for t >= k.cut(w) {
		w++
	}
	return w
}

// cut is the end of a window: the first instant of its month's day, or of a later one. [time.Date] does not say which
// of two midnights it returns, nor on which side of a gap.
//
// It goes through the zone's offsets in their order, from the one in force 36 hours before. Under each, clocks show the
// day from a known instant on. The first such instant within its own offset is the end. Where the offset begins later
// than that, clocks have left midnight out, and its beginning is the end.
func (k calendar) cut(w Window) LedgerTime {
	month := time.Month(w)
	day := min(k.day, time.Date(1970, month+1, 0, 0, 0, 0, 0, time.UTC).Day())
	wanted := time.Date(1970, month, day, 0, 0, 0, 0, time.UTC).Unix() // as the zone's clocks show it
	// No clock has ever been a day and a half ahead of UTC.
	for t := time.Unix(wanted-36*3600, 0).In(k.zone); ; {
		_, offset := t.Zone()
		_, until := t.ZoneBounds()
		// On the last day of a leap year, package time may name an end that has passed: beyond a zone's table, it
		// takes each year for 365 days. No offset is in force for less than an hour.
		ends := max(until.Unix(), t.Unix()+3600)
		at := max(t.Unix(), wanted-int64(offset))
		if until.IsZero() || at < ends {
			return LedgerTime(at) * LedgerTime(time.Second/time.Microsecond)
		}
		t = time.Unix(ends, 0).In(k.zone)
	}
}

// calendars are those of this process, by number; the list is only ever replaced by a
// longer one.
var calendars = func() *atomic.Pointer[[]calendar] {
	var all atomic.Pointer[[]calendar]
	all.Store(&[]calendar{{zone: time.UTC}})
	return &all
}()
