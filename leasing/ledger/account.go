package ledger

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Micro is how many micro-tokens are in a token: buckets count in them.
const Micro = 1_000_000

// What is so for a while.
const (
	RelearnTime  = 2 * time.Second // in which every holder tells what it has spent
	RelearnShare = 20              // grants meanwhile: 1 of so many tokens of the limit

	// BucketWaits: a clock that goes back by less than a period leaves an account waiting; a
	// bucket's, which is full again in less time than that, waits this long at most.
	BucketWaits = time.Second
)

// MostFence is the highest fence of a holder that is believed: a microsecond in
// the year 2112. Redis' scripts hold whole numbers up to twice as many.
const MostFence = 1 << 52

// Account is the ledger's record for a key, under any of the algorithms.
// The zero account is new. It is not safe for concurrent use.
type Account struct {
	clockwork
	fences
	window window
	dead   ledgerTime // from here on the account may be deleted: a new one would answer alike

	base     tokens     // charged in this window by holders that are no longer recorded
	prev     tokens     // sliding_window: charged in the window before
	recalled ledgerTime // when holders were last asked to give back

	overAdmission
	learning
	fillLevel

	unbooked
	holders
}

// unbooked is what is not booked of what holders drew.
type unbooked struct {
	tills []till
	shut  window // the last whose till is shut
}

// holders are their records.
type holders struct {
	first  record // most keys have one holder
	others []record
}

// clockwork is what time it is for an account.
type clockwork struct {
	now    ledgerTime // the account's clock: the latest time seen, less lag
	ledger ledgerTime // the ledger's, when it was last heard
	lag    ledgerTime // by which it runs behind the ledger's, until its window ends
}

// fences are those that an account has given out.
type fences struct {
	fence  ratelimit.Fence // Invariant: strictly increasing for the key for ever
	born   ratelimit.Fence // the first of this life: a lower one is of data that was lost
	folded ratelimit.Fence // the highest of a record that was folded into base
	// Holders whose fence is at most renamed call each window by a number that
	// is higher by moved: the ledger's clock has gone back since; see shift.
	renamed ratelimit.Fence
	moved   window
}

// overAdmission is what was spent beyond the limit (docs/protocol.md, section 4.12).
type overAdmission struct {
	most tokens // the highest limit in this window
	over tokens // reported as spent beyond it
	left tokens // fixed_window: what was left of the limit in the window before,
	late tokens // and what was over
}

// learning is how far an account is told again what its ledger has forgotten: before the
// instant relearn it grants at most a twentieth of the limit in all, whoever asks.
type learning struct {
	relearn   ledgerTime
	relearned tokens // granted since
}

// fillLevel is how full a token_bucket is. Invariant: 0 <= level, and level plus the
// outstanding of live leases is at most burst: so burst + rate x t bounds what is spent in
// any t, not only what is granted.
type fillLevel struct {
	level int64 // micro-tokens
	carry int64 // what is left of a refill, in micro-tokens x unit seconds
}

// Settle books one claim and answers it: the ledger's side of the protocol
// (docs/protocol.md, sections 4.1 to 4.12). It allocates only when another holder
// appears.
func (a *Account) Settle(now ledgerTime, c *ratelimit.Claim) ratelimit.Grant {
	if g, ok := a.glance(now, c); ok {
		return g
	}
	if g, ok := a.draw(now, c); ok {
		return g
	}
	fresh, tills, dead := a.window == 0, a.tills, a.dead
	g := a.settleAt(now, c)
	if fresh && g.Err != nil { // nothing was booked: there is no account yet, but what was drawn
		*a = Account{fences: fences{fence: a.fence}, unbooked: unbooked{tills: tills}, dead: dead}
	}
	return g
}

func (a *Account) settleAt(now ledgerTime, c *ratelimit.Claim) ratelimit.Grant {
	late := ratelimit.Grant{Seq: c.Seq, Err: ratelimit.ErrStaleClaim}
	if (c.Ahead || c.Final) && c.Limit.Algorithm != ratelimit.FixedWindow {
		return late // there are no windows that begin anew
	}
	a.advance(now, c)
	// A holder from before the ledger's clock went back calls each window by another number until
	// it is answered (docs/protocol.md, section 4.8).
	if c.Fence > 0 && c.Fence <= a.renamed {
		renumbered := *c
		renumbered.Window -= a.moved
		c = &renumbered
	}
	a.learn(c)
	if c.Ahead && c.Window != a.window && c.Window != a.target(c) {
		return late // for a window that is over
	}
	if drawable(&c.Limit) {
		a.place(a.target(c), c)
	}
	r := a.find(c.Holder)
	// A claim that was sent twice is answered twice alike, and changes the account once. One that
	// was overtaken by a later claim is out of date (docs/protocol.md, section 4.2).
	if r != nil && c.Seq <= r.seq {
		if c.Seq < r.seq || r.closed { // or a repeat of what expiry has undone
			return late
		}
		return a.answer(r, c)
	}
	// A last word counts while the window is the one before, whose sum is kept. A holder whose
	// record is of a later window has claimed under this name since: the record must not be
	// replaced.
	if c.Final && (c.Window != a.window-1 || r != nil && r.window > c.Window) {
		return late
	}
	// Silent holders' tokens are credited before the claim is booked, so that they can be granted
	// to it (docs/protocol.md, section 4.5).
	if c.Reclaim == ratelimit.ReclaimEager {
		a.closeExpired(&c.Limit)
	}
	if r == nil {
		a.drop(c)
		// Only a new holder makes the account larger. It makes room first, so that the number of
		// records has a bound (docs/protocol.md, section 4.14).
		r = a.add(c.Holder)
		a.unfold(r, c)
	}
	if c.Final {
		over := a.tally(r, c)
		// A last word asks for nothing, and gets no fence: its window is over.
		*r = record{
			holder: c.Holder, seq: c.Seq, window: c.Window,
			totals: totals{granted: c.Granted, spent: c.Spent, returned: c.Returned, over: over},
		}
		return a.answer(r, c)
	}
	at := a.target(c)
	uncovered := a.book(r, c, at)
	if c.Reset {
		a.reset(c)
	}
	// The claim was booked first: what it returns can be granted at once, also to itself, and what
	// it spent is not (docs/protocol.md, section 4.1).
	a.grant(r, c, uncovered, at)
	asked, recalling := a.recall(r, c)
	a.shutWhenShort(c)
	a.dead = a.deadline(c) + a.lag // by the ledger's clock
	for i := range a.tills {
		a.dead = max(a.dead, c.Limit.WindowEnd(a.tills[i].window)+a.lag)
	}
	g := a.answer(r, c)
	g.Recalled, g.Recalling = asked, recalling
	return g
}

// learn notes that the ledger may have lost data. Until c.Learning, a missing record
// does not mean that nothing was granted. That holds for a window which begins
// meanwhile as well: it may have been claimed ahead before the loss.
func (a *Account) learn(c *ratelimit.Claim) {
	// No ledger learns for longer from here on. One that seems to has had its clock set back meanwhile,
	// and would refuse the key for as long as the step was.
	until := min(c.Learning, a.now.Add(RelearnTime))
	if until > max(a.now, a.relearn) {
		a.relearnUntil(until)
	}
}

// relearnUntil has little granted until then. A fence from before the loss no longer
// proves that its holder was folded; born excludes it.
func (a *Account) relearnUntil(t ledgerTime) {
	if a.now >= a.relearn {
		a.relearned, a.born = 0, a.fence+1
	}
	a.relearn = t
}

// target is the window that a claim is booked in: the current one, or the next of a
// fixed window, for others are not claimed ahead. A lease that is given back, whose TTL
// is 0, is one of the next window when the ledger's clock has gone back since: what was
// spent of it stays charged there.
func (a *Account) target(c *ratelimit.Claim) window {
	if c.Window == a.window+1 && (c.Ahead || c.TTL <= 0) && c.Limit.Algorithm == ratelimit.FixedWindow {
		return a.window + 1
	}
	return a.window
}

// clock is the account's time when the ledger's clock shows now.
//
// An account that came from a ledger whose clock is behind (see Adopt) keeps
// that clock until its window ends: otherwise the rest of the window would be
// granted twice, once there and once here.
//
// When the ledger's clock went back by less than a period, the account waits
// until that time has passed again, so that no window is granted twice. When it
// went back further, waiting would refuse the key for longer than a window, and
// the account moves to the new time with all that is charged to it.
func (a *Account) clock(now ledgerTime, c *ratelimit.Claim) ledgerTime {
	l := &c.Limit
	a.ledger = now
	// Where it was a counter, which keeps no time. A window that is far ahead is none of now.
	if a.window != 0 && l.Algorithm != ratelimit.TokenBucket && a.window <= l.WindowAt(now)+1 {
		a.now = max(a.now, l.WindowEnd(a.window-1))
	}
	// An account of a node whose clock is behind (docs/protocol.md, section 4.15): as long as that
	// clock shows the account's window, the account goes by it. When the window is over, it moves
	// to the ledger's clock.
	waits := ledgerTime(l.Period() / time.Microsecond)
	if l.Algorithm == ratelimit.TokenBucket {
		waits = ledgerTime(BucketWaits / time.Microsecond) // no period is shorter
	}
	if a.lag > 0 {
		if l.Algorithm != ratelimit.TokenBucket && l.WindowAt(now-a.lag) <= a.window {
			// The ledger's clock may have been set back after the account came. Lag and step together
			// can be a period although neither is: the account would leave its window, which would then
			// be granted once more. So it lags by no more than keeps its time from going ahead.
			if a.now-(now-a.lag) >= waits {
				a.lag = max(0, now-a.now)
			}
			now -= a.lag
		} else {
			a.shift(a.lag, l)
			a.lag = 0
		}
	}
	if back := a.now - now; back >= waits && a.window != 0 {
		a.placeAll(c)
		a.shift(-back, l)
	}
	return max(now, a.now)
}

// shift moves the account by so much on its clock: what is charged stays, and
// every lease lasts as long from here on as it would have. When that brings it
// into an earlier window, holders go on calling the window by its old number
// until they are answered; their fences tell who does (renamed).
func (a *Account) shift(by ledgerTime, l *ratelimit.Limit) {
	a.now += by
	if a.relearn > 0 {
		a.relearn += by
	}
	a.recalled += by
	windows := window(0)
	// Only when the clock went back may the time belong to an earlier window. Going ahead, advance
	// turns the window as time that passes does.
	if by < 0 {
		a.dead += by
		if l.Algorithm != ratelimit.TokenBucket {
			windows = l.WindowAt(a.now) - a.window
		}
	}
	a.window += windows
	if windows != 0 {
		a.renamed, a.moved, a.shut = a.fence, -windows, 0
	}
	a.each(func(r *record) {
		r.expires += by
		r.window += windows
	})
}

// advance moves the account to now: windows roll, buckets refill.
func (a *Account) advance(now ledgerTime, c *ratelimit.Claim) {
	fresh := a.window == 0
	now = a.clock(now, c)
	if fresh {
		a.born = max(a.fence+1, ratelimit.Fence(now))
	}
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		if fresh {
			a.now = now
			a.window = window(max(1, now))
			a.level = int64(c.Limit.Burst) * Micro
			return
		}
		// A lease that expires on the way held refills back until then.
		// In steps from expiry to expiry, for each lease that expires raises the level to which the
		// bucket may refill.
		for a.now < now {
			step := min(now, a.nextExpiry())
			a.refill(step-a.now, &c.Limit)
			a.now = step
		}
		return
	}
	a.now = now
	w := c.Limit.WindowAt(now)
	if w == a.window {
		return
	}
	if !fresh {
		defer a.drop(c)
	}
	// What counts of the past is that of the window directly before. After a pause of more than a
	// window nothing of it counts.
	a.prev, a.left, a.late = 0, c.Limit.Capacity(), 0
	if !fresh && w == a.window+1 {
		a.prev = a.charged(a.window)
		// By the highest limit that was claimed under: what was admitted before the limit was
		// lowered is not over.
		a.left, a.late = max(a.left, a.most)-a.spent(a.window), a.over
	}
	a.window, a.base, a.over, a.most = w, 0, 0, 0
}

// book makes the record a copy of the claim. It returns how many of the tokens
// that the holder has spent unasked were over-admitted before.
func (a *Account) book(r *record, c *ratelimit.Claim, at window) (uncovered tokens) {
	bucket := c.Limit.Algorithm == ratelimit.TokenBucket
	known := r.window == at
	// A bucket's claim may be about a life of the account that the ledger has
	// lost: then the holder's totals are all that is known of it.
	here := c.Window == at || bucket && c.Window != 0
	// A lease that was reclaimed, or whose tokens a bucket has refilled and leased to others, is
	// void: what was spent of it counts, and the rest is gone (docs/protocol.md, section 4.6).
	void := known && here && (r.closed && c.Fence == r.fence || bucket && a.overfull(r, c))
	// A holder that claims for this window without a fence of it, and has been
	// granted something in it before, has forgotten that: it had to make room.
	forgot := c.Fence == 0 && c.Granted < r.granted
	paid, gone, over := tokens(0), tokens(0), tokens(0)
	switch {
	// The usual claim: a known holder, about the window that it is booked in.
	case known && here && !forgot:
		paid, gone, uncovered = r.paid(), a.gone(r, c.Granted), max(0, r.spent-r.paid())
	// The claim's totals begin anew, or are about another window or none. What was confirmed stays
	// charged without its name; what was in flight it never had (docs/protocol.md, section 4.4).
	case known:
		a.forget(r, bucket)
	case r.window == a.window:
		// The claim is for the next window, and the record of this one, which the node
		// holds under its other name, or has forgotten: what it spent would go with
		// the record, and what it never received is not granted.
		a.forget(r, bucket)
	// The first claim after the turn still speaks of the window before, which counts by its weight:
	// the ledger's guess of it becomes what the holder says.
	case c.Limit.Algorithm == ratelimit.SlidingWindow:
		a.correctPrevious(r, c)
	// The first claim after the turn is also the last word on the window before.
	case !bucket:
		over = a.tally(r, c)
	}
	// A holder that knows of more than it was granted: the ledger has forgotten.
	knew := tokens(0)
	if known {
		knew = r.granted + r.inflight
	}
	// What expiry has taken away, and what a bucket has refilled since, is no loss of data.
	reclaimed := known && r.closed
	missing := here && !reclaimed && !c.Refilled && c.Granted > knew
	if missing {
		a.relearnUntil(a.now.Add(RelearnTime))
	}
	if here && !known && c.Limit.Algorithm == ratelimit.SlidingWindow && (c.Fence > 0 || a.now < a.relearn) {
		a.learnPrevious(r, c)
	}
	// The claim's own fence counts, too. A ledger that has lost its data, and whose clock went back,
	// would otherwise issue a fence a second time (docs/protocol.md, section 4.6).
	a.fence = max(a.fence+1, ratelimit.Fence(a.now), min(c.Fence, MostFence)+1)
	*r = record{
		holder: r.holder, seq: c.Seq, window: at, fence: a.fence,
		expires: a.now.Add(c.TTL), totals: totals{over: over},
		marks: marks{
			direct: c.Direct, void: void, eager: c.Reclaim == ratelimit.ReclaimEager, last: c.Last,
			recalled: r.recalled.next(known), missing: missing,
		},
	}
	if here {
		r.granted, r.spent, r.returned = c.Granted, c.Spent, c.Returned
	}
	// Of a void lease the holder keeps what it has spent or returned, and nothing that it could
	// still spend.
	if void {
		r.granted = min(c.Granted, c.Spent+c.Returned)
	}
	if bucket {
		// The holder was last heard so long ago that the bucket has filled up since: its old totals
		// are paid for, and take nothing from the level.
		if !known && c.Refilled {
			paid, uncovered = r.paid(), max(0, r.spent-r.paid())
		}
		// What the holder has given up since its last claim goes back into the bucket; but not what
		// was refilled in its place already, which would count twice. Below 0 the holder knows of
		// more than the ledger did, and the level pays for it.
		back := paid - r.paid()
		if back > 0 {
			back = max(0, back-gone)
		}
		a.pour(back, &c.Limit)
	}
	return uncovered
}

// reset credits the window with all that is charged to it. Holders' totals stay,
// so that what they claim next means the same.
func (a *Account) reset(c *ratelimit.Claim) {
	a.prev, a.relearn = 0, 0
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		a.level, a.carry = a.brim(&c.Limit), 0
		return
	}
	a.base -= a.charged(a.window)
}

// forget is for a holder that has forgotten this window, or has not yet heard
// of it: what it confirmed stays charged, the grant it never received does not.
func (a *Account) forget(r *record, bucket bool) {
	confirmed := max(r.granted-r.returned, r.spent)
	if bucket {
		a.level += int64(max(0, r.charged()-confirmed-a.gone(r, r.granted))) * Micro
		return
	}
	a.base += confirmed
}

// correctPrevious replaces what a holder was charged in the window before by
// what it says that it spent there. What it had not given back when it wrote the
// claim it may have spent since. A holder that has forgotten what it had been granted
// there says only what it has spent since then: that is added.
func (a *Account) correctPrevious(r *record, c *ratelimit.Claim) {
	if c.Window != a.window-1 {
		return
	}
	if forgot := c.Fence == 0 && c.Granted < r.granted; r.window == c.Window && !forgot {
		a.prev -= r.charged()
	}
	a.prev = max(0, a.prev+max(c.Spent, c.Granted-c.Returned))
}

// learnPrevious is for a holder that had been answered in this window by a ledger
// which lost that, and with it what the holder was charged in the one before.
func (a *Account) learnPrevious(r *record, c *ratelimit.Claim) {
	if r.window == a.window-1 {
		a.prev -= r.charged()
	}
	a.prev = max(0, a.prev+c.Before)
}

// tally counts what a holder's last word on the window before adds to its
// over-admission.
func (a *Account) tally(r *record, c *ratelimit.Claim) tokens {
	if c.Window != a.window-1 || r.window > c.Window {
		return 0
	}
	// Records of the window before are kept for this in mode approx only. Without the holder's nobody
	// knows how much of what it says was counted in time: to count it all would say that a limit
	// which was just used up went over by as much again.
	if !c.Tally && r.window != c.Window {
		return 0
	}
	a.left -= c.Spent
	if r.window == c.Window {
		a.left += r.spent
	}
	before := a.late
	a.late = max(a.late, -a.left)
	return a.late - before
}
