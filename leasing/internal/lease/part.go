package lease

import (
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

// Part is a node's state of one account: of a window its totals, of a bucket its lease (bucket.go).
type Part struct {
	Window window // 0: none yet. Of a bucket, the slot of the lease; 0: there is none, or a claim has stated it
	// Taken is this node's total of the account, and Spent its admissions and charges. The excess of Spent is drift,
	// or debt. Refunds of other nodes' charges can take both below 0.
	Taken, Spent tokens
	booked       tokens // this node's total of a window at the ledger, by the last answer
	unclaimed    tokens // spent since the last claim was written: the ledger counts them as in hand
	Sum          tokens // total of all nodes, by the last answer
	// Deadline is the end of the tokens in hand: of a bucket's lease, or of the node's registration if a window's end
	// with that. Never: they last until the window ends. 0: there is no account yet.
	Deadline   instant
	LastAnswer instant // time of the last answer about this account; 0: never
	inFlight   uint32  // the number of the message in flight; 0: there is none
	flags
}

type flags struct {
	mustClaim bool // the next message is a claim: no answer to the last counts, or a claim is due for other reasons
	full      bool // by the last answer, nothing was free or in hand
	bucket    bool // the account is a token bucket's
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
	Now   instant
	Epoch ratelimit.Epoch // 0: unknown
	Young bool            // the ledger may lack totals: it grants nothing
}

// InHand is the number of tokens to spend without a claim.
func (p *Part) InHand(now instant) tokens {
	if now >= p.Deadline {
		return 0
	}
	return p.Unspent()
}

// Unspent is the number of tokens that were taken and not spent, also after the deadline. A refund of a bucket, as
// a Spent below 0, adds none.
func (p *Part) Unspent() tokens {
	if p.bucket {
		return max(0, p.Taken-max(0, p.Spent))
	}
	return max(0, p.Taken-p.Spent)
}

// Drift is the usage above the total, by a share or a charge.
func (p *Part) Drift() tokens { return max(0, p.Spent-p.Taken) }

// NeverSent reports whether the ledger certainly has no record of the part: no message about it was sent.
func (p *Part) NeverSent() bool { return p.LastAnswer == 0 && p.inFlight == 0 && !p.mustClaim }

// InFlight reports whether a message is in flight.
func (p *Part) InFlight() bool { return p.inFlight != 0 }

// Reported is this node's total at the ledger, as last answered.
func (p *Part) Reported() tokens { return p.booked }

// Unreported reports whether the ledger's total differs from this node's.
func (p *Part) Unreported() bool { return p.mustClaim || p.unbooked() != 0 }

// Returned is the tokens that refunds have returned here, and that the ledger lacks.
func (p *Part) Returned() tokens { return max(0, -p.unbooked()) }

// Recent is what was spent since the last claim was written: for the ledger, it is in hand.
func (p *Part) Recent() tokens { return p.unclaimed }

// unbooked is the usage that the ledger lacks; below 0: it is to be credited. Of a bucket, it is the charge or the
// refund beyond the lease.
func (p *Part) unbooked() tokens {
	if p.bucket {
		return p.beyondLease()
	}
	return max(p.Taken, p.Spent) - p.booked
}

// mayDraw reports whether the next message may be a draw: while there is plenty, and the ledger's number is this node's
// total. A claim is needed if the ledger must judge the message, or if others may reclaim the tokens: a draw tells
// nothing of what is spent.
func (p *Part) mayDraw(q *Asking, c *account.Claim) bool {
	return q.Epoch.ID != 0 && !q.Young && !p.mustClaim && p.Deadline == Never && p.Taken == p.booked &&
		p.draws(&c.Limit)
}

// draws reports whether there is plenty, by the last answer.
func (p *Part) draws(l *ratelimit.Limit) bool { return p.Sum <= l.Capacity()-l.Capacity()/8 }

// Write makes the next message: for need, and for additional tokens. m is kept to judge its answer. In a young epoch it
// only states what the node has. A message without a need is for a report, a return or a renewal.
func (p *Part) Write(m *Message, number uint32, c account.Claim, q *Asking) {
	c.Want = max(c.Need, c.Want)
	if q.Young {
		c.Need, c.Want = 0, 0
	}
	// A draw reports drift, too: the ledger has one number for both.
	n := p.Drift() + c.Want
	// A sum that is lower than this in the answer shows that others returned tokens.
	sum := p.Sum + min(0, p.unbooked())
	switch {
	case p.bucket:
		p.stateLease(&c, q)
	case p.mayDraw(q, &c) && n > 0 && n <= ratelimit.MaxLimit:
		c.Seq = 0
		c.Window = p.Window
		c.Need = 0
		c.Want = n
	default:
		p.state(&c, q)
	}
	*m = Message{Number: number, At: q.Now, Claim: c, epoch: q.Epoch.ID, sum: sum}
	p.inFlight = number
}

// state writes a claim about a window.
func (p *Part) state(c *account.Claim, q *Asking) {
	// Its own deadline has passed: all tokens in hand go back.
	if p.Taken > p.Spent && q.Now >= p.Deadline {
		p.Taken = p.Spent
	}
	p.unclaimed = 0
	c.Window = p.Window
	c.Taken = p.Taken
	c.Spent = p.Spent
}

// Lapse drops the tokens in hand, and the answer to the message in flight: others may have reclaimed them.
func (p *Part) Lapse() {
	p.Taken = min(p.Taken, p.Spent)
	p.inFlight = 0
	p.mustClaim = true
	p.unclaimed = 0
}

// Lost notes that the message in flight has no answer. The ledger may have applied it or not: a claim states the total
// in either case.
func (p *Part) Lost(m *Message) {
	if p.inFlight == m.Number {
		p.inFlight, p.mustClaim = 0, true
	}
}

// Answer is the rest of a round trip's answer.
type Answer struct {
	Now   instant
	Epoch ratelimit.Epoch // of the data after the messages; 0: unknown
}

// In reports whether a message was written in an epoch.
func (m *Message) In(e ratelimit.Epoch) bool { return m.epoch == e.ID }

// Awaits reports whether a message is the one in flight.
func (p *Part) Awaits(m *Message) bool { return p.inFlight == m.Number }

// Apply applies the answer to a message about a window. It returns whether the answer counts: it must be for the latest
// message, and settled in the epoch in which that was written.
func (p *Part) Apply(m *Message, g *account.Grant, a *Answer) bool {
	if !p.accepts(m, g, a) {
		return false
	}
	if m.Claim.Draws() {
		return p.drew(m, g, a)
	}
	p.claimed(m, g, a)
	return true
}

// accepts ends a message, and reports whether its answer counts. The answer of a ledger in another epoch does not: that
// lacks totals. Nor does one in a young epoch, though the ledger has booked the stated total. Nor does one that arrives
// after the deadline of the lease, when this node's registration may be over. In these cases the next message is a
// claim, which corrects both numbers: except after a total that was stated in a young epoch. A claim that was written
// without a known epoch counts in any, because the ledger judges it.
func (p *Part) accepts(m *Message, g *account.Grant, a *Answer) bool {
	if !p.Awaits(m) {
		return false
	}
	p.inFlight = 0
	stated := !m.Claim.Draws()
	counts := g.Err == nil && (a.Epoch.ID == m.epoch || m.epoch == 0 && stated) && (p.bucket || a.Now < p.Deadline)
	young := counts && a.Epoch.Young(g.At)
	if counts && !young {
		return true
	}
	p.mustClaim = true
	if young && stated && (!p.bucket || m.Claim.Window == account.Stated) {
		p.mustClaim = false
		p.booked = g.Total
		p.Sum = g.Sum
		p.LastAnswer = a.Now
	}
	return false
}

// drew judges a draw: the part below the limit is this node's. A total that is too high shows an earlier draw that was
// late. One that is too low shows that the ledger lost the record.
func (p *Part) drew(m *Message, g *account.Grant, a *Answer) bool {
	n := m.Claim.Want
	if g.Total != p.booked+n {
		// An earlier draw arrived late, or twice, or the ledger has lost the record.
		p.mustClaim = true
		return false
	}
	p.Taken += g.Owned(n, &m.Claim.Limit)
	p.booked = g.Total
	p.Sum = g.Sum
	p.LastAnswer = a.Now
	p.full = false
	if p.Taken != p.booked { // the part beyond the limit goes back with the next claim
		p.mustClaim = true
	}
	return true
}

// claimed applies the answer to a claim. Totals change by differences, because requests and refunds went on during the
// trip.
func (p *Part) claimed(m *Message, g *account.Grant, a *Answer) {
	c := &m.Claim
	over, cut := max(0, g.Sum-c.Limit.Capacity()), g.Cut(c)
	p.Taken += g.Granted + cut
	p.Spent += cut
	p.Taken += max(0, m.Drift()-over) // only tokens within the limit confirm drift
	p.mustClaim = false
	p.booked = g.Total
	p.Sum = g.Sum
	p.LastAnswer = a.Now
	p.full = c.Limit.Capacity() <= g.Sum && g.InHand == 0
}

// Restate makes the next message a claim, to state this node's total.
func (p *Part) Restate() { p.mustClaim = true }

// record counts n more tokens as spent, and as not yet stated by a claim.
func (p *Part) record(n tokens) { p.Spent, p.unclaimed = p.Spent+n, p.unclaimed+n }

// unspend takes back n spent tokens. Those that a claim has reported do not return to this node's hand. The ledger
// counts those as spent, so they go back by a lower total.
func (p *Part) unspend(n tokens) {
	back := max(0, min(n, p.unclaimed))
	p.record(-back)
	p.Refund(n - back)
}

// Refund credits a charge of any node. Of a window, it adds no tokens in hand. Totals stay within the ledger's bound:
// beyond it, the ledger would give back the same tokens with each message.
func (p *Part) Refund(n tokens) {
	if p.bucket {
		p.refundLease(n)
		return
	}
	n = max(0, min(n, account.MostBooked+min(p.Taken, p.Spent)))
	p.Taken, p.Spent = p.Taken-n, p.Spent-n
}

// GiveBack makes the next message return all tokens in hand except keep. Of a bucket, each message does (Claim.Want).
func (p *Part) GiveBack(keep tokens) {
	if hand := p.Taken - p.Spent; hand > keep && !p.bucket {
		p.Taken -= hand - keep
		p.mustClaim = true
	}
}
