package rls

import (
	"bytes"
	"slices"

	"github.com/sluice-gate/sluice/ratelimit"
)

// bare says that the answer is a code and nothing else: no rule matches, another replaces it, or it settles a hold.
// That is after the fact: it cannot be refused any more, and its status is not read.
func (m *match) bare() bool { return m.rule == nil || m.replaced || m.settles }

// limit is the one in force for the descriptor's key.
func (m *match) limit() *ratelimit.Limit { return m.verdict.InForce(m.rule) }

// conclude turns verdicts into codes and the overall code, gives back what the request must not cost, and counts it
// all.
//
//	limits that are not of quotas   any is over: OVER_LIMIT
//	quotas                          all of them are over: OVER_LIMIT
//
// The limiter has charged each descriptor by itself, before it was clear whether another refuses the request. So what a
// refused request must not cost is undone here.
func (c *call) conclude(s *Service, now ratelimit.Instant) {
	quotaOver, quotaLeft := false, false
	c.over = false
	for i := range c.matches {
		m := &c.matches[i]
		c.judge(s, m)
		switch {
		case !m.quota:
			c.over = c.over || m.over
		case m.over:
			quotaOver = true
		default:
			quotaLeft = true
		}
	}
	// Quota descriptors refuse a request only if all of them are over.
	c.over = c.over || quotaOver && !quotaLeft
	// Only the overall code changes: statuses go on to say which limits would have refused.
	if c.over && s.options.ShadowMode {
		c.over = false
		s.Stats.GlobalShadow.Add(1)
	}
	// Spared asks are marked before they are counted and undone after: the counts are those of the decisions.
	c.spare(s)
	c.count(s, now)
	c.concludeHolds(s)
	c.undo(s, now)
	s.Stats.countCode(c.over)
}

// judge turns the verdict on a descriptor into its code, and sets whether it is a quota descriptor.
func (c *call) judge(s *Service, m *match) {
	switch {
	// A descriptor without a rule, or one that is replaced, limits nothing; in quota mode it is one
	// of those that would have to be over.
	case m.bare():
		m.quota = s.options.QuotaMode
		return
	case m.rule.Unlimited: // it is no quota descriptor either, as QuotaMode says
		return
	case m.ask >= 0:
		m.verdict = c.verdicts[m.ask]
	// The limiter was not asked. The window's end is the wall clock's, for no ledger has an account.
	default: // requests_per_unit: 0
		now := ratelimit.LedgerTime(s.wall().UnixMicro())
		m.verdict = ratelimit.Verdict{
			OverLimit:  true,
			ResetAfter: m.rule.Limit.WindowEnd(m.rule.Limit.WindowAt(now)).Sub(now),
		}
	}
	m.quota = m.rule.Quota || s.options.QuotaMode
	m.verdict.OverLimit = m.verdict.OverLimit && !m.of.negative // a refund of 0 is a peek
	m.over = m.verdict.OverLimit && !m.rule.Shadow
}

// count books each descriptor in the statistics of its rule.
func (c *call) count(s *Service, now ratelimit.Instant) {
	known := s.options.LocalCache
	for i := range c.matches {
		m := &c.matches[i]
		if m.bare() {
			continue
		}
		a := ratelimit.Ask{Rule: m.rule}
		if m.ask < 0 { // unlimited, or requests_per_unit: 0
			a.Kind, a.Cost = c.request.ask(m.of)
		} else {
			a = c.asks[m.ask]
			s.Stats.Sources[m.verdict.Source].Add(1)
		}
		// In 32 bits, as in envoyproxy/ratelimit, 0.7 of 90 is 63, and not a little less.
		near := ratelimit.Tokens(float32(m.limit().Capacity()) * float32(s.options.NearLimitRatio))
		hit := known != nil && !m.rule.Unlimited && known.lookUp(now, m.hash, m.verdict.OverLimit)
		c.counters(m).Count(a, m.verdict, near, hit)
	}
	if known == nil {
		return
	}
	for i := range c.matches { // after all look-ups: the same key twice is a miss twice
		m := &c.matches[i]
		// What on_store_failure refused may have tokens left: the key is not known to be over.
		if !m.bare() && m.verdict.OverLimit && m.verdict.Source != ratelimit.FromFallback {
			known.remember(m.hash, now.Add(m.verdict.ResetAfter))
		}
	}
}

// counters are what a descriptor's rule is counted in: the rule's own, or those
// of a name that the request has a part in.
func (c *call) counters(m *match) *ratelimit.RuleCounters {
	r := m.rule
	if !r.MetricNames.FromRequest() {
		return r.Counters
	}
	c.name = c.name[:0]
	for level, e := range c.request.entriesOf(m.of) {
		c.name = r.AppendLevel(c.name, level, e.Key, e.Value)
	}
	return r.Counters.Named(c.name)
}

// spare marks the asks whose charge is given back, and makes their matches show the rest without it.
//
// A refused request costs nothing of the rules that say so (on_deny: refund), and of no rule if one that refused it
// does. With SpareOthers, a descriptor that is refused makes the others free, whatever becomes of the request.
func (c *call) spare(s *Service) {
	refused, refunds := false, false
	for i := range c.matches {
		m := &c.matches[i]
		refused = refused || m.verdict.OverLimit
		refunds = refunds || m.over && denyRefunds(m.rule)
	}
	c.spared = c.spared[:0]
	for i := range c.asks {
		a := &c.asks[i]
		back := c.over && (refunds || denyRefunds(a.Rule)) ||
			refused && s.options.SpareOthers && !c.verdicts[i].OverLimit
		// A peek and a refund have charged nothing that could be given back. A request that passes keeps its holds,
		// slots among them.
		back = back && a.Kind == ratelimit.Spend && (c.over || a.Rule.Hold == nil)
		c.spared = append(c.spared, back)
	}
	if slices.Contains(c.spared, true) {
		c.restate()
	}
}

// restate makes matches show the rest once the spared asks are undone. Their tokens of the same key, and those
// of earlier asks in this request, are back.
func (c *call) restate() {
	for i := range c.matches {
		m := &c.matches[i]
		if m.ask < 0 {
			continue
		}
		a := &c.asks[m.ask]
		back := ratelimit.Tokens(0)
		// Asks of one key are decided in their order, so that only those up to this one had lowered its rest.
		for j := range m.ask + 1 {
			if c.spared[j] && bytes.Equal(c.asks[j].Key, a.Key) {
				back = ratelimit.AddTokens(back, c.verdicts[j].Charged)
			}
		}
		m.verdict.Remaining = min(m.limit().Capacity(), ratelimit.AddTokens(m.verdict.Remaining, back))
	}
}

func denyRefunds(r *ratelimit.Rule) bool { return r.Coordination.OnDeny == ratelimit.DenyRefunds }

// undo takes back the charges of spared asks.
func (c *call) undo(s *Service, now ratelimit.Instant) {
	n := 0
	for i, spared := range c.spared {
		if spared {
			// They are moved to the front in place, because the others are not needed any more.
			c.asks[n], c.verdicts[n] = c.asks[i], c.verdicts[i]
			n++
		}
	}
	if n > 0 {
		s.limiter.Undo(now, c.asks[:n], c.verdicts[:n])
	}
}
