package routing

import (
	"context"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// request is the asks of a request, some of which other nodes decide about. It runs and waits in its caller's
// goroutine. Decide makes one only if an ask is another node's, or has to wait.
type request struct {
	*core
	ctx      context.Context
	asks     []ask
	verdicts []verdict
	until    instant // the end of its time; 0: its caller has left
	bell     bell    // of its calls and its searches. It may ring for nothing
}

// newRequest makes a request. Its time is the longest store_deadline of its rules, from now.
func (c *core) newRequest(ctx context.Context, now instant, asks []ask, verdicts []verdict) *request {
	deadline := time.Duration(0)
	for i := range asks {
		deadline = max(deadline, asks[i].Rule.Coordination.Deadline())
	}
	return &request{
		core: c, ctx: ctx, asks: asks, verdicts: verdicts, until: now.Add(deadline), bell: make(bell, 1),
	}
}

// Decide implements [ratelimit.Limiter]. It blocks for at most the longest store_deadline of their rules beyond what
// this node's own limiter does. Asks of other nodes travel while this one decides its own. It does not allocate where
// all keys are this node's own.
func (c *core) Decide(
	ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict,
) {
	if c.inStore() {
		c.decideInStore(ctx, now, asks, verdicts)
	} else {
		c.decideStoreless(ctx, now, asks, verdicts)
	}
}

// sleep waits for an event, at most until at. It returns the time then. A caller that leaves has no more time.
func (r *request) sleep(at instant) instant {
	r.driver.sleep(r.ctx, r.bell, at)
	if r.ctx.Err() != nil {
		r.until = 0
	}
	return r.clock()
}

// forward sends an ask to its owner. Without a way to that, the call has failed when it returns.
func (r *request) forward(a *ask, owner string) *call {
	call := r.callFor(a, &wire.Ask{})
	call.bell = r.bell
	r.view.Load().peers[owner].post(call)
	r.stats.forwarded.Add(1)
	return call
}

// await waits for the end of a call, at most until at. It returns the time then.
func (r *request) await(call *call, at instant) instant {
	now := r.clock()
	for !call.ended() && now < min(at, r.until) {
		now = r.sleep(min(at, r.until))
	}
	return now
}

// callFor is an ask as a call to its owner.
func (c *core) callFor(a *ask, m *wire.Ask) *call {
	m.Key = slices.Clone(a.Key) // it outlives the request, if that gives up
	m.Cost = int64(a.Cost)
	m.Kind = uint32(a.Kind)
	m.Rule = ruleBytes(a.Rule)
	if a.Kind.Settles() || a.OfSlot() {
		m.Window = int64(a.Window)
	}
	return newCall(func(f *wire.Frame, id uint64) {
		m.Id = id
		f.Asks = append(f.Asks, m)
	})
}

// without decides an ask without its owner. The call to the owner has failed or goes on. The verdict is one of
// on_store_failure, for metrics and Undo.
func (r *request) without(now instant, i int, call *call, v verdict) {
	r.stats.fallbacks.Add(1)
	v.Source, v.Reason = ratelimit.FromFallback, ratelimit.FallbackPeer
	if v.ResetAfter == 0 {
		v.ResetAfter = r.asks[i].Rule.Limit.Period()
	}
	r.verdicts[i] = v
	// An ask that the policy admits has cost what the owner charges for it after all, which therefore stays. One that
	// is refused has cost nothing. With a store, a caller that has left takes back what its asks have cost.
	if left := r.until == 0; v.OverLimit || left && r.inStore() {
		r.undoWhenAnswered(now, i, call)
	}
}

// undoWhenAnswered takes back the charge of an owner whose answer the request no longer awaits. It may have come
// meanwhile.
func (r *request) undoWhenAnswered(now instant, i int, call *call) {
	c, late, refused := r.core, r.asks[i], r.verdicts[i].OverLimit
	late.Key = slices.Clone(late.Key)
	call.after(func() {
		v, ok := c.read(now, &late, call)
		switch {
		case !ok && late.OfSlot(): // it may have been taken: to give back a slot that was not changes nothing
			v = verdict{Source: ratelimit.FromOwner, Charged: late.Cost, Window: late.Window}
		case !ok, v.OverLimit && refused: // a refusal is charged once
			return
		}
		c.Undo(now, []ask{late}, []verdict{v})
	})
}

// byPolicy decides without the key's owner, by the rule's on_store_failure.
func (c *core) byPolicy(now instant, a *ask) (v verdict) {
	switch policy := a.Rule.Coordination.OnStoreFailure; {
	case a.Kind == ratelimit.Peek && policy == ratelimit.FailOpen:
	// There is no decision to make: a refund is booked later.
	case a.Kind >= ratelimit.Refund && (!a.OfSlot() || policy != ratelimit.FailLocal):
	case policy == ratelimit.FailOpen:
		v.Charged = a.Cost
		if a.OfSlot() {
			v.Window = a.Window // by which it is given back
		}
	case policy == ratelimit.FailLocal:
		// Each node of the fleet may be deciding for itself now, so that each has a part of the limit only.
		v = c.fallback.DecideShare(now, a, 0)
	default: // the remainder is unknown
		v.OverLimit = true
	}
	return v
}

// runs calls do with each run of consecutive places for which is holds. The base decides asks of one call together, and
// other asks in between are not its own.
func runs(places int, is func(i int) bool, do func(from, to int)) {
	for from := 0; from < places; from++ {
		to := from
		for to < places && is(to) {
			to++
		}
		if to > from {
			do(from, to)
			from = to
		}
	}
}
