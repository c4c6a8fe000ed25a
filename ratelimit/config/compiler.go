package config

import (
	"cmp"
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

// compiler makes Rules of files. All scopes share one.
type compiler struct {
	options  Options
	rules    *Rules
	problems Problems
	warnings Problems
	paths    int // bytes of all descriptors' full names
}

// scope has the settings that a node inherits. It reports under the node's name.
type scope struct {
	*compiler
	// names is the name in messages: domain.key_value. It contains those above, so that names take quadratic space
	// (maxPathBytes).
	names        string
	domain       *Domain
	keys         []string // of the path, as are metric and shared: one for each level
	metric       []bool   // value_to_metric
	shared       []bool   // share_threshold
	algorithm    ratelimit.Algorithm
	burst        ratelimit.Tokens // 0: requests_per_unit
	coordination ratelimit.Coordination
	hold         *Hold // nil: requests cost their hits
	maxOverride  *ratelimit.Tokens
	onDeny       *Setting // the last one; nil: none is written
}

// wrong reports an error. Pushed rules have no lines: their errors name the rule.
func (s *scope) wrong(at Place, format string, args ...any) {
	if at.Line == 0 && s.names != "" {
		format = strings.ReplaceAll(cut(s.names, maxName), "%", "%%") + ": " + format
	}
	s.problems.add(at, format, args...)
}

// counters are the rule's own. Another rule of the same name has others, which statistics add. After a reload, the
// first rule of a name continues the first counters of that name, and so on: counters of metrics must not start anew.
func (c *compiler) counters(domain, keys string) *ratelimit.RuleCounters {
	name := [2]string{domain, keys}
	counters, nth := &ratelimit.RuleCounters{Budget: c.options.names}, len(c.rules.counters[name])
	if old := c.options.counters[name]; nth < len(old) {
		counters = old[nth]
	}
	c.rules.counters[name] = append(c.rules.counters[name], counters)
	return counters
}

// inPeriod is a limit of requests in a period, and reports what does not fit it. A wrong unit makes a limit without
// one: there are no rules then, and further checks of the rule can go on. burst is inherited, and the number is not, so
// a bucket without burst holds one period's tokens.
func (s *scope) inPeriod(l *RateLimit) ratelimit.Limit {
	unit, known := ratelimit.ParseUnit(l.Unit)
	switch {
	case l.HoldTTL != 0:
		s.wrong(l.Place, "config error, hold_ttl applies to concurrency; add concurrency, or remove hold_ttl")
	case l.Unlimited && l.Unit != "":
		s.wrong(l.Place, "should not specify rate limit unit when unlimited; remove the unit and the "+
			"number, or unlimited")
	case !l.Unlimited && !known:
		s.wrong(l.Place, "invalid rate limit unit '%s'%s", shorten(l.Unit), unitHint(l.Unit))
	case l.Unlimited && l.Multiplier > 0:
		s.wrong(l.Place, "config error, unit_multiplier is %d, and an unlimited rule has no unit",
			l.Multiplier)
	case known && l.Multiplier > ratelimit.Tokens(unit.MostMultiplier()):
		s.wrong(l.Place, "config error, unit_multiplier is %d, and the maximum for a %s is %d",
			l.Multiplier, unit, unit.MostMultiplier())
	}
	limit := ratelimit.Limit{
		Algorithm: s.algorithm, Unit: unit, Multiplier: uint32(l.Multiplier), Requests: l.Requests,
	}
	if s.algorithm == ratelimit.TokenBucket {
		limit.Burst = s.burst
		if s.burst == 0 || l.Requests == 0 { // a limit of 0 admits no burst
			limit.Burst = l.Requests
		}
	}
	if s.options.CalendarMonths {
		limit = limit.Cut()
	}
	if l.Billing == nil {
		return limit
	}
	return s.billed(limit, l)
}

// billed is the limit with billing months, or unchanged if it cannot have them. why says what is in the way, and what
// to write.
func (s *scope) billed(limit ratelimit.Limit, l *RateLimit) ratelimit.Limit {
	var why string
	switch {
	case l.Unlimited:
		why = "an unlimited rule has no period; remove billing, or unlimited"
	case limit.Unit != ratelimit.Month && limit.Unit != ratelimit.CalendarMonth:
		why = fmt.Sprintf("the unit is '%s', and only months begin at a billing day; write unit: month, or remove "+
			"billing", shorten(l.Unit))
	case l.Multiplier > 1:
		why = fmt.Sprintf("unit_multiplier is %d, and a billing period is one month; remove one of the two",
			l.Multiplier)
	case limit.Algorithm == ratelimit.SlidingWindow:
		why = "algorithm is sliding_window, which looks back over 30 days wherever they begin; use fixed_window, " +
			"or remove billing"
	case limit.Algorithm == ratelimit.TokenBucket:
		why = "algorithm is token_bucket, which has no window that could begin on a day; use fixed_window, or " +
			"remove billing"
	default:
		calendar, err := zone.Calendar(int(max(1, l.Billing.Day)), cmp.Or(l.Billing.Zone, "UTC"))
		if err == nil {
			return limit.Billed(calendar)
		}
		why = err.Error()
	}
	s.wrong(l.Billing.Place, "config error, billing: %s", why)
	return limit
}

// concurrent is the limit of requests in flight. Its hold_ttl is in whole seconds, because it is the limit's period,
// which keys and stores have in seconds.
func (s *scope) concurrent(l *RateLimit) ratelimit.Limit {
	ttl := cmp.Or(l.HoldTTL, ratelimit.DefaultHoldTTL)
	if ttl < ratelimit.MinHoldTTL || ttl > ratelimit.MaxHoldTTL || ttl%time.Second != 0 {
		s.wrong(l.Place, "config error, hold_ttl is %v, must be whole seconds, from %v to %.0fh", ttl,
			ratelimit.MinHoldTTL, ratelimit.MaxHoldTTL.Hours())
	}
	if l.Unit != "" || l.Requests > 0 || l.Multiplier > 0 || l.Billing != nil || l.Unlimited {
		s.wrong(l.Place, "config error, concurrency counts requests in flight, not in a period; remove "+
			"requests_per_unit, unit, unit_multiplier, billing and unlimited, or concurrency")
	}
	return ratelimit.AtOnce(l.Concurrency, ttl)
}

// holds gives the rule a hold, or reports why it cannot; at is the place of its limit. A limit of requests in flight
// holds a slot for each request. Other rules inherit a hold as a whole.
func (s *scope) holds(r *ratelimit.Rule, at Place) {
	field := "concurrency"
	switch {
	case r.Limit.Algorithm == ratelimit.Concurrency:
		r.Hold = r.Limit.HoldsSlot()
	case s.hold == nil || r.Unlimited:
		return
	default:
		field = "hold"
		r.Hold = &s.hold.Hold
		at = s.hold.Place
		for _, err := range r.Hold.Validate(r.Limit) {
			s.wrong(at, "config error, %v", err)
		}
	}
	if r.Hold.Identified() && s.options.NoHolds != nil {
		s.wrong(at, "config error, %s: %v", field, s.options.NoHolds)
	}
	if s.onDeny != nil && s.coordination.OnDeny == ratelimit.DenyCharges {
		s.wrong(s.onDeny.Place, "config error, coordination: on_deny is charge, and a rule with a %s charges a "+
			"refused request nothing; write on_deny: refund, or remove on_deny", field)
	}
	// A refused request has no cost to settle, so none of its budgets is charged.
	r.Coordination.OnDeny = ratelimit.DenyRefunds
}

// overridden sets the rule's ceiling for overrides at run time, and warns if the descriptor's own setting has no
// effect. Without max_override, the ceiling is the largest limit. A limit of 0 has none then: it is refused without a
// round trip, which an override needs.
func (s *scope) overridden(r *ratelimit.Rule, d *Descriptor) {
	switch {
	case s.maxOverride != nil:
		r.Limit.Ceiling = *s.maxOverride
	case r.Limit.Requests > 0:
		r.Limit.Ceiling = ratelimit.MaxLimit
	}
	why := r.WhyNoOverrides()
	if why != "" {
		r.Limit.Ceiling = 0
	}
	switch own := d.Inherited.MaxOverride; {
	case own == nil || *own == 0:
	case why != "":
		s.warnings.about(s.names, NoEffect, d.Inherited.Place, "max_override has no effect: %s", why)
	case *own < r.Limit.Requests:
		s.warnings.about(s.names, Misread, d.Inherited.Place, "max_override is %d and requests_per_unit %d: "+
			"overrides can only lower the limit; raise max_override, or write 0 for no overrides",
			*own, r.Limit.Requests)
	}
}
