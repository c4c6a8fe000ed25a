package rls

import (
	"math"

	"github.com/sluice-gate/sluice/ratelimit"
)

// status is what one descriptor is answered.
type status struct {
	rule      *ratelimit.Rule
	verdict   ratelimit.Verdict
	bare      bool // nothing but a code
	unlimited bool
	over      bool // its code
	quota     bool
}

// conclude turns verdicts into statuses and the overall code, counts them, and
// gives back what a refused request must not cost.
func (c *call) conclude(s *Service, now ratelimit.Instant) {
	c.statuses = c.statuses[:0]
	quota, quotaOver := 0, 0
	c.over = false
	for i := range c.matches {
		st := c.status(s, i)
		c.statuses = append(c.statuses, st)
		switch {
		case st.quota:
			quota++
			if st.over {
				quotaOver++
			}
		case st.over:
			c.over = true
		}
	}
	if quota > 0 && quota == quotaOver {
		c.over = true
	}
	if c.over && s.options.ShadowMode {
		c.over = false
		s.Stats.GlobalShadow.Add(1)
	}
	if c.over {
		c.refund(s, now)
	}
	s.Stats.countCode(c.over)
}

func (c *call) status(s *Service, i int) status {
	m := &c.matches[i]
	st := status{rule: m.rule, bare: m.rule == nil || m.replaced}
	if st.bare {
		st.quota = s.options.QuotaMode
		return st
	}
	st.unlimited = m.rule.Unlimited
	st.quota = !st.unlimited && (m.rule.Quota || s.options.QuotaMode)
	a, counters := ratelimit.Ask{Rule: m.rule, Cost: 1}, c.counters(m.rule, i)
	switch {
	case st.unlimited:
		counters.Unlimited()
		return st
	case m.ask >= 0:
		a, st.verdict = c.asks[m.ask], c.verdicts[m.ask]
		s.Stats.Sources[st.verdict.Source].Add(1)
	default: // requests_per_unit: 0
		now := ratelimit.LedgerTime(s.wall().UnixMicro())
		st.verdict = ratelimit.Verdict{
			OverLimit:  true,
			ResetAfter: m.rule.Limit.WindowEnd(m.rule.Limit.WindowAt(now)).Sub(now),
		}
	}
	near := ratelimit.Tokens(math.Floor(float64(m.rule.Limit.Capacity()) * s.options.NearLimitRatio))
	counters.Count(a, st.verdict, near)
	st.over = st.verdict.OverLimit
	if st.over && m.rule.Shadow {
		st.over = false
		counters.ShadowMode.Add(uint64(a.Cost))
	}
	return st
}

// counters are what a descriptor's rule is counted in: the rule's own, or those
// of a name that the request has a part in.
func (c *call) counters(r *ratelimit.Rule, descriptor int) *ratelimit.RuleCounters {
	if !r.MetricNames.FromRequest() {
		return r.Counters
	}
	c.name = c.name[:0]
	for level, e := range c.request.entriesOf(&c.request.descriptors[descriptor]) {
		c.name = r.AppendLevel(c.name, level, e.Key, e.Value)
	}
	return r.Counters.Named(c.name)
}

// refund takes a refused request back from the rules that say so, and from all
// rules if one that refused it does.
func (c *call) refund(s *Service, now ratelimit.Instant) {
	which := denyRefunds
	for i := range c.statuses {
		if st := &c.statuses[i]; st.over && denyRefunds(st.rule) {
			which = everyRule
		}
	}
	c.undo(s, now, which)
}

// everyRule and denyRefunds are which rules undo is for: all of them, or those that
// want nothing of a refused request.
func everyRule(*ratelimit.Rule) bool { return true }

func denyRefunds(r *ratelimit.Rule) bool { return r.Coordination.OnDeny == ratelimit.DenyRefunds }

// undo takes back what was spent of some rules.
func (c *call) undo(s *Service, now ratelimit.Instant, of func(*ratelimit.Rule) bool) {
	n := 0
	for i := range c.asks {
		a := &c.asks[i]
		if a.Kind == ratelimit.Spend && of(a.Rule) {
			c.asks[n], c.verdicts[n] = c.asks[i], c.verdicts[i]
			n++
		}
	}
	if n > 0 {
		s.limiter.Undo(now, c.asks[:n], c.verdicts[:n])
	}
}
