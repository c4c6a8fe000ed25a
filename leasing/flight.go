package leasing

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// flight is a claim from when it is wanted until it is answered.
type flight struct {
	hash    uint64
	key     []byte
	name    string          // of the key, in the ledger
	waiting tokens          // of the requests behind it; guarded by the shard's mu
	giveUp  bool            // return what is unspent, and want nothing
	ahead   bool            // it is for the next window
	final   bool            // it only reports on a window that is over; nobody waits
	rule    *ratelimit.Rule // of a final one
	sent    bool            // guarded by the shard's mu
	claim   ratelimit.Claim
	at      instant
	done    chan struct{}
	err     error // read after done
}

// launch queues a claim for which nobody waits; the caller holds the shard's
// lock. It reports false when the queue is full.
func (f *Fleet) launch(h *held, fl *flight) bool {
	select {
	case f.laneOf(fl.name).queue <- fl:
		h.flight = fl
		return true
	default:
		return false
	}
}

func (f *Fleet) newFlight(hash uint64, key []byte) *flight {
	return &flight{hash: hash, key: append([]byte(nil), key...), name: f.keyName(key), done: make(chan struct{})}
}

// wait has the ledger asked for what is undecided, again and again until all
// is decided or the deadline has passed. Rules of mode approx wait for a while
// only, and then drift as far as they may.
func (f *Fleet) wait(ctx context.Context, start instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	check, waited := checkTime(asks, verdicts), false
	timer := time.NewTimer(check)
	defer timer.Stop()
	flights := make([]*flight, len(asks))
	var fresh []*flight
	for now, late := start, false; ; now = f.clock() {
		open := 0
		fresh = fresh[:0]
		for i := range asks {
			if !errors.Is(verdicts[i].Err, errUndecided) {
				continue
			}
			if waited {
				if v, ok := f.drift(now, &asks[i], true); ok {
					verdicts[i] = v
					continue
				}
			}
			reason := ratelimit.FallbackDeadline
			if late {
				flights[i] = nil
			} else {
				var launch bool
				if flights[i], launch, reason = f.join(now, &asks[i]); launch {
					fresh = append(fresh, flights[i])
				}
			}
			if flights[i] == nil {
				verdicts[i] = f.fail(ctx, now, &asks[i], reason)
				continue
			}
			open++
		}
		if open == 0 {
			return
		}
		for _, fl := range fresh { // now that all asks are behind them
			f.enqueue(fl)
		}
		for i := range asks {
			if !errors.Is(verdicts[i].Err, errUndecided) {
				continue
			}
			if !late && !await(ctx, flights[i], timer.C) {
				late = waited || check == ratelimit.StoreDeadline || ctx.Err() != nil
				waited = true
				timer.Reset(ratelimit.StoreDeadline - check)
			}
			verdicts[i] = f.settled(ctx, &asks[i], flights[i], late)
		}
	}
}

// checkTime is how long undecided asks wait before those that may drift do.
func checkTime(asks []ratelimit.Ask, verdicts []ratelimit.Verdict) time.Duration {
	longest := time.Duration(0)
	for i := range asks {
		if c := &asks[i].Rule.Coordination; c.Mode == ratelimit.Approx && errors.Is(verdicts[i].Err, errUndecided) {
			longest = max(longest, c.CheckTimeout)
		}
	}
	if longest == 0 {
		return ratelimit.StoreDeadline
	}
	return min(longest, ratelimit.StoreDeadline)
}

// await reports whether the flight ended in time.
func await(ctx context.Context, fl *flight, timer <-chan time.Time) bool {
	select {
	case <-fl.done: // even if it is late: it is here
		return true
	default:
	}
	select {
	case <-fl.done:
		return true
	case <-timer:
	case <-ctx.Done():
	}
	return false
}

// settled decides after a flight, if it can.
func (f *Fleet) settled(ctx context.Context, a *ask, fl *flight, late bool) verdict {
	now := f.clock()
	if v, ok := f.take(now, a, fl); ok {
		return v
	}
	select {
	case <-fl.done:
		if fl.err != nil && !errors.Is(fl.err, ratelimit.ErrStaleClaim) { // the window rolled: ask again
			return f.fail(ctx, now, a, reasonOf(fl.err))
		}
	default:
	}
	if late {
		return f.fail(ctx, now, a, ratelimit.FallbackDeadline)
	}
	return verdict{Err: errUndecided}
}

// enqueue hands a flight to the senders; when there are too many, it has failed.
func (f *Fleet) enqueue(fl *flight) {
	select {
	case f.laneOf(fl.name).queue <- fl:
		return
	default:
	}
	s := f.shard(fl.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases.get(fl.hash, fl.key).val.flight = nil
	fl.err = errQueueFull
	close(fl.done)
}

var errQueueFull = errors.New("too many claims wait to be sent")

// join finds the claim that an ask waits for, or makes one, which the caller
// must enqueue; nil if there can be none, and why.
func (f *Fleet) join(now instant, a *ask) (fl *flight, launch bool, reason ratelimit.FallbackReason) {
	s, hash, c := f.locked(a.Key)
	defer s.mu.Unlock()
	if c == nil {
		if c = f.admit(s, now, hash, a.Key); c == nil {
			return nil, false, ratelimit.FallbackTableFull
		}
	}
	h := &c.val
	h.rule = a.Rule
	h.demand.lastUse = now
	waiting := tokens(0)
	if a.Kind == ratelimit.Spend {
		waiting = min(a.Cost, a.Rule.Limit.Capacity()+1) // more makes no difference
	}
	if n := h.next; n != nil && now >= n.over && now < n.start {
		return n.untilTurn(now), false, 0
	}
	if h.flight != nil {
		if !h.flight.sent && !h.flight.ahead {
			h.flight.waiting += waiting
			h.flight.giveUp = false
		}
		return h.flight, false, 0
	}
	fl = f.newFlight(hash, a.Key)
	if f.laneOf(fl.name).refused(now) {
		return nil, false, ratelimit.FallbackBreaker
	}
	fl.waiting = waiting
	h.flight = fl
	return fl, true, 0
}
