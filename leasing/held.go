package leasing

import "github.com/sluice-gate/sluice/ratelimit"

// Held is the state of a key that another node leases to this one: the lessee's side of lent.
//
// Guarantee: it spends only granted tokens, in their window and before that window is over at the owner, without the
// owner's clock. Its totals report admissions without a lease, and refunds, once. The zero Held has no tokens. It is
// not safe for concurrent use.
type Held struct {
	totals    Totals
	until     instant // end of the tokens in hand
	keeps     bool    // if not, the tokens in hand are to be given back
	inFlight  Totals  // its Seq is 0 if there is none
	sent      instant // time of the last message
	known     tokens  // the last total of the owner
	fresh     tokens  // spent since the last message
	uncertain bool    // an answer was lost: the owner may have applied the message
}

// InHand is the number of tokens to spend.
func (h *Held) InHand(now ratelimit.Instant) ratelimit.Tokens {
	if now >= h.until || !h.keeps {
		return 0
	}
	return max(0, h.totals.Taken-h.totals.Spent)
}

// Window is the window of the totals; 0: the owner has named none.
func (h *Held) Window() ratelimit.Window { return h.totals.Window }

// Take spends n tokens, if they are in hand. It returns their window.
func (h *Held) Take(now ratelimit.Instant, n ratelimit.Tokens) (ratelimit.Window, bool) {
	if n > h.InHand(now) {
		return 0, false
	}
	h.totals.Spent, h.fresh = h.totals.Spent+n, h.fresh+n
	return h.totals.Window, true
}

// Untake takes back a Take, if its window is current. Reported tokens do not return to this node's hand: a bucket may
// have refilled in their place.
func (h *Held) Untake(w ratelimit.Window, n ratelimit.Tokens) bool {
	if h.totals.Window != w {
		return false
	}
	back := min(n, h.fresh)
	h.totals.Spent, h.fresh = h.totals.Spent-back, h.fresh-back
	h.lower(n - back)
	return true
}

// Admit notes an admission without a lease.
func (h *Held) Admit(n ratelimit.Tokens) { h.totals.Spent += min(n, MostTotal-max(0, h.totals.Spent)) }

// Credit lowers the totals. A refund adds no tokens in hand. If it is for one window only (0: the current one),
// Credit returns false if the totals are of another.
func (h *Held) Credit(w ratelimit.Window, n ratelimit.Tokens) bool {
	t := &h.totals
	switch {
	case w == 0, w == bucketWindow, w == t.Window:
	case t.Window == 0 && t.Taken == 0 && t.Spent == 0:
		t.Window = w
	default:
		return false
	}
	h.lower(n)
	return true
}

// Refund credits a refund that the owner did not answer. w is its window by this node's clock, for totals whose window
// the owner has not named; 0: a bucket. Such totals with unreported admissions may be of an earlier window: the refund
// takes back only these.
func (h *Held) Refund(w ratelimit.Window, n ratelimit.Tokens) {
	if h.totals.Window != 0 {
		w = 0
	}
	if !h.Credit(w, n) {
		h.lower(min(n, max(0, h.totals.Spent)))
	}
}

func (h *Held) lower(n ratelimit.Tokens) {
	t := &h.totals
	n = min(n, MostTotal)
	t.Taken, t.Spent = max(t.Taken-n, -MostTotal), max(t.Spent-n, -MostTotal)
}

// Open tells whether there is something to report to the owner, now or later: another total, or tokens in hand.
func (h *Held) Open() bool {
	t := &h.totals
	return h.uncertain || max(t.Taken, t.Spent) != h.known || t.Taken > t.Spent
}

// Reporting tells whether a message is in flight. The next one waits for its answer, or for its loss.
func (h *Held) Reporting() bool { return h.inFlight.Seq != 0 }

// Sent is the time of the last message.
func (h *Held) Sent() ratelimit.Instant { return h.sent }

// Report is a message to the owner, with a request for that many more tokens. seq rises with each message of the node.
func (h *Held) Report(now ratelimit.Instant, seq uint64, want ratelimit.Tokens) Totals {
	if h.InHand(now) == 0 {
		h.giveBack()
	}
	if h.totals.Life == 0 {
		h.totals.Life = seq
	}
	h.totals.Seq, h.totals.Want, h.totals.Booked = seq, want, min(0, h.known)
	h.inFlight, h.sent, h.fresh = h.totals, now, 0
	return h.inFlight
}

// GiveBack makes the next message return all tokens in hand.
func (h *Held) GiveBack() { h.giveBack(); h.keeps = false }

func (h *Held) giveBack() { h.totals.Taken = min(h.totals.Taken, h.totals.Spent) }

// Apply applies the answer to a message. Answers to earlier messages are ignored.
func (h *Held) Apply(seq uint64, x Lease) {
	if h.inFlight.Seq != seq {
		return
	}
	drift := max(0, h.inFlight.Spent-h.inFlight.Taken) // it is charged now
	t := &h.totals
	if t.Window != 0 && x.Window > t.Window {
		// The totals of another window begin with the admissions without a lease since the message.
		t.Taken, t.Spent = 0, max(0, t.Spent-t.Taken-drift)
		h.known = x.Granted
	} else {
		t.Taken += drift
		if x.Void {
			t.Taken -= max(0, h.inFlight.Taken-h.inFlight.Spent)
			h.inFlight.Taken = h.inFlight.Spent
		}
		h.known = max(h.inFlight.Taken, h.inFlight.Spent) + x.Granted
	}
	t.Taken += x.Granted
	t.Window = x.Window
	h.uncertain, h.inFlight = false, Totals{}
	h.until, h.keeps = h.sent.Add(x.For), x.Keep
	if !x.Keep {
		h.giveBack()
	}
}

// Lost notes that there will be no answer. uncertain means that the owner may have applied the message. If not, a life
// of the totals that began with it begins with the next one.
func (h *Held) Lost(seq uint64, uncertain bool) {
	if h.inFlight.Seq == seq {
		h.uncertain, h.inFlight = h.uncertain || uncertain, Totals{}
		if !uncertain && h.totals.Life == seq {
			h.totals.Life = 0
		}
	}
}
