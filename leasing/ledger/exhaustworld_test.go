package ledger

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
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
	ledger  Account
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
	lease    lease.Lease
	next     lease.Lease // of the window to come
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

	recall  int    // the ledger has asked it to give back: 1, and the ticks since; 0: not, or the message was lost
	asked   bool   // it has heard that, while a claim was under way
	resting tokens // the cost of a request that waits for what others were asked for
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
	return party{name: w.names, epoch: w.epoch, seq: uint64(btoi(w.scope.draws))} // a first claim is no draw
}

func (w *smallWorld) clone() *smallWorld {
	c := *w
	c.ledger.others, c.ledger.tills = append([]record(nil), w.ledger.others...), cloned(w.ledger.tills)
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
	moveRecalled    // a recall arrives, and the node keeps nothing
	moveRecalledOne // or one token, for the next moment
	moveAgain       // a request claims again, for what others were asked for
	moveTooLate     // or its time is over
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
		if w.awake(p) && (p.epoch.ID != w.epoch.ID || p.untold || p.resting > 0) {
			return false
		}
	}
	return true
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
	if !p.busy && p.lease.Window != 0 {
		if w.renews(p) {
			out = append(out, move{moveRenew, i})
		}
		if w.now() < p.lease.Reset && p.lease.Unspent() > 0 && !p.hasNext && !w.scope.direct {
			out = append(out, move{moveRelease, i})
		}
		if mayGo := p.settled || w.now() >= p.lease.Reset.Add(lease.ClaimTimeout); mayGo && !p.hasNext && (p.other == 0 || !w.scope.keeps) {
			out = append(out, move{moveForget, i})
		}
		if here := w.window(); w.scope.ahead && !p.hasNext && p.lease.Window == here && p.tried <= here && (w.tick+1)%w.scope.ticks == 0 {
			out = append(out, move{moveAhead, i})
		}
		if w.may(faultEnd) && !p.hasNext && p.resting == 0 {
			out = append(out, move{moveEnd, i})
		}
	}
	if p.epoch.ID != w.epoch.ID {
		out = append(out, move{moveHear, i})
	}
	if w.may(faultCrash) {
		out = append(out, move{moveCrash, i})
	}
	if w.may(faultPause) && p.lease.Window != 0 {
		out = append(out, move{movePause, i})
	}
	return w.recallMoves(out, i)
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
		p.lease, p.other, p.reported, p.settled, p.tried = lease.Lease{}, 0, 0, false, 0
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
	case moveRecalled, moveRecalledOne, moveAgain, moveTooLate:
		err = w.playRecall(m)
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
		p := &w.parties[i]
		p.ages()
		if w.awake(p) {
			w.turn(p)
		}
	}
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

func (w *smallWorld) drop(i int) { w.net = append(w.net[:i], w.net[i+1:]...) }

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
			if old.Window == w.window() || w.scope.rule.Limit.Algorithm == ratelimit.TokenBucket {
				p.lease = lease.Lease{Spent: old.Spent, Window: old.Window}
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
