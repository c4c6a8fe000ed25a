package sim

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// store is the ledger, and the wires to it.
type store struct {
	*world
	ledger Ledger
	memory *ledger.LosableMemory // ledger, if it is one in memory
	seats  *approx.Memory
	copies map[int64]*ledger.Memory // by the instant of the failover that goes on with it
	slow   time.Duration
	hung   int // by so many faults
	down   int
	ctx    context.Context
}

var errRefused = errors.New("connection refused")

func (s *store) open(w *world) {
	s.world, s.ctx = w, context.Background()
	s.copies = map[int64]*ledger.Memory{}
	s.seats = approx.NewMemory(w.ledgerTime)
	if w.Ledger != nil {
		l, err := w.Ledger(w.ledgerTime)
		if err != nil {
			w.violate(-1, -1, "the ledger cannot be used: %v", err)
		}
		s.ledger = l
		return
	}
	s.memory = ledger.NewLosable(ledger.NewMemory(max(1<<16, 4*max(1, w.Load.Keys)), w.ledgerTime).Predictable())
	s.memory.OnRecall = s.recall
	s.ledger = s.memory
}

// recall carries the ledger's wish that holders give back what they have.
func (s *store) recall(account string, holders []ratelimit.Holder) {
	for _, h := range holders {
		for _, n := range s.nodes {
			if n.name != h>>1 || !n.alive {
				continue
			}
			s.result.Recalls++
			if !s.reaches(n) || n.deaf > 0 {
				continue
			}
			s.trace("the ledger recalls key %d from node %d", s.named[account].index, n.slot)
			s.in(s.travel(s.Net.Trip)+s.slow+n.late, func() {
				n.run(func() {
					n.stepped.Recalled(account)
					n.send()
				})
			})
		}
	}
}

// reaches tells whether a message between a node and the store arrives.
func (s *store) reaches(n *node) bool { return n.cut == 0 && s.hung == 0 && s.down == 0 && !s.lost() }

// ask sends a batch, and has the node hear the answer, or that there is none.
func (s *store) ask(n *node, b *leasing.Batch) {
	ended := false
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
	if s.down > 0 && s.Refuses && n.cut == 0 {
		s.bound.silent(n)
		s.in(there+back, func() { n.run(end(func() { b.Fail(errRefused) })) })
		return
	}
	n.in(leasing.ClaimTimeout, end(func() { b.Fail(context.DeadlineExceeded) }))
	if !s.reaches(n) {
		s.bound.silent(n)
		s.trace("node %d: %d claims are lost", n.slot, len(b.Claims()))
		return
	}
	var first []ratelimit.Grant
	s.in(there, func() {
		grants, epoch, at, err := s.settle(n, b.Query(), b.Claims())
		first = grants
		if !s.reaches(n) || n.deaf > 0 {
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
				n.checkClaims(b.Claims())
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
func (s *store) tell(n *node, claims []ratelimit.Claim) {
	if s.reaches(n) {
		s.in(s.travel(s.Net.Trip), func() { _, _, _, _ = s.settle(n, ratelimit.EpochQuery{}, claims) })
	}
}

// settle has the ledger settle claims now.
func (s *store) settle(n *node, q ratelimit.EpochQuery, claims []ratelimit.Claim) ([]ratelimit.Grant, ratelimit.Epoch, ratelimit.LedgerTime, error) {
	grants := make([]ratelimit.Grant, len(claims))
	reclaimed := make([]bool, len(claims))
	if s.Check && s.memory != nil {
		for i := range claims {
			reclaimed[i] = s.memory.Reclaimed(&claims[i])
		}
	}
	epoch, at, err := s.ledger.SettleEpoch(s.ctx, q, claims, grants)
	if err != nil && s.Ledger != nil {
		s.violate(n.slot, -1, "the ledger failed: %v", err)
	}
	if len(claims) == 0 {
		return grants, epoch, at, err
	}
	s.result.Trips++
	s.result.Claims += int64(len(claims))
	s.point.Claims += int64(len(claims))
	for i := range claims {
		s.claimed(&claims[i])
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
func (s *store) check(c *ratelimit.Claim, g *ratelimit.Grant, reclaimed bool) {
	k := s.named[c.Key]
	key := k.index
	if s.memory != nil && !s.bound.lossy() { // what is told again may be more than there is
		if err := s.memory.Check(c, g); err != nil {
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

// keep copies the ledger for the failover at an instant.
func (s *store) keep(failover int64) {
	if s.memory != nil {
		s.copies[failover] = s.memory.Copy()
	}
}

// failOver goes on with the copy that was kept for it.
func (s *store) failOver(at int64) {
	if c := s.copies[at]; c != nil && s.memory != nil {
		s.memory.FailOver(c)
	}
}

// forget loses everything.
func (s *store) forget() {
	s.ledger.Forget()
	s.seats.Forget()
}

// sit carries an application for a seat.
func (s *store) sit(n *node, sent ratelimit.Instant, a approx.Application, plan approx.Plan) {
	ended := false
	end := func(t approx.Tenancy, err error) func() {
		return func() {
			if !ended {
				ended = true
				n.sat(sent, a, plan, t, err)
			}
		}
	}
	none := approx.Tenancy{Seat: -1}
	n.in(time.Second, end(none, context.DeadlineExceeded))
	if !s.reaches(n) {
		return
	}
	s.in(s.travel(s.Net.Trip), func() {
		t, err := s.seats.Sit(s.ctx, a)
		if !s.reaches(n) || n.deaf > 0 {
			return
		}
		s.in(s.travel(s.Net.Trip)+s.slow+n.late, func() { n.run(end(t, err)) })
	})
}

// leave gives up a seat.
func (s *store) leave(n *node, a approx.Application) {
	if s.reaches(n) {
		s.in(s.travel(s.Net.Trip), func() { _, _ = s.seats.Sit(s.ctx, a) })
	}
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
