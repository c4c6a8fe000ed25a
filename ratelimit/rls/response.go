package rls

import (
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The codes of RateLimitResponse.Code.
const (
	codeOK        = 1
	codeOverLimit = 2
)

func codeOf(over bool) uint64 {
	if over {
		return codeOverLimit
	}
	return codeOK
}

// encode writes the RateLimitResponse into c.out, field by field in order.
func (c *call) encode(s *Service) {
	c.out = appendVarint(c.out[:0], 1, codeOf(c.over))
	for i := range c.statuses {
		c.out = appendMessage(c.out, 2, func(b []byte) []byte { return c.statuses[i].append(b) })
	}
	if names := &s.options.Headers; names.Limit != "" || names.IETF {
		c.appendHeaders(names)
	}
	if s.options.DynamicMetadata {
		c.appendMetadata()
	}
}

// append writes a RateLimitResponse.DescriptorStatus.
func (st *status) append(b []byte) []byte {
	b = appendVarint(b, 1, codeOf(st.over))
	switch {
	case st.bare:
		return b
	// As envoyproxy/ratelimit, no limit is told as the largest number that the field can say.
	case st.unlimited:
		return appendVarint(b, 3, math.MaxUint32)
	}
	b = appendMessage(b, 2, func(b []byte) []byte { return appendLimit(b, st.rule) })
	// A field that is 0 is not written in proto3.
	if remaining := ratelimit.ClampedForEnvoy(st.remaining()); remaining > 0 {
		b = appendVarint(b, 3, uint64(remaining))
	}
	return appendMessage(b, 4, func(b []byte) []byte { return appendVarint(b, 1, st.resetSeconds()) })
}

// remaining is what is left, exactly: answers in 32 bits clamp it, headers do not.
func (st *status) remaining() ratelimit.Tokens { return max(0, st.verdict.Remaining) }

// resetSeconds is the time until the reset in whole seconds, at least one.
func (st *status) resetSeconds() uint64 {
	return uint64(max(1, (st.verdict.ResetAfter+time.Second-1)/time.Second))
}

// appendLimit writes a RateLimitResponse.RateLimit.
func appendLimit(b []byte, r *ratelimit.Rule) []byte {
	if r.Limit.Requests > 0 {
		b = appendVarint(b, 1, uint64(ratelimit.ClampedForEnvoy(r.Limit.Requests)))
	}
	b = appendVarint(b, 2, uint64(r.Limit.Unit.Wire()))
	if r.Name != "" {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendString(b, r.Name)
	}
	if r.Limit.Multiplier > 1 {
		b = appendMessage(b, 4, func(b []byte) []byte { return appendVarint(b, 1, uint64(r.Limit.Multiplier)) })
	}
	return b
}

func appendVarint(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// appendMessage writes a field whose body appends itself. Bodies are short:
// one byte is left for the length, and the rare longer body is moved.
func appendMessage(b []byte, field protowire.Number, body func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	at := len(b)
	b = body(append(b, 0))
	n := len(b) - at - 1
	if n < 1<<7 {
		b[at] = byte(n)
		return b
	}
	size := protowire.SizeVarint(uint64(n))
	// The length takes more than the byte that was left for it: the body is moved behind it.
	for range size - 1 {
		b = append(b, 0)
	}
	copy(b[at+size:], b[at+1:at+1+n])
	protowire.AppendVarint(b[at:at], uint64(n))
	return b
}
