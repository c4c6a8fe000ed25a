package routing

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// What a reply says of an ask.
const (
	answered  = 0
	notOwner  = 1
	malformed = 2
	notInTime = 3
)

// undo is the wire's fourth kind of ask.
const undo = 3

// forwarded is an ask that another node decides.
type forwarded struct {
	*call
	i     int // of the ask
	owner string
}

// Decide implements [ratelimit.Limiter]. It blocks for at most
// ratelimit.StoreDeadline beyond what this node's own limiter does. Asks of
// other nodes travel while this one decides its own.
func (r *Router) Decide(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	routed := false
	for i := range asks {
		routed = routed || asks[i].Rule.Coordination.Mode == ratelimit.Routing
	}
	if !routed {
		r.base.Decide(ctx, now, asks, verdicts)
		return
	}
	var away []forwarded
	for i := range asks {
		if owner := r.owner(&asks[i]); owner != "" {
			if r.hotHere.use(now, asks[i].Key) {
				r.stats.hot.Add(1)
				r.leases().Decide(ctx, now, asks[i:i+1], verdicts[i:i+1])
				away = append(away, forwarded{nil, i, owner})
				continue
			}
			away = append(away, forwarded{r.forward(&asks[i], owner), i, owner})
		}
	}
	if len(away) == 0 {
		r.decideHere(ctx, now, asks, verdicts)
	} else {
		at := 0
		for _, f := range away { // what lies between them is this node's
			r.decideHere(ctx, now, asks[at:f.i], verdicts[at:f.i])
			at = f.i + 1
		}
		r.decideHere(ctx, now, asks[at:], verdicts[at:])
	}
	if len(away) > 0 {
		r.collect(ctx, now, asks, verdicts, away)
	}
}

// leases is what decides for hot keys of other owners.
func (r *Router) leases() ratelimit.Limiter {
	if r.hotFleet != nil {
		return r.hotFleet
	}
	return r.base // the account in the store is the same
}

// owner is the other node that decides, "" if it is this one.
func (r *Router) owner(a *ratelimit.Ask) string {
	if a.Rule.Coordination.Mode != ratelimit.Routing {
		return ""
	}
	owner := r.view.Load().ring.Owner(HashOf(a.Key))
	if owner == r.options.Addr {
		return ""
	}
	return owner
}

// Owner is the other node that decides under mode routing, "" if it is this one.
func (r *Router) Owner(a *ratelimit.Ask) string { return r.owner(a) }

// decideHere decides what is this node's. Where budgets are in this process, it
// waits until whoever had them before has handed them over.
func (r *Router) decideHere(ctx context.Context, now instant, asks []ratelimit.Ask, verdicts []verdict) {
	if len(asks) == 0 {
		return
	}
	if r.local == nil {
		r.base.Decide(ctx, now, asks, verdicts)
		return
	}
	for i := range asks {
		if asks[i].Rule.Coordination.Mode != ratelimit.Routing {
			r.base.Decide(ctx, now, asks[i:i+1], verdicts[i:i+1])
			continue
		}
		var err error
		switch verdicts[i], err = r.own(ctx, now, &asks[i], ""); {
		case errors.Is(err, errMoved): // a moment ago
			owner := r.view.Load().ring.Owner(HashOf(asks[i].Key))
			r.collect(ctx, now, asks, verdicts, []forwarded{{r.forward(&asks[i], owner), i, owner}})
		case err != nil:
			verdicts[i] = r.fail(ctx, now, &asks[i])
		}
	}
}

var (
	errMoved = errors.New("the key is another node's")
	errLate  = errors.New("the key was not handed over in time")
)

// own decides for a key that is this node's.
func (r *Router) own(ctx context.Context, now instant, a *ratelimit.Ask, previous string) (v verdict, err error) {
	hash, until := HashOf(a.Key), instant(0)
	for {
		r.gate.RLock()
		w := r.view.Load()
		if owner := w.ring.Owner(hash); owner != r.options.Addr && owner != "" {
			r.gate.RUnlock()
			return verdict{}, errMoved
		}
		from := w.heirOf(hash, previous, r.options.Addr)
		if from == "" {
			var one [1]verdict
			r.base.Decide(ctx, now, []ratelimit.Ask{*a}, one[:])
			r.gate.RUnlock()
			return one[0], nil
		}
		r.gate.RUnlock()
		if until == 0 {
			until = r.clock().Add(ratelimit.StoreDeadline)
		}
		if r.clock() >= until {
			return verdict{}, errLate
		}
		bounded, cancel := context.WithTimeout(ctx, until.Sub(r.clock()))
		r.pull(bounded, w, from)
		cancel()
	}
}

// heirOf is who may have the key's account still, "" if nobody: whoever owned
// it before, by this node's view or the asking one's, and has not handed over
// all.
func (v *view) heirOf(hash uint64, previous, self string) string {
	if v.stable.Load() {
		return ""
	}
	for _, from := range [2]string{v.before.owner(hash), previous} {
		if from == "" || from == self || v.peers[from] == nil && v.joined {
			continue
		}
		v.mu.Lock()
		done := v.pulls[from]
		v.mu.Unlock()
		if done == nil {
			return from
		}
		select {
		case <-done:
		default:
			return from
		}
	}
	return ""
}

func (r *Ring) owner(hash uint64) string {
	if r == nil {
		return ""
	}
	return r.Owner(hash)
}

// forward has an ask sent to its owner.
func (r *Router) forward(a *ratelimit.Ask, owner string) *call {
	v := r.view.Load()
	m := &wire.Ask{Key: a.Key, Cost: int64(a.Cost), Kind: uint32(a.Kind), Rule: ruleMessage(a.Rule)}
	if !v.stable.Load() {
		if before := v.before.owner(HashOf(a.Key)); before != owner {
			m.Previous = before
		}
	}
	m.Key = append([]byte(nil), a.Key...) // it outlives the request, if that gives up
	c := newCall(func(f *wire.Frame, id uint64) {
		m.Id = id
		f.Asks = append(f.Asks, m)
	})
	if p := v.peers[owner]; p == nil {
		c.err = errPeerGone
		close(c.done)
	} else if !p.post(c) {
		close(c.done)
	}
	r.stats.forwarded.Add(1)
	return c
}

// collect waits for what was forwarded. What a node says is not its own is
// asked again, of whom this node then thinks it is: when the ring changes, not
// all see it at once.
func (r *Router) collect(ctx context.Context, now instant, asks []ratelimit.Ask, verdicts []verdict, away []forwarded) {
	timer := time.NewTimer(ratelimit.StoreDeadline)
	defer timer.Stop()
	late := false
	for _, f := range away {
		if f.call == nil {
			continue // leased, and decided
		}
		a := &asks[f.i]
		for {
			if !late {
				select {
				case <-f.done:
				default:
					select {
					case <-f.done:
					case <-timer.C:
						late = true
					case <-ctx.Done():
						late = true
					}
				}
			}
			var ok, moved bool
			if verdicts[f.i], ok, moved = r.read(now, a, f.call); ok {
				break
			}
			if moved && !late {
				select {
				case <-timer.C:
					late = true
				case <-time.After(time.Millisecond):
				}
				if owner := r.owner(a); owner != "" {
					f.call = r.forward(a, owner)
					continue
				}
				var err error
				if verdicts[f.i], err = r.ownHere(ctx, now, a); err == nil {
					break
				}
			}
			verdicts[f.i] = r.fail(ctx, now, a)
			if late && verdicts[f.i].OverLimit {
				r.giveBack(now, a, f.call)
			}
			break
		}
	}
}

// giveBack undoes what an owner charges for an ask that was refused here, for
// it could not be waited for.
func (r *Router) giveBack(now instant, a *ratelimit.Ask, c *call) {
	late := *a
	late.Key = append([]byte(nil), a.Key...)
	go func() { // until the owner answers, or the conversation ends
		<-c.done
		if v, ok, _ := r.read(now, &late, c); ok && !v.OverLimit {
			r.Undo(now, []ratelimit.Ask{late}, []verdict{v})
		}
	}()
}

func (r *Router) ownHere(ctx context.Context, now instant, a *ratelimit.Ask) (verdict, error) {
	if r.local != nil {
		return r.own(ctx, now, a, "")
	}
	var v [1]verdict
	r.base.Decide(ctx, now, []ratelimit.Ask{*a}, v[:])
	return v[0], nil
}

// read takes a verdict from a reply, if there is one.
func (r *Router) read(now instant, a *ratelimit.Ask, c *call) (v verdict, ok, moved bool) {
	select {
	case <-c.done:
	default:
		return verdict{}, false, false
	}
	reply := c.reply
	if c.err != nil || reply == nil || reply.GetStatus() != answered {
		return verdict{}, false, reply != nil && reply.GetStatus() == notOwner
	}
	if reply.GetHot() {
		r.hotHere.start(now, a.Key)
	}
	return verdict{
		OverLimit: reply.GetOverLimit(), Source: ratelimit.FromOwner, Remaining: ratelimit.Tokens(max(0, reply.GetRemaining())),
		Charged: ratelimit.Tokens(max(0, reply.GetCharged())), ResetAfter: time.Duration(max(0, reply.GetResetUs())) * time.Microsecond,
		Window: ratelimit.Window(reply.GetWindow()),
	}, true, false
}

// fail decides without the key's owner, as the rule's on_store_failure says.
func (r *Router) fail(ctx context.Context, now instant, a *ratelimit.Ask) verdict {
	r.stats.fallbacks.Add(1)
	var v verdict
	switch policy := a.Rule.Coordination.OnStoreFailure; {
	case a.Kind != ratelimit.Spend:
	case policy == ratelimit.FailOpen:
		v.Charged = a.Cost
	case policy == ratelimit.FailLocal:
		own := *a
		own.Rule = a.Rule.LocalShare()
		var one [1]verdict
		r.fallback.Decide(ctx, now, []ratelimit.Ask{own}, one[:])
		v = one[0]
	default: // nothing is known of what is left
		v.OverLimit = true
	}
	v.Source, v.Reason = ratelimit.FromFallback, ratelimit.FallbackPeer
	if v.ResetAfter == 0 {
		v.ResetAfter = a.Rule.Limit.Period()
	}
	return v
}

// Undo implements [ratelimit.Limiter]. What an owner charged it is told to take
// back, and nobody waits for that.
func (r *Router) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		v := &verdicts[i]
		if owner := r.owner(&asks[i]); owner != "" && r.hotFleet != nil && v.Source != ratelimit.FromOwner && v.Source < ratelimit.FromOverflow {
			r.hotFleet.Undo(now, asks[i:i+1], verdicts[i:i+1])
			continue
		}
		if v.Source != ratelimit.FromOwner {
			r.base.Undo(now, asks[i:i+1], verdicts[i:i+1])
			continue
		}
		view := r.view.Load()
		p := view.peers[view.ring.Owner(HashOf(asks[i].Key))]
		if p == nil || asks[i].Kind != ratelimit.Spend {
			continue
		}
		m := &wire.Ask{
			Key: append([]byte(nil), asks[i].Key...), Cost: int64(asks[i].Cost), Kind: undo, Rule: ruleMessage(asks[i].Rule),
			Window: int64(v.Window), OverLimit: v.OverLimit, Charged: int64(v.Charged),
		}
		p.post(newCall(func(f *wire.Frame, id uint64) {
			m.Id = id
			f.Asks = append(f.Asks, m)
		}))
	}
}
