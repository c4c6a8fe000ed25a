package account

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Event is a settled message of an audited rule, or the credit of a lease. In Redis, the script that settles it
// writes it to a stream, in the same step: grants are on record also if the node crashes. A stream keeps about 10,000
// events of a key, for 90 days after the last.
type Event struct {
	Kind   string               `json:"kind"`
	Rule   string               `json:"rule"`
	Key    string               `json:"key"`
	Holder string               `json:"holder"`
	At     ratelimit.LedgerTime `json:"at_us"`
	Window ratelimit.Window     `json:"window"`  // 0: of a bucket
	Ends   ratelimit.LedgerTime `json:"ends_us"` // the window; 0: a bucket has no end
	Fence  ratelimit.Fence      `json:"fence"`   // 0: not settled
	// Taken and Spent are the holder's totals, as stated. Total is the ledger's total of the holder afterwards.
	Taken   tokens `json:"taken"`
	Spent   tokens `json:"spent"`
	Total   tokens `json:"total"`
	Granted tokens `json:"granted"`
	Need    tokens `json:"need"`
	Limit   tokens `json:"limit"`
	Bound   tokens `json:"bound"`   // declared over-admission of the rule
	Sum     tokens `json:"sum"`     // as in Grant, like the others
	InHand  tokens `json:"in_hand"` // of others
	Cut     tokens `json:"cut"`     // of a refund
	Reason  string `json:"reason,omitempty"`
}

// Kinds of events that changed nothing come first.
const (
	WasFailed    = "failed"    // its result is unknown; only in records of nodes
	WasOvertaken = "overtaken" // by a later claim of its holder
	WasOver      = "over"      // its window is no longer kept, or not yet
	WasExpired   = "expiry"    // an eager lease was credited to the account: its holder is silent
	WasRecovery  = "recovery"  // a lost total was restated
	WasLearning  = "learning"  // less was granted than needed, because the ledger may lack totals
	WasRefused   = "refused"   // less was granted than needed
	WasCharge    = "charge"    // spent exceeds taken: a late charge, or an admission without a grant
	WasGrant     = "grant"
	WasReport    = "report" // unchanged totals, a refund, or a return
	// WasOverride is a change of a key's override, not a message: Holder is its author, Limit is in force from At to
	// Ends (0: no end).
	WasOverride = "override"
)

// RecordName names the stream of a key's events, in the slot of its accounts.
func RecordName(prefix, key string) string { return prefix + "{" + key + "}:record" }

// NewEvent makes the event of a claim and its answer.
func NewEvent(c *Claim, g *Grant) Event {
	n := numbersOf(c)
	claimed := [...]int64{n[0], n[2], n[3], n[4], n[9], n[12]}
	return newEvent(Event{Rule: c.Audit, Key: c.Key, Holder: HolderName(c.Holder), Window: c.Window}, &claimed, g)
}

// EventsKept and recordKept are the number of events of a key that a stream keeps in Redis, and for how long after the
// last.
const (
	EventsKept = 10_000
	recordKept = 90 * 24 * time.Hour
)

// claimNumbers is the number of a claim's numbers on record: kind, taken, spent, need, limit, and the end of the
// window.
const claimNumbers = 6

func newEvent(e Event, n *[claimNumbers]int64, g *Grant) Event {
	e.Rule, e.Bound = auditedAs(e.Rule)
	e.Taken, e.Spent, e.Need, e.Limit = tokens(n[1]), tokens(n[2]), tokens(n[3]), tokens(n[4])
	if e.Window != 0 {
		e.Ends = instant(n[5])
	}
	e.At, e.Fence, e.Granted, e.Total = g.At, g.Fence, g.Granted, g.Total
	e.Sum, e.InHand, e.Cut = g.Sum, g.InHand, g.Cut
	e.Kind = e.kindOf(g)
	return e
}

// auditedAs is AuditOf, backwards.
func auditedAs(audit string) (rule string, bound tokens) {
	over, rule, _ := strings.Cut(audit, " ")
	most, _ := strconv.ParseInt(over, 10, 64)
	return rule, tokens(most)
}

// changed is what a change of an override comes to.
func (c *OverrideChange) changed(r *Overridden) Event {
	limit := c.Limit.Under(r.InForce(r.Set))
	return overrideEvent(c.Audit, c.Key, limit.Capacity(), r)
}

func overrideEvent(audit, key string, limit tokens, r *Overridden) Event {
	e := Event{
		Kind: WasOverride, Key: key, Holder: r.By, At: r.Set, Ends: r.Expires, Limit: limit, Reason: r.Reason,
	}
	e.Rule, e.Bound = auditedAs(audit)
	return e
}

func (e *Event) kindOf(g *Grant) string {
	switch {
	case errors.Is(g.Err, ErrOvertaken):
		return WasOvertaken
	case errors.Is(g.Err, ErrOver):
		return WasOver
	case g.Err != nil:
		return WasFailed
	// First the reasons for numbers that look wrong for a plain grant.
	case g.Missing:
		return WasRecovery
	case e.Granted < e.Need && g.Learning > g.At:
		return WasLearning
	case e.Granted < e.Need:
		return WasRefused
	case e.Spent > e.Taken:
		return WasCharge
	case e.Granted > 0:
		return WasGrant
	}
	return WasReport
}

// expiry is the event of a credited lease, made from the event of the crediting claim. Its holder sent nothing.
func expiry(h ratelimit.Holder, e Event) Event {
	e.Kind, e.Holder, e.Taken, e.Spent, e.Need = WasExpired, HolderName(h), e.Total, e.Total, 0
	return e
}

var errEvent = errors.New("the entry is not an event")

// ReadEvent reads an entry of a key's stream.
func ReadEvent(prefix string, fields map[string]any) (Event, error) {
	text := func(name string) string {
		s, _ := fields[name].(string)
		return s
	}
	if record := text("override"); record != "" {
		r, err := DecodeOverride(record)
		limit, bad := strconv.ParseInt(text("limit"), 10, 64)
		if err != nil || bad != nil || text("rule") == "" || text("key") == "" {
			return Event{}, fmt.Errorf("%w: %.200q", errEvent, fmt.Sprint(fields))
		}
		return overrideEvent(text("rule"), text("key"), tokens(limit), &r), nil
	}
	var n [claimNumbers]int64
	var a [answerFields]int64
	key, w, ours := ParseName(prefix, text("account"))
	h, err := strconv.ParseUint(text("holder"), 16, 64)
	if !ours || err != nil || text("rule") == "" || !unpacked(text("claim"), n[:]) || !unpacked(text("answer"), a[:]) {
		return Event{}, fmt.Errorf("%w: %.200q", errEvent, fmt.Sprint(fields))
	}
	g := grantOf(&a)
	e := newEvent(Event{Rule: text("rule"), Key: key, Holder: text("holder"), Window: w}, &n, &g)
	if a[0] == wasExpired {
		e = expiry(ratelimit.Holder(h), e)
	}
	return e, nil
}
