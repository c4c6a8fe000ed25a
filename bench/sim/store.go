package sim

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

// store is the ledger, and the wires to it.
type store struct {
	*world
	ledger *leasing.Memory
	seats  *approx.Memory
	slow   time.Duration
	hung   int // by so many faults
	down   int
	ctx    context.Context
	byName map[string]int // of keys, when they are checked
}

var errRefused = errors.New("connection refused")

func (s *store) open(w *world) {
	s.world, s.ctx = w, context.Background()
	s.ledger = leasing.NewMemory(max(1<<16, 2*len(w.keys)), w.ledgerTime).Predictable()
	s.seats = approx.NewMemory(w.ledgerTime)
	s.byName = map[string]int{}
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
	there, back := s.travel(s.Net.Trip), s.travel(s.Net.Trip)+s.slow
	s.bound.late(there + back)
	if s.down > 0 && s.Refuses && n.cut == 0 {
		s.bound.silent()
		s.in(there+back, func() { n.run(end(func() { b.Fail(errRefused) })) })
		return
	}
	n.in(leasing.ClaimTimeout, end(func() { b.Fail(context.DeadlineExceeded) }))
	if !s.reaches(n) {
		s.bound.silent()
		s.trace("node %d: %d claims are lost", n.slot, len(b.Claims()))
		return
	}
	s.in(there, func() {
		grants := s.settle(n, b.Claims())
		if !s.reaches(n) {
			s.bound.silent()
			s.trace("node %d: %d grants are lost", n.slot, len(grants))
			return
		}
		s.in(back, func() {
			n.run(end(func() {
				b.Answer(grants)
				n.checkClaims(b.Claims())
			}))
		})
	})
	if s.Net.Dup > 0 && s.rnd.Float64() < s.Net.Dup {
		s.in(there+time.Duration(s.rnd.Int64N(int64(2*leasing.ClaimTimeout))), func() { s.settle(n, b.Claims()) })
	}
}

// tell sends claims whose answers nobody awaits.
func (s *store) tell(n *node, claims []ratelimit.Claim) {
	if s.reaches(n) {
		s.in(s.travel(s.Net.Trip), func() { s.settle(n, claims) })
	}
}

// settle has the ledger settle claims now.
func (s *store) settle(n *node, claims []ratelimit.Claim) []ratelimit.Grant {
	grants := make([]ratelimit.Grant, len(claims))
	reclaimed := make([]bool, len(claims))
	if s.Check {
		for i := range claims {
			reclaimed[i] = s.ledger.Reclaimed(&claims[i])
		}
	}
	s.ledger.Settle(s.ctx, claims, grants)
	s.result.Trips++
	s.result.Claims += int64(len(claims))
	s.point.Claims += int64(len(claims))
	for i := range claims {
		if s.Trace != nil {
			c, g := &claims[i], &grants[i]
			s.trace("node %d as %d claims %d on key %d: window %d, granted %d, spent %d, returned %d; waiting %d, wants %d, fence %d",
				n.slot, c.Holder, c.Seq, s.byName[c.Key], c.Window, c.Granted, c.Spent, c.Returned, c.Waiting, c.Want, c.Fence)
			s.trace("  the ledger grants %d in window %d, fence %d, void %v; left %d, outstanding %d, relearning %v, error %v",
				g.Granted, g.Window, g.Fence, g.Void, g.Available, g.Outstanding, g.Relearning, g.Err)
		}
		if s.Check {
			s.check(&claims[i], &grants[i], reclaimed[i])
		}
	}
	return grants
}

// check looks at an account after a claim.
func (s *store) check(c *ratelimit.Claim, g *ratelimit.Grant, reclaimed bool) {
	key := s.byName[c.Key]
	if err := s.ledger.Check(c, g); err != nil && len(s.bound.forgets) == 0 { // what is re-presented may be more than there is
		s.violate(-1, key, "%v", err)
	}
	if g.Err != nil {
		return
	}
	k := &s.keys[key]
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

// forget loses everything.
func (s *store) forget() {
	s.ledger.Forget()
	s.seats.Forget()
}

// sit carries an application for a seat.
func (s *store) sit(n *node, sent ratelimit.Instant, a approx.Application) {
	ended := false
	end := func(t approx.Tenancy, err error) func() {
		return func() {
			if !ended {
				ended = true
				n.sat(sent, a, t, err)
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
		if !s.reaches(n) {
			return
		}
		s.in(s.travel(s.Net.Trip)+s.slow, func() { n.run(end(t, err)) })
	})
}

// leave gives up a seat.
func (s *store) leave(n *node, a approx.Application) {
	if s.reaches(n) {
		s.in(s.travel(s.Net.Trip), func() { _, _ = s.seats.Sit(s.ctx, a) })
	}
}
