package envoy

import (
	"math"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-gate/sluice/ratelimit"
)

// tokenBucket is a bucket in force.
type tokenBucket struct {
	of         shape
	max, level float64
	perSec     float64 // +Inf: it is always full
	at         ratelimit.Instant
}

// shape is how a bucket is assigned.
type shape struct {
	max, fill uint32
	interval  time.Duration
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

// tokens is the bucket of an assignment: the one before, if nothing has changed. Of fill_interval only the whole
// seconds count, and less than one is a division by zero.
func (c *Client) tokens(now ratelimit.Instant, s *typev3.TokenBucket, b *bucket) *tokenBucket {
	fill := uint32(1)
	if n := s.GetTokensPerFill(); n != nil {
		fill = n.GetValue()
	}
	of := shape{s.GetMaxTokens(), fill, s.GetFillInterval().AsDuration()}
	t := &tokenBucket{
		of: of, max: float64(of.max), level: float64(of.max), perSec: float64(fill) / math.Trunc(of.interval.Seconds()), at: now,
	}
	if b.active == nil || b.active.tokens == nil {
		return t
	}
	was := b.active.tokens
	if c.same(was.of, of) {
		return was
	}
	if c.quirks.ScalesChanged {
		was.fill(now)
		if was.max > 0 {
			t.level = math.Floor(t.max * was.level / was.max)
		}
	}
	return t
}

func (c *Client) same(a, b shape) bool {
	if c.quirks.ComparesLittle {
		return a.max == b.max && a.fill == b.fill && a.interval%time.Second == b.interval%time.Second
	}
	return a == b
}
