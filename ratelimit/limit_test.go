package ratelimit

import (
	"testing"
	"time"
)

// Windows of calendar months begin where the calendar's months do, follow each
// other without a gap, and are numbered without one.
func TestCalendarMonths(t *testing.T) {
	l := Limit{Unit: Month, Requests: 1}.Cut()
	begins := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	for w := Window(1); w < 12*250; w++ {
		ends := begins.AddDate(0, 1, 0)
		first, last := LedgerTime(begins.UnixMicro()), LedgerTime(ends.UnixMicro())-1
		if l.WindowAt(first) != w || l.WindowAt(last) != w || l.WindowEnd(w) != last+1 || l.WindowEnd(w-1) != first {
			t.Fatalf("%v: windows %d and %d, want %d, which ends at %d", begins, l.WindowAt(first), l.WindowAt(last),
				w, l.WindowEnd(w))
		}
		begins = ends
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
