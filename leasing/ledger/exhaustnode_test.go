package ledger

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// mustReport tells whether p has yet to report what expiry would undo.
func (w *smallWorld) mustReport(p *party) bool {
	l, bucket := &p.lease, w.scope.rule.Limit.Algorithm == ratelimit.TokenBucket
	return w.scope.rule.Coordination.Eager() && w.awake(p) && !p.busy && l.Spent != p.reported && (bucket || w.now() < l.Reset)
}

// renews tells whether p may renew its lease: when some of it is spent and some
// is left, or half its time has passed, or it has something to report.
func (w *smallWorld) renews(p *party) bool {
	l := &p.lease
	if w.scope.direct || w.now() >= l.Reset && !w.mustReport(p) {
		return false
	}
	if p.untold {
		return true
	}
	half := l.Deadline.Add(-w.scope.rule.Coordination.Lease.TTL / 2)
	return w.mustReport(p) || l.Unspent() > 0 && (l.Left(w.now()) < w.scope.want || w.now() >= half)
}

// turn makes the next window's lease the current one, once it has begun.
func (w *smallWorld) turn(p *party) {
	begins := w.at(w.scope.rule.Limit.WindowEnd(p.next.Window - 1))
	if w.scope.broken == "the next window's lease is spent early" {
		begins = begins.Add(-smallTick)
	}
	if !p.hasNext || w.now() < begins {
		return
	}
	p.lease, p.next, p.hasNext, p.other = p.next, lease.Lease{}, false, p.other^1
	p.settled, p.reported, p.after = false, 0, w.now()
}

// ask has a request decided from the lease, or claims for it.
func (w *smallWorld) ask(p *party, cost tokens) error {
	a := ask{Rule: &w.scope.rule, Cost: cost}
	if w.scope.broken == "a node does not look at its lease's expiry" && p.lease.Window != 0 {
		p.lease.Deadline = w.now().Add(time.Hour)
	}
	v, ok := p.lease.Take(w.now(), &a, w.scope.keeping())
	if !ok {
		if !p.busy && p.resting == 0 {
			w.claim(p, cost)
		}
		return nil
	}
	p.settled = p.settled && v.Charged == 0
	return w.decided(p, &v, cost, "from its lease")
}

// decided counts what a request was charged, and judges what was admitted.
func (w *smallWorld) decided(p *party, v *verdict, cost tokens, how string) error {
	p.lease.Debt = 0 // nothing here refunds
	if v.Window == w.window() {
		w.taken += v.Charged
	}
	if v.OverLimit {
		w.say("node %d refuses %d %s", p.name/2, cost, how)
		return nil
	}
	w.say("node %d admits %d %s", p.name/2, cost, how)
	w.spent += cost
	w.level -= cost
	over := w.over()
	if over > w.excuse[0]+w.excuse[1] {
		return fmt.Errorf("%d more than the limit of %v were admitted, and the faults so far explain %d", over, w.scope.rule.Limit, w.excuse[0]+w.excuse[1])
	}
	w.scope.worst = max(w.scope.worst, over)
	return nil
}

// claim sends a claim for a request of that cost, or a renewal.
func (w *smallWorld) claim(p *party, cost tokens) {
	p.seq += 1 + uint64(btoi(w.scope.draws)) // as a node numbers its claims
	want := max(cost, w.scope.want-p.lease.Left(w.now()))
	if w.scope.direct {
		want = cost
	}
	c := p.lease.Claim(w.now(), p.seq, &w.scope.rule, cost, want, w.scope.keeping())
	c.Ahead = p.hasNext
	c.Stretch, c.Recall = w.scope.recalls && w.scope.rule.Stretched(), w.scope.recalls
	if w.scope.draws {
		c.Draw = w.window()
	}
	w.send(p, &c, cost, false)
}

func (w *smallWorld) release(p *party, last bool) {
	p.seq += 1 + uint64(btoi(w.scope.draws)) // as a node numbers its claims
	c := p.lease.Release(w.now(), p.seq)
	c.Last = last
	if w.scope.broken == "a node spends what it gave back" {
		p.lease.Returned = 0
	}
	w.send(p, &c, 0, false)
}

func (w *smallWorld) claimAhead(p *party) {
	p.seq += 1 + uint64(btoi(w.scope.draws)) // as a node numbers its claims
	p.tried = w.window() + 1
	var fresh lease.Lease
	c := fresh.Claim(w.now(), p.seq, &w.scope.rule, 0, w.scope.want, lease.Keeps)
	c.Ahead, c.Window, c.Stretch = true, p.tried, w.scope.recalls && w.scope.rule.Stretched()
	w.send(p, &c, 0, true)
}

func (w *smallWorld) send(p *party, c *ratelimit.Claim, cost tokens, ahead bool) {
	c.Holder = p.name ^ p.other
	if ahead {
		c.Holder ^= 1
	}
	p.busy, p.waiting = true, cost
	if p.epoch.Young(w.ledgerNow()) {
		c.Learning, c.Draw = p.epoch.Learning, 0
	}
	w.net = append(w.net, smallMessage{claim: c, sent: w.tick, ahead: ahead, known: p.epoch.ID})
	w.say("node %d claims: %s", p.name/2, w.claimText(c))
}

func (w *smallWorld) claimText(c *ratelimit.Claim) string {
	about := "no window"
	if c.Window != 0 && w.scope.rule.Limit.Algorithm != ratelimit.TokenBucket {
		about = fmt.Sprintf("window %d", c.Window-w.scope.rule.Limit.WindowAt(w.scope.epoch)+1)
	} else if c.Window != 0 {
		about = "the bucket"
	}
	text := fmt.Sprintf("seq %d, of %s it was granted %d, spent %d, returned %d; %d wait, wants %d", c.Seq, about, c.Granted, c.Spent, c.Returned, c.Waiting, c.Want)
	for _, is := range []struct {
		so   bool
		name string
	}{{c.Draw != 0, "may be a draw"}, {c.Ahead, "ahead"}, {c.Direct, "direct"}, {c.Refilled, "refilled"}, {c.Last, "last"}} {
		if is.so {
			text += ", " + is.name
		}
	}
	return text
}

// hear is what Fleet.learned does with the epoch of an answer.
func (w *smallWorld) hear(p *party, in ratelimit.Epoch) {
	if in.ID <= p.epoch.ID {
		return
	}
	w.say("node %d hears that the ledger has forgotten", p.name/2)
	p.epoch = in
	p.untold = p.lease.Window != 0 && w.now() < p.lease.Reset
	p.hasNext, p.next, p.tried = false, lease.Lease{}, 0
}

// deliver has a message arrive.
func (w *smallWorld) deliver(i int) error {
	m := w.net[i]
	w.drop(i)
	if m.grant == nil {
		return w.settle(&m)
	}
	return w.receive(&m)
}

// receive is what Fleet.read does with an answer.
func (w *smallWorld) receive(m *smallMessage) error {
	p, g := w.party(m.claim.Holder), *m.grant
	if p.dead {
		return nil
	}
	awaited := p.busy && g.Seq == p.seq
	if awaited {
		p.busy, p.silent = false, false
	}
	if w.scope.broken == "a node spends what it gave back" && g.TTL == 0 {
		g.TTL = w.scope.rule.Coordination.Lease.TTL
	}
	sent := instant(int64(m.sent) * int64(smallTick))
	before := p.lease
	w.say("node %d hears: seq %d, granted %d", p.name/2, g.Seq, g.Granted)
	w.hear(p, m.in)
	if m.in.Young(g.At) && m.known != m.in.ID {
		w.say("node %d does not take it: the ledger has just lost its data", p.name/2)
		p.waiting = 0
		return nil
	}
	if p.untold && awaited && !m.ahead && m.known == p.epoch.ID {
		p.untold = false
	}
	if m.ahead {
		if awaited && g.Window == m.claim.Window {
			p.next = lease.Lease{Seq: g.Seq, Window: g.Window}
			w.takeIn(p, &p.next, sent, m.claim, &g)
			p.hasNext = true
			w.turn(p)
		}
		return nil
	}
	if w.scope.broken == "an old answer is taken for the latest" {
		p.lease.Seq = g.Seq
	}
	w.takeIn(p, &p.lease, sent, m.claim, &g)
	if g.Seq != before.Seq {
		if p.lease != before {
			return fmt.Errorf("node %d has taken in the answer to claim %d, and its latest is %d", p.name/2, g.Seq, before.Seq)
		}
		return nil
	}
	p.settled = false
	if awaited {
		if p.reported = 0; g.Window == m.claim.Window && !g.Drawn {
			p.reported = m.claim.Spent
		}
		p.after = sent.Add(g.TTL / 2)
		p.settled = p.lease.Unspent() == 0 && p.lease.Spent == m.claim.Spent && g.Granted == m.claim.Granted
	}
	if !awaited {
		return nil
	}
	waiting, had := p.waiting, p.lease.Left(w.now())
	p.waiting = 0
	if p.asked {
		w.giveBackSome(p, m.claim.Waiting)
	}
	if waiting == 0 {
		return nil
	}
	if w.rests(p, m.claim, &g, waiting) {
		return nil
	}
	a := ask{Rule: &w.scope.rule, Cost: waiting}
	v := p.lease.Settled(w.now(), &a, w.scope.keeping())
	if v.OverLimit && waiting <= had {
		return fmt.Errorf("node %d has refused %d that waited, and it had %d when it was answered", p.name/2, waiting, had)
	}
	return w.decided(p, &v, a.Cost, "that has waited")
}

// takeIn applies an answer. The node knows the ledger's clock exactly: any less
// that it may know has it stop earlier.
func (w *smallWorld) takeIn(p *party, l *lease.Lease, sent instant, c *ratelimit.Claim, g *ratelimit.Grant) {
	ends := sent.Add(g.ResetAfter)
	if c.Limit.Algorithm != ratelimit.TokenBucket {
		ends = w.at(c.Limit.WindowEnd(g.Window))
	}
	by := lease.Margin(c, g.TTL)
	if w.scope.broken == "a lease is counted from its answer" {
		sent, by = w.now(), 0
	}
	l.Apply(sent, c, g, by, ends)
}
