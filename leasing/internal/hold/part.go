package hold

import (
	"errors"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

type (
	tokens     = ratelimit.Tokens
	instant    = ratelimit.Instant
	ledgerTime = ratelimit.LedgerTime
	window     = ratelimit.Window
)

// Never is an instant that does not come.
const Never = instant(1<<63 - 1)

// Part is what a node knows of one account.
type Part struct {
	Window window // 0: none yet, or a bucket's
	// Taken is what this node has of the account, and Spent what it has admitted and charged. Beyond Taken it is
	// drift, or debt. Both may be below 0: by refunds of what other nodes were charged.
	Taken, Spent tokens
	booked       tokens // what the ledger has as this node's total, as far as is known
	Sum          tokens // what all nodes have taken, when last heard
	// Deadline is the first instant at which what is in hand may not be spent.
	Deadline instant
	Heard    instant // when the ledger was last heard of this account; 0: never
	asked    uint32  // the number of the message under way; 0: there is none
	flags
}

type flags struct {
	doubt    bool // the last message has no answer that counts: the next is a claim
	short    bool // the ledger had less than this node knew: it may have lost the account
	eager    bool // the ledger may credit what is in hand: the last claim that left was eager
	learning bool // the ledger granted little, and confirmed nothing
	used     bool // something was spent since the last claim was written
	full     bool // nothing was free, and nobody had anything in hand, when last heard
}

// Message is one that is under way, as it was written.
type Message struct {
	Number       uint32 // 0: no message
	At           instant
	Claim        account.Claim
	epoch        uint64 // that the node knew; 0: none
	taken, spent tokens // as stated, or as they were when a draw was written
	sum          tokens // as heard then, less what this node takes back with it
}

// Drift is what the sender had spent and not taken, when the message was written.
func (m *Message) Drift() tokens { return max(0, m.spent-m.taken) }

// Sum is less than which the account's sum can only be if others have given something back, or refunded it.
func (m *Message) Sum() tokens { return m.sum }

// Asking is what a node knows of the ledger when it writes, and what the rule wants.
type Asking struct {
	Now      instant
	There    ledgerTime      // at least so late is it at the ledger
	Epoch    ratelimit.Epoch // 0: not known
	Young    bool            // it may still be told what was lost
	Eager    bool            // the rule has the ledger credit what silent nodes had in hand
	Audited  bool            // each grant is on record, and so none is drawn
	TTL      time.Duration   // of an eager lease, or a bucket's slot; 0: none
	Share    int             // of what is free beyond the need, one part in so many
	Deadline bool            // a lease ends by itself (eager, or a bucket)
}

// InHand is what may be spent without asking.
func (p *Part) InHand(now instant) tokens {
	if now >= p.Deadline {
		return 0
	}
	return max(0, p.Taken-p.Spent)
}

// Drift is what was spent and is not covered: by a share, or charged.
func (p *Part) Drift() tokens { return max(0, p.Spent-p.Taken) }

// Asked tells whether a message is under way.
func (p *Part) Asked() bool { return p.asked != 0 }

// Reported is this node's total, as the ledger knows it.
func (p *Part) Reported() tokens { return p.booked }

// Untold tells whether the ledger has another total than this node.
func (p *Part) Untold() bool { return p.doubt || max(p.Taken, p.Spent) != p.booked }

// Owes tells whether the ledger does not know all that this node has spent: of an eager lease it credits that.
func (p *Part) Owes() bool { return p.Untold() || p.eager && p.used }

// mayDraw tells whether the next message may be a draw: while there is plenty, and where the ledger's number is this
// node's own. What the ledger must judge, or have on record, or may credit, is claimed. So is what comes first in a
// window in which the debt of the one before counts.
func (p *Part) mayDraw(q *Asking, limit *ratelimit.Limit) bool {
	most := limit.Capacity() - limit.Capacity()/8
	return limit.Algorithm != ratelimit.TokenBucket && q.Epoch.ID != 0 && !q.Young && !q.Eager && !q.Audited &&
		!p.doubt && !p.eager && p.Taken == p.booked && p.Sum <= most && (p.Heard != 0 || !limit.Carries)
}

// Write makes the next message: for need, and what is wanted besides. m is what its answer is judged by.
func (p *Part) Write(m *Message, number uint32, c account.Claim, q *Asking) {
	need, want := c.Need, max(c.Need, c.Want)
	c.Window = p.Window
	if p.mayDraw(q, &c.Limit) && p.Drift()+want > 0 {
		c.Kind, c.Need, c.Want = account.Draws, 0, p.Drift()+want
	} else {
		p.state(&c, q)
		c.Need, c.Want = need, want
	}
	*m = Message{Number: number, At: q.Now, Claim: c, epoch: q.Epoch.ID, taken: p.Taken, spent: p.Spent}
	m.sum = p.Sum + min(0, max(p.Taken, p.Spent)-p.booked)
	p.asked = number
}

// state writes a claim.
func (p *Part) state(c *account.Claim, q *Asking) {
	// Its own deadline has passed: all goes back.
	if p.Taken > p.Spent && q.Now >= p.Deadline {
		p.Taken = p.Spent
	}
	p.used = false
	c.Taken, c.Spent, c.Share = p.Taken, p.Spent, q.Share
	c.Learning = q.Epoch.Learning
	if e := q.Epoch; c.Limit.Algorithm == ratelimit.TokenBucket && account.Told(e) {
		// A bucket that was lost is known again when one that was empty then has filled.
		c.Learning = max(e.Learning, e.Began.Add(Refill(c.Limit.Burst, &c.Limit)))
	}
	if p.short {
		c.Learning = max(c.Learning, q.There.Add(account.Learn))
	}
	// The ledger may settle it, and its answer be lost: from here on it may credit what is in hand by its time to live,
	// whatever was agreed before.
	if q.Deadline {
		c.TTL = q.TTL
		p.eager = p.eager || q.Eager
		p.Deadline = min(p.Deadline, lasts(q.Now, q.TTL))
	}
}

// lasts is how long what is in hand may be spent: three quarters of its time, from when the claim was sent, so that
// the ledger never credits what is still spent.
func lasts(sent instant, ttl time.Duration) instant { return sent.Add(ttl - ttl/4) }

// Lost takes in that the message under way will not be answered.
func (p *Part) Lost(m *Message) {
	if p.asked == m.Number {
		p.asked, p.doubt = 0, true
	}
}

// Answer is what came back with a round trip.
type Answer struct {
	Now   instant
	Epoch ratelimit.Epoch // of the data right after; 0: not known
}

// Hear takes in the answer to a message. It tells whether it counts: an answer to another message than the latest
// does not, nor does one that did not know what was lost.
func (p *Part) Hear(m *Message, g *account.Grant, a *Answer) bool {
	if p.asked != m.Number {
		return false
	}
	p.asked = 0
	// A ledger in another epoch has not known all holders; and a learning one only of those who tell it so.
	unaware := a.Epoch.Young(g.At) && m.Claim.Learning < a.Epoch.Learning
	if g.Err != nil || a.Epoch.ID != m.epoch && m.epoch != 0 || m.Claim.Kind == account.Draws && m.epoch == 0 ||
		unaware {
		p.doubt = true
		p.short = p.short && !errors.Is(g.Err, account.ErrOvertaken)
		return false
	}
	if m.Claim.Kind == account.Draws {
		return p.drew(m, g, a)
	}
	p.claimed(m, g, a)
	return true
}

// drew judges a draw: what lay below the limit is this node's.
func (p *Part) drew(m *Message, g *account.Grant, a *Answer) bool {
	n := m.Claim.Want
	if g.Total != p.booked+n {
		// One of before came late, or twice; or the ledger has lost the record.
		p.doubt, p.short = true, p.short || g.Total < p.booked+n
		return false
	}
	p.Taken += g.Owned(n, &m.Claim.Limit)
	p.booked, p.Sum, p.Heard = g.Total, g.Sum, a.Now
	p.full = false
	if p.Taken != p.booked { // what lay beyond is given back with the next claim
		p.doubt = true
	}
	return true
}

func (p *Part) claimed(m *Message, g *account.Grant, a *Answer) {
	c := &m.Claim
	// An answer that comes after the deadline renews nothing.
	if a.Now >= p.Deadline {
		p.Taken = min(p.Taken, p.Spent)
	}
	over := max(0, g.Sum-c.Limit.Capacity())
	p.Taken += g.Granted + g.Cut
	p.Spent += g.Cut
	p.learning = g.Learning > g.At
	if told := max(0, c.Spent-c.Taken); !p.learning {
		p.Taken += max(0, told-over) // only tokens that the limit has confirm what was spent without asking
	}
	p.doubt, p.short, p.eager = false, false, c.Eager()
	p.Deadline = Never
	if c.Eager() || c.Limit.Algorithm == ratelimit.TokenBucket {
		p.Deadline = lasts(m.At, c.TTL)
	}
	p.booked, p.Sum, p.Heard = g.Total, g.Sum, a.Now
	p.full = c.Limit.Capacity()-g.Sum <= 0 && g.InHand == 0 && !p.learning
}

// Doubt has the next message be a claim: what this node has is to be told.
func (p *Part) Doubt() { p.doubt = true }

// Refund credits what was charged, here or at another node: it stays in nobody's hand.
func (p *Part) Refund(n tokens) { p.Taken, p.Spent = p.Taken-n, p.Spent-n }

// GiveBack has all but keep of what is in hand go back with the next message.
func (p *Part) GiveBack(keep tokens) {
	if hand := p.Taken - p.Spent; hand > keep {
		p.Taken -= hand - keep
		p.doubt = true
	}
}
