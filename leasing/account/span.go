package account

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A span is the time of an account's window, by the ledger's clock. That of a bucket's account has no end. The zero
// span is over.
type span struct {
	begins, ends instant
	// over is the end of the account's record: later claims are answered with ErrOver, because a new account lacks
	// its usage.
	over instant
}

// lastTime is after every time of a ledger's clock: the year 2112. Doubles hold microseconds up to twice as many.
const lastTime instant = 1 << 52

// lastMonth is later than the month of lastTime, in any calendar. The ends of all months up to it fit into 64 bits.
const lastMonth ratelimit.Window = (2113 - 1970) * 12

// keptMost bounds the time for which a fixed window's account is kept after its end, for late reports.
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
	// Windows are numbered from 1. The times of a later one than last overflow, and no clock reaches them.
	if w < 1 || w > last {
		return span{}
	}
	s := span{begins: l.WindowEnd(w - 1), ends: l.WindowEnd(w)}
	// The next window reads a sliding window during its whole time.
	kept := s.ends.Sub(s.begins)
	if l.Algorithm == ratelimit.FixedWindow {
		kept = min(kept, keptMost)
	}
	s.over = s.ends.Add(kept)
	return s
}

// kept reports whether the ledger has the account at a time of its clock.
func (s *span) kept(now instant) bool { return s.begins <= now && now < s.over }

// parts is the number of parts of a window, for the part that the last period still covers. Every sliding window is a
// whole number of them long, in microseconds. So all numbers of the division are whole, and the same in Go and in Lua.
const parts = 1_000_000

// before is the counting part of the previous window with this sum: the part that the last period still covers, rounded
// up. A quarter into the window, part is 750,000, and 75 % of the sum count. After the end of the window, the previous
// one no longer counts: a late report takes nothing more, and sees its own window alone.
func (s *span) before(now instant, l *ratelimit.Limit, sum tokens) tokens {
	if l.Algorithm != ratelimit.SlidingWindow || now >= s.ends {
		return 0
	}
	// Refunds never take a sum below 0. This guards against a record of another program.
	sum = max(0, sum)
	part := tokens(roundUp(int64(s.ends-now), int64(s.ends-s.begins)/parts))
	// In two steps, because a double is not exact for either product of a large sum.
	return sum/parts*part + tokens(roundUp(int64(sum%parts*part), parts))
}

// looksBack reports whether a window's free tokens depend on the previous account.
func looksBack(l *ratelimit.Limit) bool { return l.Algorithm == ratelimit.SlidingWindow }

func roundUp(n, d int64) int64 { return (n + d - 1) / d }
