package rls

import (
	"cmp"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
)

// appendHeaders writes response_headers_to_add (3) and request_headers_to_add (4). A request has one set of headers,
// and may have many descriptors: they are about the tightest.
func (c *call) appendHeaders(o *Options) {
	m := c.tightest()
	if m == nil {
		return
	}
	c.appendNamed(3, &o.Headers, m)
	if o.IETF {
		c.appendIETF(m)
	}
	c.appendNamed(4, &o.RequestHeaders, m)
}

// appendNamed writes the three headers that users name: the limit, the rest, and the seconds until the reset.
func (c *call) appendNamed(to protowire.Number, names *HeaderNames, m *match) {
	if names.Limit == "" {
		return
	}
	var room [20]byte // enough for a number
	c.header(to, names.Limit, appendNumber(room[:0], "", uint64(m.limit().Requests)))
	c.header(to, names.Remaining, appendNumber(room[:0], "", uint64(m.remaining())))
	c.header(to, names.Reset, appendNumber(room[:0], "", m.resetSeconds()))
}

// tightest is the descriptor that headers are about; nil: none has a limit. It is the one with the least remaining. If
// some refuse the request, it is the last one of these with the longest reset.
func (c *call) tightest() *match {
	var least, refuses *match
	for i := range c.matches {
		m := &c.matches[i]
		if m.bare() || m.rule.Unlimited {
			continue
		}
		if least == nil || m.remaining() < least.remaining() {
			least = m
		}
		// The client may return when all that refuse it have reset. A quota descriptor refuses only together with all
		// others.
		if m.over && !m.quota && (refuses == nil || m.resetSeconds() >= refuses.resetSeconds()) {
			refuses = m
		}
	}
	return cmp.Or(refuses, least)
}

// appendIETF writes the two fields of draft-ietf-httpapi-ratelimit-headers-11:
//
//	RateLimit-Policy: "name";q=100;w=60    the quota, and its window in seconds
//	RateLimit: "name";r=15;t=40            what is left, and in how many seconds more is
//
// A bucket's quota is what it holds, and its window the time in which it fills. A concurrency limit's is in
// concurrent requests, and has no window.
func (c *call) appendIETF(m *match) {
	// The array is on the stack, large enough for a name with every byte escaped, and two numbers. Both values lie
	// in it, one after the other has been written.
	var room [256]byte
	var policy []byte
	name := appendQuoted(room[:0], policyName(m.rule))
	if l := m.limit(); l.Algorithm == ratelimit.Concurrency {
		policy = appendNumber(name, `;qu="concurrent-requests";q=`, uint64(l.Requests))
	} else {
		policy = appendNumber(appendNumber(name, ";q=", uint64(l.Capacity())), ";w=", windowSeconds(l))
	}
	c.header(3, "RateLimit-Policy", policy)
	c.header(3, "RateLimit", appendNumber(appendNumber(name, ";r=", uint64(m.remaining())), ";t=", m.resetSeconds()))
}

func appendNumber(b []byte, name string, n uint64) []byte {
	return strconv.AppendUint(append(b, name...), n, 10)
}

// header writes an envoy.config.core.v3.HeaderValue, as key (1) and value (2), into the field of the answer with that
// number.
func (c *call) header(to protowire.Number, key string, value []byte) {
	c.out = wire.AppendMessage(c.out, to, func(b []byte) []byte {
		return wire.AppendString(wire.AppendString(b, 1, key), 2, value)
	})
}

// policyName is rate_limit.name, or else the rule's path.
func policyName(r *ratelimit.Rule) string {
	switch {
	case r.Name != "":
		return r.Name
	case r.Override:
		return "override"
	}
	return r.Path
}

// mostPolicyName is how much of a name a header has, in bytes.
const mostPolicyName = 64

// appendQuoted writes a string of structured fields (RFC 9651): printable ASCII, with the quote and the
// backslash escaped. Other bytes become "_".
func appendQuoted(b []byte, name string) []byte {
	b = append(b, '"')
	for i := range min(len(name), mostPolicyName) {
		switch c := name[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '_')
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// windowSeconds is the time in which the quota comes back, rounded up: the period, or the time in which an empty bucket
// fills.
func windowSeconds(l *ratelimit.Limit) uint64 {
	if l.Algorithm != ratelimit.TokenBucket || l.Requests == 0 {
		return uint64(l.Period() / time.Second)
	}
	full := float64(l.Burst) / float64(l.Requests) * l.Period().Seconds()
	// Up to 2^53 a float64 holds each whole second; a bucket may take longer than that to fill.
	return max(1, uint64(min(full+0.999, 1<<53)))
}
