package envoy

import (
	"math"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-gate/sluice/ratelimit"
)

// tokenBucket is a bucket in force.
type tokenBucket struct {
	max, level float64
	perSec     float64 // +Inf: it is always full
	at         ratelimit.Instant
}

func (b *tokenBucket) take(now ratelimit.Instant) bool {
	b.fill(now)
	if b.level < 1 {
		return false
	}
	b.level--
	return true
}

func (b *tokenBucket) fill(now ratelimit.Instant) {
	if added := b.perSec * now.Sub(b.at).Seconds(); !math.IsNaN(added) { // 0 seconds of +Inf
		b.level = min(b.max, b.level+added)
	}
	if math.IsInf(b.perSec, 1) {
		b.level = b.max
	}
	b.at = now
}

// shape is what a strategy's bucket is made of.
type shape struct {
	max, fill uint32
	interval  time.Duration
}

func shapeOf(s *typev3.RateLimitStrategy) (x shape, ok bool) {
	switch s := s.GetStrategy().(type) {
	case *typev3.RateLimitStrategy_TokenBucket:
		fill := uint32(1)
		if n := s.TokenBucket.GetTokensPerFill(); n != nil {
			fill = n.GetValue()
		}
		return shape{s.TokenBucket.GetMaxTokens(), fill, s.TokenBucket.GetFillInterval().AsDuration()}, true
	case *typev3.RateLimitStrategy_RequestsPerTimeUnit_:
		n := uint32(min(s.RequestsPerTimeUnit.GetRequestsPerTimeUnit(), math.MaxUint32))
		return shape{n, n, ratelimit.Unit(s.RequestsPerTimeUnit.GetTimeUnit()).Length()}, true
	}
	return shape{}, false
}

// tokens is the bucket of an assignment: the one before, if nothing has changed.
func (c *Client) tokens(now ratelimit.Instant, s *typev3.RateLimitStrategy, b *bucket) *tokenBucket {
	x, _ := shapeOf(s)
	seconds := x.interval.Seconds()
	if c.Quirks.WholeSecondFill {
		seconds = math.Trunc(seconds)
	}
	t := &tokenBucket{max: float64(x.max), level: float64(x.max), perSec: float64(x.fill) / seconds, at: now}
	old, had := shape{}, false
	if b.active != nil {
		old, had = shapeOf(b.active.strategy)
	}
	switch {
	case !had:
	case c.same(old, x):
		return b.active.tokens
	case c.Quirks.ScalesChanged:
		was := b.active.tokens
		was.fill(now)
		if was.max > 0 {
			t.level = math.Floor(t.max * was.level / was.max)
		}
	}
	return t
}

func (c *Client) same(a, b shape) bool {
	if c.Quirks.ComparesLittle {
		return a.max == b.max && a.fill == b.fill && a.interval%time.Second == b.interval%time.Second
	}
	return a == b
}
