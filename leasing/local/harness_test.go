package local

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

// begins is the start of a minute. testWall is in the middle of one.
var (
	begins   = time.Unix(1_800_000_000, 0)
	testWall = begins.Add(15 * time.Second)
)

func testRule(l ratelimit.Limit) *ratelimit.Rule {
	return &ratelimit.Rule{Domain: "d", Path: "p", Limit: l, Coordination: ratelimit.DefaultCoordination()}
}

// ownedRule is of keys that move with a ring.
func ownedRule(l ratelimit.Limit) *ratelimit.Rule {
	r := testRule(l)
	r.Coordination.Mode = ratelimit.Routing
	return r
}

// of is an algorithm's limit of so many a minute.
func of(a ratelimit.Algorithm, n tokens) ratelimit.Limit {
	l := ratelimit.Limit{Algorithm: a, Unit: ratelimit.Minute, Requests: n}
	if a == ratelimit.TokenBucket {
		l.Burst = n
	}
	return l
}

func keyOf(n uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{1, 0, 1, 'd'}, n)
}

// spend is a request for tokens of a key.
func spend(r *ratelimit.Rule, key uint64, cost tokens) ask {
	return ask{Rule: r, Key: keyOf(key), Cost: cost}
}

func decideOne(l *Limiter, now instant, a ask) verdict {
	v := make([]verdict, 1)
	l.Decide(context.Background(), now, []ask{a}, v)
	return v[0]
}

// admit sends that many requests for single tokens of key 1, and returns the number of admitted ones.
func admit(l *Limiter, now instant, r *ratelimit.Rule, n int) (admitted int) {
	for range n {
		if !decideOne(l, now, spend(r, 1, 1)).OverLimit {
			admitted++
		}
	}
	return admitted
}

// fill spends a token of each of so many other keys.
func fill(l *Limiter, now instant, r *ratelimit.Rule, n uint64) {
	for k := range n {
		decideOne(l, now, spend(r, 1000+k, 1))
	}
}

func everything([]byte) bool { return true }

// handOver moves the keys that match accepts. What has no room stays.
func handOver(now instant, from, to *Limiter, match func(key []byte) bool) (handed int) {
	var keys [][]byte
	for v := (Visit{}); !from.Visit(&v, func(key []byte) {
		if match(key) {
			keys = append(keys, append([]byte(nil), key...))
		}
	}); {
	}
	for _, key := range keys {
		a, ok := from.TakeOut(now, key)
		if !ok {
			continue
		}
		if to.Adopt(now, key, a, from.LedgerNow(now)) {
			handed++
		} else {
			from.Adopt(now, key, a, from.LedgerNow(now))
		}
	}
	return handed
}

func billed(t interface{ Fatal(args ...any) }, day int, name string) ratelimit.Limit {
	c, err := zone.Calendar(day, name)
	if err != nil {
		t.Fatal(err)
	}
	return ratelimit.Limit{Unit: ratelimit.Month, Requests: 1000}.Billed(c)
}

func drawLimit(t *rapid.T) ratelimit.Limit {
	sizes := rapid.SampledFrom([]tokens{1, 2, 7, 100, 1 << 32, 30_000_000_000})
	l := ratelimit.Limit{
		Algorithm: rapid.SampledFrom(rates).Draw(t, "algorithm"),
		Unit:      ratelimit.Unit(rapid.IntRange(1, int(ratelimit.BillingMonth)).Draw(t, "unit")),
	}
	if l.Unit == ratelimit.BillingMonth {
		zones := []string{"UTC", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12", "America/Asuncion", "Africa/Cairo"}
		l = billed(t, rapid.IntRange(1, 31).Draw(t, "day"), rapid.SampledFrom(zones).Draw(t, "zone"))
	}
	if l.Unit.OfCalendar() {
		l.Algorithm = ratelimit.FixedWindow
	}
	l.Requests = sizes.Draw(t, "limit")
	if l.Algorithm == ratelimit.TokenBucket {
		l.Burst = sizes.Draw(t, "burst")
	}
	return l
}

var rates = []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.TokenBucket}

// paper is a budget as a person would write it down: what each algorithm means, on one node, with no leases.
type paper struct {
	limit  ratelimit.Limit
	onDeny ratelimit.OnDeny
	window int64
	used   tokens // in the window
	prev   tokens // in the one before
	at     time.Duration
	level  float64
}

// roll brings it to an instant.
func (c *paper) roll(at time.Duration) {
	c.level = min(float64(c.limit.Burst), c.level+float64(at-c.at)*float64(c.limit.Requests)/float64(c.limit.Period()))
	c.at = at
	if w := int64(at / c.limit.Period()); w != c.window {
		c.prev = 0
		if w == c.window+1 && c.limit.Algorithm == ratelimit.SlidingWindow {
			c.prev = c.used
		}
		c.window, c.used = w, 0
	}
}

// left is what may be spent; below nothing by what is owed.
func (c *paper) left() tokens {
	if c.limit.Algorithm == ratelimit.TokenBucket {
		return tokens(math.Floor(c.level + 1e-6))
	}
	left := c.limit.Period() - c.at%c.limit.Period()
	weighted := (int64(c.prev)*int64(left) + int64(c.limit.Period()) - 1) / int64(c.limit.Period())
	return c.limit.Requests - c.used - tokens(weighted)
}

// book books n tokens, or credits them.
func (c *paper) book(n tokens) {
	c.level = min(float64(c.limit.Burst), c.level-float64(n))
	c.used = max(0, c.used+n)
}

// ask answers, and says what was booked.
func (c *paper) ask(at time.Duration, kind ratelimit.Kind, cost tokens) (over bool, remaining, booked tokens) {
	c.roll(at)
	switch {
	case kind == ratelimit.Refund:
		c.book(-cost)
	case kind == ratelimit.Peek:
		over = c.left() < 0
	case cost > c.left():
		if over = true; c.onDeny == ratelimit.DenyCharges {
			booked = cost
		}
	default:
		booked = cost
	}
	if booked > 0 {
		c.book(booked)
	}
	return over, max(0, c.left()), booked
}
