package config

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

// Options are the server's settings for all rules.
type Options struct {
	// Coordination is the default of rules.
	Coordination ratelimit.Coordination
	// MergeDomains joins the descriptors of files with the same domain.
	MergeDomains bool
	// CalendarMonths makes windows of a month calendar months.
	CalendarMonths bool
	// Caps bound the files. Zero: the default.
	Caps Caps
	// NoHolds is the reason why rules cannot have holds with an id. Nil: they can.
	NoHolds error
	// InForce, if set, gets rules that a [Store] has put in force. It must not block.
	InForce func(*Rules)
	// counters are those of the rules in force: rules of the same name continue them. names is for new ones.
	counters countersByName
	names    *ratelimit.NameBudget
}

type compiler struct {
	options  Options
	rules    *Rules
	domain   *Domain
	problems Problems
	warnings Problems
	full     bool
	paths    int // bytes of all descriptors' full names
}

// scope has the settings that a node inherits.
type scope struct {
	names        string // "domain.key_value", as in messages
	keys         []string
	metric       []bool
	shared       []bool
	algorithm    ratelimit.Algorithm
	burst        ratelimit.Tokens // 0: requests_per_unit
	coordination ratelimit.Coordination
	hold         *Hold // nil: requests cost their hits
	maxOverride  *ratelimit.Tokens
	charges      *Place // place of the last on_deny: charge
}

// wrong reports an error of a descriptor or a domain. Pushed rules have no lines: their errors name
// the rule.
func (c *compiler) wrong(at Place, names, format string, args ...any) {
	if at.Line == 0 && names != "" {
		format = strings.ReplaceAll(cut(names, maxName), "%", "%%") + ": " + format
	}
	c.problems.add(at, format, args...)
}

// odd reports a warning.
func (c *compiler) odd(kind Kind, at Place, names, format string, args ...any) {
	c.warnings.addKind(kind, at, "%s: %s", cut(names, maxName), fmt.Sprintf(format, args...))
}

// placeOf is the place of the setting of an error: the last one of its name, or else the first of
// all.
func (in *Inherited) placeOf(err error) Place {
	at := in.Coordination[0].Place
	if field, ok := errors.AsType[*ratelimit.FieldError](err); ok {
		for _, set := range in.Coordination {
			if set.Field == field.Field {
				at = set.Place
			}
		}
	}
	return at
}

// counters are the rule's own. Another rule of the same name has others, which statistics add.
func (c *compiler) counters(domain, keys string) *ratelimit.RuleCounters {
	name := [2]string{domain, keys}
	counters, nth := &ratelimit.RuleCounters{Budget: c.options.names}, len(c.rules.counters[name])
	if old := c.options.counters[name]; nth < len(old) {
		counters = old[nth]
	}
	c.rules.counters[name] = append(c.rules.counters[name], counters)
	return counters
}

// unit is the unit of a limit, and reports what does not fit it.
func (c *compiler) unit(l *RateLimit, s *scope) ratelimit.Unit {
	unit, known := ratelimit.ParseUnit(l.Unit)
	switch {
	case l.Concurrency > 0:
	case l.HoldTTL != 0:
		c.wrong(l.Place, s.names, "config error, hold_ttl applies to concurrency; add concurrency, or remove hold_ttl")
	case l.Unlimited && l.Unit != "":
		c.wrong(l.Place, s.names, "should not specify rate limit unit when unlimited; remove the unit and the "+
			"number, or unlimited")
	case !l.Unlimited && !known:
		c.wrong(l.Place, s.names, "invalid rate limit unit '%s'%s", shorten(l.Unit), unitHint(l.Unit))
	case l.Unlimited && l.Multiplier > 0:
		c.wrong(l.Place, s.names, "config error, unit_multiplier is %d, and an unlimited rule has no unit",
			l.Multiplier)
	case known && l.Multiplier > ratelimit.Tokens(unit.MostMultiplier()):
		c.wrong(l.Place, s.names, "config error, unit_multiplier is %d, and the maximum for a %s is %d",
			l.Multiplier, unit, unit.MostMultiplier())
	}
	return unit
}

// billed is the limit with billing months, or unchanged if it cannot have them.
func (c *compiler) billed(limit ratelimit.Limit, l *RateLimit, s *scope) ratelimit.Limit {
	wrong := func(format string, args ...any) {
		c.wrong(l.Billing.Place, s.names, "config error, billing: "+format, args...)
	}
	switch {
	case l.Unlimited:
		wrong("an unlimited rule has no period; remove billing, or unlimited")
	case limit.Unit != ratelimit.Month && limit.Unit != ratelimit.CalendarMonth:
		wrong("the unit is '%s', and only months begin at a billing day; write unit: month, or remove billing",
			shorten(l.Unit))
	case l.Multiplier > 1:
		wrong("unit_multiplier is %d, and a billing period is one month; remove one of the two", l.Multiplier)
	case limit.Algorithm == ratelimit.SlidingWindow:
		wrong("algorithm is sliding_window, which looks back over 30 days wherever they begin; use fixed_window, " +
			"or remove billing")
	case limit.Algorithm == ratelimit.TokenBucket:
		wrong("algorithm is token_bucket, which has no window that could begin on a day; use fixed_window, or " +
			"remove billing")
	default:
		calendar, err := zone.Calendar(int(max(1, l.Billing.Day)), cmp.Or(l.Billing.Zone, "UTC"))
		if err == nil {
			return limit.Billed(calendar)
		}
		wrong("%v", err)
	}
	return limit
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
		field = "hold"
		hold = &s.hold.Hold
		at = s.hold.Place
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

// overridden sets the rule's ceiling for overrides at run time, and warns if the descriptor's own
// setting has no effect.
func (c *compiler) overridden(r *ratelimit.Rule, d *Descriptor, s *scope) {
	switch {
	case s.maxOverride != nil:
		r.Limit.Ceiling = *s.maxOverride
	case r.Limit.Requests > 0: // a limit of 0 refuses without a round trip, unless max_override is set
		r.Limit.Ceiling = ratelimit.MaxLimit
	}
	why := r.WhyNoOverrides()
	if why != "" {
		r.Limit.Ceiling = 0
	}
	switch own := d.Inherited.MaxOverride; {
	case own == nil || *own == 0:
	case why != "":
		c.odd(NoEffect, d.Inherited.Place, s.names, "max_override has no effect: %s", why)
	case *own < r.Limit.Requests:
		c.odd(Misread, d.Inherited.Place, s.names, "max_override is %d and requests_per_unit %d: overrides can only "+
			"lower the limit; raise max_override, or write 0 for no overrides", *own, r.Limit.Requests)
	}
}
