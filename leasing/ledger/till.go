package ledger

import (
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Most keys are asked for a few times in a window, and nobody runs short of them. Their claims need
// no judgement, and get none: the holder draws from the window's till, which has the limit in twenty
// units. In Redis a till is a string to which a draw appends an entry for each unit, so that its length
// says how many were drawn. That and what a draw reads behind it are plain commands, which cost Redis
// less than the script does: how much less, sluice bench store measures.
//
// Guarantee: what holders have drawn and what they are granted is together at most the limit. Who
// draws reads, behind what it wrote, what the account has charged, and takes nothing if both are more.
// A claim that the ledger settles has all that was drawn booked first, as granted and in flight, so
// that the account knows of it what it knows of any lease. When an account has little left, or many
// holders, it shuts the window's till: what is appended from then on was not drawn, and is not looked at
// (docs/protocol.md, section 4.17).

// TillUnits is how many units a limit has, or as many as it has tokens. It is the same for each limit:
// where nodes have different ones for a while, no more is drawn than the largest.
const TillUnits = IdleShare * LeastShares

// DrawnAtOnce bounds a draw that nobody waits for: one part of the limit in so many.
const DrawnAtOnce = 8

// till is what has been drawn of a window.
type till struct {
	window window
	units  tokens // also what was not taken, for it came too late or was too much
	drawn  []drawing
}

// mostTills is how many are kept: of this window and the next, and of others for a clock that steps.
const mostTills = 16

// drawing is what a claim has drawn.
type drawing struct {
	holder ratelimit.Holder
	n      tokens
	seq    uint64
	fresh  bool // its holder did not know of anything that it had of the window
}

// tillOf is how many units a limit's tills have, and of how many tokens.
func tillOf(l *ratelimit.Limit) (units, unit tokens) {
	unit = max(1, l.Capacity()/TillUnits)
	return min(TillUnits, l.Capacity()), unit
}

// unitsOf is how many units a claim draws; 0: it cannot be a draw.
func unitsOf(c *ratelimit.Claim) tokens {
	if c.Draw == 0 || c.Glance || !c.Stretch || c.Seq < 2 || !drawable(&c.Limit) || c.Ahead && c.Window != c.Draw ||
		c.Want <= 0 || c.Final || c.Last || c.Reset || c.Direct || c.Audit != "" {
		return 0
	}
	units, unit := tillOf(&c.Limit)
	drift := tokens(0)
	if c.Window == c.Draw {
		drift = max(0, c.Spent-(c.Granted-c.Returned))
	}
	// What was spent unasked is drawn besides; of a unit that nobody waits for it is a part.
	n := max(max(c.Waiting, 1)+drift, min(max(c.Want+drift, unit), c.Limit.Capacity()/DrawnAtOnce))
	if n > units*unit {
		return 0
	}
	return (n + unit - 1) / unit
}

// drawnInTime tells whether the ledger's clock shows the window that a claim draws from, or the
// one before it if it is claimed ahead.
func drawnInTime(c *ratelimit.Claim, now ledgerTime) bool {
	w := c.Limit.WindowAt(now)
	return c.Draw == w || c.Ahead && c.Draw == w+1
}

// hasOwn tells whether a till of so many units, and an account that has charged so much, have the claim's n units and
// all else that its holder has taken of the window. Otherwise the till was lost, or what was read is not true.
func hasOwn(c *ratelimit.Claim, n, all, charged tokens) bool {
	_, unit := tillOf(&c.Limit)
	own := n * unit
	if c.Window == c.Draw {
		own += c.Granted - c.Returned
	}
	return max(0, charged)+all*unit >= own
}

// drawn is the answer to a claim that drew so many units, of a till of which all were drawn then, and
// of a window of which the account has charged so much. It is false if that is more than there is.
func drawn(c *ratelimit.Claim, now ledgerTime, n, all, charged tokens) (ratelimit.Grant, bool) {
	units, unit := tillOf(&c.Limit)
	left := units*unit - max(0, charged) - all*unit // a node with another limit has units of its own
	// Of many nodes that ask for a key for the first time, the script decides who gets how much: a fifth of
	// the limit is for all that have it idle.
	if left < 0 || !hasOwn(c, n, all, charged) || freshDraw(c) && c.Limit.Crowded(int(all-n+1)) {
		return ratelimit.Grant{}, false
	}
	rest := c.Limit.WindowEnd(c.Draw).Sub(now)
	g := ratelimit.Grant{
		Seq: c.Seq, Granted: n * unit, Fence: max(c.Fence+1, ratelimit.Fence(now)), Window: c.Draw,
		Carried: c.Window == c.Draw, TTL: max(c.TTL, min(time.Duration(Longest)*time.Microsecond, rest)), Plenty: true,
		Drawn: true, Holders: 1, Available: left + c.Limit.Capacity() - units*unit, At: now, ResetAfter: rest,
	}
	if g.Carried {
		g.Granted += c.Granted
	}
	g.Outstanding = max(0, all*unit-g.Granted) // of what it was granted, all may have been drawn
	return g, true
}

// mayGlance tells whether a claim of a node that has nothing, and has said so, may be answered by what the account
// says of its window as a whole.
func mayGlance(c *ratelimit.Claim) bool {
	return c.Glance && c.Draw != 0 && c.Window == c.Draw && drawable(&c.Limit) && c.Granted == c.Spent+c.Returned &&
		!c.Final && !c.Last && !c.Reset && !c.Direct && c.Audit == ""
}

// glanced is the answer to a claim of a window of which nothing is to be had: as it was.
func glanced(c *ratelimit.Claim, now ledgerTime) ratelimit.Grant {
	rest := c.Limit.WindowEnd(c.Draw).Sub(now)
	return ratelimit.Grant{
		Seq: c.Seq, Granted: c.Granted, Fence: max(c.Fence+1, ratelimit.Fence(now)), Window: c.Draw, Carried: true,
		TTL: c.TTL, Drawn: true, Shut: true, Holders: 1, At: now, ResetAfter: rest, RetryAfter: rest,
	}
}

// glance answers a claim for something that was refused before, if it still is. It changes nothing.
func (a *Account) glance(now ledgerTime, c *ratelimit.Claim) (ratelimit.Grant, bool) {
	if !mayGlance(c) || a.window != c.Draw || a.shut < a.window || a.lag != 0 || !drawnInTime(c, now) ||
		now < max(a.now, a.relearn, ledgerTime(a.renamed)+1) || a.free(c, a.window) > 0 {
		return ratelimit.Grant{}, false
	}
	unspent := false
	a.each(func(r *record) { unspent = unspent || r.window == a.window && r.outstanding() > 0 })
	if unspent {
		return ratelimit.Grant{}, false
	}
	return glanced(c, now), true
}

// draw settles a claim as a draw, if it may be one.
func (a *Account) draw(now ledgerTime, c *ratelimit.Claim) (ratelimit.Grant, bool) {
	n := unitsOf(c)
	if n == 0 {
		return ratelimit.Grant{}, false
	}
	// It is written down before anybody looks whether it is taken, as in Redis.
	t := a.till(c.Draw)
	_, unit := tillOf(&c.Limit)
	t.add(c, n, unit)
	a.dead = max(a.dead, c.Limit.WindowEnd(c.Draw)+a.lag)
	charged, open := a.open(c.Draw, now, &c.Limit)
	if !open || !drawnInTime(c, now) {
		return ratelimit.Grant{}, false
	}
	return drawn(c, now, n, t.units, charged)
}

// open tells whether a window's till is, and what the account has charged of the window: not if it is
// shut, or over, or while the account is being told what its ledger has lost; nor for a window to come that
// many holders have claimed of; nor, after the ledger's clock has gone back, until it shows later times than
// before, for a fence of a draw is that time, and renamed ones are those up to it.
func (a *Account) open(w window, now ledgerTime, l *ratelimit.Limit) (charged tokens, open bool) {
	ahead := 0
	a.each(func(r *record) {
		if r.window > a.window {
			ahead++
		}
	})
	if w == a.window+1 && l.Crowded(ahead) {
		return 0, false
	}
	return a.charged(w), a.window <= w && a.shut < w && now >= a.relearn && now > ledgerTime(a.renamed)
}

// shutWhenShort shuts the till of the account's window when little of it is left: who draws from then
// on would mostly take nothing, and every claim would have to look what there is. It shuts also where
// there are many holders: their leases are smaller than units. A claim for the next window does not, for it has
// not booked what was drawn of this one, which nobody would look for any more.
func (a *Account) shutWhenShort(c *ratelimit.Claim) {
	if drawable(&c.Limit) && a.target(c) == a.window &&
		(a.free(c, a.window) <= c.Limit.Capacity()/RoomAbove || c.Limit.Crowded(a.liveHolders(a.window))) {
		a.shut = a.window
	}
}

// drawable tells whether windows of a limit have tills.
func drawable(l *ratelimit.Limit) bool {
	return l.Algorithm == ratelimit.FixedWindow && !l.Unit.OfCalendar()
}

// till finds the till of a window, or makes one.
func (a *Account) till(w window) *till {
	for i := range a.tills {
		if a.tills[i].window == w {
			return &a.tills[i]
		}
	}
	// In Redis they expire. Of an account that nobody claims there is nothing else to forget them by.
	if len(a.tills) == mostTills {
		a.tills = slices.Delete(slices.Clone(a.tills), 0, 1)
	}
	a.tills = append(a.tills, till{window: w})
	return &a.tills[len(a.tills)-1]
}

// freshDraw tells whether a claim knows of nothing that its holder has of the window that it draws from.
func freshDraw(c *ratelimit.Claim) bool { return c.Fence == 0 && c.Granted == 0 || c.Window != c.Draw }

// add has a claim draw so many units.
func (t *till) add(c *ratelimit.Claim, units, unit tokens) {
	t.units += units
	if n := len(t.drawn); n > 0 && t.drawn[n-1].holder == c.Holder && t.drawn[n-1].seq == c.Seq {
		t.drawn[n-1].n += units * unit
		return
	}
	t.drawn = append(t.drawn, drawing{c.Holder, units * unit, c.Seq, freshDraw(c)})
}

// place books what was drawn of a window: each holder's as granted by the last answer, which it may
// have or not (docs/protocol.md, section 4.3). It empties the till, and tells whether there was one.
func (a *Account) place(w window, c *ratelimit.Claim) bool {
	i := slices.IndexFunc(a.tills, func(t till) bool { return t.window == w })
	// What is written into one that is shut nobody reads. It is emptied by whoever has tried to draw of it.
	if i < 0 || a.shut >= w && unitsOf(c) == 0 {
		return false
	}
	t := a.tills[i]
	// A new list, for copies of the account have the old one.
	a.tills = slices.Delete(slices.Clone(a.tills), i, i+1)
	if a.shut >= w {
		return false
	}
	fence := max(a.fence+1, ratelimit.Fence(a.now))
	a.fence = fence + 1 // which no grant has had: those below were granted by nobody
	// The number of records has a bound, whoever makes them.
	if slices.ContainsFunc(t.drawn, func(d drawing) bool { return a.find(d.holder) == nil }) {
		a.drop(c)
	}
	for i := range t.drawn {
		a.bookDrawn(&t.drawn[i], w, fence, a.now+min(Longest, c.Limit.WindowEnd(w)-a.now))
	}
	return true
}

// bookDrawn books one draw of a window in its holder's record, with a fence, as a lease that ends not
// before expires.
func (a *Account) bookDrawn(d *drawing, w window, fence ratelimit.Fence, expires ledgerTime) {
	r := a.find(d.holder)
	if r == nil {
		r = a.add(d.holder)
	}
	switch {
	// The holder has sent a claim of this window after the draw, and that was settled first: the draw was delayed,
	// and its holder had given it up. What it drew before, and has, that claim booked.
	case r.window == w && d.seq < r.seq:
		return
	// The holder has claimed of the next window since then under this name, and does not know that it has drawn: the
	// answer was lost. What was drawn stays charged, but to no name.
	case r.window > w:
		if w == a.window {
			a.base += d.n
		}
		return
	// A holder that draws as if it were new, and has been granted something, has forgotten that; so has one that
	// draws of the next window under the name of a lease of this one (docs/protocol.md, section 4.4).
	case r.window == w && d.fresh && r.granted > 0 && w == a.window, r.window != w && r.window == a.window:
		a.forget(r, IsBucket(w)) // buckets have no tills
		*r = record{holder: d.holder, seq: r.seq, window: w}
	case r.window != w:
		*r = record{holder: d.holder, seq: r.seq, window: w}
	}
	// A claim that was sent before the draw, and is settled after it, would say that the holder has not got what it
	// drew: with this number it is too late. A draw that took nothing is sent again as a claim with its own number.
	// Nodes leave out every second number, so that no claim has the one between.
	r.seq = max(r.seq, d.seq-1)
	// The marks of an earlier lease are not true of this one. One that may be reclaimed has no draws beside it.
	r.fence, r.marks = fence, marks{plenty: true}
	r.expires = max(r.expires, expires)
	r.inflight += d.n
}

// placeAll books what was drawn before the ledger's clock was set back, by the numbers that windows had.
// Draws have the ledger's time as their fence: all that holders may have is below the account's afterwards.
func (a *Account) placeAll(c *ratelimit.Claim) {
	if drawable(&c.Limit) {
		this, next := a.place(a.window, c), a.place(a.window+1, c)
		if this || next {
			a.fence = max(a.fence, ratelimit.Fence(c.Limit.WindowEnd(a.window+1)))
		}
	}
}

// cloned is a copy that later draws do not change.
func cloned(tills []till) []till {
	copies := slices.Clone(tills)
	for i := range copies {
		copies[i].drawn = slices.Clone(copies[i].drawn)
	}
	return copies
}
