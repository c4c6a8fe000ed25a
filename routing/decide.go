package routing

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

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
	v.Source = ratelimit.FromFallback
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

var errMessage = errors.New("a message makes no sense")

// serve answers one frame of a peer. spawn runs what may wait.
func (r *Router) serve(ctx context.Context, from string, f *wire.Frame, answer func([]*wire.Reply), spawn func(func())) {
	if id := f.GetPing(); id != 0 {
		answer([]*wire.Reply{{Id: id}})
	}
	for _, p := range f.GetPresences() {
		reply := &wire.Reply{Id: p.GetId()}
		if !r.presence(from, p.GetHere()) && p.GetHere() {
			reply.Status = notOwner
		}
		answer([]*wire.Reply{reply})
	}
	if ts := f.GetTransfers(); len(ts) > 0 {
		r.adopt(from, ts)
		var replies []*wire.Reply
		for _, t := range ts {
			if t.GetId() != 0 {
				replies = append(replies, &wire.Reply{Id: t.GetId()})
			}
		}
		answer(replies)
	}
	for _, p := range f.GetPulls() {
		spawn(func() {
			r.handedTo(ctx, from)
			answer([]*wire.Reply{{Id: p.GetId()}})
		})
	}
	if claims := f.GetClaims(); len(claims) > 0 {
		spawn(func() { answer(r.settleFor(claims)) })
	}
	if asks := f.GetAsks(); len(asks) > 0 {
		spawn(func() { answer(r.decideFor(ctx, asks)) })
	}
}

// handedTo waits until a node has all that is its own.
func (r *Router) handedTo(ctx context.Context, to string) {
	for ctx.Err() == nil { // until the way back to it is open, and this node has left if it is leaving
		r.mu.Lock()
		leaving := r.left
		r.mu.Unlock()
		if ring := r.view.Load().ring; ring.Has(to) && (!leaving || !ring.Has(r.options.Addr)) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	r.view.Load().awaitHanded(ctx, to)
}

// adopt takes in accounts; what is not this node's goes on to whose it is.
func (r *Router) adopt(from string, ts []*wire.Transfer) {
	if r.local == nil {
		r.stats.malformed.Add(uint64(len(ts))) // a store has the accounts
		return
	}
	astray := false
	for _, t := range ts {
		if len(t.GetKey()) == 0 || len(t.GetKey()) > ratelimit.MaxKeyLen || t.GetCharged() < 0 || t.GetPrevious() < 0 || t.GetWindow() < 0 ||
			t.GetLevel() < 0 || t.GetCarry() < 0 || t.GetNow() < 0 || t.GetFence() < 0 {
			r.stats.malformed.Add(1)
			continue
		}
		r.gate.RLock()
		r.local.Adopt(r.clock(), t.GetKey(), accountOf(t))
		owner := r.view.Load().ring.Owner(HashOf(t.GetKey()))
		r.gate.RUnlock()
		astray = astray || owner != r.options.Addr && owner != from
	}
	if astray {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.turn()
	}
}

// decideFor decides what a peer asks.
func (r *Router) decideFor(ctx context.Context, msgs []*wire.Ask) []*wire.Reply {
	now := r.clock()
	bounded, cancel := context.WithTimeout(ctx, ratelimit.StoreDeadline)
	defer cancel()
	replies := make([]*wire.Reply, len(msgs))
	asks := make([]ratelimit.Ask, 0, len(msgs))
	of := make([]int, 0, len(msgs))
	previous := make([]string, 0, len(msgs))
	for i, m := range msgs {
		replies[i] = &wire.Reply{Id: m.GetId()}
		a, err := r.askOf(m)
		switch {
		case err != nil:
			r.stats.malformed.Add(1)
			replies[i].Status = malformed
		case m.GetKind() == undo:
			r.base.Undo(now, []ratelimit.Ask{a}, []verdict{{
				OverLimit: m.GetOverLimit(), Charged: ratelimit.Tokens(m.GetCharged()), Window: ratelimit.Window(m.GetWindow()),
			}})
		default:
			asks, of, previous = append(asks, a), append(of, i), append(previous, m.GetPrevious())
		}
	}
	verdicts := make([]verdict, len(asks))
	mine := make([]bool, len(asks))
	errs := make([]error, len(asks))
	if r.local == nil {
		v := r.view.Load()
		for i := range asks {
			owner := v.ring.Owner(HashOf(asks[i].Key))
			mine[i] = owner == r.options.Addr || owner == ""
		}
		r.decideMine(bounded, now, asks, verdicts, mine)
	} else {
		for i := range asks {
			verdicts[i], errs[i] = r.own(bounded, now, &asks[i], previous[i])
			mine[i] = !errors.Is(errs[i], errMoved)
		}
	}
	for i := range asks {
		reply := replies[of[i]]
		switch v := &verdicts[i]; {
		case !mine[i]:
			r.stats.notOwner.Add(1)
			reply.Status = notOwner
		case v.Source == ratelimit.FromFallback || v.Err != nil || errs[i] != nil:
			reply.Status = notInTime // whoever asked has the rule's policy
		default:
			r.stats.received.Add(1)
			reply.OverLimit, reply.Remaining, reply.Charged = v.OverLimit, int64(v.Remaining), int64(v.Charged)
			reply.ResetUs, reply.Window = v.ResetAfter.Microseconds(), int64(v.Window)
			reply.Hot = r.hot.hit(now, asks[i].Key)
		}
	}
	return replies
}

// decideMine decides together, for they may wait, what is this node's.
func (r *Router) decideMine(ctx context.Context, now instant, asks []ratelimit.Ask, verdicts []verdict, mine []bool) {
	some := make([]ratelimit.Ask, 0, len(asks))
	for i := range asks {
		if mine[i] {
			some = append(some, asks[i])
		}
	}
	got := make([]verdict, len(some))
	r.base.Decide(ctx, now, some, got)
	for i := range asks {
		if mine[i] {
			verdicts[i], got = got[0], got[1:]
		}
	}
}

// askOf reads an ask, which may hold anything.
func (r *Router) askOf(m *wire.Ask) (ratelimit.Ask, error) {
	if len(m.GetKey()) == 0 || len(m.GetKey()) > ratelimit.MaxKeyLen || m.GetCost() < 0 || m.GetKind() > undo || m.GetCharged() < 0 {
		return ratelimit.Ask{}, errMessage
	}
	rule, err := r.rules.get(m.GetRule())
	if err != nil {
		return ratelimit.Ask{}, err
	}
	kind := ratelimit.Kind(m.GetKind())
	if m.GetKind() == undo {
		kind = ratelimit.Spend
	}
	if kind != ratelimit.Peek && m.GetCost() == 0 {
		return ratelimit.Ask{}, errMessage
	}
	return ratelimit.Ask{Rule: rule, Key: m.GetKey(), Cost: ratelimit.Tokens(m.GetCost()), Kind: kind}, nil
}

// ruleMessage is what an owner must know of a rule.
func ruleMessage(r *ratelimit.Rule) *wire.Rule {
	c := &r.Coordination
	return &wire.Rule{
		Algorithm: uint32(r.Limit.Algorithm), Unit: uint32(r.Limit.Unit), Multiplier: r.Limit.Multiplier,
		Requests: int64(r.Limit.Requests), Burst: int64(r.Limit.Burst),
		RefundDenied: c.OnDeny == ratelimit.DenyRefunds, Eager: c.Reclaim == ratelimit.ReclaimEager,
		LeaseFixed: int64(c.Lease.Fixed), LeaseMin: int64(c.Lease.Min), LeaseMax: int64(c.Lease.Max), LeaseTtlUs: c.Lease.TTL.Microseconds(),
	}
}

// ruleCache keeps the rules that peers ask under, by what they say.
type ruleCache struct {
	mu    sync.RWMutex
	rules map[ruleKey]*ratelimit.Rule // guarded by mu
}

type ruleKey struct {
	algorithm, unit, multiplier      uint32
	requests, burst                  int64
	refund, eager                    bool
	fixed, leaseMin, leaseMax, ttlUs int64
}

const maxRules = 10_000

func (c *ruleCache) get(m *wire.Rule) (*ratelimit.Rule, error) {
	k := ruleKey{
		m.GetAlgorithm(), m.GetUnit(), m.GetMultiplier(), m.GetRequests(), m.GetBurst(), m.GetRefundDenied(), m.GetEager(),
		m.GetLeaseFixed(), m.GetLeaseMin(), m.GetLeaseMax(), m.GetLeaseTtlUs(),
	}
	c.mu.RLock()
	r := c.rules[k]
	c.mu.RUnlock()
	if r != nil {
		return r, nil
	}
	r, err := k.rule()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rules == nil || len(c.rules) >= maxRules {
		c.rules = map[ruleKey]*ratelimit.Rule{}
	}
	c.rules[k] = r
	return r, nil
}

func (k *ruleKey) rule() (*ratelimit.Rule, error) {
	const most = 1<<32 - 1
	r := &ratelimit.Rule{Domain: "(peer)", Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{}}
	if int(k.algorithm) >= len(ratelimit.Algorithms) || k.unit > 255 || k.requests < 0 || k.requests > most || k.burst < 0 || k.burst > most ||
		k.fixed < 0 || k.fixed > most || k.leaseMin < 0 || k.leaseMin > most || k.leaseMax < 0 || k.leaseMax > most || k.multiplier > 1<<20 {
		return nil, errMessage
	}
	r.Limit = ratelimit.Limit{
		Algorithm: ratelimit.Algorithm(k.algorithm), Unit: ratelimit.Unit(k.unit), Multiplier: k.multiplier,
		Requests: ratelimit.Tokens(k.requests), Burst: ratelimit.Tokens(k.burst),
	}
	if r.Limit.Period() <= 0 || r.Limit.Algorithm == ratelimit.TokenBucket && k.burst == 0 {
		return nil, errMessage
	}
	c := &r.Coordination
	c.OnStoreFailure = ratelimit.FailClosed // the asking node has the rule's own policy
	if k.refund {
		c.OnDeny = ratelimit.DenyRefunds
	}
	if k.eager {
		c.Reclaim = ratelimit.ReclaimEager
	}
	c.Lease = ratelimit.LeaseSize{
		Fixed: ratelimit.Tokens(k.fixed), Min: ratelimit.Tokens(k.leaseMin), Max: ratelimit.Tokens(k.leaseMax),
		TTL: time.Duration(min(max(k.ttlUs, 1), int64(ratelimit.MaxLeaseTTL/time.Microsecond))) * time.Microsecond,
	}
	if errs := c.Validate(); len(errs) > 0 {
		return nil, errMessage
	}
	return r, nil
}

// hotLeases are the keys of other owners that this node leases for itself.
type hotLeases struct {
	n  atomic.Int64
	mu sync.Mutex
	m  map[uint64]*hotLease // guarded by mu
}

type hotLease struct {
	name  string
	since instant
	uses  int
}

const (
	hotFor  = 2 * time.Second
	hotMost = 1024
	hotCool = hotLeast / 4 // uses a second here, below which the key goes back to its owner
)

func (h *hotLeases) start(now instant, key []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m == nil {
		h.m = map[uint64]*hotLease{}
	}
	if len(h.m) >= hotMost {
		return
	}
	hash := xxhash.Sum64(key)
	if h.m[hash] == nil {
		h.m[hash] = &hotLease{name: string(key), since: now}
		h.n.Store(int64(len(h.m)))
	}
}

// names are the keys that are leased here.
func (h *hotLeases) names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, l := range h.m {
		all = append(all, l.name)
	}
	return all
}

// use tells whether a key is hot here, and counts that it was asked for.
func (h *hotLeases) use(now instant, key []byte) bool {
	if h.n.Load() == 0 {
		return false
	}
	hash := xxhash.Sum64(key)
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.m[hash]
	if l == nil {
		return false
	}
	l.uses++
	if age := now.Sub(l.since); age >= hotFor {
		if float64(l.uses) < hotCool*age.Seconds() {
			delete(h.m, hash)
			h.n.Store(int64(len(h.m)))
			return false
		}
		l.since, l.uses = now, 0
	}
	return true
}
