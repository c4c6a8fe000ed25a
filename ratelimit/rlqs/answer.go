package rlqs

import (
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
)

// mostActions bounds the actions of an answer, roughly: further ones wait for the next. It also bounds the asks of a
// call of the limiter, except at a turn of windows, which has one for each bucket of the stream.
const mostActions = 256

// mostRefusals is the size of a waiting answer that takes no more refusals of buckets, in bytes. A refused bucket has
// no state here, so each report of it adds an action.
const mostRefusals = 16 << 10

// never is the fill interval of a bucket that does not refill: a year, for one token.
const never = 31_536_000 * time.Second

// passes is what an Envoy lets pass that has no lease to count by.
type passes bool

const (
	nothing    passes = false
	everything passes = true
)

// Actions are written as they are decided, one after the other: each is field 1 of a
// RateLimitQuotaResponse. id is field 1 of the action (appendID).

// appendAssignment writes an assignment, whose strategy appends itself: bucket_id (1), and a quota_assignment_action
// (2) with assignment_time_to_live (2) and rate_limit_strategy (3).
func appendAssignment(b, id []byte, ttl time.Duration, strategy func([]byte) []byte) []byte {
	return wire.AppendMessage(b, 1, func(b []byte) []byte {
		return wire.AppendMessage(append(b, id...), 2, func(b []byte) []byte { // quota_assignment_action
			b = wire.AppendMessage(b, 2, func(b []byte) []byte { return appendDuration(b, ttl) })
			return wire.AppendMessage(b, 3, strategy)
		})
	})
}

// allOrNothing lets everything pass for a while, or nothing.
func (s *Session) allOrNothing(id []byte, what passes, ttl time.Duration) {
	rule := typev3.RateLimitStrategy_DENY_ALL
	if what == everything {
		rule = typev3.RateLimitStrategy_ALLOW_ALL
	}
	s.add(appendAssignment(s.scratch.next, id, ttl, func(b []byte) []byte {
		return wire.AppendVarint(b, 1, uint64(rule))
	}))
}

// oneShot lets n requests pass, and no more. Envoy has no strategy of so many requests. A bucket
// that is as large, and takes a year for the next token, is one.
func (s *Session) oneShot(id []byte, n tokens, ttl time.Duration) {
	s.add(appendAssignment(s.scratch.next, id, ttl, func(b []byte) []byte {
		return wire.AppendMessage(b, 3, func(b []byte) []byte { // token_bucket
			b = wire.AppendVarint(b, 1, uint64(n))
			b = wire.AppendMessage(b, 2, func(b []byte) []byte { return wire.AppendVarint(b, 1, 1) })
			return wire.AppendMessage(b, 3, func(b []byte) []byte { return appendDuration(b, never) })
		})
	}))
}

// abandon makes an Envoy drop a bucket.
func (s *Session) abandon(id []byte) {
	s.add(wire.AppendMessage(s.scratch.next, 1, func(b []byte) []byte {
		return wire.AppendMessage(append(b, id...), 3, func(b []byte) []byte { return b }) // abandon_action
	}))
}

// add has an action in the next answer: written is all that it has by now.
func (s *Session) add(written []byte) {
	s.scratch.next = written
	s.actions++
}
