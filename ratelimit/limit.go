package ratelimit

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Tokens counts the unit of a budget: usually requests, sometimes LLM tokens or bytes.
type Tokens int64

// MaxTokens is the most a cost may be; sums of costs stop there.
const MaxTokens Tokens = math.MaxInt64

// AddTokens returns a + b for a non-negative a, or MaxTokens.
func AddTokens(a, b Tokens) Tokens {
	if b > 0 && a > MaxTokens-b {
		return MaxTokens
	}
	return a + b
}

// MaxLimit is the most that a limit or a burst may be. Redis' scripts hold whole numbers
// below 2^53, and sums over all holders of a key must fit. RLS says limits in 32 bits:
// an answer says 4294967295 of one that is larger ([ClampedForEnvoy]).
const MaxLimit Tokens = 1_000_000_000_000

// ClampedForEnvoy is a number of tokens as RLS's 32 bits can say it.
func ClampedForEnvoy(n Tokens) uint32 { return uint32(max(0, min(n, math.MaxUint32))) }

// MaxBooked is the largest charge of a request. Larger ones (hits_addend is a uint64) refuse no more than it does. Sums
// over all holders of a key must fit the whole numbers of Redis' scripts, which are below 2^53.
const MaxBooked Tokens = 1 << 40

// Unit is the period a limit is stated for. Its numbers are those of Envoy's
// RateLimitResponse.RateLimit.Unit, so that it goes on the wire as it is.
type Unit uint8

// The units. UnitUnknown is the zero value and no unit of a valid limit.
const (
	UnitUnknown Unit = 0
	Second      Unit = 1
	Minute      Unit = 2
	Hour        Unit = 3
	Day         Unit = 4
	Month       Unit = 5
	Year        Unit = 6
	Week        Unit = 7
	// CalendarMonth is a month whose windows are those of the calendar, in UTC
	// (USE_CALENDAR_MONTH_RATE_LIMIT); for fixed_window only. Envoy gets Month.
	CalendarMonth Unit = 8
	// BillingMonth is a month whose windows a [Calendar] cuts; for fixed_window only. Envoy gets Month.
	BillingMonth Unit = 9
)

var units = [...]struct {
	name   string
	length time.Duration
}{
	UnitUnknown:   {"unknown", 0},
	Second:        {"second", time.Second},
	Minute:        {"minute", time.Minute},
	Hour:          {"hour", time.Hour},
	Day:           {"day", 24 * time.Hour},
	Month:         {"month", 30 * 24 * time.Hour},
	Year:          {"year", 365 * 24 * time.Hour},
	Week:          {"week", 7 * 24 * time.Hour},
	CalendarMonth: {"month", 30 * 24 * time.Hour},
	BillingMonth:  {"month", 30 * 24 * time.Hour},
}

// UnitNames are the names a config may use, the shortest unit first.
func UnitNames() []string {
	return []string{
		Second.String(), Minute.String(), Hour.String(), Day.String(), Week.String(), Month.String(), Year.String(),
	}
}

// ParseUnit returns the unit of that name, in any case.
func ParseUnit(name string) (Unit, bool) {
	for u := Second; u <= Week; u++ {
		if strings.EqualFold(units[u].name, name) {
			return u, true
		}
	}
	return UnitUnknown, false
}

// Length returns how long the unit is; a month is 30 days and a year 365. For
// a month of a calendar it is what to reckon with: where its windows end,
// [Limit.WindowEnd] says.
func (u Unit) Length() time.Duration {
	if int(u) < len(units) {
		return units[u].length
	}
	return 0
}

// OfCalendar reports whether windows of the unit differ in length, as months do.
func (u Unit) OfCalendar() bool { return u >= CalendarMonth }

// Wire is the unit's number for Envoy.
func (u Unit) Wire() uint8 {
	if u.OfCalendar() {
		return uint8(Month)
	}
	return uint8(u)
}

// String is the name that a config may use.
func (u Unit) String() string {
	if int(u) < len(units) {
		return units[u].name
	}
	return fmt.Sprintf("unit(%d)", uint8(u))
}

// Algorithm says how a limit's tokens come back.
type Algorithm uint8

const (
	// FixedWindow gives the whole limit at the start of each window; windows
	// are cut from the Unix epoch. Two windows' worth may pass around a cut.
	FixedWindow Algorithm = iota
	// SlidingWindow adds to the usage of the current window that of the previous one, weighted by the part
	// that the last period still covers. Cloudflare described this approximation in 2017.
	SlidingWindow
	// TokenBucket refills continuously at limit per unit, up to burst.
	TokenBucket
	// Concurrency counts requests in flight. Each has a slot until it ends, or until a period is over.
	Concurrency
)

// Algorithms are their names, by value.
var Algorithms = [...]string{
	FixedWindow: "fixed_window", SlidingWindow: "sliding_window", TokenBucket: "token_bucket",
	Concurrency: "concurrency",
}

// RateAlgorithms are those of limits for a period: a rule file names them in algorithm.
func RateAlgorithms() []string { return Algorithms[:Concurrency] }

// String is the name that a config may use.
func (a Algorithm) String() string {
	if int(a) < len(Algorithms) {
		return Algorithms[a]
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// Limit is so many tokens per unit under an algorithm. It is a value: copy it.
// Invariant: Requests and Burst are at most MaxLimit, and Period is positive.
type Limit struct {
	Algorithm  Algorithm
	Unit       Unit
	Calendar   Calendar // Invariant: it is one if and only if Unit is BillingMonth
	Multiplier uint32   // units to a period; 0 means 1, and those of a calendar have no other
	Requests   Tokens   // per period; 0 admits nothing
	Burst      Tokens   // token_bucket only: the tokens of a full bucket
	Ceiling    Tokens   // the most that an override of a key may set; 0: overrides are not read
}

// Period is the time in which Requests tokens come back.
func (l Limit) Period() time.Duration {
	return l.Unit.Length() * time.Duration(max(1, l.Multiplier))
}

// MaxPeriod is the longest period of a limit.
const MaxPeriod = 365 * 24 * time.Hour

// MostMultiplier is how many of a unit a period may have.
func (u Unit) MostMultiplier() uint32 { return uint32(MaxPeriod / max(1, u.Length())) }

// Cut returns the limit with its months those of the calendar, if it has such
// months: one month each, in a fixed window.
func (l Limit) Cut() Limit {
	if l.Unit == Month && l.Multiplier <= 1 && l.Algorithm == FixedWindow {
		l.Unit = CalendarMonth
	}
	return l
}

// Billed returns the limit with its windows cut by a calendar: one month each, in a
// fixed window.
func (l Limit) Billed(c Calendar) Limit {
	l.Unit = BillingMonth
	l.Multiplier = 0
	l.Calendar = c
	return l
}

// WindowAt is the window that a time is in. They are numbered from 1, so that
// 0 can mean none.
func (l Limit) WindowAt(t LedgerTime) Window {
	if l.Unit.OfCalendar() {
		return l.monthAt(t)
	}
	return Window(t/l.period()) + 1
}

// WindowEnd is when a window ends and the next begins.
func (l Limit) WindowEnd(w Window) LedgerTime {
	if l.Unit.OfCalendar() {
		return l.monthEnd(w)
	}
	return LedgerTime(w) * l.period()
}

// monthAt is the month of the calendar that a time is in, counted from January 1970, which is 1.
func (l Limit) monthAt(t LedgerTime) Window {
	if l.Unit == BillingMonth {
		return l.Calendar.get().at(t)
	}
	at := time.UnixMicro(int64(t)).UTC()
	return Window(at.Year()-1970)*12 + Window(at.Month())
}

// monthEnd is the first instant of the next month.
func (l Limit) monthEnd(w Window) LedgerTime {
	if l.Unit == BillingMonth {
		return l.Calendar.get().cut(w)
	}
	return LedgerTime(time.Date(1970, 1+time.Month(w), 1, 0, 0, 0, 0, time.UTC).UnixMicro())
}

// period is Period in the unit of LedgerTime.
func (l Limit) period() LedgerTime { return LedgerTime(l.Period() / time.Microsecond) }

// Capacity is the most that can be spent at one instant.
func (l Limit) Capacity() Tokens {
	if l.Algorithm == TokenBucket {
		return l.Burst
	}
	return l.Requests
}

// Refill is the time in which a bucket gains n tokens, at most longestRefill.
func (l *Limit) Refill(n Tokens) time.Duration {
	return time.Duration(math.Ceil(min(longestRefill,
		float64(max(0, n))/float64(max(1, l.Requests))*float64(l.Period()))))
}

// longestRefill is over a century: more has no time.Duration.
const longestRefill = 1 << 62

// Per is what Requests are counted in: "per minute", or "at once".
func (l Limit) Per() string {
	per := "per " + l.Unit.String()
	if l.Algorithm == Concurrency {
		return "at once"
	}
	if l.Multiplier > 1 {
		per = fmt.Sprintf("per %d %ss", l.Multiplier, l.Unit)
	}
	if l.Calendar != 0 {
		per += " " + l.Calendar.String()
	}
	return per
}

// String is how people write it: "100 per minute".
func (l Limit) String() string {
	s := fmt.Sprintf("%d %s", l.Requests, l.Per())
	switch l.Algorithm {
	case Concurrency:
		s += fmt.Sprintf(", each for %s at most", DurationText(l.Period()))
	case SlidingWindow:
		s += ", sliding"
	case TokenBucket:
		s += fmt.Sprintf(", bucket of %d", l.Burst)
	}
	return s
}
