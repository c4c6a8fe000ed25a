package leasing

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// flight is a claim under way, with those who wait behind it.
type flight struct {
	lease.Flight             // guarded by the shard's mu
	id           keytable.ID // of its key
	name         string      // of its account
	done         chan struct{}
	err          error // read after done
}

// do does what the key wants done. The caller holds the shard's lock.
func (f *Fleet) do(h *busyKey, now instant) {
	t := h.Ready()
	if t == nil {
		return
	}
	for _, last := range t.LastWords {
		fl := f.newFlight(h, last)
		fl.Claim.Key = fl.name
		select {
		// A full queue is left to claims that requests wait for.
		case f.laneOf(fl.name).queue <- fl:
		default:
		}
	}
	if t.Claim != nil {
		f.launch(h, f.newFlight(h, t.Claim))
	}
	if t.Report.At != 0 {
		f.reportThen(h, now, t.Report)
	}
}

// reportThen has a report sent then, if there is still something to be reported.
func (f *Fleet) reportThen(h *busyKey, now instant, r lease.Report) {
	id, s := h.id, h.shard
	f.after(max(0, r.At.Sub(now)), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h := s.find(id); h != nil && h.ReportDue(r) {
			f.launch(h, f.newFlight(h, new(lease.Flight)))
		}
	})
}

// launch queues a claim for which nobody waits; the caller holds the shard's
// lock. It reports false when the queue is full.
func (f *Fleet) launch(h *busyKey, fl *flight) bool {
	select {
	case f.laneOf(fl.name).queue <- fl:
		// The sender cannot be ahead of this line: it writes the claim under the shard's lock,
		// which the caller holds.
		h.flight = fl
		h.Sent(&fl.Flight)
		return true
	default:
		return false
	}
}

// newFlight is for what a key wants to claim.
func (f *Fleet) newFlight(h *busyKey, what *lease.Flight) *flight {
	return &flight{Flight: *what, id: h.id, name: f.keyName(h.key()), done: make(chan struct{})}
}

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
		if v, ok := f.take(now, a, fl); ok {
			w.verdicts[i] = v
			return true
		}
		if fl.ended() {
			// Two errors are no outage: the claim was overtaken by the end of its window
			// (ErrStaleClaim), or it was settled by a ledger that had just lost its data
			// (errYoung). The ask waits for another claim. After any other error on_store_failure
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
		if v, ok := f.drift(now, a, true); ok {
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
		if c := &asks[i].Rule.Coordination; c.Mode == ratelimit.Approx && errors.Is(verdicts[i].Err, errUndecided) {
			longest = max(longest, c.CheckTimeout)
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

// ended tells whether the flight was answered, or will not be.
func (fl *flight) ended() bool {
	select {
	case <-fl.done:
		return true
	default:
		return false
	}
}

// enqueue hands a flight to the senders; when there are too many, it has failed.
func (f *Fleet) enqueue(fl *flight) {
	select {
	case f.laneOf(fl.name).queue <- fl:
		return
	default:
	}
	// Other asks may have joined the flight since it was made. They wait for it, so that it must
	// end with an error, and the key must be free for another claim.
	s := f.shard(fl.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.find(fl.id); h != nil && h.flight == fl { // at the node's end another may have taken its place
		h.lands()
	}
	fl.err = errQueueFull
	close(fl.done)
}

var errQueueFull = errors.New("too many claims wait to be sent")

// join finds the claim that an ask waits for, or makes one, which the caller
// must enqueue; nil if there can be none, and why.
func (f *Fleet) join(now instant, a *ask) (fl *flight, launch bool, reason ratelimit.FallbackReason) {
	s, id, h := f.locked(a.Key)
	defer s.mu.Unlock()
	if h == nil {
		if h = f.admit(s, now, id, a.Key); h == nil {
			return nil, false, ratelimit.FallbackTableFull
		}
	}
	how, waiting := h.Join(now, a)
	switch how {
	case lease.UntilTurn:
		return f.untilTurn(h, now), false, 0
	case lease.UntilAgain:
		return f.untilAgain(h, now), false, 0
	case lease.Behind:
		return h.flight, false, 0
	case lease.Paused:
		return nil, false, ratelimit.FallbackError
	case lease.Alone:
	}
	fl = f.newFlight(h, &waiting)
	// While its part of the store counts as dead, no request waits for it.
	if f.laneOf(fl.name).refused(now) {
		return nil, false, ratelimit.FallbackBreaker
	}
	h.takes(fl)
	return fl, true, 0
}

// untilTurn is a flight that ends when the next window has begun, which is soon.
func (f *Fleet) untilTurn(h *busyKey, now instant) *flight {
	return f.resting(&h.turning, h.TurnsAt().Sub(now))
}

// untilAgain is a flight that ends when what was recalled may be there.
func (f *Fleet) untilAgain(h *busyKey, now instant) *flight {
	return f.resting(&h.recalled, h.AgainAt().Sub(now))
}

// resting is a flight that carries nothing, and ends after a while: one for all who wait
// for that, with one timer.
func (f *Fleet) resting(at **flight, d time.Duration) *flight {
	if *at == nil || (*at).ended() {
		fl := &flight{done: make(chan struct{})}
		f.after(d, func() { close(fl.done) })
		*at = fl
	}
	return *at
}
