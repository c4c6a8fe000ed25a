package account

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A span is when an account's window is, by the ledger's clock. That of a bucket's account is for ever.
// The zero span is over.
type span struct {
	// opens is when the window before begins: from then on the account may be claimed.
	opens, begins, ends instant
	// over is when the account is not kept any more: who claims of it is told so, and a new one would not know
	// what was spent.
	over instant
}

// lastTime is after every time of a ledger's clock: the year 2112. Doubles hold microseconds up to twice as many.
const lastTime instant = 1 << 52

// lastMonth is a month after it, by any calendar: to ask a calendar for it costs what all its months until then do.
const lastMonth ratelimit.Window = (2113 - 1970) * 12

// keptMost bounds how long a fixed window's account is kept after its end, for late reports.
const keptMost = 24 * time.Hour

// spanOf is the span of a window of a limit.
func spanOf(l *ratelimit.Limit, w ratelimit.Window) span {
	if l.Algorithm == ratelimit.TokenBucket {
		return span{ends: math.MaxInt64, over: math.MaxInt64}
	}
	last := lastMonth
	if !l.Unit.OfCalendar() {
		last = l.WindowAt(lastTime)
	}
	if w < 1 || w > last {
		return span{}
	}
	s := span{l.WindowEnd(w - 2), l.WindowEnd(w - 1), l.WindowEnd(w), 0}
	// A sliding window is looked at for the whole of the next one, and so is one whose debt is carried.
	kept := s.ends.Sub(s.begins)
	if l.Algorithm == ratelimit.FixedWindow && !l.Carries {
		kept = min(kept, keptMost)
	}
	s.over = s.ends.Add(kept)
	return s
}

// kept tells whether the ledger has the account at a time of its clock.
func (s *span) kept(now instant) bool { return s.opens <= now && now < s.over }

// parts is in how many a window is divided, to say how much of it the last period still covers. Every sliding
// window is a whole number of them long, in microseconds.
const parts = 1_000_000

// before is what still counts of the window before, whose account has this sum: the part of it that the last
// period still covers, rounded up.
func (s *span) before(now instant, l *ratelimit.Limit, sum tokens) tokens {
	switch {
	case l.Algorithm != ratelimit.SlidingWindow || now >= s.ends:
		return 0
	// All of the limit may still be spent in the window before, and nobody who spends it looks at this one.
	case now < s.begins:
		return max(sum, l.Capacity())
	}
	sum = max(0, sum)
	part := tokens(roundUp(int64(s.ends-now), int64(s.ends-s.begins)/parts))
	// In two steps, for a double holds neither product of a large sum.
	return sum/parts*part + tokens(roundUp(int64(sum%parts*part), parts))
}

// looksBack tells whether what is free of a window depends on the account of the one before.
func looksBack(l *ratelimit.Limit) bool { return l.Algorithm == ratelimit.SlidingWindow || l.Carries }

func roundUp(n, d int64) int64 { return (n + d - 1) / d }
