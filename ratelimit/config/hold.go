package config

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// hold is a block of its own, because its fields need each other.
func (d *decoder) hold(f *field) *Hold {
	if f.value.kind != mapping {
		d.wrongly(f, "a map", shapeHint(f))
		return nil
	}
	h := &Hold{Place: f.place, Hold: ratelimit.Hold{TTL: ratelimit.DefaultHoldTTL}}
	fill(d, h, &f.value, holdFields)
	if h.given != 1 {
		d.problems.add(f.place, "config error, hold has %d of amount, from and learned, must have one: how much a "+
			"request holds", h.given)
	}
	return h
}

// from records the source of the estimate: a hold has exactly one.
func (h *Hold) from(from ratelimit.HoldFrom) {
	h.given++
	h.From = from
}

func (d *decoder) fromRequest(f *field) {
	if f.value.text != "request" {
		d.wrong(f, "request")
	}
}

// part is a number between 0 and 1; its bounds are those of ratelimit.Hold.
func (d *decoder) part(f *field) float64 {
	n, err := strconv.ParseFloat(f.value.text, 64)
	if err != nil || f.value.kind != number && f.value.kind != integer {
		d.wrong(f, "a number above 0 and below 1")
		return 0.5
	}
	return n
}

func (d *decoder) duration(f *field) time.Duration {
	n, err := time.ParseDuration(f.value.text)
	if err != nil || n == 0 { // 0 stands for a field that is not written
		d.wrong(f, "a duration from 1s to 24h, like 90s")
		return ratelimit.DefaultHoldTTL
	}
	return n
}

func (d *decoder) onUnknown(f *field) ratelimit.OnUnknown {
	i := slices.Index(ratelimit.OnUnknowns[:], f.value.text)
	if i < 0 {
		d.wrong(f, "one of "+strings.Join(ratelimit.OnUnknowns[:], ", "))
		return 0
	}
	return ratelimit.OnUnknown(i)
}

// holdOn has the hits of calls that hold.
func (d *decoder) holdOn(f *field) []ratelimit.Tokens {
	if f.value.kind != sequence || len(f.value.items) == 0 {
		d.wrongly(f, "a list of numbers, such as [0, 1]", "")
		return nil
	}
	on := make([]ratelimit.Tokens, len(f.value.items))
	for i := range f.value.items {
		if f.value.items[i].kind == null {
			d.wrong(f, "a list of numbers, such as [0, 1]")
		}
		on[i] = d.tokens(&field{f.key, f.place, f.value.items[i]})
	}
	slices.Sort(on)
	return slices.Compact(on)
}

// concurrent is the limit of requests in flight.
func (c *compiler) concurrent(l *RateLimit, s *scope) ratelimit.Limit {
	wrong := func(format string, args ...any) {
		c.wrong(l.Place, s.names, "config error, "+format, args...)
	}
	ttl := cmp.Or(l.HoldTTL, ratelimit.DefaultHoldTTL)
	if ttl < ratelimit.MinHoldTTL || ttl > ratelimit.MaxHoldTTL || ttl%time.Second != 0 {
		wrong("hold_ttl is %v, must be whole seconds, from %v to %.0fh", ttl, ratelimit.MinHoldTTL,
			ratelimit.MaxHoldTTL.Hours())
	}
	if l.Unit != "" || l.Requests > 0 || l.Multiplier > 0 || l.Billing != nil || l.Unlimited {
		wrong("concurrency counts requests in flight, not in a period; remove requests_per_unit, unit, " +
			"unit_multiplier, billing and unlimited, or concurrency")
	}
	return ratelimit.AtOnce(l.Concurrency, ttl)
}

// holds gives the rule a hold, or reports why it cannot; at is the place of its limit.
func (c *compiler) holds(r *ratelimit.Rule, s *scope, at Place) {
	var hold *ratelimit.Hold
	field := "concurrency"
	switch {
	case r.Limit.Algorithm == ratelimit.Concurrency:
		hold = r.Limit.HoldsSlot()
	case s.hold == nil || r.Unlimited:
		return
	default:
		hold, at, field = &s.hold.Hold, s.hold.Place, "hold"
		for _, err := range hold.Validate(r.Limit) {
			c.wrong(at, s.names, "config error, %v", err)
		}
	}
	if hold.Identified() && c.options.NoHolds != nil {
		c.wrong(at, s.names, "config error, %s: %v", field, c.options.NoHolds)
	}
	if s.charges != nil {
		c.wrong(*s.charges, s.names, "config error, coordination: on_deny is charge, and a rule with a %s charges a "+
			"refused request nothing; write on_deny: refund, or remove on_deny", field)
	}
	r.Hold = hold
	// A refused request has no cost to settle, so none of its budgets is charged.
	r.Coordination.OnDeny = ratelimit.DenyRefunds
}
