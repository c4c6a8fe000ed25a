package leasing

import (
	"sync/atomic"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// stats counts the work of a Fleet.
type stats struct {
	// stale counts claims that were overtaken.
	claims, roundTrips, failed, stale atomic.Uint64
	unreported                        atomic.Uint64 // accounts whose last totals were not reported
	// late is the number of late reports that are tried longer than lateTries: it is bounded by mostLate.
	late                  atomic.Int64
	evicted               atomic.Uint64 // keys with usage that a full table dropped
	claimsBy              [len(ratelimit.ClaimReasons)]atomic.Uint64
	fallbacks             [len(ratelimit.FallbackReasons)]atomic.Uint64
	storeTime, leaseSizes ratelimit.Distribution
	distrusted
}

// distrusted counts invalid answers and losses of the ledger.
type distrusted struct {
	rejected               atomic.Uint64
	missing, missingTokens atomic.Uint64
	recoveries             atomic.Uint64
	clockSteps             [2]atomic.Uint64 // ahead, back
}

// Recoveries is the number of new lives of the ledger.
func (f *Fleet) Recoveries() uint64 { return f.stats.recoveries.Load() }

// Stats returns the counts so far. It takes every lock once. So its sums are not of one instant.
func (f *Fleet) Stats() ratelimit.LimiterStats {
	s := ratelimit.LimiterStats{
		Claims: f.stats.claims.Load(), RoundTrips: f.stats.roundTrips.Load(), Failed: f.stats.failed.Load(),
		Stale: f.stats.stale.Load(), Rejected: f.stats.rejected.Load(),
		Missing: f.stats.missing.Load(), MissingTokens: f.stats.missingTokens.Load(),
		Recoveries: f.stats.recoveries.Load(), Evicted: f.stats.evicted.Load(), Unreported: f.stats.unreported.Load(),
		StoreTime: f.stats.storeTime.Counts(), LeaseSizes: f.stats.leaseSizes.Counts(),
	}
	for i := range f.stats.fallbacks {
		s.Fallbacks[i] = f.stats.fallbacks[i].Load()
	}
	for i := range f.stats.claimsBy {
		s.ClaimsBy[i] = f.stats.claimsBy[i].Load()
	}
	for i := range f.stats.clockSteps {
		s.ClockSteps[i] = f.stats.clockSteps[i].Load()
	}
	s.Overflow = s.Fallbacks[ratelimit.FallbackTableFull]
	for i := range f.shards {
		f.shards[i].mu.Lock()
		s.Leases += f.shards[i].keys.Len()
		f.shards[i].mu.Unlock()
	}
	for i := range f.lanes {
		l := &f.lanes[i]
		s.BreakerOpen = s.BreakerOpen || l.Open()
		s.Queued, s.QueueSize = s.Queued+l.Len(), s.QueueSize+l.Size
		l.mu.Lock()
		s.SyncAge = max(s.SyncAge, f.clock().Sub(l.answered))
		l.mu.Unlock()
	}
	return s
}

// bounded counts the over-admission of a key in a window as it grows, and when it comes close to this node's share of
// the declared bound. Admissions by on_store_failure are declared separately. The amounts of a window only grow, so
// each counts the difference to the last one. Near the bound is from four fifths on. Each crossing counts once in a
// window.
func bounded(rule *ratelimit.Rule, is *lease.Excess, drifted, byPolicy tokens) {
	c, share, before := rule.Counters, rule.DriftShare(), *is
	is.OverByDrift, is.OverByOutage = drifted, byPolicy
	if c == nil {
		return
	}
	c.OverAdmitted.Add(uint64(drifted - before.OverByDrift + byPolicy - before.OverByOutage))
	c.OverByPolicy.Add(uint64(byPolicy - before.OverByOutage))
	if !rule.Overridden {
		c.Worst.See(drifted)
	}
	if near := share - share/5; before.OverByDrift < near && drifted >= near {
		c.NearBound.Add(1)
	}
	if before.OverByDrift <= share && drifted > share {
		c.BeyondBound.Add(1)
	}
	if byPolicy > 0 && before.OverByOutage == 0 {
		c.BeyondByPolicy.Add(1)
	}
}

// gauges are sums over the keys of each rule's counters, for one round of sweeps.
type gauges struct {
	on        bool // keys visited now count
	sums      map[*ratelimit.RuleCounters]gauge
	published map[*ratelimit.RuleCounters]gauge
}

type gauge struct{ leased, drifting tokens }

// add counts a key, if its visit is one of the round's: each key counts once.
func (g *gauges) add(rule *ratelimit.Rule, k *entry, now instant) {
	if rule.Counters == nil || !g.on {
		return
	}
	of := g.sums[rule.Counters]
	of.leased += k.InHand(now)
	// The rest of the unclaimed usage was charged: no answer will confirm it.
	unconfirmed := k.Drifted
	if k.Unreported() {
		unconfirmed += k.Outage
	}
	of.drifting += min(k.Drift(), unconfirmed)
	g.sums[rule.Counters] = of
}

// publish copies the sums to the counters, and begins again.
func (g *gauges) publish() {
	for c, before := range g.published {
		is := g.sums[c] // none, if the rule has no more keys
		c.Leased.Add(int64(is.leased - before.leased))
		c.Drifting.Add(int64(is.drifting - before.drifting))
	}
	for c, is := range g.sums {
		if _, had := g.published[c]; !had {
			c.Leased.Add(int64(is.leased))
			c.Drifting.Add(int64(is.drifting))
		}
	}
	g.published, g.sums = g.sums, map[*ratelimit.RuleCounters]gauge{}
}
