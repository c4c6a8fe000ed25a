package ratelimit

import (
	"testing"
	"time"
)

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
