package leasing

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// flight is a claim from when it is wanted until it is answered.
type flight struct {
	id      keytable.ID // of its key
	name    string      // of its account
	waiting tokens      // of the requests behind it; guarded by the shard's mu
	largest tokens      // of one of them; guarded by the shard's mu
	errand
	final *finalWord // what it says if it only reports on a window that is over; nobody waits
	sent  bool       // guarded by the shard's mu
	claim ratelimit.Claim
	at    instant
	done  chan struct{}
	err   error // read after done
}

// errand is what a flight is for, if not for requests that wait, or for a renewal.
type errand struct {
	giveUp bool   // return what is unspent, and want nothing
	recall bool   // return what the next moment does not need: others wait for it
	keep   tokens // of that, what requests have waited for and are about to spend
	ahead  bool   // it is for the next window
	reset  bool   // the ledger is to count from nothing again
	beat   bool   // it has no claim, and no key: the ledger is only to be heard
	last   bool   // nothing more will be claimed: the node ends
}

// finalWord is what is known of a window that is over.
type finalWord struct {
	rule    *ratelimit.Rule
	unasked tokens // what on_store_failure admitted here in it
}

// reason is what the claim was for.
func (fl *flight) reason() ratelimit.ClaimReason {
	switch {
	case fl.final != nil:
		return ratelimit.ClaimFinal
	case fl.giveUp, fl.recall && fl.claim.Waiting == 0:
		return ratelimit.ClaimReturn
	case fl.ahead:
		return ratelimit.ClaimNext
	case fl.claim.Waiting > 0:
		return ratelimit.ClaimWaiting
	}
	return ratelimit.ClaimRenewal
}

// audited has the ledger keep a record, if the rule wants one.
func (fl *flight) audited(r *ratelimit.Rule) {
	if r.Coordination.Audit {
		fl.claim.Audit, fl.claim.AuditBound = r.AuditName(), r.DeclaredOver()
	}
}

// launch queues a claim for which nobody waits; the caller holds the shard's
// lock. It reports false when the queue is full.
func (f *Fleet) launch(h *held, fl *flight) bool {
	select {
	case f.laneOf(fl.name).queue <- fl:
		// The sender cannot be ahead of this line: it writes the claim under the shard's lock,
		// which the caller holds.
		h.flight = fl
		return true
	default:
		// Nobody waits for this claim. The next request or sweep that finds it due tries again.
		return false
	}
}

func (f *Fleet) newFlight(h *held) *flight {
	return &flight{id: h.id, name: f.keyName(h.key()), done: make(chan struct{})}
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
			if fl.err != nil && !errors.Is(fl.err, ratelimit.ErrStaleClaim) && !errors.Is(fl.err, errYoung) {
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

// most is what may be asked for those who wait: no more than the largest lease
// that the rule declares, where expiry makes unreported tokens another's.
func (fl *flight) most(rule *ratelimit.Rule) tokens {
	// Under reclaim: safe an unreported lease stays charged, so that one claim may fetch what all
	// who wait need together.
	if !rule.Coordination.Eager() {
		return fl.waiting
	}
	return min(fl.waiting, max(fl.largest, rule.LargestLease()))
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
		h.flight = nil
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
	h.rule = a.Rule
	h.demand.lastUse = now
	waiting := tokens(0)
	if a.Kind == ratelimit.Spend {
		waiting = min(a.Cost, a.Rule.Limit.Capacity()+1) // more makes no difference
	}
	// The window may be over and may not, and the next one's lease is here. To wait for the turn
	// takes 2 ms at most, and brings what a claim could not: certainty which lease to spend.
	if n := h.next; n != nil && now >= n.over && now < n.start {
		return f.untilTurn(n, now), false, 0
	}
	// The ledger has asked other holders to give tokens back, which takes about recallPause. All
	// that waits for them asks again together, and not each by itself.
	if now < h.resume {
		return f.untilAgain(h, now), false, 0
	}
	if h.flight != nil {
		// A claim that has not left takes this ask along. One that has left cannot, and one for the
		// next window brings this one nothing: the ask waits for its end, and then for a claim of
		// its own. A key that was about to be given up as idle is in use again.
		if !h.flight.sent && !h.flight.ahead {
			h.flight.waiting += waiting
			h.flight.largest = max(h.flight.largest, waiting)
			h.flight.giveUp = false
		}
		return h.flight, false, 0
	}
	// After several answers in a row that neither admitted nor refused what waits, the key is not
	// claimed for a while (docs/protocol.md, section 4.16).
	if now < h.pause {
		return nil, false, ratelimit.FallbackError
	}
	fl = f.newFlight(h)
	// While its part of the store counts as dead, no request waits for it.
	if f.laneOf(fl.name).refused(now) {
		return nil, false, ratelimit.FallbackBreaker
	}
	fl.waiting, fl.largest = waiting, waiting
	h.flight = fl
	return fl, true, 0
}
