// The answer as bytes. Field numbers are those of envoy/service/ratelimit/v3/rls.proto, in their order.

package rls

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
)

// The codes of RateLimitResponse.Code.
const (
	codeOK        = 1
	codeOverLimit = 2
)

// codeOf is a code of the answer.
func codeOf(over bool) uint64 {
	if over {
		return codeOverLimit
	}
	return codeOK
}

// encode writes the RateLimitResponse into c.out: overall_code (1), statuses (2), headers (3 and 4), dynamic_metadata
// (6).
func (c *call) encode(s *Service) {
	c.out = wire.AppendVarint(c.out[:0], 1, codeOf(c.over))
	for i := range c.matches {
		c.out = wire.AppendMessage(c.out, 2, func(b []byte) []byte { return c.matches[i].append(b) })
	}
	if o := &s.options; o.Headers.Limit != "" || o.IETF || o.RequestHeaders.Limit != "" {
		c.appendHeaders(o)
	}
	switch {
	case s.options.DynamicMetadata:
		c.appendMetadata()
	case len(c.hold) > 0:
		c.appendHold()
	}
}

// append writes a RateLimitResponse.DescriptorStatus: code (1), current_limit (2), limit_remaining (3),
// duration_until_reset (4).
func (m *match) append(b []byte) []byte {
	b = wire.AppendVarint(b, 1, codeOf(m.over))
	switch {
	case m.bare():
		return b
	// As in envoyproxy/ratelimit, the largest number of the field stands for no limit.
	case m.rule.Unlimited:
		return wire.AppendVarint(b, 3, math.MaxUint32)
	}
	b = wire.AppendMessage(b, 2, func(b []byte) []byte { return appendLimit(b, m.limit(), m.rule.Name) })
	// A field that is 0 is not written in proto3.
	if remaining := ratelimit.ClampedForEnvoy(m.remaining()); remaining > 0 {
		b = wire.AppendVarint(b, 3, uint64(remaining))
	}
	return wire.AppendMessage(b, 4, func(b []byte) []byte { return wire.AppendVarint(b, 1, m.resetSeconds()) })
}

// remaining is the exact rest: answers in 32 bits clamp it, headers do not.
func (m *match) remaining() ratelimit.Tokens { return max(0, m.verdict.Remaining) }

// resetSeconds is the time until the reset in whole seconds, at least one.
func (m *match) resetSeconds() uint64 {
	return uint64(max(1, (m.verdict.ResetAfter-1)/time.Second+1))
}

// appendLimit writes a RateLimitResponse.RateLimit: requests_per_unit (1), unit (2), name (3), unit_multiplier (4).
func appendLimit(b []byte, l *ratelimit.Limit, name string) []byte {
	if l.Requests > 0 {
		b = wire.AppendVarint(b, 1, uint64(ratelimit.ClampedForEnvoy(l.Requests)))
	}
	periodic := l.Algorithm != ratelimit.Concurrency // which has no unit of RLS
	if periodic {
		b = wire.AppendVarint(b, 2, uint64(l.Unit.Wire()))
	}
	if name != "" {
		b = wire.AppendString(b, 3, name)
	}
	if periodic && l.Multiplier > 1 {
		b = wire.AppendMessage(b, 4, func(b []byte) []byte {
			return wire.AppendVarint(b, 1, uint64(l.Multiplier))
		})
	}
	return b
}
