package ratelimit

import "fmt"

// WhyNoOverrides says why the limits of a rule's keys cannot be overridden at run time, "" if they can.
func (r *Rule) WhyNoOverrides() string {
	switch l := &r.Limit; {
	case r.Unlimited:
		return "the rule is unlimited"
	case l.Ceiling > 0:
		return ""
	case l.Requests == 0:
		return "requests_per_unit is 0, and the rule has no max_override"
	default:
		return "the rule has max_override: 0"
	}
}

// Under is the rule with an override in force. No other override counts under it, and an outage lifts no ban.
func (r *Rule) Under(o *Override) *Rule {
	is := *r
	is.Limit = r.Limit.Under(o)
	is.Limit.Ceiling = 0
	is.Overridden = o != nil
	if is.Limit.Requests == 0 {
		is.Coordination.OnStoreFailure = FailClosed
	}
	return &is
}

// RefusesAll reports whether a rule refuses each request, with no override that could admit one.
func (r *Rule) RefusesAll() bool {
	return !r.Unlimited && r.Limit.Requests == 0 && r.Limit.Ceiling == 0
}

// WhyRefusesAll says why an override of a limit above 0 refuses each request, "" if it does not. Costs are learned of
// requests that pass: until then, a learned hold is its Max.
func (r *Rule) WhyRefusesAll(o *Override) string {
	h, most := r.Hold, r.Limit.Under(o).Capacity()
	if h == nil || h.From == HoldRequest || most == 0 || max(h.Amount, h.Max) <= most {
		return ""
	}
	return fmt.Sprintf("limit is %d, and each request holds %d of it%s: all would be refused; write 0 if that is meant",
		most, max(h.Amount, h.Max), [...]string{HoldLearned: " until costs are known"}[h.From])
}

// InForce is the limit that a verdict under a rule is of.
func (v *Verdict) InForce(r *Rule) *Limit {
	if v.Limit != nil {
		return v.Limit
	}
	return &r.Limit
}
