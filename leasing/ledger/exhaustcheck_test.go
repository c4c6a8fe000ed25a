package ledger

import (
	"fmt"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// settle has the ledger settle a claim, and checks what it may have changed.
func (w *smallWorld) settle(m *smallMessage) error {
	c, p := m.claim, w.party(m.claim.Holder)
	before := w.ledger
	before.others = append([]record(nil), w.ledger.others...)
	w.breakLedger(c)
	g := w.ledger.Settle(w.ledgerNow(), c)
	w.recallHolders(c, &g)
	if w.lines != nil {
		w.say("the ledger settles seq %d of node %d: %s", c.Seq, p.name/2, w.grantText(&g))
	}
	if err := w.checkSettled(&before, c, &g); err != nil {
		return err
	}
	if g.Err != nil {
		if p.busy && c.Seq == p.seq {
			p.busy, p.waiting = false, 0
		}
		return nil
	}
	if p.dead || m.late && c.Seq != p.seq {
		return nil // nobody hears
	}
	w.net = append(w.net, smallMessage{claim: c, grant: &g, sent: m.sent, late: m.late || p.paused, ahead: m.ahead, known: m.known, in: w.epoch})
	return nil
}

func (w *smallWorld) grantText(g *ratelimit.Grant) string {
	if g.Err != nil {
		return g.Err.Error()
	}
	text := fmt.Sprintf("granted %d in all, %d are left", g.Granted, g.Available)
	if g.Void {
		text += ", void"
	}
	if g.Relearning {
		text += ", relearning"
	}
	return text
}

// breakLedger puts a bug into the ledger's side, if one is wanted there.
func (w *smallWorld) breakLedger(c *ratelimit.Claim) {
	r := w.ledger.find(c.Holder)
	if r == nil {
		return
	}
	switch w.scope.broken {
	case "a claim that arrives twice is settled twice":
		if c.Seq == r.seq {
			r.seq--
		}
	case "an overtaken claim is settled":
		r.seq = min(r.seq, c.Seq-1)
	case "what was not received stays charged":
		if c.Seq > r.seq && r.window == c.Window {
			w.ledger.base += max(0, r.granted+r.inflight-c.Granted)
		}
	case "a silent holder's tokens are credited under reclaim: safe":
		if w.ledger.now >= r.expires {
			w.ledger.base -= r.outstanding()
		}
	}
}

// checkSettled is what holds after each claim.
func (w *smallWorld) checkSettled(before *Account, c *ratelimit.Claim, g *ratelimit.Grant) error {
	was := before.find(c.Holder)
	if was != nil && c.Seq <= was.seq {
		before.advance(w.ledgerNow(), c)
		if !w.sameAccount(before, &w.ledger) {
			return fmt.Errorf("claim %d of node %d has changed the account, and claim %d was settled before", c.Seq, c.Holder/2, was.seq)
		}
		if r := w.ledger.find(c.Holder); g.Err == nil && (g.Fence != r.fence || g.Granted != r.granted+r.inflight || c.Seq < r.seq) {
			return fmt.Errorf("claim %d of node %d was settled before, and is answered %d granted where its record says %d", c.Seq, c.Holder/2, g.Granted, r.granted+r.inflight)
		}
		return nil
	}
	if g.Err != nil {
		return nil //nolint:nilerr // it was not settled
	}
	// Nobody knows of who else draws: the fences of draws are above those of their own holders.
	if !g.Drawn {
		if g.Fence <= w.top {
			return fmt.Errorf("node %d was given the fence %d after one of %d", c.Holder/2, g.Fence, w.top)
		}
		w.top = g.Fence
	}
	if err := w.ledger.checkCopy(c, g); err != nil {
		return err
	}
	if err := w.ledger.check(&c.Limit); err != nil {
		return err
	}
	return w.checkReclaimed(before, c)
}

// checkReclaimed is that only who was kept from reporting is silent. What it has
// spent and not reported, at most a lease, may then be over.
func (w *smallWorld) checkReclaimed(before *Account, c *ratelimit.Claim) error {
	var err error
	before.each(func(was *record) {
		if was.closed || !was.eager || was.window != w.ledger.window || w.ledger.now < was.expires {
			return
		}
		p := w.party(was.holder)
		if p.lease.Window != was.window || was.holder != p.name^p.other {
			return
		}
		known := was.spent
		if was.holder == c.Holder {
			known = max(known, c.Spent)
		}
		hidden := max(0, p.lease.Spent-known)
		if hidden > 0 && !p.silent {
			err = fmt.Errorf("node %d has spent %d that it did not report before its lease was reclaimed, and no fault kept it from that", p.name/2, hidden)
		}
		if hidden > w.scope.want {
			err = fmt.Errorf("node %d has spent %d that it did not report before its lease was reclaimed: more than a lease of %d", p.name/2, hidden, w.scope.want)
		}
		w.excuse[0] += hidden
	})
	return err
}

// drawnBy is what a holder has drawn of a window and is not booked, and whether it has.
func (w *smallWorld) drawnBy(h ratelimit.Holder, at window) (n tokens, some bool) {
	for _, t := range w.ledger.tills {
		for _, d := range t.drawn {
			if d.holder == h && t.window == at {
				n, some = n+d.n, true
			}
		}
	}
	return n, some
}

// checkCharged is that the ledger charges each holder at least what it has
// spent, unless it was told to forget that.
func (w *smallWorld) checkCharged() error {
	if w.used[faultAmnesia] {
		return nil
	}
	for i := range w.parties {
		p := &w.parties[i]
		// What was drawn of a window that is over, or came too late, is no matter.
		if p.lease.Window != w.ledger.window && p.lease.Window != w.window() {
			continue
		}
		charged, known := w.drawnBy(p.name^p.other, p.lease.Window)
		if r := w.ledger.find(p.name ^ p.other); r != nil && r.window == p.lease.Window && p.lease.Window == w.ledger.window && !r.closed {
			charged, known = charged+r.charged(), true
		}
		if known && p.lease.Window != 0 && p.lease.Window >= w.ledger.window && charged < p.lease.Spent {
			return fmt.Errorf("node %d has spent %d, and the ledger charges it %d", p.name/2, p.lease.Spent, charged)
		}
	}
	return nil
}

// checkLive is that no token vanishes: when all that is under way is lost, those
// who live give back what they have, and the ledger then charges what was spent
// and what the dead hold; and after a while the whole limit can be spent again.
func (w *smallWorld) checkLive() error {
	c := w.clone()
	c.lines, c.net = nil, nil
	c.settleDown()
	if err := c.checkConserved(); err != nil {
		return err
	}
	c.passUntilWhole()
	admitted := tokens(0)
	for again := true; again; {
		again = false
		for i := range c.parties {
			if p := &c.parties[i]; !p.dead && c.askNow(p) {
				admitted++
				again = true
			}
		}
	}
	if whole := c.scope.rule.Limit.Capacity(); admitted != whole {
		return fmt.Errorf("when everything was delivered and %d ticks have passed, %d of %d tokens can be spent", c.tick-w.tick, admitted, whole)
	}
	return w.checkRecalls()
}

// settleDown has all who live give back what they have.
func (w *smallWorld) settleDown() {
	for i := range w.parties {
		p := &w.parties[i]
		if p.dead {
			continue
		}
		p.paused, p.busy, p.waiting, p.asked, p.recall, p.resting = false, false, 0, false, 0, 0
		w.hear(p, w.epoch)
		w.turn(p)
		w.giveBack(p)
	}
}

// exchange is a claim that is settled and answered at once.
func (w *smallWorld) exchange(p *party, l *lease.Lease, c *ratelimit.Claim) {
	w.breakLedger(c)
	g := w.ledger.Settle(w.ledgerNow(), c)
	w.takeIn(p, l, w.now(), c, &g)
}

// giveBack returns what a node holds, or lets the ledger hear from it.
func (w *smallWorld) giveBack(p *party) {
	p.seq += 1 + uint64(btoi(w.scope.draws)) // as a node numbers its claims
	var c ratelimit.Claim
	if w.now() < p.lease.Reset && p.lease.Window != 0 {
		c = p.lease.Release(w.now(), p.seq)
	} else {
		c = p.lease.Claim(w.now(), p.seq, &w.scope.rule, 0, 0, w.scope.keeping())
	}
	c.Holder = p.name ^ p.other
	w.exchange(p, &p.lease, &c)
	if p.hasNext {
		p.seq += 1 + uint64(btoi(w.scope.draws)) // as a node numbers its claims
		c = p.next.Release(w.now(), p.seq)
		c.Holder, c.Ahead = p.name^p.other^1, true
		w.exchange(p, &p.next, &c)
		p.hasNext = false
	}
}

func (w *smallWorld) checkConserved() error {
	if w.scope.rule.Limit.Algorithm == ratelimit.TokenBucket || w.used[faultAmnesia] {
		return nil
	}
	stranded := tokens(0)
	w.ledger.each(func(r *record) {
		p := w.party(r.holder)
		if r.window != w.ledger.window {
			return
		}
		switch current := r.holder == p.name^p.other; {
		case !p.dead && !current:
			// A node that claims under its other name does not take back what this
			// one was granted in an answer that was lost: it stays charged until the
			// window ends.
			stranded += r.charged() - min(r.charged(), r.spent)
		case p.dead:
			stranded += r.charged()
			if p.lease.Window == r.window && current {
				stranded -= min(r.charged(), p.lease.Spent)
			}
		}
	})
	charged := w.ledger.charged(w.ledger.window)
	switch {
	case charged > w.taken+stranded:
		return fmt.Errorf("when all have given back what they hold, the ledger charges %d, and %d were spent and %d are held by the dead", charged, w.taken, stranded)
	case charged < w.taken && !w.scope.rule.Coordination.Eager():
		return fmt.Errorf("when all have given back what they hold, the ledger charges %d, and %d were spent", charged, w.taken)
	}
	return nil
}

// passUntilWhole has time pass until nothing from before counts.
func (w *smallWorld) passUntilWhole() {
	l := &w.scope.rule.Limit
	wait := w.scope.ttl + int(RelearnTime/smallTick) + 1
	switch l.Algorithm {
	case ratelimit.FixedWindow:
		w.tick += wait
		w.tick += w.scope.ticks - w.tick%w.scope.ticks
	case ratelimit.SlidingWindow:
		w.tick += max(wait, w.scope.ticks)
		w.tick += 2*w.scope.ticks - w.tick%w.scope.ticks
	default:
		w.tick += wait + w.scope.ticks*int((l.Burst+l.Requests-1)/l.Requests)
	}
	w.sub = 0
	for i := range w.parties {
		w.turn(&w.parties[i])
	}
}

// askNow decides a request of one token, and tells whether it was admitted.
func (w *smallWorld) askNow(p *party) bool {
	a := ask{Rule: &w.scope.rule, Cost: 1}
	if v, ok := p.lease.Take(w.now(), &a, w.scope.keeping()); ok {
		return !v.OverLimit
	}
	p.seq += 1 + uint64(btoi(w.scope.draws)) // as a node numbers its claims
	want := w.scope.want
	if w.scope.direct {
		want = 1
	}
	c := p.lease.Claim(w.now(), p.seq, &w.scope.rule, 1, want, w.scope.keeping())
	c.Holder = p.name ^ p.other
	w.exchange(p, &p.lease, &c)
	v := p.lease.Settled(w.now(), &a, w.scope.keeping())
	return !v.OverLimit
}
