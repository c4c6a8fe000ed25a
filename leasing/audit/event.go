package audit

import (
	"errors"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// Event is the answer to a message about an audited rule, as its node received it. All numbers of tokens are those of
// [account.Claim] and [account.Grant]. Fence is 0 if the message was not settled, and for a draw. Two events of one
// message are equal in all fields: so a replay finds repetitions.
type Event struct {
	Kind      string               `json:"kind"`
	Rule      string               `json:"rule"`
	Key       string               `json:"key"`
	Holder    string               `json:"holder"`
	At        ratelimit.LedgerTime `json:"at_us"`
	Algorithm string               `json:"algorithm"`
	Window    ratelimit.Window     `json:"window"`  // 0: of a bucket
	Ends      ratelimit.LedgerTime `json:"ends_us"` // the window; 0: a bucket has no end
	Fence     ratelimit.Fence      `json:"fence"`
	Taken     tokens               `json:"taken"` // as stated, like Spent; of a draw: 0
	Spent     tokens               `json:"spent"`
	Total     tokens               `json:"total"`   // of the holder at the ledger, afterwards
	Granted   tokens               `json:"granted"` // of a draw: the part below the limit
	Need      tokens               `json:"need"`    // of a draw: all of it. The rest goes back with the next claim
	Limit     tokens               `json:"limit"`
	Bound     tokens               `json:"bound"` // declared over-admission of the rule
	Sum       tokens               `json:"sum"`
	InHand    tokens               `json:"in_hand"` // of others; of a draw: unknown, -1
	Cut       tokens               `json:"cut"`     // of a refund
	// Of decisions: tokens of admitted requests, net of what was given back or charged later, and of refused ones, with
	// the part that was charged all the same.
	Admitted       tokens `json:"admitted,omitempty"`
	Refused        tokens `json:"refused,omitempty"`
	RefusedCharged tokens `json:"refused_charged,omitempty"`
}

// Kinds of events. The first three are of messages without an effect, or without an answer.
const (
	WasFailed    = "failed"    // its result is unknown
	WasOvertaken = "overtaken" // by a later claim of its holder
	WasOver      = "over"      // its window is no longer kept, or not yet
	WasRefused   = "refused"   // less was granted than needed
	WasCharge    = "charge"    // spent exceeds taken: a late charge, or an admission without a grant
	WasGrant     = "grant"
	WasDraw      = "draw"   // a grant without a claim, while there is plenty
	WasReport    = "report" // unchanged totals, a refund, or a return
	// WasDecided is of no message: a node's decisions on a key in a window, since it recorded some last.
	WasDecided = "decided"
)

// NewEvent makes the event of a message and its answer. A draw's grant is computed as at its sender: the ledger grants
// nothing for it.
func NewEvent(r *ratelimit.Rule, c *account.Claim, g *account.Grant) Event {
	e := Event{
		Rule: r.FullName(), Key: c.Key, Holder: account.HolderName(c.Holder), At: g.At,
		Algorithm: c.Limit.Algorithm.String(), Fence: g.Fence, Total: g.Total, Granted: g.Granted,
		Limit: c.Limit.Capacity(), Bound: declare.Of(r, r.Coordination.MaxNodes, declare.SharedStore).Over.Tokens,
		Sum: g.Sum, InHand: g.InHand, Cut: g.Cut(c),
	}
	if c.Limit.Algorithm != ratelimit.TokenBucket {
		e.Window, e.Ends = c.Window, c.Limit.WindowEnd(c.Window)
	}
	if c.Draws() {
		e.Kind = unsettled(g.Err)
		if e.Kind == "" {
			e.Kind, e.Need = WasDraw, c.Want
			e.Granted = g.Owned(c.Want, &c.Limit)
		}
		return e
	}
	e.Taken = c.Taken
	e.Spent = c.Spent
	e.Need = c.Need
	e.Kind = e.kindOf(g)
	return e
}

// newDecided makes the event of a holder's decisions in a window, without any yet. Several such events of one holder
// add up.
func newDecided(r *ratelimit.Rule, account, holder string, w ratelimit.Window) Event {
	e := Event{
		Kind: WasDecided, Rule: r.FullName(), Key: account, Holder: holder, Window: w,
		Algorithm: r.Limit.Algorithm.String(), Limit: r.Limit.Capacity(),
		Bound: declare.Of(r, r.Coordination.MaxNodes, declare.SharedStore).Over.Tokens,
	}
	if w != 0 {
		e.Ends = r.Limit.WindowEnd(w)
	}
	return e
}

// unsettled is the kind of a message without an effect; "": it has one. An unknown result counts as failed: the ledger
// may have settled it.
func unsettled(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, account.ErrOvertaken):
		return WasOvertaken
	case errors.Is(err, account.ErrOver):
		return WasOver
	}
	return WasFailed
}

// kindOf is the kind of a claim. The reasons for numbers that look wrong for a plain grant come first. So a charge with
// a grant that fell short is "refused".
func (e *Event) kindOf(g *account.Grant) string {
	switch {
	case g.Err != nil:
		return unsettled(g.Err)
	case e.Granted < e.Need:
		return WasRefused
	case e.Spent > e.Taken:
		return WasCharge
	case e.Granted > 0:
		return WasGrant
	}
	return WasReport
}
