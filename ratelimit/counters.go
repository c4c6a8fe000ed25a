package ratelimit

import (
	"sync/atomic"
	"time"
)

// RuleCounters are a rule's statistics since the process started, in hits.
// The zero value is ready; all fields may be used concurrently. They are
// padded so that two rules never share a cache line.
type RuleCounters struct {
	TotalHits   atomic.Uint64 `statsd:"total_hits"`
	WithinLimit atomic.Uint64 `statsd:"within_limit"`
	// above NearLimitRatio of the limit, and within it
	NearLimit atomic.Uint64 `statsd:"near_limit"`
	// the part of hits above the limit
	OverLimit atomic.Uint64 `statsd:"over_limit"`
	// of OverLimit: counted as over_limit_with_local_cache
	OverLocally atomic.Uint64 `statsd:"over_limit_with_local_cache"`
	// of OverLimit: answered OK by shadow_mode
	ShadowMode atomic.Uint64 `statsd:"shadow_mode"`
	ShadowRest atomic.Uint64 // the hits of these requests that were within the limit
	// is_negative_hits
	Refunded atomic.Uint64 `statsd:"total_negative_hits"`
	// decisions that were OVER_LIMIT before shadow_mode
	Denied atomic.Uint64 `metric:"sluice_denied_total" rules:"every"`
	// tokens charged beyond the limit
	Debt atomic.Uint64 `metric:"sluice_debt_tokens_total"`
	// Sources are decisions, whatever their cost, by where they were made. What
	// needs no budget (a ban, an unlimited rule) is FromLease.
	Sources [len(Sources)]atomic.Uint64
	// Fallbacks are those of them that were made without the ledger, by reason.
	Fallbacks [len(FallbackReasons)]atomic.Uint64
	// The ledger's reports of limits that were not kept to the token.
	// tokens spent beyond the limit, by all nodes, as told to this one
	OverAdmitted atomic.Uint64 `metric:"sluice_over_admitted_tokens_total"`
	// cost of requests that were refused here while others had tokens in hand
	UnderAdmitted atomic.Uint64 `metric:"sluice_under_admitted_tokens_total"`
	// tokens spent here and not confirmed, now
	Drifting atomic.Int64 `metric:"sluice_drift_unconfirmed_tokens"`
	// tokens leased to this node and unspent, also of the window that begins next
	Leased atomic.Int64 `metric:"sluice_leased_tokens"`
	// keys and windows beyond 4/5 of the rule's declared over-admission
	NearBound atomic.Uint64 `metric:"sluice_windows_near_bound_total"`
	// and beyond all of it, without those of BeyondByPolicy
	BeyondBound atomic.Uint64 `metric:"sluice_windows_beyond_bound_total"`
	// Of the two above, what on_store_failure admitted here: tokens of OverAdmitted,
	// and keys and windows that would be within the bound without them.
	OverByPolicy   atomic.Uint64 `metric:"sluice_over_admitted_by_policy_tokens_total"`
	BeyondByPolicy atomic.Uint64 `metric:"sluice_windows_beyond_by_policy_total"`
	// The most tokens of one key in a window. Used is of its limit, by decisions here. Worst is beyond it by this
	// node's drift, and Alone by on_store_failure at this node.
	Used, Worst, Alone Peak
	// decisions that could not drift: this node's share of the key was used up
	ShareUsedUp atomic.Uint64 `metric:"sluice_drift_share_used_up_total" rules:"approx"`
	// Unrefunded is the number of answers with debt since this node has last seen a refund. It is no metric: nodes
	// book charges of refused requests by it.
	Unrefunded atomic.Uint64
	// Budget bounds the names below all counters that share it; nil: there is
	// only MaxNames.
	Budget *NameBudget
	names  atomic.Pointer[names]
	holds  atomic.Pointer[HoldCounters] // nil: the rule has never held anything
	_      [64]byte
}

// Peak is the largest value since the last call of turn but one, and ever. With two spans, a page that is read at any
// time has the values of at least TurnEvery. The zero Peak has no values. It is safe for concurrent use, except turn,
// which one goroutine calls.
type Peak struct{ now, before, ever atomic.Int64 }

// See records a value. It does not block.
func (p *Peak) See(v Tokens) { raise(&p.now, int64(v)) }

// raise sets a value, if it is larger than that which is there.
func raise(p *atomic.Int64, v int64) {
	for was := p.Load(); v > was && !p.CompareAndSwap(was, v); {
		was = p.Load()
	}
}

// turn starts anew, and keeps the values since its last call.
func (p *Peak) turn() {
	p.ever.Store(int64(p.Ever()))
	p.before.Store(p.now.Swap(0))
}

// add adds the values of another peak.
func (p *Peak) add(o *Peak) {
	p.See(o.Lately())
	raise(&p.ever, int64(o.Ever()))
}

// Ever is the largest value, 0 if there was none.
func (p *Peak) Ever() Tokens { return Tokens(max(p.now.Load(), p.before.Load(), p.ever.Load())) }

// TurnEvery is the interval of Turn.
const TurnEvery = 15 * time.Second

// Turn has peaks lose what is older than TurnEvery. It does not block. One goroutine calls it.
func (c *RuleCounters) Turn() {
	for _, p := range []*Peak{&c.Used, &c.Worst, &c.Alone} {
		p.turn()
	}
}

// Lately is the largest value of late, 0 if there was none.
func (p *Peak) Lately() Tokens { return Tokens(max(p.now.Load(), p.before.Load())) }

// Add adds the counts of another rule, without its names. It does not block.
func (c *RuleCounters) Add(o *RuleCounters) {
	from := o.sums()
	for i, to := range c.sums() {
		to.Add(from[i].Load())
	}
	addAll(c.Sources[:], o.Sources[:])
	addAll(c.Fallbacks[:], o.Fallbacks[:])
	c.Drifting.Add(o.Drifting.Load())
	c.Leased.Add(o.Leased.Load())
	c.Used.add(&o.Used)
	c.Worst.add(&o.Worst)
	c.Alone.add(&o.Alone)
	if h := o.Held(); h != nil {
		c.Holds().add(h)
	}
}

// addAll adds counters to others of the same number.
func addAll(to, from []atomic.Uint64) {
	for i := range to {
		to[i].Add(from[i].Load())
	}
}

// sums are the counters that only rise.
func (c *RuleCounters) sums() [17]*atomic.Uint64 {
	return [...]*atomic.Uint64{
		&c.TotalHits, &c.WithinLimit, &c.NearLimit, &c.OverLimit, &c.OverLocally, &c.ShadowMode, &c.ShadowRest,
		&c.Refunded, &c.Denied, &c.Debt, &c.OverAdmitted, &c.UnderAdmitted, &c.NearBound, &c.BeyondBound,
		&c.OverByPolicy, &c.BeyondByPolicy, &c.ShareUsedUp,
	}
}

// Requests is the number of decisions.
func (c *RuleCounters) Requests() uint64 {
	n := uint64(0)
	for i := range c.Sources {
		n += c.Sources[i].Load()
	}
	return n
}

// Count books one verdict. A hit above nearLimit tokens counts as near the limit. locally says that a refusal counts as
// one of the local cache. It does not block and does not allocate.
//
// Hits are counted as envoyproxy/ratelimit does. Of a request that goes over, the part above the limit is OverLimit. Of
// the rest, and of requests within the limit, the part above nearLimit is NearLimit.
func (c *RuleCounters) Count(ask Ask, v Verdict, nearLimit Tokens, locally bool) {
	c.Sources[v.Source].Add(1)
	if v.Source == FromFallback {
		c.Fallbacks[v.Reason].Add(1)
	}
	if ask.Kind == Refund {
		c.Refunded.Add(uint64(ask.Cost))
		return
	}
	c.TotalHits.Add(uint64(ask.Cost))
	c.Debt.Add(uint64(v.Debt))
	over := uint64(ask.Cost - v.Charged)
	if !v.OverLimit {
		c.WithinLimit.Add(uint64(ask.Cost))
	} else {
		c.Denied.Add(1)
		c.OverLimit.Add(over)
		if locally {
			c.OverLocally.Add(over)
		}
		if ask.Rule.Shadow {
			c.ShadowMode.Add(over)
			c.ShadowRest.Add(uint64(v.Charged))
		}
	}
	used := v.InForce(ask.Rule).Capacity() - v.Remaining
	// Usage under an override says nothing about the rule's limit, and an outage's says nothing of other nodes.
	if v.Source != FromFallback && v.Limit == nil {
		c.Used.See(used)
	}
	if used > nearLimit {
		c.NearLimit.Add(uint64(min(v.Charged, used-nearLimit)))
	}
}
