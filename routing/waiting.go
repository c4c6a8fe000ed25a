package routing

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// waiting is a request that was not decided whole at once. Its driver reports events to it, so that it needs
// neither goroutine nor clock.
type waiting struct {
	*core
	ctx      context.Context
	asks     []ask
	verdicts []verdict
	states   []askState
	until    instant // when its time is over
	// half is the end of an owner's time to answer. Then it leases from the store itself, which has the other half.
	half   instant
	bell   bell
	late   bool
	remote bool // another node asks
}

// askState is how far one ask is.
//
//	waits --> forwarded: a call -----> done
//	  | '---> searched: a fetch -----> done
//	  | '---> atBase, or inPlace ----> done, in the same advance
//	  '--> until again: the ring is changing
type askState struct {
	step   waitStep
	call   *call
	to     *link // to the owner that was asked
	fetch  *fetch
	again  instant
	errand errand // nil: none

	// Of a peer's ask.
	id      uint64
	status  uint32 // of the reply, if that is no verdict
	replied bool
	seen    bool // by the observer
}

// waitStep is what an ask is at.
type waitStep uint8

const (
	waits   waitStep = iota
	atBase           // the base decides, as the key is this node's own
	inPlace          // the base decides by a lease of this node's own, in place of the key's owner
	stepDone
)

// wait makes a request wait that is decided up to from.
func (c *core) wait(ctx context.Context, now instant, asks []ask, verdicts []verdict, from int) *waiting {
	w := c.newWaiting(ctx, now, asks, verdicts)
	for i := range from {
		w.states[i].step = stepDone
	}
	if !w.advance(now) {
		return nil
	}
	return w
}

func (c *core) newWaiting(ctx context.Context, now instant, asks []ask, verdicts []verdict) *waiting {
	deadline := time.Duration(0)
	for i := range asks {
		deadline = max(deadline, asks[i].Rule.Coordination.Deadline())
	}
	return &waiting{
		core: c, ctx: ctx, asks: asks, verdicts: verdicts, states: make([]askState, len(asks)),
		until: now.Add(deadline), half: now.Add(deadline / 2), bell: make(bell, 1),
	}
}

// due is when it continues at the latest.
func (w *waiting) due() instant {
	due := w.until
	for i := range w.states {
		switch s := &w.states[i]; {
		// These need no time of their own: the end of a fetch rings the bell.
		case s.step == stepDone || s.fetch != nil:
		case s.call == nil:
			due = min(due, s.again)
		default:
			due = min(due, w.leaseAt(i))
		}
	}
	return due
}

// advance decides what can be decided now. It reports whether anything waits.
func (w *waiting) advance(now instant) (open bool) {
	w.late = now >= w.until
	// What others decide travels while this node decides its own.
	for i := range w.states {
		if s := &w.states[i]; s.step != stepDone {
			s.step = w.one(now, i)
		}
	}
	w.baseAsks(now)
	return slices.ContainsFunc(w.states, func(s askState) bool { return s.step != stepDone })
}

// one goes on with one ask.
func (w *waiting) one(now instant, i int) waitStep {
	s, a := &w.states[i], &w.asks[i]
	if s.call != nil {
		return w.forwarded(now, i)
	}
	if s.fetch != nil && w.found(now, i) {
		return stepDone
	}
	switch {
	case w.late:
		return w.failed(now, i, nil)
	case now >= w.leaseAt(i): // the ring is changing, and no answer came
		return w.lease()
	case s.fetch != nil, now < s.again:
		return waits
	}
	owner := w.elsewhere(a)
	switch {
	case owner == "":
		return w.here(now, i)
	// An ask is forwarded once only. Two nodes that see different rings would otherwise send it to
	// and fro until its time is over; the first node asks again, of whom it then sees.
	case w.remote:
		s.status = notOwner
		return stepDone
	case !w.inStore():
		if s.errand == nil && w.hotHere.Take(now, a, &w.verdicts[i]) {
			w.stats.hot.Add(1)
			return stepDone
		}
	case w.hotHere.Use(now, a.Key): // from the store, as its owner does
		w.stats.hot.Add(1)
		w.base.decide(w.ctx, now, 0, w.asks[i:i+1], w.verdicts[i:i+1])
		return stepDone
	// Nothing is to be gained by waiting for an owner that has just let another request wait.
	case w.canLease(i) && w.view.Load().peers[owner].silent(now):
		return w.lease()
	}
	w.forward(now, i, owner)
	return w.forwarded(now, i)
}

// here decides on a key of this node's own, or has its account looked for.
func (w *waiting) here(now instant, i int) waitStep {
	s := &w.states[i]
	if w.inStore() {
		return atBase
	}
	switch w.own(w.ctx, now, w.asks[i:i+1], w.verdicts[i:i+1], nil, s.errand) {
	case ownDecided:
		return stepDone
	// Either the ring has just changed, or this node may not own anything yet: both pass in a
	// moment, so that a request of this node tries again. A peer's ask goes back, for the peer may
	// see by then who decides.
	case another:
		if w.remote {
			s.status = notOwner
			return stepDone
		}
	case unsure:
		// A fetch has ended at once where there is no node to ask. If there are maxFetches already, this one gets
		// its turn later, or runs out of time.
		s.fetch = w.fetch(w.asks[i].Key, w.bell)
		if s.fetch != nil {
			return w.one(now, i)
		}
	}
	s.again = now.Add(askAgain)
	return waits
}

// found takes in what came of looking for an account. It reports whether the ask is decided.
func (w *waiting) found(now instant, i int) bool {
	s, f := &w.states[i], w.states[i].fetch
	switch w.outcome(f) {
	case fetchAgain:
		s.fetch, s.again = nil, now.Add(askAgain)
	case fetchAbsent:
		// own compares the view with that of the fetch, under the gate. If the ring has turned, a node that joined
		// since may have the account, so that everything is looked at again.
		s.fetch = nil
		return w.own(w.ctx, now, w.asks[i:i+1], w.verdicts[i:i+1], f, s.errand) == ownDecided
	}
	return false
}

// forward has an ask sent to its owner, with this node's report of a lease of its key.
func (w *waiting) forward(now instant, i int, owner string) {
	s, a := &w.states[i], &w.asks[i]
	var totals *leasing.Totals
	ask := &wire.Ask{}
	if !w.inStore() {
		if m, ok := w.hotHere.Report(now, a); ok {
			totals = &m
		}
	}
	s.call, s.to = w.callFor(a, ask, totals), w.view.Load().peers[owner]
	s.call.bell = w.bell
	s.to.post(s.call)
	w.stats.forwarded.Add(1)
}

// forwarded goes on with an ask that was sent to its owner.
func (w *waiting) forwarded(now instant, i int) waitStep {
	switch {
	// An answer that is there counts even if the time is over: the owner has charged for it.
	case w.states[i].call.ended():
		return w.answered(now, i)
	case w.late:
		return w.abandon(now, i)
	// The call goes on until the request's time is over, unless a lease from the store can take
	// its place.
	case now >= w.leaseAt(i):
		return w.instead(now, i)
	}
	return waits
}

// answered takes in a reply to an ask. An ask that a node refuses as not its own is asked
// again, of whom this node then thinks it is.
func (w *waiting) answered(now instant, i int) waitStep {
	s, a := &w.states[i], &w.asks[i]
	call := s.call
	v, ok := w.read(now, a, call)
	s.call = nil
	switch {
	case ok:
		w.verdicts[i] = v
		return stepDone
	// The node that was asked is not the owner, or not any more. The next try goes by this node's own ring again.
	case call.status() == notOwner:
		s.again = now.Add(askAgain)
		return waits
	}
	if !call.sent {
		call = nil
	}
	return w.failed(now, i, call)
}

// abandon decides without the owner, whose answer did not come in time. If the
// ask is refused here, what the owner charges for it is taken back.
func (w *waiting) abandon(now instant, i int) waitStep {
	step := w.failed(now, i, w.states[i].call)
	// An ask that the policy admits has cost what the owner charged for it, which therefore stays.
	// One that is refused has cost nothing.
	if w.verdicts[i].OverLimit {
		w.regret(now, i)
	}
	return step
}

// regret takes back the charge of an owner whose answer no request awaits any more.
func (w *waiting) regret(now instant, i int) {
	late, call, refused := w.asks[i], w.states[i].call, w.verdicts[i].OverLimit
	late.Key = append([]byte(nil), late.Key...)
	c := w.core
	call.after(func() { // when the owner answers, or the conversation ends
		v, ok := c.read(now, &late, call)
		switch {
		case !ok && late.OfSlot(): // it may have been taken: to give back a slot that was not changes nothing
			c.Undo(now, []ask{late}, []verdict{{Source: ratelimit.FromOwner, Charged: late.Cost, Window: late.Window}})
		case !ok, v.OverLimit && refused: // a refusal is charged once
		case !c.inStore() && c.undoLater(&late, &v):
		default:
			c.Undo(now, []ask{late}, []verdict{v})
		}
	})
}

// failed decides without the key's owner: by a lease, where there is a store and time, else as the rule decides.
// A peer's ask is not decided: the asking node has the rule's policy. call is the call that failed, or waits
// for its answer; nil: none has left.
func (w *waiting) failed(now instant, i int, call *call) waitStep {
	a := &w.asks[i]
	// A refund credits the account in the store from any node. It must not be at the owner already.
	if call == nil && a.Kind == ratelimit.Refund && w.inStore() || !w.late && w.canLease(i) {
		return w.lease()
	}
	if w.remote || w.states[i].errand != nil {
		w.states[i].status = notInTime
		return stepDone
	}
	// The store did not answer either, or there was no time for it.
	if w.canLease(i) && a.Kind == ratelimit.Spend && a.Rule.Coordination.OnStoreFailure != ratelimit.FailOpen &&
		w.view.Load().peers[w.elsewhere(a)].alive(now) {
		// The owner is late, and not gone: it may have spent the rest, and each node would admit some.
		w.stats.fallbacks.Add(1)
		w.verdicts[i] = verdict{
			OverLimit: true, Source: ratelimit.FromFallback, Reason: ratelimit.FallbackPeer,
			ResetAfter: a.Rule.Limit.Period(),
		}
		return stepDone
	}
	w.verdicts[i] = w.fail(now, a)
	w.later(a, &w.verdicts[i], call)
	return stepDone
}

// canLease tells whether this node may lease another's key, or look at it: the account is in a store, whose fences
// keep the limit for any claimant. Owners are only a saving there.
func (w *waiting) canLease(i int) bool {
	return w.inStore() && w.asks[i].Kind < ratelimit.Refund // a peer's ask does not wait then
}

// leaseAt is from when on this node leases a key whose owner has not answered; never,
// if it may not.
func (w *waiting) leaseAt(i int) instant {
	if !w.canLease(i) {
		return math.MaxInt64
	}
	return w.half
}

// lease has the base decide in place of the owner, together with what else is there.
func (w *waiting) lease() waitStep {
	w.stats.instead.Add(1)
	return inPlace
}

// instead gives up an owner's answer, and leases. What the owner charges after all
// is taken back.
func (w *waiting) instead(now instant, i int) waitStep {
	s := &w.states[i]
	if s.to != nil {
		// The requests after this one need not find out again; see silentFor.
		s.to.missed.Store(int64(now))
	}
	w.verdicts[i] = verdict{} // which may be of an earlier request
	w.regret(now, i)
	s.call = nil
	return w.lease()
}

// baseAsks has the base decide its part, runs of asks together.
func (w *waiting) baseAsks(now instant) {
	for from := 0; from < len(w.states); from++ {
		to := from
		for to < len(w.states) && (w.states[to].step == atBase || w.states[to].step == inPlace) {
			to++
		}
		if to == from {
			continue
		}
		asks, within := w.baseTime(now, from, to)
		w.base.decide(w.ctx, now, within, asks, w.verdicts[from:to])
		for ; from < to; from++ {
			w.decidedByBase(now, from)
		}
	}
}

// baseTime is the base's ask, and its longest wait; 0: its own time. For keys of other owners it has the rest
// of the request's time, and leases no more than the request costs. Tokens that are split among nodes are
// wasted on requests that cost more than either part.
func (w *waiting) baseTime(now instant, from, to int) (asks []ask, within time.Duration) {
	asks = w.asks[from:to]
	if !slices.ContainsFunc(w.states[from:to], func(s askState) bool { return s.step == inPlace }) {
		return asks, 0
	}
	// The rules are replaced in a copy. The asks are the caller's, who undoes and counts by them.
	asks = slices.Clone(asks)
	for i := range asks {
		if w.states[from+i].step == inPlace {
			asks[i].Rule = asks[i].Rule.PerRequest()
		}
	}
	return asks, w.until.Sub(now)
}

// decidedByBase takes in the decision of the base. An admission without an answer of the store, for a key of
// another owner, becomes a refusal: the owner may have spent the rest, and each node would admit some. It
// stands if the rule prefers to admit (open), or the store is gone.
func (w *waiting) decidedByBase(now instant, i int) {
	s, a, v := &w.states[i], &w.asks[i], &w.verdicts[i]
	leased := s.step == inPlace
	s.step = stepDone
	if !leased || a.Kind != ratelimit.Spend || v.OverLimit || v.Source != ratelimit.FromFallback ||
		v.Reason != ratelimit.FallbackDeadline || a.Rule.Coordination.OnStoreFailure == ratelimit.FailOpen {
		return
	}
	// What the base had admitted was charged to this node's budget for outages, which is given
	// back.
	w.base.Undo(now, w.asks[i:i+1], w.verdicts[i:i+1])
	v.OverLimit, v.Charged, v.Booked, v.Remaining = true, 0, 0, 0
}
