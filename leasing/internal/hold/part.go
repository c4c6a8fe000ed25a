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

// Part is a node's state of one account.
type Part struct {
	Window window // 0: none yet, or a bucket's
	// Taken is this node's total of the account, and Spent its admissions and charges. The excess of Spent is drift,
	// or debt. Refunds of other nodes' charges can take both below 0.
	Taken, Spent tokens
	booked       tokens // this node's total at the ledger, by the last answer
	fresh        tokens // spent since the last claim was written: the ledger counts them as in hand
	Sum          tokens // total of all nodes, by the last answer
	// Deadline is the end of the tokens in hand. Never: they last until the window ends. 0: there is no account yet.
	Deadline   instant
	LastAnswer instant // time of the last answer about this account; 0: never
	inFlight   uint32  // the number of the message in flight; 0: there is none
	flags
}

type flags struct {
	restate bool // the next message must be a claim: no answer to the last counts, or a claim is due for other reasons
	short   bool // the ledger's total was lower than this node's: it may have lost the account
	eager   bool // the ledger may credit the tokens in hand: the last claim was eager
	full    bool // by the last answer, nothing was free or in hand
}

// Message is a message as it was written.
type Message struct {
	Number uint32 // 0: no message
	At     instant
	Claim  account.Claim
	epoch  uint64 // the node's epoch; 0: none
	sum    tokens // by the last answer, less the tokens that this message gives back
}

// Drift is the drift that a claim states.
func (m *Message) Drift() tokens { return max(0, m.Claim.Spent-m.Claim.Taken) }

// Sum is a lower bound of the account's sum, unless others gave tokens back, or refunded them.
func (m *Message) Sum() tokens { return m.sum }

// Asking is the node's view of the ledger when it writes, and the rule's settings.
type Asking struct {
	Now     instant
	There   ledgerTime      // earliest time at the ledger
	Epoch   ratelimit.Epoch // 0: unknown
	Young   bool            // the epoch still accepts totals that were lost
	Eager   bool            // the ledger credits the leases of silent nodes
	TTL     time.Duration   // of an eager lease, or a bucket's slot; 0: leases have no end
	Divisor int             // divisor of the free tokens beyond the need
}

// InHand is the number of tokens to spend without a claim.
func (p *Part) InHand(now instant) tokens {
	if now >= p.Deadline {
		return 0
	}
	return max(0, p.Taken-p.Spent)
}

// Drift is the usage above the total, by a share or a charge.
func (p *Part) Drift() tokens { return max(0, p.Spent-p.Taken) }

// InFlight tells whether a message is in flight.
func (p *Part) InFlight() bool { return p.inFlight != 0 }

// Reported is this node's total at the ledger.
func (p *Part) Reported() tokens { return p.booked }

// Unreported tells whether the ledger's total differs from this node's.
func (p *Part) Unreported() bool { return p.restate || max(p.Taken, p.Spent) != p.booked }

// Owes tells whether the ledger lacks usage of this node: of an eager lease it credits that.
func (p *Part) Owes() bool { return p.Unreported() || p.eager && p.fresh > 0 }

// mayDraw tells whether the next message may be a draw: while there is plenty, and the ledger's number is this node's
// total. A claim is needed if the ledger must judge the message, or may credit it.
func (p *Part) mayDraw(q *Asking, c *account.Claim) bool {
	limit := &c.Limit
	most := limit.Capacity() - limit.Capacity()/8
	return limit.Algorithm != ratelimit.TokenBucket && q.Epoch.ID != 0 && !q.Young && !q.Eager &&
		!p.restate && !p.eager && p.Taken == p.booked && p.Sum <= most
}

// Write makes the next message: for need, and for additional tokens. m is kept to judge its answer.
func (p *Part) Write(m *Message, number uint32, c account.Claim, q *Asking) {
	need, want := c.Need, max(c.Need, c.Want)
	c.Window = p.Window
	if n := p.Drift() + want; p.mayDraw(q, &c) && n > 0 && n <= ratelimit.MaxLimit {
		c.Kind, c.Need, c.Want = account.Draws, 0, n
	} else {
		p.state(&c, q)
		c.Need, c.Want = need, want
	}
	*m = Message{Number: number, At: q.Now, Claim: c, epoch: q.Epoch.ID}
	m.sum = p.Sum + min(0, max(p.Taken, p.Spent)-p.booked)
	p.inFlight = number
}

// state writes a claim.
func (p *Part) state(c *account.Claim, q *Asking) {
	// Its own deadline has passed: all tokens in hand go back.
	if p.Taken > p.Spent && q.Now >= p.Deadline {
		p.Taken = p.Spent
	}
	p.fresh = 0
	if p.LastAnswer != 0 {
		c.Seq += account.Answered
	}
	c.Taken, c.Spent, c.Divisor = p.Taken, p.Spent, q.Divisor
	c.Learning = q.Epoch.Learning
	if c.Limit.Algorithm == ratelimit.TokenBucket && p.LastAnswer != 0 {
		c.Full = q.There.Add(p.LastAnswer.Sub(q.Now)).Add(c.Limit.Refill(p.Sum))
	}
	if p.short {
		c.Learning = max(c.Learning, q.There.Add(account.Learn))
	}
	// The ledger may settle it, and its answer may be lost: from now on, the lease can end by the new TTL, for any
	// earlier agreement.
	if q.TTL > 0 {
		c.TTL = q.TTL
		p.eager = p.eager || q.Eager
		p.Deadline = min(p.Deadline, lasts(q.Now, q.TTL))
	}
}

// lasts is the lifetime of the tokens in hand: three quarters of the TTL, from the sending of the claim. So the
// ledger never credits tokens that are still spent.
func lasts(sent instant, ttl time.Duration) instant { return sent.Add(ttl - ttl/4) }

// Lost notes that the message in flight has no answer.
func (p *Part) Lost(m *Message) {
	if p.inFlight == m.Number {
		p.inFlight, p.restate = 0, true
	}
}

// Answer is the rest of a round trip's answer.
type Answer struct {
	Now   instant
	Epoch ratelimit.Epoch // of the data after the messages; 0: unknown
}

// Apply applies the answer to a message. It returns whether the answer counts: it must be for the latest message, and
// settled after the loss that the message states.
func (p *Part) Apply(m *Message, g *account.Grant, a *Answer) bool {
	if p.inFlight != m.Number {
		return false
	}
	p.inFlight = 0
	// A ledger in another epoch lacks totals, and a learning one has only those of holders that stated it.
	unaware := a.Epoch.Young(g.At) && m.Claim.Learning < a.Epoch.Learning
	if g.Err != nil || a.Epoch.ID != m.epoch && m.epoch != 0 || m.Claim.Kind == account.Draws && m.epoch == 0 ||
		unaware {
		p.restate = true
		p.short = p.short && !errors.Is(g.Err, account.ErrOvertaken)
		return false
	}
	if m.Claim.Kind == account.Draws {
		return p.drew(m, g, a)
	}
	p.claimed(m, g, a)
	return true
}

// drew judges a draw: the part below the limit is this node's.
func (p *Part) drew(m *Message, g *account.Grant, a *Answer) bool {
	n := m.Claim.Want
	if g.Total != p.booked+n {
		// An earlier draw arrived late, or twice, or the ledger has lost the record.
		p.restate, p.short = true, p.short || g.Total < p.booked+n
		return false
	}
	p.Taken += g.Owned(n, &m.Claim.Limit)
	p.booked, p.Sum, p.LastAnswer = g.Total, g.Sum, a.Now
	p.full = false
	if p.Taken != p.booked { // the part beyond the limit goes back with the next claim
		p.restate = true
	}
	return true
}

func (p *Part) claimed(m *Message, g *account.Grant, a *Answer) {
	c := &m.Claim
	// An answer after the deadline renews nothing.
	if a.Now >= p.Deadline {
		p.Taken = min(p.Taken, p.Spent)
	}
	over := max(0, g.Sum-c.Limit.Capacity())
	p.Taken += g.Granted + g.Cut
	p.Spent += g.Cut
	learning := g.Learning > g.At // it granted little, and confirms nothing
	if drift := m.Drift(); !learning {
		p.Taken += max(0, drift-over) // only tokens within the limit confirm drift
	}
	p.restate, p.short, p.eager = false, false, c.Eager()
	p.Deadline = Never
	if c.Eager() || c.Limit.Algorithm == ratelimit.TokenBucket {
		p.Deadline = lasts(m.At, c.TTL)
	}
	p.booked, p.Sum, p.LastAnswer = g.Total, g.Sum, a.Now
	p.full = c.Limit.Capacity()-g.Sum <= 0 && g.InHand == 0 && !learning
}

// Restate makes the next message a claim, to state this node's total.
func (p *Part) Restate() { p.restate = true }

// record counts n more tokens as spent, and as not yet stated by a claim.
func (p *Part) record(n tokens) { p.Spent, p.fresh = p.Spent+n, p.fresh+n }

// unspend takes back n spent tokens. Those that a claim has reported do not return to this node's hand: of a bucket,
// the ledger may have refilled their place.
func (p *Part) unspend(n tokens) {
	back := min(n, p.fresh)
	p.record(-back)
	p.Refund(n - back)
}

// Refund credits a charge of any node. It adds no tokens in hand. Totals stay within the ledger's bound: beyond it, the
// ledger would give back the same tokens with each message.
func (p *Part) Refund(n tokens) {
	n = max(0, min(n, account.MostBooked+min(p.Taken, p.Spent)))
	p.Taken, p.Spent = p.Taken-n, p.Spent-n
}

// GiveBack makes the next message return all tokens in hand except keep.
func (p *Part) GiveBack(keep tokens) {
	if hand := p.Taken - p.Spent; hand > keep {
		p.Taken -= hand - keep
		p.restate = true
	}
}
