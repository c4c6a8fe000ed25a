package routing

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

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
		Audit:     r.AuditName(),
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
	audit                            string
}

const (
	maxRules     = 10_000
	maxAuditName = 1 << 10
)

func (c *ruleCache) get(m *wire.Rule) (*ratelimit.Rule, error) {
	k := ruleKey{
		m.GetAlgorithm(), m.GetUnit(), m.GetMultiplier(), m.GetRequests(), m.GetBurst(), m.GetRefundDenied(), m.GetEager(),
		m.GetLeaseFixed(), m.GetLeaseMin(), m.GetLeaseMax(), m.GetLeaseTtlUs(), m.GetAudit(),
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
		k.fixed < 0 || k.fixed > most || k.leaseMin < 0 || k.leaseMin > most || k.leaseMax < 0 || k.leaseMax > most || k.multiplier > 1<<20 || len(k.audit) > maxAuditName {
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
	if c.Audit = k.audit != ""; c.Audit {
		r.Domain, r.Path, _ = strings.Cut(k.audit, ".")
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
