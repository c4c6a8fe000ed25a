package ledger

import "github.com/sluice-gate/sluice/ratelimit"

// disturb crashes, pauses or resumes a node.
func (w *smallWorld) disturb(m move) {
	p := &w.parties[m.which]
	switch m.kind {
	case moveCrash:
		w.used[faultCrash] = true
		w.say("node %d crashes, and is node %d when it is back", p.name/2, w.names/2+1)
		p.dead, p.silent, p.busy = true, true, false
		w.excuseUntold(p)
		fresh := w.newParty()
		if w.scope.broken == "a restarted node keeps its name" {
			fresh.name = p.name
			p.name = 0
		}
		w.parties = append(w.parties, fresh)
	case movePause:
		w.used[faultPause] = true
		w.say("node %d stops for a while", p.name/2)
		p.paused, p.silent, p.since = true, true, w.tick
		p.resting = 0 // its time is over when the node goes on
		w.excuseUntold(p)
		for i := range w.net {
			if w.net[i].claim.Holder&^1 == p.name && w.net[i].grant != nil {
				w.net[i].late = true
			}
		}
	case moveResume:
		w.say("node %d goes on", p.name/2)
		p.paused, p.busy, p.waiting = false, false, 0
		w.turn(p)
	}
}

// spoil loses, doubles or delays a message. Its sender gives it up, but for the
// one that was doubled.
func (w *smallWorld) spoil(m move) {
	msg := &w.net[m.which]
	what := "claim"
	if msg.grant != nil {
		what = "answer"
	}
	p := w.party(msg.claim.Holder)
	if m.kind == moveDuplicate {
		w.used[faultDuplicate] = true
		w.say("the %s of seq %d of node %d arrives twice", what, msg.claim.Seq, p.name/2)
		again := *msg
		again.late = true
		w.net = append(w.net, again)
		return
	}
	p.busy, p.waiting, p.silent = false, 0, true
	if m.kind == moveDelay {
		w.used[faultDelay] = true
		w.say("the %s of seq %d of node %d is late: it is given up", what, msg.claim.Seq, p.name/2)
		msg.late = true
		return
	}
	w.used[faultLoss] = true
	w.say("the %s of seq %d of node %d is lost", what, msg.claim.Seq, p.name/2)
	w.drop(int(m.which))
}

// forgetAll has the ledger lose its data; a clock goes on meanwhile. What it
// forgets may be granted again.
func (w *smallWorld) forgetAll() {
	w.used[faultAmnesia] = true
	w.say("the ledger forgets everything")
	share := max(1, w.scope.rule.Limit.Capacity()/RelearnShare)
	w.excuse[0] += share
	for i := range w.parties {
		if p := &w.parties[i]; !w.awake(p) {
			w.cannotTell(p)
		}
	}
	w.ledger = Account{}
	if w.scope.broken != "the ledger's clock stands still while it forgets" {
		w.sub += 1000
	}
	w.epoch = ratelimit.Epoch{ID: w.epoch.ID + 1, Began: w.ledgerNow(), Learning: w.ledgerNow().Add(RelearnTime)}
}

// cannotTell excuses what p was charged when the ledger forgot, for p cannot say so.
func (w *smallWorld) cannotTell(p *party) {
	for _, name := range [2]ratelimit.Holder{p.name, p.name ^ 1} {
		if r := w.ledger.find(name); r != nil && r.window == w.ledger.window {
			w.excuse[0] += r.charged()
		}
		drawn, _ := w.drawnBy(name, w.window())
		w.excuse[0] += drawn
	}
}

// excuseUntold excuses what p would have told.
func (w *smallWorld) excuseUntold(p *party) {
	if p.lease.Window == w.window() && (p.untold || p.epoch.ID != w.epoch.ID) {
		w.excuse[0] += p.lease.Granted - p.lease.Returned
	}
}
