package routing

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// What a reply says of an ask.
const (
	answered  = 0
	notOwner  = 1
	malformed = 2
	notInTime = 3
)

// undo is the wire's fourth kind of ask. The first three are those of ratelimit.Kind. It is none of
// them, because it takes back a verdict instead of asking for one.
const undo = 3

// askAgain is the wait before another attempt at a node that is not the owner in its own view. Nodes do not see
// a change of the ring at the same time.
const askAgain = time.Millisecond

const (
	// silentFor is the time without asks to an owner after a request has waited for it in vain, unless it
	// answers meanwhile. After that one request tries it again. Without it, each request would spend half of
	// its time on an owner that does not answer.
	silentFor = 100 * time.Millisecond
	// aliveFor is the time after its last message in which an owner without an answer counts as late instead
	// of gone. A late owner may have spent the rest of the limit, so that no other node admits.
	aliveFor = 250 * time.Millisecond
)

// Decide implements [ratelimit.Limiter]. It blocks for at most the longest store_deadline of their rules beyond what
// this node's own limiter does. Asks of other nodes travel while this one decides its own.
func (c *core) Decide(
	ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict,
) {
	if w := c.decide(ctx, now, asks, verdicts); w != nil {
		ratelimit.Waits(ctx)
		// The bell may ring for nothing, so that all that waits is looked at again each time.
		for open := true; open; open = w.advance(c.clock()) {
			c.hands.sleep(w)
		}
	}
}

// decide decides as much as possible at once. The result, if any, waits. It does not allocate where all asks
// are this node's own.
func (c *core) decide(ctx context.Context, now instant, asks []ask, verdicts []verdict) *waiting {
	if !c.inStore() {
		return c.decideStoreless(ctx, now, asks, verdicts)
	}
	for i := range asks {
		if c.elsewhere(&asks[i]) != "" {
			return c.wait(ctx, now, asks, verdicts, 0)
		}
	}
	// All asks are this node's own, so that the base decides them in one call, and can claim for
	// them together.
	c.base.decide(ctx, now, 0, asks, verdicts)
	return nil
}

// decideStoreless decides asks one by one: own keys do not wait.
func (c *core) decideStoreless(ctx context.Context, now instant, asks []ask, verdicts []verdict) *waiting {
	for i := range asks {
		if a := &asks[i]; a.OfSlot() && a.Kind == ratelimit.Release {
			c.giveFallback(ctx, now, a)
		}
		// What has been decided so far stays decided; the request waits with the rest from here on.
		if c.own(ctx, now, asks[i:i+1], verdicts[i:i+1], nil, nil) != decided {
			return c.wait(ctx, now, asks, verdicts, i)
		}
	}
	return nil
}

// elsewhere is the other node that decides, "" if it is this one.
func (c *core) elsewhere(a *ask) string {
	// A settlement that an owner books late, or that its answer is lost of, would be booked twice or never. Where the
	// account is in a store, any node can book it.
	if a.Kind.Settles() && c.inStore() {
		return ""
	}
	// An empty ring has no owner, which reads as "this node" here. With a store that is right, for
	// the store decides. Without one, own looks at the ring itself and decides nothing.
	if owner := c.ownerOf(a.Key); owner != c.options.Addr {
		return owner
	}
	return ""
}

func (c *core) ownerOf(key []byte) string { return c.view.Load().ring.Owner(ring.HashOf(key)) }

// errand is what an owner does for an ask instead of a decision alone. reply adds what came of it to the answer.
type errand interface {
	do(now instant, l *leasing.Local, a *ask, v *verdict)
	reply(r *wire.Reply)
}

// owned is what came of an ask for a key that may be this node's own.
type owned uint8

const (
	decided owned = iota
	another       // node decides, perhaps
	unsure        // whether others have the account
)

// own decides on one key of this node's, if it can: where it has the account, where no other node can have
// it, or where a search found none.
func (c *core) own(
	ctx context.Context, now instant, asks []ask, verdicts []verdict, found *fetch, x errand,
) owned {
	hash := ring.HashOf(asks[0].Key)
	c.gate.RLock()
	defer c.gate.RUnlock()
	v := c.view.Load()
	switch {
	// This comes before the look at the account. A node that has slept still has its accounts, but others may
	// own their keys by now and count anew. Before all have acknowledged this node, another may decide as
	// well.
	case v.ring.Owner(hash) != c.options.Addr, c.lapsed(now), c.unconfirmed.Load():
		return another
	// Possession decides (docs/internals/peers.md). Each of these excludes that another node has the account.
	// All have handed over; it is here; the key has always been this node's own; or all nodes have stated, for
	// this ring, that they do not have it.
	case v.stable.Load() || c.local.Has(asks[0].Key) || v.kept(hash, c.options.Addr) ||
		found != nil && found.view == v && found.state == fetchAbsent:
		if x == nil {
			c.local.Decide(ctx, now, asks, verdicts)
		} else {
			x.do(now, c.local, &asks[0], &verdicts[0])
		}
		return decided
	}
	return unsure
}

// waiting is a request that was not decided whole at once. Its driver reports events to it, so that it needs
// neither goroutine nor clock.
type waiting struct {
	*core
	ctx      context.Context
	asks     []ask
	verdicts []verdict
	states   []askState
	until    instant // when its time is over
	// patience is how long before that it leases from the store itself where a key's
	// owner does not answer: half of its time, so that the store has the other.
	patience time.Duration
	bell     bell
	late     bool
	remote   bool // another node asks
}

// askState is how far one ask is.
//
//	routed --> away (another node was asked) --> decided
//	      '--> fetched (where is the account?) --> away, or decided here
//	      '--> again, after a while: the ring is changing
type askState struct {
	decided bool
	status  uint32 // of a peer's ask: what to reply, if not a verdict
	call    *call
	to      string
	fetch   *fetch
	again   instant
	// mine says that this node leases the key from the store itself, although another node owns it.
	mine   bool
	errand errand // nil: none
}

// wait makes a request wait that is decided up to from.
func (c *core) wait(ctx context.Context, now instant, asks []ask, verdicts []verdict, from int) *waiting {
	w := c.newWaiting(ctx, now, asks, verdicts)
	for i := range from {
		w.states[i].decided = true
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
		until: now.Add(deadline), patience: deadline / 2, bell: c.hands.bell(),
	}
}

// due is when it continues at the latest.
func (w *waiting) due() instant {
	due := w.until
	for i := range w.states {
		switch s := &w.states[i]; {
		// These need no time of their own: the end of a fetch rings the bell.
		case s.decided || s.fetch != nil:
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
	// late is never taken back. sleep also sets until to 0 when the caller has gone, and later decisions must
	// not begin to wait again.
	w.late = w.late || now >= w.until
	// What others decide travels while this node decides its own.
	for i := range w.asks {
		if s := &w.states[i]; !s.decided {
			s.decided = w.one(now, i)
		}
	}
	w.baseAsks(now)
	for i := range w.states {
		open = open || !w.states[i].decided
	}
	return open
}

// one goes on with one ask. It reports whether it is decided.
func (w *waiting) one(now instant, i int) bool {
	s, a := &w.states[i], &w.asks[i]
	if s.call != nil {
		// An answer that is there counts even if the time is over: the owner has charged for it.
		if s.call.ended() {
			return w.answered(now, i)
		}
		if w.late {
			w.abandon(now, i)
			return true
		}
		// The call goes on until the request's time is over, unless a lease from the store can take
		// its place.
		return now >= w.leaseAt(i) && w.instead(now, i)
	}
	if s.fetch != nil && !w.found(now, i) {
		return w.late && w.failed(now, i, nil)
	}
	switch {
	// found decides some asks itself.
	case s.decided:
		return true
	case w.late:
		return w.failed(now, i, nil)
	case s.mine:
		return false // baseAsks
	case now >= w.leaseAt(i): // the ring is changing, and no answer came
		return w.lease(i)
	case now < s.again:
		return false
	}
	owner := w.elsewhere(a)
	switch {
	case owner == "":
		return w.here(now, i)
	// An ask is forwarded once only. Two nodes that see different rings would otherwise send it to
	// and fro until its time is over; the first node asks again, of whom it then sees.
	case w.remote:
		s.status = notOwner
		return true
	case !w.inStore():
		if s.errand == nil && w.fromHand(now, a, &w.verdicts[i]) {
			return true
		}
	case w.hotHere.Use(now, a.Key): // from the store, as its owner does
		w.stats.hot.Add(1)
		w.base.decide(w.ctx, now, 0, w.asks[i:i+1], w.verdicts[i:i+1])
		return true
	}
	// Nothing is to be gained by waiting for an owner that has just let another request wait.
	if w.canLease(i) && w.view.Load().peers[owner].silent(now) {
		return w.lease(i)
	}
	w.forward(now, i, owner)
	return s.call.ended() && w.answered(now, i)
}

// canLease tells whether this node may lease another's key: the account is in a store, whose fences keep the
// limit for any claimant. Owners are only a saving there.
func (w *waiting) canLease(i int) bool {
	a := &w.asks[i]
	return w.inStore() && !w.remote && a.Kind == ratelimit.Spend
}

// leaseAt is from when on this node leases a key whose owner has not answered; never,
// if it may not.
func (w *waiting) leaseAt(i int) instant {
	if !w.canLease(i) || w.states[i].mine {
		return math.MaxInt64
	}
	return w.until.Add(-w.patience)
}

// lease has the base decide, by a lease of this node's own, because the key's owner
// does not. It returns false, for baseAsks does so, together with what else is there.
func (w *waiting) lease(i int) bool {
	w.stats.instead.Add(1)
	w.states[i].mine = true
	return false
}

// instead gives up an owner's answer, and leases. What the owner charges after all
// is taken back.
func (w *waiting) instead(now instant, i int) bool {
	s := &w.states[i]
	if l := w.view.Load().peers[s.to]; l != nil {
		// The requests after this one need not find out again; see silentFor.
		l.missed.Store(int64(now))
	}
	w.regret(now, i)
	s.call = nil
	return w.lease(i)
}

// here decides on a key of this node's own, or has its account looked for.
func (w *waiting) here(now instant, i int) bool {
	s := &w.states[i]
	if w.inStore() {
		return false // baseAsks
	}
	switch w.own(w.ctx, now, w.asks[i:i+1], w.verdicts[i:i+1], nil, s.errand) {
	case decided:
		return true
	// Either the ring has just changed, or this node may not own anything yet: both pass in a
	// moment, so that a request of this node tries again. A peer's ask goes back, for the peer may
	// see by then who decides.
	case another: // or this node has not joined yet
		if s.again = now.Add(askAgain); w.remote {
			s.status = notOwner
			return true
		}
		return false
	}
	// There are maxFetches already: this one gets its turn later, or runs out of time.
	if s.fetch = w.fetch(w.asks[i].Key, w.bell); s.fetch == nil {
		s.again = now.Add(askAgain)
		return false
	}
	// A fetch has ended at once where there is no node to ask.
	return w.one(now, i)
}

// found takes in what came of looking for an account. It reports whether the ask
// may go on.
func (w *waiting) found(now instant, i int) bool {
	s := &w.states[i]
	switch w.outcome(s.fetch) {
	case fetching:
		return false
	case fetchAgain:
		s.fetch, s.again = nil, now.Add(askAgain)
	case fetchAbsent:
		f := s.fetch
		// The others have spoken about a ring that is not in force any more. Under this one, a node
		// that joined since may have the account, so that everything is looked at again.
		if w.view.Load() != f.view {
			s.fetch = nil
			return true
		}
		// own looks at the view again, under the gate: the ring may turn between the comparison
		// above and the decision.
		if w.own(w.ctx, now, w.asks[i:i+1], w.verdicts[i:i+1], f, s.errand) == decided {
			s.fetch, s.decided = nil, true
			return true
		}
		s.fetch = nil
	}
	return true
}

// forward has an ask sent to its owner, with what this node has to say of a lease of its key.
func (w *waiting) forward(now instant, i int, owner string) {
	s, a := &w.states[i], &w.asks[i]
	var totals *leasing.Totals
	ask := &wire.Ask{}
	if x, ok := s.errand.(*setting); ok {
		ask.Change = x.message()
	} else if !w.inStore() && !w.remote {
		if m, ok := w.hotHere.Report(now, a); ok {
			totals = &m
		}
	}
	s.call = w.callFor(a, ask, totals)
	s.call.bell, s.to = w.bell, owner
	w.view.Load().peers[owner].post(s.call)
	w.stats.forwarded.Add(1)
}

// answered takes in a reply to an ask. What a node says is not its own is asked
// again, of whom this node then thinks it is.
func (w *waiting) answered(now instant, i int) bool {
	s, a := &w.states[i], &w.asks[i]
	say := s.call
	v, ok, moved := w.read(now, a, say)
	if x, is := s.errand.(*setting); is && ok {
		ok = x.heard(say.reply)
	}
	s.call = nil
	switch {
	case ok:
		w.verdicts[i] = v
		return true
	// The node that was asked is not the owner, or not any more. The next try goes by this node's own ring again.
	case moved:
		s.again = now.Add(askAgain)
		return w.late && w.failed(now, i, say)
	}
	return w.failed(now, i, say)
}

// abandon decides without the owner, whose answer did not come in time. If the
// ask is refused here, what the owner charges for it is taken back.
func (w *waiting) abandon(now instant, i int) {
	w.failed(now, i, w.states[i].call)
	// An ask that the policy admits has cost what the owner charged for it, which therefore stays.
	// One that is refused has cost nothing.
	if w.verdicts[i].OverLimit && !w.remote {
		w.regret(now, i)
	}
}

// regret takes back the charge of an owner whose answer no request awaits any more.
func (w *waiting) regret(now instant, i int) {
	late, say := w.asks[i], w.states[i].call
	late.Key = append([]byte(nil), late.Key...)
	c := w.core
	say.after(func() { // when the owner answers, or the conversation ends
		v, ok, _ := c.read(now, &late, say)
		switch {
		case !ok && late.OfSlot(): // it may have been taken: to give back a slot that was not changes nothing
			c.Undo(now, []ask{late}, []verdict{{Source: ratelimit.FromOwner, Charged: late.Cost, Window: late.Window}})
		case !ok || v.OverLimit:
		case !c.inStore() && !late.OfSlot() && c.hotHere.Credit(&late, v.Window):
			// The owner at that time gets it.
			if c.observe != nil {
				c.observe.undone(&late, &v)
			}
			c.hands.wake()
		default:
			c.Undo(now, []ask{late}, []verdict{v})
		}
	})
}

// failed decides without the key's owner: by a lease, where there is a store and time, else as the rule says.
// A peer's ask is not decided: the asking node has the rule's policy. say is the call that failed, or waits
// for its answer; nil: there was none.
func (w *waiting) failed(now instant, i int, say *call) bool {
	if !w.late && w.canLease(i) {
		return w.lease(i)
	}
	if w.remote || w.states[i].errand != nil {
		w.states[i].status = notInTime
		return true
	}
	a := &w.asks[i]
	// The store did not answer either, or there was no time for it.
	if w.canLease(i) && a.Rule.Coordination.OnStoreFailure != ratelimit.FailOpen &&
		w.view.Load().peers[w.elsewhere(a)].alive(now) {
		// The owner is late, and not gone: it may have spent the rest, and each node would admit some.
		w.stats.fallbacks.Add(1)
		w.verdicts[i] = verdict{
			OverLimit: true, Source: ratelimit.FromFallback, Reason: ratelimit.FallbackPeer,
			ResetAfter: a.Rule.Limit.Period(),
		}
		return true
	}
	w.verdicts[i] = w.fail(w.ctx, now, a)
	w.later(a, &w.verdicts[i], say)
	return true
}

// baseAsks has the base decide its part, runs of asks together.
func (w *waiting) baseAsks(now instant) {
	for i := 0; i < len(w.asks); i++ {
		from := i
		for i < len(w.asks) && w.forBase(now, i) {
			i++
		}
		// The ask at i is not for the base, and the loop goes on behind it. It is looked at again
		// at the next advance.
		if i == from {
			continue
		}
		asks, within := w.baseTime(now, from, i)
		w.base.decide(w.ctx, now, within, asks, w.verdicts[from:i])
		for j := from; j < i; j++ {
			w.decidedByBase(now, j)
		}
	}
}

// baseTime is the base's ask, and its longest wait; 0: its own time. For keys of other owners it has the rest
// of the request's time, and leases no more than the request costs. Tokens that are split among nodes are
// wasted on requests that cost more than either part.
func (w *waiting) baseTime(now instant, from, to int) (asks []ask, within time.Duration) {
	asks = w.asks[from:to]
	if !slices.ContainsFunc(w.states[from:to], func(s askState) bool { return s.mine }) {
		return asks, 0
	}
	// The rules are replaced in a copy. The asks are the caller's, who undoes and counts by them.
	asks = slices.Clone(asks)
	for i := range asks {
		if w.states[from+i].mine {
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
	s.decided = true
	if !s.mine || v.OverLimit || v.Source != ratelimit.FromFallback || v.Reason != ratelimit.FallbackDeadline ||
		a.Rule.Coordination.OnStoreFailure == ratelimit.FailOpen {
		return
	}
	// What the base had admitted was charged to this node's budget for outages, which is given
	// back.
	w.base.Undo(now, w.asks[i:i+1], w.verdicts[i:i+1])
	v.OverLimit, v.Charged, v.Booked, v.Remaining = true, 0, 0, 0
}

// forBase tells whether the base decides an ask now: with a store, this node's own
// keys and those that it leases instead of their owner.
func (w *waiting) forBase(now instant, i int) bool {
	s, a := &w.states[i], &w.asks[i]
	if s.decided || s.call != nil || now < s.again && !s.mine {
		return false
	}
	return w.inStore() && (s.mine || w.elsewhere(a) == "")
}

// read takes a verdict from a reply, if there is one.
func (c *core) read(now instant, a *ask, say *call) (v verdict, ok, elsewhere bool) {
	v, ok = verdictOf(a, say)
	switch {
	case !ok && say.err == nil && say.reply != nil && say.reply.GetStatus() == answered:
		c.malformed(rejectedReply)
	case ok && say.reply.GetHot():
		c.hotHere.Start(now, a.Key)
	}
	if ok && v.OverLimit && !c.inStore() {
		c.hotHere.Refused(now, a, &v)
	}
	return v, ok, say.err == nil && say.reply != nil && say.reply.GetStatus() == notOwner
}

// verdictOf is what an owner answered; ok is false if it did not, or if that cannot be an answer.
func verdictOf(a *ask, say *call) (v verdict, ok bool) {
	reply := say.reply
	// No owner charges more than an ask costs. A peer that says so could make Undo give back tokens
	// that were never spent.
	if say.err != nil || reply == nil || reply.GetStatus() != answered ||
		!charges(reply, a.Cost) || reply.GetRemaining() > moved.MostTokens || reply.GetWindow() < 0 {
		return verdict{}, false
	}
	limit := a.Rule.Limit
	v = verdict{
		OverLimit: reply.GetOverLimit(), Source: ratelimit.FromOwner,
		Remaining: ratelimit.Tokens(max(0, reply.GetRemaining())),
		Charged:   ratelimit.Tokens(reply.GetCharged()), Debt: ratelimit.Tokens(reply.GetDebt()),
		Window: ratelimit.Window(reply.GetWindow()),
	}
	if o := reply.GetOverride(); o != nil {
		const most = int64(ratelimit.MaxLimit)
		limit.Requests, limit.Burst = ratelimit.Tokens(o.GetRequests()), ratelimit.Tokens(o.GetBurst())
		if !limit.Overridable() ||
			o.GetRequests() < 0 || o.GetRequests() > most || o.GetBurst() < 0 || o.GetBurst() > most {
			return verdict{}, false
		}
		own := limit
		v.Limit = &own
	}
	v.ResetAfter = resetOf(&limit, reply.GetResetUs())
	return v, true
}

// charges tells whether the charge in a message can be that of an ask of that cost.
func charges(m interface {
	GetCharged() int64
	GetDebt() int64
}, cost ratelimit.Tokens,
) bool {
	return m.GetCharged() >= 0 && m.GetDebt() >= 0 && m.GetCharged() <= int64(cost)-m.GetDebt()
}

// resetOf is how long an owner says that a limit takes to be whole again, at most
// as long as that can take.
func resetOf(l *ratelimit.Limit, us int64) time.Duration {
	us = min(max(0, us), math.MaxInt64/int64(time.Microsecond))
	return min(time.Duration(us)*time.Microsecond, longest(l))
}

// longest is the longest that a limit can take to be whole again: the rest of a
// window, once more where the owner's clock was ahead; or a bucket's refill.
func longest(l *ratelimit.Limit) time.Duration {
	periods := 2.0
	if l.Algorithm == ratelimit.TokenBucket {
		periods += float64(l.Burst) / float64(max(1, l.Requests))
	}
	return time.Duration(min(periods*float64(l.Period()), math.MaxInt64/2))
}

// fail decides without the key's owner, as the rule's on_store_failure says.
func (c *core) fail(ctx context.Context, now instant, a *ask) verdict {
	c.stats.fallbacks.Add(1)
	var v verdict
	switch policy := a.Rule.Coordination.OnStoreFailure; {
	// There is no decision to make: a peek is answered, and a refund is reported later.
	case a.Kind != ratelimit.Spend && (!a.OfSlot() || policy != ratelimit.FailLocal):
	case policy == ratelimit.FailOpen:
		if v.Charged = a.Cost; a.OfSlot() {
			v.Window = a.Window // by which it is given back
		}
	case policy == ratelimit.FailLocal:
		// Each node of the fleet may be deciding for itself now, so that each has a part of the
		// limit only.
		own := *a
		own.Rule = a.Rule.LocalShare(0)
		var one [1]verdict
		c.fallback.Decide(ctx, now, []ask{own}, one[:])
		v = one[0]
	default: // the remainder is unknown
		v.OverLimit = true
	}
	v.Source, v.Reason = ratelimit.FromFallback, ratelimit.FallbackPeer
	if v.ResetAfter == 0 {
		v.ResetAfter = a.Rule.Limit.Period()
	}
	return v
}

// giveFallback gives back a slot that this node admitted without the key's owner, if it did.
func (c *core) giveFallback(ctx context.Context, now instant, a *ask) {
	own := *a
	own.Rule = a.Rule.LocalShare(0)
	c.fallback.Decide(ctx, now, []ask{own}, make([]verdict, 1))
}

// Undo implements [ratelimit.Limiter]. The owner of a charge is asked to take it back, without a wait.
func (c *core) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		c.undo(now, asks[i:i+1], verdicts[i:i+1])
	}
}

func (c *core) undo(now instant, asks []ask, verdicts []verdict) {
	a, v := &asks[0], &verdicts[0]
	owner := c.elsewhere(a)
	switch {
	// This comes first, for any present owner: no owner was ever charged.
	case v.Source == ratelimit.FromFallback && v.Reason == ratelimit.FallbackPeer:
		c.undoFallback(now, a, v)
	// The owner of now has the account, even if another charged it: accounts move with their keys.
	case v.Source == ratelimit.FromOwner && owner != "":
		c.undoAt(owner, a, v)
	case v.Source == ratelimit.FromLease && owner != "" && !c.inStore(): // from the tokens in hand of a hot key
		if !c.hotHere.Untake(a.Key, v) {
			c.undoAt(owner, a, v)
		}
	case v.Source == ratelimit.FromOwner: // it is this node's own by now
		own := *v
		// The base has no owners; to it this is a charge of its own.
		own.Source = ratelimit.FromLease
		c.base.Undo(now, asks, []verdict{own})
		if c.observe != nil { // the owner at that time had reported its decision
			c.observe.undone(a, v)
		}
	default:
		c.base.Undo(now, asks, verdicts)
	}
}

// undoFallback gives back the charge to this node's share, without an owner, and reduces the report to the
// owner.
func (c *core) undoFallback(now instant, a *ask, v *verdict) {
	if a.Kind != ratelimit.Spend {
		return
	}
	if !c.inStore() && !v.OverLimit && !a.OfSlot() {
		c.hotHere.Credit(a, 0)
	}
	if a.Rule.Coordination.OnStoreFailure == ratelimit.FailLocal {
		own, charged := *a, *v
		own.Rule, charged.Source = a.Rule.LocalShare(0), ratelimit.FromLease
		c.fallback.Undo(now, []ask{own}, []verdict{charged})
	}
}

func (c *core) undoAt(owner string, a *ask, v *verdict) {
	if a.Kind != ratelimit.Spend {
		return
	}
	m := &wire.Ask{
		Window: int64(v.Window), OverLimit: v.OverLimit, Charged: int64(v.Charged), Debt: int64(v.Debt),
	}
	say := c.callFor(a, m, nil)
	m.Kind = undo
	c.view.Load().peers[owner].post(say)
}
