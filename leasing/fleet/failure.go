package fleet

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// failLocked decides without the ledger, as the rule's on_store_failure says. What it admits is booked, and told as
// soon as the store is back. k may be nil.
func (f *Fleet) failLocked(ctx context.Context, now instant, w *waiter, k *key, why ratelimit.FallbackReason) {
	w.done = true
	w.waitsLocked(k, 0)
	f.stats.fallbacks[why].Add(1)
	a, v := w.ask, w.verdict
	policy := a.Rule.Coordination.OnStoreFailure
	if why == ratelimit.FallbackTableFull && policy != ratelimit.FailClosed {
		policy = ratelimit.FailLocal // it is not the store that fails
	}
	*v = ratelimit.Verdict{}
	switch {
	case a.Kind == ratelimit.Refund && k != nil:
		k.Refund(a.Cost)
	case a.Kind != ratelimit.Spend: // nothing is known, nothing is taken
	case policy == ratelimit.FailOpen:
		v.Charged = a.Cost
	case policy == ratelimit.FailClosed:
		v.OverLimit = true
	case policy == ratelimit.FailCached:
		f.cachedLocked(now, a, k, v)
	default:
		own := *a
		own.Rule = a.Rule.LocalShare()
		var alone [1]ratelimit.Verdict
		f.alone.Decide(ctx, now, []ratelimit.Ask{own}, alone[:])
		*v = alone[0]
	}
	if k != nil && v.Charged > 0 {
		k.Spent = min(k.Spent+v.Charged, account.MostBooked)
		v.Booked = k.Window
	}
	v.Source, v.Reason = ratelimit.FromFallback, why
	if v.ResetAfter == 0 {
		v.ResetAfter = a.Rule.Limit.Period()
	}
}

// cachedLocked goes on against what the ledger last said was left, for at most max_staleness.
func (f *Fleet) cachedLocked(now instant, a *ratelimit.Ask, k *key, v *ratelimit.Verdict) {
	limit := a.Rule.Limit.Capacity()
	if k == nil || k.Heard == 0 || now >= k.Till || now.Sub(k.Heard) > a.Rule.Coordination.MaxStaleness ||
		a.Cost > limit-k.Sum-k.Drift() {
		v.OverLimit = true
		return
	}
	v.Charged, v.Window = a.Cost, k.Window
}

// reason says why the ledger did not decide.
func reason(err error) ratelimit.FallbackReason {
	if errors.Is(err, errBreaker) {
		return ratelimit.FallbackBreaker
	}
	return ratelimit.FallbackError
}

// stats are what a Fleet did.
type stats struct {
	claims, roundTrips, failed, stale atomic.Uint64
	unreported                        atomic.Uint64 // accounts whose last totals were not told
	missing                           atomic.Uint64
	fallbacks                         [len(ratelimit.FallbackReasons)]atomic.Uint64
}

func (f *Fleet) count(grants []account.Grant, err error) {
	f.stats.roundTrips.Add(1)
	f.stats.claims.Add(uint64(len(grants)))
	if err != nil {
		f.stats.failed.Add(1)
		if f.OnFailure != nil {
			f.OnFailure(err)
		}
	}
	for i := range grants {
		if errors.Is(grants[i].Err, account.ErrOvertaken) {
			f.stats.stale.Add(1)
		}
		if grants[i].Missing {
			f.stats.missing.Add(1)
			if f.OnWarning != nil {
				f.OnWarning(leasing.ErrEvicted)
			}
		}
	}
}

// Stats returns the counts so far. It takes every lock once.
func (f *Fleet) Stats() ratelimit.LimiterStats {
	s := ratelimit.LimiterStats{
		Claims: f.stats.claims.Load(), RoundTrips: f.stats.roundTrips.Load(), Failed: f.stats.failed.Load(),
		Stale: f.stats.stale.Load(), Missing: f.stats.missing.Load(),
	}
	for i := range f.stats.fallbacks {
		s.Fallbacks[i] = f.stats.fallbacks[i].Load()
	}
	s.Overflow = s.Fallbacks[ratelimit.FallbackTableFull]
	for i := range f.shards {
		f.shards[i].mu.Lock()
		s.Leases += len(f.shards[i].keys)
		f.shards[i].mu.Unlock()
	}
	f.lane.mu.Lock()
	defer f.lane.mu.Unlock()
	s.BreakerOpen = f.lane.breaker.Open()
	s.Queued, s.QueueSize = len(f.lane.queue), cap(f.lane.queue)
	return s
}
