package ledger

import (
	"fmt"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// recallLife is for how many ticks a recall may be under way. When it has not arrived
// by then it is lost, which needs no fault: it is a hint.
const recallLife = 1

// ages has a recall that is under way grow older, or be lost.
func (p *party) ages() {
	if p.recall > 0 {
		if p.recall++; p.recall > 1+recallLife {
			p.recall = 0
		}
	}
}

// recallHolders sends what a claim has the ledger ask other holders for.
func (w *smallWorld) recallHolders(c *ratelimit.Claim, g *ratelimit.Grant) {
	if g.Recalled == 0 || w.scope.broken == "nobody is asked to give back" {
		return
	}
	for _, h := range w.ledger.recalledHolders(c) {
		if w.scope.broken == "what is asked for is taken for given back" {
			r := w.ledger.find(h)
			r.returned += r.outstanding()
		}
		if p := w.party(h); !p.dead {
			w.say("the ledger asks node %d to give back what it does not need", p.name/2)
			p.recall = 1
		}
	}
}

// recallMoves are those of a node that runs: that a recall arrives, and what becomes
// of a request that rests.
func (w *smallWorld) recallMoves(out []move, i uint8) []move {
	p := &w.parties[i]
	if p.recall > 0 {
		out = append(out, move{moveRecalled, i})
		if !p.busy && p.lease.Unspent() > 1 {
			out = append(out, move{moveRecalledOne, i})
		}
	}
	if p.resting > 0 {
		out = append(out, move{moveTooLate, i})
		if !p.busy {
			out = append(out, move{moveAgain, i})
		}
	}
	return out
}

// playRecall has one of them happen.
func (w *smallWorld) playRecall(m move) error {
	p := &w.parties[m.which]
	switch m.kind {
	case moveRecalled:
		w.recalled(p, 0)
	case moveRecalledOne:
		w.recalled(p, 1)
	case moveAgain:
		return w.againOrTake(p)
	default:
		return w.tooLate(p)
	}
	return nil
}

// recalled is what Fleet.Recalled does.
func (w *smallWorld) recalled(p *party, keep tokens) {
	w.say("node %d hears that others wait", p.name/2)
	p.recall = 0
	if p.busy {
		p.asked = true
		return
	}
	w.giveBackSome(p, keep)
}

// giveBackSome is what Fleet.giveBackSome does, and Fleet.write with its flight.
func (w *smallWorld) giveBackSome(p *party, keep tokens) {
	p.asked = false
	l := &p.lease
	if l.Window == 0 || l.Unspent() <= 0 && l.Spent == p.reported {
		return
	}
	if w.scope.broken == "a recall takes what requests have waited for" {
		keep = 0
	}
	before := l.Returned
	l.Returned += max(0, l.Unspent()-keep)
	p.seq += 1 + uint64(btoi(w.scope.draws)) // as a node numbers its claims
	c := l.Claim(w.now(), p.seq, &w.scope.rule, 0, 0, w.scope.keeping())
	c.Recall, c.Ahead = true, p.hasNext
	if w.scope.broken == "a node spends what it gave back to a recall" {
		l.Returned = before
	}
	w.send(p, &c, 0, false)
}

// rests tells whether a request that was not granted what it waits for waits on,
// because others were asked to give back; see held.plan.
func (w *smallWorld) rests(p *party, c *ratelimit.Claim, g *ratelimit.Grant, waiting tokens) bool {
	if !g.Recalling || c.Waiting <= g.Granted-c.Granted {
		return false
	}
	p.resting = waiting
	w.say("a request of %d waits at node %d for what others were asked for", waiting, p.name/2)
	return true
}

// againOrTake has a request that has rested be decided, or claim once more.
func (w *smallWorld) againOrTake(p *party) error {
	cost := p.resting
	p.resting = 0
	a := ask{Rule: &w.scope.rule, Cost: cost}
	if v, ok := p.lease.Take(w.now(), &a, w.scope.keeping()); ok {
		p.settled = p.settled && v.Charged == 0
		return w.decided(p, &v, cost, "that has waited for others")
	}
	w.claim(p, cost)
	return nil
}

// tooLate refuses a request whose time is over; see Fleet.refusedLate.
func (w *smallWorld) tooLate(p *party) error {
	a := ask{Rule: &w.scope.rule, Cost: p.resting}
	p.resting = 0
	if !p.lease.Current(w.now(), &a) {
		return nil // on_store_failure decides
	}
	v, ok := p.lease.Take(w.now(), &a, w.scope.keeping())
	if !ok {
		v = p.lease.Deny(w.now(), &a)
	}
	p.settled = p.settled && v.Charged == 0
	return w.decided(p, &v, a.Cost, "in the end")
}

// checkRecalls is that a node alone can spend the whole limit while all others hold
// what they have claimed, and ask for nothing: what they hold is recalled, and they
// give it back. (Not said where a lease goes back when it is answered.)
func (w *smallWorld) checkRecalls() error {
	if !w.scope.recalls || w.scope.direct {
		return nil
	}
	c := w.clone()
	c.lines, c.net = nil, nil
	c.settleDown()
	c.passUntilWhole()
	var alone *party
	for i := range c.parties {
		p := &c.parties[i]
		switch {
		case p.dead || p.name == 0:
		case alone == nil:
			alone = p
		default: // it takes a lease, and nobody asks it for anything
			p.seq += 1 + uint64(btoi(w.scope.draws)) // as a node numbers its claims
			claim := c.claimFor(p, 0, c.scope.want)
			c.exchange(p, &p.lease, &claim)
		}
	}
	admitted := tokens(0)
	for c.askWithRecalls(alone) {
		admitted++
	}
	if whole := c.scope.rule.Limit.Capacity(); admitted != whole {
		return fmt.Errorf("while others hold leases that they do not need, node %d can spend %d of %d tokens", alone.name/2, admitted, whole)
	}
	return nil
}

func (w *smallWorld) claimFor(p *party, waiting, want tokens) ratelimit.Claim {
	c := p.lease.Claim(w.now(), p.seq, &w.scope.rule, waiting, want, lease.Keeps)
	c.Holder, c.Stretch, c.Recall = p.name^p.other, w.scope.rule.Stretched(), true
	return c
}

// askWithRecalls decides a request of one token, where every message arrives at once,
// and tells whether it was admitted.
func (w *smallWorld) askWithRecalls(p *party) bool {
	a := ask{Rule: &w.scope.rule, Cost: 1}
	for range 2 {
		if v, ok := p.lease.Take(w.now(), &a, lease.Keeps); ok {
			return !v.OverLimit
		}
		p.seq += 1 + uint64(btoi(w.scope.draws)) // as a node numbers its claims
		c := w.claimFor(p, 1, w.scope.want)
		g := w.ledger.Settle(w.ledgerNow(), &c)
		w.recallHolders(&c, &g)
		w.takeIn(p, &p.lease, w.now(), &c, &g)
		for i := range w.parties {
			if other := &w.parties[i]; other.recall > 0 {
				other.recall = 0
				other.seq++
				other.lease.GiveBack()
				claim := other.lease.Claim(w.now(), other.seq, &w.scope.rule, 0, 0, lease.Keeps)
				claim.Holder, claim.Recall = other.name^other.other, true
				w.exchange(other, &other.lease, &claim)
			}
		}
	}
	v := p.lease.Settled(w.now(), &a, lease.Keeps)
	return !v.OverLimit
}
