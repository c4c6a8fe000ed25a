package leasing

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A smallWorld is everything that the search of exhaust_test.go tells apart: the
// ledger's account of one key, the nodes with their leases, the messages under
// way, which faults were played, and what was really spent. Time goes in ticks
// of a second; everything else happens at the instant of a tick, in any order.
//
// The account and the leases are the product's own. What is written here is what
// a Fleet does around them, without its demand and its timers: a node may ask,
// renew, return or claim ahead whenever a Fleet might.
type smallWorld struct {
	scope   *scope
	tick    int
	sub     ledgerTime // by how much the ledger's clock is past the tick
	ledger  account
	parties []party
	names   ratelimit.Holder
	net     []smallMessage
	epoch   ratelimit.Epoch // of the ledger's data
	used    [faults]bool

	spent, before tokens    // admitted in this window, and in the one before
	taken         tokens    // spent in this window, drained by denials included
	level         tokens    // token_bucket: what an exact bucket would have left
	excuse        [2]tokens // what may be over in this window, and in the one before
	top           ratelimit.Fence
	lines         *[]string // what happened, if somebody wants to read it
}

// party is one incarnation of a node, also after its end.
type party struct {
	name     ratelimit.Holder // the first of its two; 0: nobody
	other    ratelimit.Holder // 1 while its current lease is held under the second
	lease    lease
	next     lease // of the window to come
	hasNext  bool
	tried    window // the last window that was claimed ahead
	seq      uint64
	busy     bool   // a claim is under way and was not given up
	waiting  tokens // the cost of the request behind it, 0 if there is none
	reported tokens
	after    instant         // reclaim: eager: when what is spent must be reported
	settled  bool            // the ledger knows all
	epoch    ratelimit.Epoch // as last heard
	untold   bool            // the ledger has forgotten what this one has of the window
	dead     bool
	paused   bool
	since    int  // the tick at which it was paused
	silent   bool // a fault kept it from reporting
}

type smallMessage struct {
	claim *ratelimit.Claim
	grant *ratelimit.Grant // nil on the way to the ledger
	sent  int              // the tick at which the claim was
	age   int              // ticks for which this message has been under way
	late  bool             // nobody counts on it any more, and it may arrive at any time
	ahead bool             // it is about the next window's lease
	known uint64           // the epoch that the claim was written in
	in    ratelimit.Epoch  // the one it was settled in
}

// The faults that a scope may have, each at most once in a history.
const (
	faultLoss = iota
	faultDuplicate
	faultDelay
	faultCrash
	faultPause
	faultAmnesia
	faultEnd // no fault, but a node that is replaced in good order
	faults
)

var faultNames = [faults]string{"loss", "duplicate", "delay", "crash", "pause", "amnesia", "end"}

const smallTick = time.Second

func (w *smallWorld) now() instant { return instant(int64(w.tick) * int64(smallTick)) }

// ledgerNow is at the beginning of a window when tick is 0.
func (w *smallWorld) ledgerNow() ledgerTime {
	return w.scope.epoch + ledgerTime(w.tick)*ledgerTime(smallTick/time.Microsecond) + w.sub
}

func (w *smallWorld) at(t ledgerTime) instant {
	return instant(int64(t-w.scope.epoch) * int64(time.Microsecond))
}

func (w *smallWorld) window() window { return w.scope.rule.Limit.WindowAt(w.ledgerNow()) }

func (w *smallWorld) say(format string, args ...any) {
	if w.lines != nil {
		*w.lines = append(*w.lines, fmt.Sprintf("t=%d  ", w.tick)+fmt.Sprintf(format, args...))
	}
}

func newSmallWorld(s *scope) *smallWorld {
	w := &smallWorld{scope: s, level: s.rule.Limit.Burst, epoch: ratelimit.Epoch{ID: 1}}
	for range s.holders {
		w.parties = append(w.parties, w.newParty())
	}
	return w
}

func (w *smallWorld) newParty() party {
	w.names += 2
	return party{name: w.names, epoch: w.epoch}
}

func (w *smallWorld) clone() *smallWorld {
	c := *w
	c.ledger.others = append([]record(nil), w.ledger.others...)
	c.parties = append([]party(nil), w.parties...)
	c.net = append([]smallMessage(nil), w.net...)
	return &c
}

// A move is one thing that may happen next. which is a party or a message.
type move struct {
	kind  moveKind
	which uint8
}

type moveKind uint8

const (
	moveTick moveKind = iota
	moveAsk
	moveAskTwo
	moveRenew
	moveRelease
	moveForget
	moveAhead
	moveEnd
	moveCrash
	movePause
	moveResume
	moveDeliver
	moveLose
	moveDuplicate
	moveDelay
	moveForgetAll
	moveHear
)

// moves lists what may happen next.
func (w *smallWorld) moves(out []move) []move {
	if w.mayTick() {
		out = append(out, move{moveTick, 0})
	}
	for i := range w.parties {
		out = w.partyMoves(out, uint8(i))
	}
	for i := range w.net {
		out = w.messageMoves(out, uint8(i))
	}
	if w.may(faultAmnesia) && w.ledger.window != 0 {
		out = append(out, move{moveForgetAll, 0})
	}
	return out
}

func (w *smallWorld) may(fault int) bool { return w.scope.faults[fault] && !w.used[fault] }

// mayTick tells whether time may go on: messages that nothing holds up arrive
// in time, under reclaim: eager what is spent is reported in time, and
// each node that runs hears and tells a ledger that forgot within a tick.
func (w *smallWorld) mayTick() bool {
	if w.scope.horizon > 0 && w.tick+1 >= w.scope.horizon {
		return false
	}
	for i := range w.net {
		if m := &w.net[i]; !m.late && m.age >= w.scope.travel {
			return false
		}
	}
	for i := range w.parties {
		p := &w.parties[i]
		if w.mustReport(p) && w.now() >= p.after && w.scope.broken != "a node does not report in time" {
			return false
		}
		if w.awake(p) && (p.epoch.ID != w.epoch.ID || p.untold) {
			return false
		}
	}
	return true
}

// mustReport tells whether p has yet to report what expiry would undo.
func (w *smallWorld) mustReport(p *party) bool {
	l, bucket := &p.lease, w.scope.rule.Limit.Algorithm == ratelimit.TokenBucket
	return w.scope.rule.Coordination.Eager() && w.awake(p) && !p.busy && l.spent != p.reported && (bucket || w.now() < l.reset)
}

func (w *smallWorld) awake(p *party) bool { return p.name != 0 && !p.dead && !p.paused }

func (w *smallWorld) partyMoves(out []move, i uint8) []move {
	p := &w.parties[i]
	if p.paused && !p.dead && w.tick >= p.since+w.scope.ttl {
		out = append(out, move{moveResume, i})
	}
	if !w.awake(p) {
		return out
	}
	out = append(out, move{moveAsk, i})
	if w.scope.costTwo {
		out = append(out, move{moveAskTwo, i})
	}
	if !p.busy && p.lease.window != 0 {
		if w.renews(p) {
			out = append(out, move{moveRenew, i})
		}
		if w.now() < p.lease.reset && p.lease.unspent() > 0 && !p.hasNext && !w.scope.direct {
			out = append(out, move{moveRelease, i})
		}
		if mayGo := p.settled || w.now() >= p.lease.reset.Add(claimTimeout); mayGo && !p.hasNext && (p.other == 0 || !w.scope.keeps) {
			out = append(out, move{moveForget, i})
		}
		if here := w.window(); w.scope.ahead && !p.hasNext && p.lease.window == here && p.tried <= here && (w.tick+1)%w.scope.ticks == 0 {
			out = append(out, move{moveAhead, i})
		}
		if w.may(faultEnd) && !p.hasNext {
			out = append(out, move{moveEnd, i})
		}
	}
	if p.epoch.ID != w.epoch.ID {
		out = append(out, move{moveHear, i})
	}
	if w.may(faultCrash) {
		out = append(out, move{moveCrash, i})
	}
	if w.may(faultPause) && p.lease.window != 0 {
		out = append(out, move{movePause, i})
	}
	return out
}

// renews tells whether p may renew its lease: when some of it is spent and some
// is left, or half its time has passed, or it has something to report.
func (w *smallWorld) renews(p *party) bool {
	l := &p.lease
	if w.scope.direct || w.now() >= l.reset && !w.mustReport(p) {
		return false
	}
	if p.untold {
		return true
	}
	half := l.deadline.Add(-w.scope.rule.Coordination.Lease.TTL / 2)
	return w.mustReport(p) || l.unspent() > 0 && (l.left(w.now()) < w.scope.want || w.now() >= half)
}

func (w *smallWorld) messageMoves(out []move, i uint8) []move {
	m := &w.net[i]
	if m.grant == nil || !w.party(m.claim.Holder).paused {
		out = append(out, move{moveDeliver, i})
	}
	if m.late {
		return out
	}
	if w.may(faultLoss) {
		out = append(out, move{moveLose, i})
	}
	if w.may(faultDuplicate) {
		out = append(out, move{moveDuplicate, i})
	}
	if w.may(faultDelay) {
		out = append(out, move{moveDelay, i})
	}
	return out
}

func (w *smallWorld) party(h ratelimit.Holder) *party {
	for i := range w.parties {
		if w.parties[i].name == h&^1 {
			return &w.parties[i]
		}
	}
	return &party{dead: true}
}

// play has a move happen, and says which invariant it breaks.
func (w *smallWorld) play(m move) error {
	var err error
	switch m.kind {
	case moveTick:
		w.passes()
	case moveAsk, moveAskTwo:
		err = w.ask(&w.parties[m.which], 1+tokens(m.kind-moveAsk))
	case moveRenew:
		w.claim(&w.parties[m.which], 0)
	case moveRelease:
		w.release(&w.parties[m.which], false)
	case moveForget:
		p := &w.parties[m.which]
		w.say("node %d forgets the key, of which the ledger knows all", p.name/2)
		p.lease, p.other, p.reported, p.settled, p.tried = lease{}, 0, 0, false, 0
	case moveAhead:
		w.claimAhead(&w.parties[m.which])
	case moveEnd:
		p := &w.parties[m.which]
		w.used[faultEnd] = true
		w.say("node %d ends, and node %d takes its place", p.name/2, w.names/2+1)
		w.release(p, true)
		p.dead = true
		w.parties = append(w.parties, w.newParty())
	case moveCrash, movePause, moveResume:
		w.disturb(m)
	case moveDeliver:
		err = w.deliver(int(m.which))
	case moveLose, moveDuplicate, moveDelay:
		w.spoil(m)
	case moveForgetAll:
		w.forgetAll()
	case moveHear:
		w.hear(&w.parties[m.which], w.epoch)
	}
	if err != nil {
		return err
	}
	w.tidy()
	return w.checkCharged()
}

// passes has a tick of time go by.
func (w *smallWorld) passes() {
	old := w.window()
	w.tick++
	w.sub = 0
	l := &w.scope.rule.Limit
	if l.Algorithm == ratelimit.TokenBucket {
		w.level = min(l.Burst, w.level+l.Requests/tokens(w.scope.ticks))
	}
	if w.window() != old {
		w.before, w.spent, w.taken = w.spent, 0, 0
		if l.Algorithm != ratelimit.TokenBucket { // which owes for longer
			w.excuse = [2]tokens{0, w.excuse[0]}
		}
		w.say("window %d begins", w.tick/w.scope.ticks+1)
	}
	kept := w.net[:0]
	for _, m := range w.net {
		if m.age++; m.age <= w.scope.lateness {
			kept = append(kept, m)
		}
	}
	w.net = kept
	for i := range w.parties {
		if p := &w.parties[i]; w.awake(p) {
			w.turn(p)
		}
	}
}

// turn makes the next window's lease the current one, once it has begun.
func (w *smallWorld) turn(p *party) {
	begins := w.at(w.scope.rule.Limit.WindowEnd(p.next.window - 1))
	if w.scope.broken == "the next window's lease is spent early" {
		begins = begins.Add(-smallTick)
	}
	if !p.hasNext || w.now() < begins {
		return
	}
	p.lease, p.next, p.hasNext, p.other = p.next, lease{}, false, p.other^1
	p.settled, p.reported, p.after = false, 0, w.now()
}

// ask has a request decided from the lease, or claims for it.
func (w *smallWorld) ask(p *party, cost tokens) error {
	a := ask{Rule: &w.scope.rule, Cost: cost}
	if w.scope.broken == "a node does not look at its lease's expiry" && p.lease.window != 0 {
		p.lease.deadline = w.now().Add(time.Hour)
	}
	v, ok := p.lease.take(w.now(), &a, w.scope.direct)
	if !ok {
		if !p.busy {
			w.claim(p, cost)
		}
		return nil
	}
	p.settled = p.settled && v.Charged == 0
	return w.decided(p, &v, cost, "from its lease")
}

// decided counts what a request was charged, and judges what was admitted.
func (w *smallWorld) decided(p *party, v *verdict, cost tokens, how string) error {
	p.lease.debt = 0 // nothing here refunds
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

// over is by how much more was admitted than the limit allows now.
func (w *smallWorld) over() tokens {
	l := &w.scope.rule.Limit
	switch l.Algorithm {
	case ratelimit.TokenBucket:
		return -w.level
	case ratelimit.SlidingWindow:
		left := w.scope.ticks - w.tick%w.scope.ticks
		return w.spent + w.before*tokens(left)/tokens(w.scope.ticks) - l.Requests
	}
	return w.spent - l.Requests
}

// claim sends a claim for a request of that cost, or a renewal.
func (w *smallWorld) claim(p *party, cost tokens) {
	p.seq++
	want := max(cost, w.scope.want-p.lease.left(w.now()))
	if w.scope.direct {
		want = cost
	}
	c := p.lease.claim(w.now(), p.seq, &w.scope.rule, cost, want, w.scope.direct)
	c.Ahead = p.hasNext
	w.send(p, &c, cost, false)
}

func (w *smallWorld) release(p *party, last bool) {
	p.seq++
	c := p.lease.release(w.now(), p.seq)
	c.Last = last
	if w.scope.broken == "a node spends what it gave back" {
		p.lease.returned = 0
	}
	w.send(p, &c, 0, false)
}

func (w *smallWorld) claimAhead(p *party) {
	p.seq++
	p.tried = w.window() + 1
	var fresh lease
	c := fresh.claim(w.now(), p.seq, &w.scope.rule, 0, w.scope.want, false)
	c.Ahead, c.Window = true, p.tried
	w.send(p, &c, 0, true)
}

func (w *smallWorld) send(p *party, c *ratelimit.Claim, cost tokens, ahead bool) {
	c.Holder = p.name ^ p.other
	if ahead {
		c.Holder ^= 1
	}
	p.busy, p.waiting = true, cost
	if p.epoch.Young(w.ledgerNow()) {
		c.Learning = p.epoch.Learning
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
	}{{c.Ahead, "ahead"}, {c.Direct, "direct"}, {c.Refilled, "refilled"}, {c.Last, "last"}} {
		if is.so {
			text += ", " + is.name
		}
	}
	return text
}

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

func (w *smallWorld) drop(i int) { w.net = append(w.net[:i], w.net[i+1:]...) }

// forgetAll has the ledger lose its data; a clock goes on meanwhile. What it
// forgets may be granted again.
func (w *smallWorld) forgetAll() {
	w.used[faultAmnesia] = true
	w.say("the ledger forgets everything")
	share := max(1, w.scope.rule.Limit.Capacity()/relearnShare)
	w.excuse[0] += share
	for i := range w.parties {
		if p := &w.parties[i]; !w.awake(p) {
			w.cannotTell(p)
		}
	}
	w.ledger = account{}
	if w.scope.broken != "the ledger's clock stands still while it forgets" {
		w.sub += 1000
	}
	w.epoch = ratelimit.Epoch{ID: w.epoch.ID + 1, Began: w.ledgerNow(), Learning: w.ledgerNow().Add(relearnTime)}
}

// cannotTell excuses what p was charged when the ledger forgot, for p cannot say so.
func (w *smallWorld) cannotTell(p *party) {
	for _, name := range [2]ratelimit.Holder{p.name, p.name ^ 1} {
		if r := w.ledger.find(name); r != nil && r.window == w.ledger.window {
			w.excuse[0] += r.charged()
		}
	}
}

// excuseUntold excuses what p would have told.
func (w *smallWorld) excuseUntold(p *party) {
	if p.lease.window == w.window() && (p.untold || p.epoch.ID != w.epoch.ID) {
		w.excuse[0] += p.lease.granted - p.lease.returned
	}
}

// hear is what Fleet.learned does with the epoch of an answer.
func (w *smallWorld) hear(p *party, in ratelimit.Epoch) {
	if in.ID <= p.epoch.ID {
		return
	}
	w.say("node %d hears that the ledger has forgotten", p.name/2)
	p.epoch = in
	p.untold = p.lease.window != 0 && w.now() < p.lease.reset
	p.hasNext, p.next, p.tried = false, lease{}, 0
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
			p.next = lease{seq: g.Seq, window: g.Window}
			w.takeIn(p, &p.next, sent, m.claim, &g)
			p.hasNext = true
			w.turn(p)
		}
		return nil
	}
	if w.scope.broken == "an old answer is taken for the latest" {
		p.lease.seq = g.Seq
	}
	w.takeIn(p, &p.lease, sent, m.claim, &g)
	if g.Seq != before.seq {
		if p.lease != before {
			return fmt.Errorf("node %d has taken in the answer to claim %d, and its latest is %d", p.name/2, g.Seq, before.seq)
		}
		return nil
	}
	p.settled = false
	if awaited {
		if p.reported = 0; g.Window == m.claim.Window {
			p.reported = m.claim.Spent
		}
		p.after = sent.Add(g.TTL / 2)
		p.settled = p.lease.unspent() == 0 && p.lease.spent == m.claim.Spent && g.Granted == m.claim.Granted
	}
	if !awaited || p.waiting == 0 {
		return nil
	}
	a := ask{Rule: &w.scope.rule, Cost: p.waiting}
	p.waiting = 0
	v := p.lease.settled(w.now(), &a, w.scope.direct)
	return w.decided(p, &v, a.Cost, "that has waited")
}

// takeIn applies an answer. The node knows the ledger's clock exactly: any less
// that it may know has it stop earlier.
func (w *smallWorld) takeIn(p *party, l *lease, sent instant, c *ratelimit.Claim, g *ratelimit.Grant) {
	ends := sent.Add(g.ResetAfter)
	if c.Limit.Algorithm != ratelimit.TokenBucket {
		ends = w.at(c.Limit.WindowEnd(g.Window))
	}
	by := margin(c, g.TTL)
	if w.scope.broken == "a lease is counted from its answer" {
		sent, by = w.now(), 0
	}
	l.apply(sent, c, g, by, ends)
}

// tidy forgets those who ended and of whom nothing is left anywhere.
func (w *smallWorld) tidy() {
	kept := w.parties[:0]
	for _, p := range w.parties {
		if p.dead && w.ledger.find(p.name) == nil && w.ledger.find(p.name^1) == nil && !w.hasMessages(p.name) || p.name == 0 {
			continue
		}
		if p.dead { // what it has spent is all that matters of it
			old := p.lease
			p = party{name: p.name, dead: true, other: p.other, seq: p.seq, silent: true}
			if old.window == w.window() || w.scope.rule.Limit.Algorithm == ratelimit.TokenBucket {
				p.lease = lease{spent: old.spent, window: old.window}
			}
		}
		kept = append(kept, p)
	}
	w.parties = kept
	if w.scope.rule.Limit.Algorithm == ratelimit.FixedWindow {
		w.before = 0
	}
}

func (w *smallWorld) hasMessages(name ratelimit.Holder) bool {
	for i := range w.net {
		if w.net[i].claim.Holder&^1 == name {
			return true
		}
	}
	return false
}
