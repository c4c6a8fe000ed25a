package ledger

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A grant comes from another process, which may be wrong or hostile: a Redis that
// somebody else writes to, a proxy that mixes up replies, another version, a peer.
// CheckGrant is the one place at which each of its numbers is held against what was
// claimed and what the rule can mean; every grant that a Fleet is given passes it,
// whether from Redis or from a key's owner (mode routing); see docs/protocol.md,
// section 4.16.
//
// Guarantee: of one claim no more is credited than was asked for, nor than the limit,
// beside the drift that the claim itself told of; no fence goes back; no window is
// believed that is not the one of the ledger's clock; and no time is longer than the
// rule's windows explain. It does not promise that the ledger tells the truth: one
// that lies within that may grant a limit again with each claim.

// GrantError says what a grant said that cannot be.
type GrantError struct {
	Kind        ratelimit.Rejection
	What        string
	Said        int64
	Least, Most int64
}

func (e *GrantError) Error() string {
	return fmt.Sprintf("%v: its %s is %d, and can be %d to %d", ErrLedgerAnswer, e.What, e.Said, e.Least, e.Most)
}

// Unwrap says that it is an ErrLedgerAnswer.
func (e *GrantError) Unwrap() error { return ErrLedgerAnswer }

// Bounds of numbers that decide nothing, but are counted and shown.
const (
	mostHolders = 1 << 20
	mostTold    = ratelimit.MaxBooked << 2 // over-admission that one claim tells of
	mostSum     = 1 << 53                  // over all holders; what Redis' scripts hold
	// mostIssued is the highest fence that is believed of a ledger: it counts on
	// from the highest that it believes of a holder.
	mostIssued = MostFence + 1<<40
)

// most times.
const (
	LongestLearning = 5 * RelearnTime // a ledger that learns says so for a while
	rounding        = time.Second     // of times, and of calendars
	daysOfMonths    = 4 * 24 * time.Hour
)

// Rejected says why.
func (e *GrantError) Rejected() ratelimit.Rejection { return e.Kind }

// CheckGrant returns nil, or a *GrantError that says what of a grant cannot be. lag is
// by how much an account's clock may be behind its ledger's (see Adopt); 0 for a
// store. A grant that is an error already is let through. It allocates only then.
func CheckGrant(c *ratelimit.Claim, g *ratelimit.Grant, lag time.Duration) error {
	if g.Err != nil {
		return nil //nolint:nilerr // it grants nothing
	}
	k := checking{}
	k.tokens(c, g)
	k.order(c, g)
	k.times(c, g)
	k.window(c, g, lag)
	if k.wrong != nil {
		return k.wrong
	}
	return nil
}

// checking keeps the first thing that is wrong.
type checking struct{ wrong *GrantError }

func (k *checking) within(kind ratelimit.Rejection, what string, said, least, most int64) {
	if k.wrong == nil && (said < least || said > most) {
		k.wrong = &GrantError{kind, what, said, least, most}
	}
}

// tokens checks what is granted, and what it says of others.
func (k *checking) tokens(c *ratelimit.Claim, g *ratelimit.Grant) {
	limit := int64(c.Limit.Capacity())
	base, more := int64(0), int64(min(c.Limit.Capacity(), max(c.Want, c.Waiting)))
	if c.Stretch {
		more = max(more, int64(c.Limit.Capacity()/(IdleShare*LeastShares)))
	}
	if g.Drawn { // in whole units
		_, unit := tillOf(&c.Limit)
		more = max(more, int64(unitsOf(c)*unit))
	}
	if g.Carried {
		base = int64(c.Granted)
		if g.Void {
			base = int64(min(c.Granted, c.Spent+c.Returned))
		}
		more += int64(max(0, c.Spent-(c.Granted-c.Returned))) // its drift may be confirmed
	}
	if c.Final {
		more = 0
	}
	k.within(ratelimit.RejectedGrant, "grant", int64(g.Granted), base, base+more)
	if g.Void && !g.Carried {
		k.within(ratelimit.RejectedGrant, "void without its totals", 1, 0, 0)
	}
	k.within(ratelimit.RejectedCount, "available", int64(g.Available), 0, limit)
	k.within(ratelimit.RejectedCount, "outstanding", int64(g.Outstanding), 0, mostSum)
	k.within(ratelimit.RejectedCount, "stranded", int64(g.Stranded), 0, int64(g.Outstanding))
	k.within(ratelimit.RejectedCount, "holders", int64(g.Holders), 0, mostHolders)
	k.within(ratelimit.RejectedCount, "over-admission", int64(g.OverAdmitted), 0, int64(mostTold))
	k.within(ratelimit.RejectedCount, "over-admission in all", int64(g.Over), 0, mostSum)
}

// order checks that it answers this claim, and that fences go on.
func (k *checking) order(c *ratelimit.Claim, g *ratelimit.Grant) {
	if g.Seq != c.Seq {
		k.within(ratelimit.RejectedSequence, "sequence number", int64(g.Seq), int64(c.Seq), int64(c.Seq))
	}
	if !c.Final { // which has no lease
		k.within(ratelimit.RejectedFence, "fence", int64(g.Fence), int64(c.Fence)+1, mostIssued)
	}
}

// times checks how long it wants to be believed.
func (k *checking) times(c *ratelimit.Claim, g *ratelimit.Grant) {
	k.within(ratelimit.RejectedClock, "clock", int64(g.At), 0, MostFence)
	whole := longestReset(&c.Limit)
	learns := LongestLearning
	if c.Learning > g.At {
		learns = max(learns, c.Learning.Sub(g.At)+rounding)
	}
	k.within(ratelimit.RejectedTime, "reset_after", int64(g.ResetAfter), 0, int64(whole))
	k.within(ratelimit.RejectedTime, "retry_after", int64(g.RetryAfter), 0, int64(max(whole, learns)))
	ttl := c.TTL
	if c.Stretch {
		ttl = max(ttl, time.Duration(Longest)*time.Microsecond)
	}
	k.within(ratelimit.RejectedTime, "ttl", int64(g.TTL), 0, int64(ttl))
}

// longestReset is the most that may pass until the limit is whole again: to the end
// of the next window, or until an empty bucket is full.
func longestReset(l *ratelimit.Limit) time.Duration {
	if l.Algorithm != ratelimit.TokenBucket {
		most := 2*l.Period() + rounding
		if l.Unit.OfCalendar() {
			most += daysOfMonths
		}
		return most
	}
	if l.Requests == 0 {
		return 1<<63 - 1
	}
	full := 1.001*float64(l.Burst)/float64(l.Requests)*float64(l.Period()) + float64(rounding)
	if full >= 1<<62 {
		return 1<<63 - 1 // which rounding up may say
	}
	return time.Duration(full)
}

// window checks that the window is that of the ledger's clock. An account waits for
// a clock that went back by less than a period, and leases may be of the window to
// come: it is two windows ahead at most.
func (k *checking) window(c *ratelimit.Claim, g *ratelimit.Grant, lag time.Duration) {
	if c.Limit.Algorithm == ratelimit.TokenBucket { // when its account began, by a clock that may have gone back since
		k.within(ratelimit.RejectedWindow, "window", int64(g.Window), 1, MostFence)
		return
	}
	if g.At == 0 || k.wrong != nil { // it does not say; or its clock says nothing
		return
	}
	first := c.Limit.WindowAt(max(0, g.At.Add(-lag)))
	if c.Final {
		first--
	}
	k.within(ratelimit.RejectedWindow, "window", int64(g.Window), int64(first), int64(c.Limit.WindowAt(g.At)+2))
}
