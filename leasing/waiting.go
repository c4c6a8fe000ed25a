package leasing

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// wait has the ledger asked for what is undecided, again and again until all
// is decided or the deadline has passed.
func (f *Fleet) wait(ctx context.Context, now instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	w := newWaiting(asks, verdicts)
	timer := time.NewTimer(w.check)
	defer timer.Stop()
	for w.advance(ctx, f, now) {
		// One timer bounds all rounds together. It runs for check first, and then for the rest of
		// the deadline, in which rules of mode approx drift.
		if !await(ctx, w.next().done, timer.C) && w.impatient(ctx.Err() != nil) {
			timer.Reset(w.deadline - w.check)
		}
		now = f.clock()
	}
}

// waiting is a request that waits for the ledger. It is told what happens, and
// so needs neither goroutine nor clock.
//
//	patient --check has passed--> drifting --the deadline has passed--> late
//
// Rules of mode approx are patient for their check_timeout only, and then drift
// as far as they may; late, on_store_failure decides.
type waiting struct {
	asks     []ask
	verdicts []verdict
	flights  []*flight // what each undecided ask is behind
	fresh    []*flight // of them, those to be sent
	check    time.Duration
	deadline time.Duration // the longest of the rules'
	drifting bool
	late     bool
}

func newWaiting(asks []ask, verdicts []verdict) *waiting {
	return &waiting{
		asks: asks, verdicts: verdicts, flights: make([]*flight, len(asks)),
		deadline: storeDeadline(asks, verdicts), check: checkTime(asks, verdicts),
	}
}

// advance decides what can be decided now, and has the ledger asked for the
// rest, together. It reports whether anything is undecided.
func (w *waiting) advance(ctx context.Context, f *Fleet, now instant) bool {
	open := false
	w.fresh = w.fresh[:0]
	for i := range w.asks {
		if errors.Is(w.verdicts[i].Err, errUndecided) && !w.decide(ctx, f, now, i) {
			open = true
		}
	}
	for _, fl := range w.fresh { // now that all asks are behind them
		f.enqueue(fl)
	}
	return open
}

// decide decides one ask, or sees to it that it is behind a flight.
func (w *waiting) decide(ctx context.Context, f *Fleet, now instant, i int) bool {
	a, fl := &w.asks[i], w.flights[i]
	if fl != nil {
		// The answer is in the lease before the flight ends (read). Another claim's answer may have
		// brought enough, too, so that the lease is asked even while the flight goes on.
		var v verdict
		if f.take(now, a, fl, &v) {
			f.spare(now, a, &v)
			w.verdicts[i] = v
			return true
		}
		if fl.ended() {
			// Two errors are no outage: the claim was overtaken by the end of its window
			// (ErrStaleClaim), or it was settled by a ledger that had just lost its data
			// (lease.ErrYoung). The ask waits for another claim. After any other error on_store_failure
			// decides.
			if fl.err != nil && !errors.Is(fl.err, ratelimit.ErrStaleClaim) && !errors.Is(fl.err, lease.ErrYoung) {
				w.verdicts[i] = f.fail(ctx, now, a, reasonOf(fl.err))
				return true
			}
			// The answer was not enough for this ask, or was about another window: it needs another
			// claim.
			w.flights[i] = nil
		}
	}
	// The order is from what is known to what is guessed: what the ledger last said of the key,
	// then the node's share (mode approx), and only then on_store_failure.
	if w.drifting || w.late {
		if v, ok := f.refusedLate(now, a, w.late); ok {
			w.verdicts[i] = v
			return true
		}
	}
	if w.drifting {
		if v, ok := f.drift(now, a, lease.Fully); ok {
			w.verdicts[i] = v
			return true
		}
	}
	if w.late {
		w.verdicts[i] = f.fail(ctx, now, a, ratelimit.FallbackDeadline)
		return true
	}
	// There is time left, and the answer is still to come.
	if w.flights[i] != nil {
		return false
	}
	// There can be no claim while the store counts as dead, after fruitless answers, and for a key
	// that the full table has no room for. Then waiting would bring nothing.
	fl, launch, reason := f.join(now, a)
	if fl == nil {
		w.verdicts[i] = f.fail(ctx, now, a, reason)
		return true
	}
	if w.flights[i] = fl; launch {
		w.fresh = append(w.fresh, fl)
	}
	return false
}

// next is the flight that the first undecided ask is behind.
func (w *waiting) next() *flight {
	// Answers are awaited one after the other. That takes no longer than awaiting them together,
	// because all must be here before the request is answered.
	for i := range w.asks {
		if errors.Is(w.verdicts[i].Err, errUndecided) {
			return w.flights[i]
		}
	}
	return nil
}

// impatient takes in that the time it had has passed, or that nobody waits any
// more. It reports whether there is more time.
func (w *waiting) impatient(gone bool) bool {
	// Where no rule may drift, the first timer was the deadline already. For a caller that has
	// gone, what happens to it is decided at once.
	w.late = w.drifting || gone || w.check == w.deadline
	w.drifting = true
	return !w.late
}

// storeDeadline is how long undecided asks wait for the ledger: as long as the one
// that may wait longest, for they are answered together.
func storeDeadline(asks []ratelimit.Ask, verdicts []ratelimit.Verdict) time.Duration {
	longest := time.Duration(0)
	for i := range asks {
		if errors.Is(verdicts[i].Err, errUndecided) {
			longest = max(longest, asks[i].Rule.Coordination.Deadline())
		}
	}
	return longest
}

// checkTime is how long undecided asks wait before those that may drift do.
func checkTime(asks []ratelimit.Ask, verdicts []ratelimit.Verdict) time.Duration {
	longest, deadline := time.Duration(0), storeDeadline(asks, verdicts)
	for i := range asks {
		if asks[i].Rule.Drifts() && errors.Is(verdicts[i].Err, errUndecided) {
			longest = max(longest, asks[i].Rule.Coordination.CheckTimeout)
		}
	}
	// No rule here drifts early: there is one timer, the deadline.
	if longest == 0 {
		return deadline
	}
	return min(longest, deadline)
}

// await reports whether done was closed in time.
func await(ctx context.Context, done <-chan struct{}, timer <-chan time.Time) bool {
	select {
	// A select of several that are ready takes any of them. Done is looked at first, so that an
	// answer which is here is not thrown away because the timer has ended as well.
	case <-done: // even if it is late: it is here
		return true
	default:
	}
	select {
	case <-done:
		return true
	case <-timer:
	case <-ctx.Done():
	}
	return false
}
