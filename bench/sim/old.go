package sim

import (
	"context"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Mode routing is still played on leasing.Stepped and the ledger that judges every claim. All that only it needs is
// here, so that it can be deleted as one.

// oldStore is the ledger of mode routing, with the wires to it.
type oldStore struct {
	*store
	ledger *ledger.LosableMemory
	copies map[int64]*ledger.Memory // by the instant of the failover that goes on with it
}

func (s *store) openOld() {
	memory := ledger.NewMemory(max(1<<16, 4*max(1, s.Load.Keys)), s.ledgerTime).Predictable()
	s.old = &oldStore{s, ledger.NewLosable(memory), map[int64]*ledger.Memory{}}
	s.old.ledger.OnRecall = s.old.recall
}

// routed tells whether the run is one of mode routing. No change of a rule makes it one.
func (w *world) routed() bool { return w.Rule.Coordination.Mode == ratelimit.Routing }

func (n *node) startOld(table int, wall time.Time, random func() float64) {
	n.old = leasing.NewStepped(n.name, table, n.clock, wall, n.after, random)
	if n.slot%2 == 0 {
		n.old.KeepBusy(0) // others pack what they know only where many keys are asked for
	}
	n.old.SetDrift(n.keeper)
	n.old.Hears()
	n.old.Gathers()
	n.old.Recalls()
	n.keeper.Epoch = n.old.Epoch
}

// sendOld sends what claims there are.
func (n *node) sendOld() {
	for b := n.old.Batch(); b != nil; b = n.old.Batch() {
		n.store.old.ask(n, b)
	}
}

// recall carries the ledger's wish that holders give back what they have.
func (s *oldStore) recall(account string, holders []ratelimit.Holder) {
	for _, h := range holders {
		for _, n := range s.nodes {
			if n.name != h>>1 || !n.alive {
				continue
			}
			s.result.Recalls++
			if !s.reaches(n, s.parts[0]) || n.deaf > 0 {
				continue
			}
			s.trace("the ledger recalls key %d from node %d", s.named[account].index, n.slot)
			s.in(s.travel(s.Net.Trip)+s.slow+n.late, func() {
				n.run(func() {
					n.old.Recalled(account)
					n.send()
				})
			})
		}
	}
}

// ask sends a batch, and has the node hear the answer, or that there is none.
func (s *oldStore) ask(n *node, b *leasing.Batch) {
	p, ended := s.parts[0], false
	end := func(do func()) func() {
		return func() {
			if !ended {
				ended = true
				do()
				n.answered()
			}
		}
	}
	there, back := s.travel(s.Net.Trip), s.travel(s.Net.Trip)+s.slow+n.late
	s.bound.late(n, there+back)
	if p.down > 0 && s.Refuses && n.cut == 0 {
		s.bound.silent(n)
		s.in(there+back, func() { n.run(end(func() { b.Fail(errRefused) })) })
		return
	}
	n.in(leasing.ClaimTimeout, end(func() { b.Fail(context.DeadlineExceeded) }))
	if !s.reaches(n, p) {
		s.bound.silent(n)
		s.trace("node %d: %d claims are lost", n.slot, len(b.Claims()))
		return
	}
	var first []ratelimit.Grant
	s.in(there, func() {
		grants, epoch, at, err := s.settle(n, b.Query(), b.Claims())
		first = grants
		if !s.reaches(n, p) || n.deaf > 0 {
			s.bound.silent(n)
			s.trace("node %d: %d grants are lost", n.slot, len(grants))
			return
		}
		s.in(back, func() {
			n.run(end(func() {
				if err != nil {
					b.Fail(err)
					return
				}
				b.AnswerIn(epoch, at, grants)
				n.checkOld(b.Claims())
			}))
		})
	})
	if s.Net.Dup > 0 && s.rnd.Float64() < s.Net.Dup {
		s.in(there+time.Duration(s.rnd.Int64N(int64(2*leasing.ClaimTimeout))), func() {
			_, _, _, _ = s.settle(n, ratelimit.EpochQuery{}, again(b.Claims(), first))
		})
	}
}

// again are the claims of a message that comes twice, of which first are the answers if it was settled
// already: a draw writes what it takes, and no claim follows it; one that was none was sent as a claim.
func again(claims []ratelimit.Claim, first []ratelimit.Grant) []ratelimit.Claim {
	var all []ratelimit.Claim
	for i := range claims {
		if first == nil || !first[i].Drawn {
			all = append(all, claims[i])
			if first != nil {
				all[len(all)-1].Draw = 0
			}
		}
	}
	return all
}

// tell sends claims whose answers nobody awaits.
func (s *oldStore) tell(n *node, claims []ratelimit.Claim) {
	if s.reaches(n, s.parts[0]) {
		s.in(s.travel(s.Net.Trip), func() { _, _, _, _ = s.settle(n, ratelimit.EpochQuery{}, claims) })
	}
}

// settle has the ledger settle claims now.
func (s *oldStore) settle(n *node, q ratelimit.EpochQuery, claims []ratelimit.Claim) ([]ratelimit.Grant, ratelimit.Epoch, ratelimit.LedgerTime, error) {
	grants := make([]ratelimit.Grant, len(claims))
	reclaimed := make([]bool, len(claims))
	for i := range claims {
		reclaimed[i] = s.Check && s.ledger.Reclaimed(&claims[i])
	}
	epoch, at, err := s.ledger.SettleEpoch(s.ctx, q, claims, grants)
	if len(claims) == 0 {
		return grants, epoch, at, err
	}
	s.result.Trips++
	s.result.Claims += int64(len(claims))
	s.point.Claims += int64(len(claims))
	for i := range claims {
		s.claimed(claims[i].Holder>>1, claims[i].Key)
		if grants[i].Drawn {
			s.result.Draws++
		}
		if s.Trace != nil {
			c, g := &claims[i], &grants[i]
			s.trace("node %d as %d claims %d on key %d: window %d%s, granted %d, spent %d, returned %d; waiting %d, wants %d, fence %d",
				n.slot, c.Holder, c.Seq, s.named[c.Key].index, c.Window, kindOf(c), c.Granted, c.Spent, c.Returned, c.Waiting, c.Want, c.Fence)
			s.trace("  the ledger grants %d in window %d, drawn %v, fence %d, void %v; left %d, outstanding %d, relearning %v, error %v",
				g.Granted, g.Window, g.Drawn, g.Fence, g.Void, g.Available, g.Outstanding, g.Relearning, g.Err)
		}
		if s.Check {
			s.check(&claims[i], &grants[i], reclaimed[i])
		}
	}
	return grants, epoch, at, err
}

// check looks at an account after a claim.
func (s *oldStore) check(c *ratelimit.Claim, g *ratelimit.Grant, reclaimed bool) {
	k := s.named[c.Key]
	key := k.index
	if !s.bound.lossy() { // what is told again may be more than there is
		if err := s.ledger.Check(c, g); err != nil {
			s.violate(-1, key, "%v", err)
		}
	}
	if g.Err != nil {
		return
	}
	switch {
	case g.Fence > k.fence:
		k.fence = g.Fence
	case c.Fence != 0 && g.Fence == c.Fence:
		s.violate(-1, key, "claim %d of holder %d was answered with the fence that it had, %d", c.Seq, c.Holder, g.Fence)
	}
	if reclaimed && !g.Void {
		s.violate(-1, key, "holder %d still has fence %d, whose lease was reclaimed", c.Holder, c.Fence)
	}
}

// reset has an operator reset a key.
func (s *oldStore) reset(k *key) {
	claim := ratelimit.Claim{
		Key: string(k.name), Limit: k.rule.Limit, Holder: operator, Seq: uint64(s.now) + 1, Reset: true, TTL: time.Second,
	}
	s.ledger.Settle(s.ctx, []ratelimit.Claim{claim}, make([]ratelimit.Grant, 1))
}

// kindOf says in a trace what kind of claim it is, if it is no usual one.
func kindOf(c *ratelimit.Claim) (kind string) {
	if c.Ahead {
		kind = " (ahead)"
	}
	if c.Last {
		kind += " (the holder ends)"
	}
	if c.Final {
		kind += " (last word)"
	}
	return kind
}

// checkLease looks at a node's lease on a key.
func (n *node) checkLease(k *key, r *ratelimit.Rule) {
	c := &r.Coordination
	if c.OnStoreFailure != ratelimit.FailClosed || c.Eager() || n.bound.lossy() || n.Table > 0 {
		return // then more may be spent than was granted, as declared
	}
	share := ratelimit.Tokens(0)
	if at := r.AtLedger(); at.Drifts() {
		share = at.DriftShare()
	}
	if err := n.old.Check(k.name, share); err != nil {
		n.violate(n.slot, k.index, "%v", err)
	}
}

// checkOld looks at the leases that an answer was about.
func (n *node) checkOld(claims []ratelimit.Claim) {
	if !n.Check {
		return
	}
	for i := range claims {
		k := n.named[claims[i].Key]
		rule := n.rule
		if n.second != nil && k.rule.Path == n.second.Path {
			rule = n.second
		}
		n.checkLease(k, rule)
	}
}
