package leasing

import "github.com/sluice-gate/sluice/ratelimit"

// Held is what a node has of a key that another node leases to it: the lessee's side of lent.
//
// Guarantee: it spends only what it was granted, in the window that it was granted of and before that is over at the
// owner, whose clock it need not know. What it admits without asking is part of the totals that it tells, once, and so
// are refunds. The zero Held has nothing. It is not safe for concurrent use.
type Held struct {
	totals Totals
	until  instant // what is in hand may be spent before
	keeps  bool    // if not, what is in hand is to be given back
	told   Totals  // under way; its Seq is 0 if nothing is
	sent   instant // when it was, or the last was
	known  tokens  // what the owner has as the total, as far as is known
	doubt  bool    // that is not certain: an answer was lost
}

// InHand is what may be spent.
func (h *Held) InHand(now ratelimit.Instant) ratelimit.Tokens {
	if now >= h.until || !h.keeps {
		return 0
	}
	return max(0, h.totals.Taken-h.totals.Spent)
}

// Window is that of the totals; 0: the owner has named none.
func (h *Held) Window() ratelimit.Window { return h.totals.Window }

// Take spends n tokens, if they are in hand. It returns the window that they are of.
func (h *Held) Take(now ratelimit.Instant, n ratelimit.Tokens) (ratelimit.Window, bool) {
	if n > h.InHand(now) {
		return 0, false
	}
	h.totals.Spent += n
	return h.totals.Window, true
}

// Untake takes back what Take has spent, if its window goes on.
func (h *Held) Untake(w ratelimit.Window, n ratelimit.Tokens) bool {
	if h.totals.Window != w {
		return false
	}
	h.totals.Spent -= n
	return true
}

// Admit notes what was admitted without asking.
func (h *Held) Admit(n ratelimit.Tokens) { h.totals.Spent += min(n, MostTotal-max(0, h.totals.Spent)) }

// Credit lowers the totals: what was refunded is nobody's. Where it is of one window only, 0: of that which goes on, it
// reports false if the totals are of another.
func (h *Held) Credit(w ratelimit.Window, n ratelimit.Tokens) bool {
	t := &h.totals
	if w != 0 && t.Window == 0 && t.Taken == 0 && t.Spent == 0 {
		t.Window = w
	}
	if w != 0 && t.Window != w {
		return false
	}
	n = min(n, MostTotal)
	t.Taken, t.Spent = max(t.Taken-n, -MostTotal), max(t.Spent-n, -MostTotal)
	return true
}

// Open tells whether there is something that the owner is to hear of, now or later: it has another total, or something
// is in hand.
func (h *Held) Open() bool {
	t := &h.totals
	return h.doubt || max(t.Taken, t.Spent) != h.known || t.Taken > t.Spent
}

// Telling tells whether a message is under way. Another one waits for its answer, or for its loss.
func (h *Held) Telling() bool { return h.told.Seq != 0 }

// Sent is when the last message was sent.
func (h *Held) Sent() ratelimit.Instant { return h.sent }

// Tell is a message to the owner, which asks for so many tokens besides. seq rises with each message of the node.
func (h *Held) Tell(now ratelimit.Instant, seq uint64, want ratelimit.Tokens) Totals {
	if h.InHand(now) == 0 {
		h.giveBack()
	}
	if h.totals.Life == 0 {
		h.totals.Life = seq
	}
	h.totals.Seq, h.totals.Want = seq, want
	h.told, h.sent = h.totals, now
	return h.told
}

// GiveBack has the next message return what is in hand.
func (h *Held) GiveBack() { h.giveBack(); h.keeps = false }

func (h *Held) giveBack() { h.totals.Taken = min(h.totals.Taken, h.totals.Spent) }

// Hear takes in the answer to a message. One that is not to the message under way says nothing.
func (h *Held) Hear(seq uint64, x Lease) {
	if h.told.Seq != seq {
		return
	}
	drift := max(0, h.told.Spent-h.told.Taken) // is charged now
	t := &h.totals
	if h.told.Window != 0 && x.Window > h.told.Window {
		// The totals of another window begin at 0, but for what was admitted without asking since.
		t.Taken, t.Spent = 0, max(0, t.Spent-t.Taken-drift)
		h.known = x.Granted
	} else {
		if t.Taken += drift; x.Void {
			t.Taken -= max(0, h.told.Taken-h.told.Spent)
			h.told.Taken = h.told.Spent
		}
		h.known = max(h.told.Taken, h.told.Spent) + x.Granted
	}
	t.Taken += x.Granted
	t.Window = x.Window
	h.doubt, h.told = false, Totals{}
	h.until, h.keeps = h.sent.Add(x.For), x.Keep
	if !x.Keep {
		h.giveBack()
	}
}

// Lost takes in that there will be no answer.
func (h *Held) Lost(seq uint64) {
	if h.told.Seq == seq {
		h.doubt, h.told = true, Totals{}
	}
}
