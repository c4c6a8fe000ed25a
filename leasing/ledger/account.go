package ledger

import (
	"math/bits"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

const Micro = 1_000_000 // micro-tokens in a token

const (
	RelearnTime  = 2 * time.Second // in which every holder tells what it has spent
	RelearnShare = 20              // grants meanwhile: 1 of so many tokens of the limit

	// A clock that goes back by less than a period leaves an account waiting; a
	// bucket's, which is full again in less time than that, waits this long at most.
	BucketWaits = time.Second
)

// How many records an account keeps of holders that may have ended. A claim
// looks at all records of its account here, and in Redis where the sums are not good,
// so that their number must have a bound, in windows of a month or a year too.
const (
	MostRecords = 256              // beyond, records of expired leases are folded
	keptRecords = MostRecords / 2  // down to this many, the oldest first
	FoldAfter   = 10 * time.Second // a last claim may still be overtaken by an earlier one
)

// MostFence is the highest fence of a holder that is believed: a microsecond in
// the year 2112. Redis' scripts hold whole numbers up to twice as many.
const MostFence = 1 << 52

// record is the ledger's copy of one holder's truth, plus the grant in flight
// (docs/protocol.md, sections 4.3 and 6.3).
type record struct {
	holder  ratelimit.Holder
	seq     uint64
	window  window
	expires ledgerTime
	fence   ratelimit.Fence

	granted  tokens // what the holder said that it has received
	inflight tokens // granted by the last answer; the holder may not have it
	spent    tokens
	returned tokens
	over     tokens // what the last claim's report added to the over-admission

	direct   bool // what is in flight is not kept
	plenty   bool // it is larger and longer than was asked for
	recalled recalled
	closed   bool // reclaimed at expiry: its fence can neither renew nor return
	void     bool // the last answer said so
	eager    bool // claimed under reclaim: eager, whose holders stop early enough for that
	last     bool // its holder has ended: nothing more will be heard of it
	// missing says that the last claim knew of tokens which no record did.
	missing bool
}

// charged is what the holder costs the budget.
// Invariant: it is at least what the holder has spent.
func (r *record) charged() tokens {
	return max(r.paid(), r.spent)
}

// paid is what the budget has given up for the holder; it has spent more only
// by unconfirmed drift.
func (r *record) paid() tokens { return r.granted + r.inflight - r.returned }

// outstanding is what the holder may still spend.
func (r *record) outstanding() tokens {
	kept := r.granted - r.returned - r.spent
	if !r.direct {
		kept += r.inflight
	}
	return max(0, kept)
}

// recalled is whether a holder was asked to give back what it has.
type recalled uint8

const (
	notRecalled recalled = iota
	isRecalled           // and has not been heard since
	hasAnswered          // and was granted nothing since: what it has, it needs
)

// next is what it is after another claim of the holder.
func (x recalled) next(known bool) recalled {
	switch {
	case !known:
		return notRecalled
	case x == isRecalled:
		return hasAnswered
	}
	return x
}

// Account is the ledger's record for a key, under any of the algorithms.
// The zero account is new. It is not safe for concurrent use.
type Account struct {
	now    ledgerTime      // the account's clock: the latest time seen, less lag
	ledger ledgerTime      // the ledger's, when it was last heard
	lag    ledgerTime      // by which it runs behind the ledger's, until its window ends
	fence  ratelimit.Fence // Invariant: strictly increasing for the key for ever
	born   ratelimit.Fence // the first of this life: a lower one is of data that was lost
	folded ratelimit.Fence // the highest of a record that was folded into base
	// Holders whose fence is at most renamed call each window by a number that
	// is higher by moved: the ledger's clock has gone back since; see shift.
	renamed ratelimit.Fence
	moved   window
	window  window
	dead    ledgerTime // from here on the account may be deleted: a new one would answer alike

	base     tokens     // charged in this window by holders that are no longer recorded
	prev     tokens     // sliding_window: charged in the window before
	recalled ledgerTime // when holders were last asked to give back

	most tokens // the highest limit in this window
	over tokens // reported as spent beyond it
	left tokens // fixed_window: what was left of the limit in the window before,
	late tokens // and what was over

	// Before the instant relearn, holders tell what the ledger has forgotten, and this account grants at most a
	// twentieth of the limit in all, whoever asks.
	relearn   ledgerTime
	relearned tokens // granted since

	// token_bucket. Invariant: 0 <= level, and level plus the outstanding of
	// live leases is at most burst: so burst + rate x t bounds what is spent
	// in any t, not only what is granted.
	level int64 // micro-tokens
	carry int64 // what is left of a refill, in micro-tokens x unit seconds

	first  record // most keys have one holder
	others []record
}

// Settle books one claim and answers it: the ledger's side of the protocol
// (docs/protocol.md, sections 4.1 to 4.12). It allocates only when another holder
// appears.
func (a *Account) Settle(now ledgerTime, c *ratelimit.Claim) ratelimit.Grant {
	fresh := a.window == 0
	g := a.settleAt(now, c)
	if fresh && g.Err != nil { // nothing was booked: there is no account yet
		*a = Account{fence: a.fence}
	}
	return g
}

// How large a lease is made while there is plenty, and how long it lasts. What a
// node holds and does not need is missing elsewhere only when the rest is used up,
// and is recalled then; the share bounds what is stranded when the node has died. A
// bucket's leases stay small and short: it refills no further than to its size less
// what is leased.
const (
	PlentyAbove = ratelimit.PlentyAbove   // more than one half of the limit is left, here or unspent at others,
	RoomAbove   = 8                       // and more than an eighth here
	IdleShare   = 5                       // all holders together: a fifth of the limit
	LeastShares = 4                       // and one at most a quarter of that: a twentieth
	Longest     = ledgerTime(300_000_000) // until the window ends, or so many µs
)

// A lease is recalled once, and again after a while: the message may have been
// lost. Who was refused meanwhile may ask again for so long.
const (
	RecallAgain = ledgerTime(1_000_000)
	RecallTakes = ledgerTime(10_000)
)

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
		a.closeExpired()
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
		*r = record{holder: c.Holder, seq: c.Seq, window: c.Window, granted: c.Granted, spent: c.Spent, returned: c.Returned, over: over}
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
	a.dead = a.deadline(c) + a.lag // by the ledger's clock
	g := a.answer(r, c)
	g.Recalled, g.Recalling = asked, recalling
	return g
}

// learn notes that the ledger may have lost data. Until c.Learning, a missing record
// does not mean that nothing was granted. That holds for a window which begins
// meanwhile as well: it may have been claimed ahead before the loss.
func (a *Account) learn(c *ratelimit.Claim) {
	if c.Learning > max(a.now, a.relearn) {
		a.relearnUntil(c.Learning)
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
// fixed window, for others are not claimed ahead.
func (a *Account) target(c *ratelimit.Claim) window {
	if c.Ahead && c.Window == a.window+1 {
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
func (a *Account) clock(now ledgerTime, l *ratelimit.Limit) ledgerTime {
	a.ledger = now
	// Where it was a counter, which keeps no time. A window that is far ahead is none of now.
	if a.window != 0 && l.Algorithm != ratelimit.TokenBucket && a.window <= l.WindowAt(now)+1 {
		a.now = max(a.now, l.WindowEnd(a.window-1))
	}
	// An account of a node whose clock is behind (docs/protocol.md, section 4.15): as long as that
	// clock shows the account's window, the account goes by it. When the window is over, it moves
	// to the ledger's clock.
	if a.lag > 0 {
		if l.Algorithm != ratelimit.TokenBucket && l.WindowAt(now-a.lag) <= a.window {
			now -= a.lag
		} else {
			a.shift(a.lag, l)
			a.lag = 0
		}
	}
	waits := ledgerTime(l.Period() / time.Microsecond)
	if l.Algorithm == ratelimit.TokenBucket {
		waits = min(waits, ledgerTime(BucketWaits/time.Microsecond))
	}
	if back := a.now - now; back >= waits && a.window != 0 {
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
		a.renamed, a.moved = a.fence, -windows
	}
	a.each(func(r *record) {
		r.expires += by
		r.window += windows
	})
}

// advance moves the account to now: windows roll, buckets refill.
func (a *Account) advance(now ledgerTime, c *ratelimit.Claim) {
	fresh := a.window == 0
	now = a.clock(now, &c.Limit)
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
		expires: a.now.Add(c.TTL), direct: c.Direct, void: void, over: over,
		eager: c.Reclaim == ratelimit.ReclaimEager, last: c.Last, recalled: r.recalled.next(known), missing: missing,
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
	if c.Window == 0 || c.Window != a.window-1 {
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
	if c.Window == 0 || c.Window != a.window-1 || r.window > c.Window {
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

// grant decides how much of the claim's want the holder gets: what confirms
// its drift, and what waits, and a tapering share of the rest. uncovered of its
// drift was over-admitted before.
func (a *Account) grant(r *record, c *ratelimit.Claim, uncovered tokens, at window) {
	drift := max(0, r.spent-(r.granted-r.returned))
	confirmed := drift
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		// Only tokens confirm drift: a report alone would free the share again, without end
		// (docs/protocol.md, section 4.12).
		confirmed = min(drift, tokens(a.level/Micro))
		a.level -= int64(confirmed) * Micro
		r.over = max(0, drift-confirmed-uncovered)
	} else if at == a.window {
		confirmed = max(0, drift-max(0, -a.free(c, at)))
		r.over += a.overspent(c)
	}
	// What is available holds for all who claim. While the account learns, a twentieth of the limit
	// bounds all grants together, for others may have spent the rest and not told it yet
	// (docs/protocol.md, section 4.9).
	room := a.available(c, at)
	relearning := a.now < a.relearn
	if relearning {
		room = min(room, max(0, max(1, c.Limit.Capacity()/RelearnShare)-a.relearned))
	}
	// Leases shrink with the budget: half of what is left is shared by all holders. Otherwise one
	// node would take the last tokens, and others would be refused while it still has most of them
	// (docs/protocol.md, section 4.11).
	tapered := max(c.Waiting, room/(2*tokens(a.liveHolders(at))))
	lease := min(room, max(c.Want, c.Waiting), tapered)
	// A direct claim is spent at once, for one request: a part of its cost is of no use.
	if c.Direct && room < c.Waiting {
		lease = 0
	}
	// While there is plenty, a lease is made larger than was asked for and lasts until the window
	// ends. The node renews seldom then; what it does not need is recalled when others run short
	// (docs/protocol.md, section 4.11).
	if c.Stretch && c.Limit.Algorithm != ratelimit.TokenBucket && !relearning && room > c.Limit.Capacity()/RoomAbove &&
		room+a.idleElsewhere(r, at) > c.Limit.Capacity()/PlentyAbove {
		r.plenty = true
		holders := tokens(a.liveHolders(at))
		share := min(c.Limit.Capacity()/(IdleShare*max(LeastShares, holders)), room/(2*holders))
		lease = max(lease, min(room, share-max(0, r.granted-r.returned-r.spent)))
		r.expires = max(r.expires, a.now+min(Longest, c.Limit.WindowEnd(at)-a.now))
	}
	if relearning {
		a.relearned += lease
	}
	r.inflight = confirmed + lease
	// A holder that is granted something again may have more than it needs, and can be recalled
	// again.
	if lease > 0 {
		r.recalled = notRecalled
	}
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		a.level -= int64(lease) * Micro
	}
}

// recall decides whether holders are to give back what they have, because what a
// claim waits for is not there. It returns how many are asked now, and whether any
// was, now or a moment ago.
func (a *Account) recall(r *record, c *ratelimit.Claim) (asked int, recalling bool) {
	// Nobody is asked for a claim that got what waits; nor while the account learns, when it is
	// short of knowledge and not of tokens.
	if !c.Recall || r.inflight >= c.Waiting || a.now < a.relearn {
		return 0, false
	}
	some, again := false, a.now >= a.recalled+RecallAgain
	a.each(func(other *record) {
		if other == r || !a.recallable(other, c) {
			return
		}
		// The mark has each lease recalled once, and not by each claim of each node that waits
		// (docs/protocol.md, section 4.11).
		if other.recalled == notRecalled || again {
			other.recalled = isRecalled
			asked++
		}
		some = some || other.recalled == isRecalled
	})
	if asked > 0 {
		a.recalled = a.now
	}
	return asked, some && a.now < a.recalled+RecallTakes
}

// recalledHolders are those that were asked to give back, for a claim or before it;
// to be asked twice does no harm.
func (a *Account) recalledHolders(c *ratelimit.Claim) (holders []ratelimit.Holder) {
	a.each(func(r *record) {
		if r.recalled == isRecalled && r.holder != c.Holder && a.recallable(r, c) {
			holders = append(holders, r.holder)
		}
	})
	return holders
}

// recallable tells whether a record's holder has something that would help if it
// were given back: of the same window, or under a sliding window of the one before,
// which still counts. A bucket has refilled what is in expired leases.
func (a *Account) recallable(r *record, c *ratelimit.Claim) bool {
	if r.closed || r.last || r.outstanding() == 0 {
		return false
	}
	switch c.Limit.Algorithm {
	case ratelimit.TokenBucket:
		return a.now < r.expires
	case ratelimit.SlidingWindow:
		return r.window >= a.window-1
	default:
		return r.window == a.target(c)
	}
}

// overspent is how much the reported over-admission grew with this claim. In a fixed
// window it never shrinks; in a sliding window it shrinks as the window before loses
// weight.
func (a *Account) overspent(c *ratelimit.Claim) tokens {
	a.most = max(a.most, c.Limit.Capacity())
	over := max(0, a.weightedPrevious(&c.Limit)+a.spent(a.window)-a.most)
	before := a.over
	if c.Limit.Algorithm == ratelimit.FixedWindow {
		over = max(over, before)
	}
	a.over = over
	return max(0, over-before)
}

// free is the limit minus everything charged; negative when drift went beyond.
func (a *Account) free(c *ratelimit.Claim, at window) tokens {
	return c.Limit.Capacity() - a.weightedPrevious(&c.Limit) - a.charged(at)
}

// available is what could be granted now: never more than the limit, also where
// what a reset credited was given back besides, or the limit was lowered.
func (a *Account) available(c *ratelimit.Claim, at window) tokens {
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		return min(c.Limit.Burst, tokens(a.level/Micro))
	}
	return min(c.Limit.Requests, max(0, a.free(c, at)))
}

// charged is the sum over all holders in a window, this one or the next.
func (a *Account) charged(at window) tokens {
	sum := tokens(0)
	if at == a.window {
		sum = a.base
	}
	a.each(func(r *record) {
		if r.window == at {
			sum += r.charged()
		}
	})
	return sum
}

// spent is what all holders have reported as spent in a window; those that are
// no longer recorded have spent all that they were charged.
func (a *Account) spent(at window) tokens {
	sum := a.base
	a.each(func(r *record) {
		if r.window == at {
			sum += r.spent
		}
	})
	return sum
}

func (a *Account) liveHolders(at window) int {
	n := 0
	a.each(func(r *record) {
		if r.window == at && a.now < r.expires {
			n++
		}
	})
	return max(1, n)
}

// idleElsewhere is what other holders may still spend of a window, and can be asked to
// give back.
func (a *Account) idleElsewhere(r *record, at window) tokens {
	n := tokens(0)
	a.each(func(other *record) {
		if other != r && other.window == at && a.now < other.expires {
			n += other.outstanding()
		}
	})
	return n
}

// slidingTick is the grain in which a sliding window weighs time: at most 2^20
// to a period, so that mostPrevious x ticks is a whole number below 2^63. (Lua's numbers
// hold 2^53: settle.lua multiplies in two parts.)
func slidingTick(l *ratelimit.Limit) ledgerTime {
	return max(1, ledgerTime(l.Period()/time.Microsecond)>>20)
}

// mostPrevious is what is weighed of a window before at most; no limit comes near it.
const mostPrevious tokens = 1 << 42

// weightedPrevious is the part of the previous window that still counts,
// rounded up.
func (a *Account) weightedPrevious(l *ratelimit.Limit) tokens {
	if l.Algorithm != ratelimit.SlidingWindow || a.prev == 0 {
		return 0
	}
	tick := slidingTick(l)
	total := tokens((ledgerTime(l.Period()/time.Microsecond) + tick - 1) / tick)
	left := tokens((l.WindowEnd(a.window) - a.now + tick - 1) / tick)
	return (min(a.prev, mostPrevious)*left + total - 1) / total
}

// closeExpired credits what silent holders had not reported as spent. Only of
// leases that were claimed under reclaim: eager: a holder of any other reports
// seldom and stops late, for nobody told it that its tokens become another's.
func (a *Account) closeExpired() {
	a.each(func(r *record) {
		if !r.eager || r.closed || a.now < r.expires || r.window != a.window {
			return
		}
		r.closed = true
		a.level += int64(r.outstanding()) * Micro                                // ignored by windows
		r.granted, r.inflight = min(r.granted+r.inflight, r.spent+r.returned), 0 // what was spent unasked stays unconfirmed
	})
}

// answer states what a record holds. The same claim twice gets it twice.
func (a *Account) answer(r *record, c *ratelimit.Claim) ratelimit.Grant {
	g := ratelimit.Grant{
		Seq: c.Seq, Granted: r.granted + r.inflight, Fence: r.fence, Window: r.window,
		Carried: r.window == c.Window || c.Limit.Algorithm == ratelimit.TokenBucket && c.Window != 0, Void: r.void, TTL: max(0, r.expires.Sub(a.now)), Plenty: r.plenty, Holders: a.liveHolders(r.window), OverAdmitted: r.over, Over: a.over,
		At: a.ledger, Available: a.available(c, r.window), ResetAfter: a.resetAfter(r.window, c), Relearning: a.now < a.relearn, Missing: r.missing,
	}
	if r.window < a.window { // a last word on the window before
		g.Over = a.late
	}
	a.each(func(other *record) {
		if other != r && other.window == r.window {
			g.Outstanding += other.outstanding()
			if a.now >= other.expires {
				g.Stranded += other.outstanding()
			}
		}
	})
	if r.inflight < c.Waiting {
		missing := tokens(1)
		if c.Direct {
			missing = c.Waiting - r.inflight
		}
		g.RetryAfter = a.retryAfter(missing, c)
	}
	return g
}

func (a *Account) resetAfter(w window, c *ratelimit.Claim) time.Duration {
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		return a.timeToLevel(int64(c.Limit.Burst)*Micro, &c.Limit)
	}
	return max(0, c.Limit.WindowEnd(w).Sub(a.now))
}

// retryAfter is when missing more tokens are there if nobody else spends.
func (a *Account) retryAfter(missing tokens, c *ratelimit.Claim) time.Duration {
	end := a.resetAfter(a.target(c), c)
	l := &c.Limit
	if a.now < a.relearn {
		return a.relearn.Sub(a.now)
	}
	switch l.Algorithm {
	case ratelimit.TokenBucket:
		need := int64(min(missing, l.Burst)) * Micro
		return a.timeToLevel(need, l)
	case ratelimit.SlidingWindow:
		// In this window only the weight of the previous one shrinks.
		weighted := a.weightedPrevious(l)
		deficit := missing - max(0, a.free(c, a.window))
		if deficit <= 0 {
			return 0 // it has come since
		}
		if deficit > weighted {
			return end
		}
		period := l.Period() / time.Microsecond
		hi, lo := bits.Mul64(uint64(max(0, weighted-deficit)), uint64(period))
		keep, _ := bits.Div64(hi, lo, uint64(a.prev)) // µs before the end at which that weight is reached
		return max(time.Microsecond, end-time.Duration(keep)*time.Microsecond)
	default:
		return end
	}
}

// deadline is from when on the account may be deleted: a new one would answer as
// it does.
func (a *Account) deadline(c *ratelimit.Claim) ledgerTime {
	l := &c.Limit
	var at ledgerTime
	switch l.Algorithm {
	case ratelimit.FixedWindow, ratelimit.SlidingWindow:
		// The next window was claimed ahead: the account must outlive that.
		if next := a.charged(a.window + 1); next > 0 {
			return l.WindowEnd(a.window + 1)
		}
		// Nothing is charged, as in a new account. A base below 0 is what a reset has credited, and
		// must not be forgotten.
		if a.charged(a.window) == 0 && a.prev == 0 && a.base >= 0 {
			return max(a.now, a.relearn)
		}
		if l.Algorithm == ratelimit.FixedWindow {
			return l.WindowEnd(a.window)
		}
		return l.WindowEnd(a.window + 1)
	case ratelimit.TokenBucket:
		if wait := a.timeToLevel(int64(l.Burst)*Micro, l); wait < 1<<62 {
			at = a.now.Add(wait) + 1
		} else {
			return 1<<63 - 1
		}
	}
	a.each(func(r *record) {
		if r.outstanding() > 0 {
			at = max(at, r.expires)
		}
	})
	return at
}

func (a *Account) each(f func(*record)) {
	if a.first.seq > 0 {
		f(&a.first)
	}
	for i := range a.others {
		f(&a.others[i])
	}
}

func (a *Account) find(h ratelimit.Holder) *record {
	if a.first.seq > 0 && a.first.holder == h {
		return &a.first
	}
	for i := range a.others {
		if a.others[i].holder == h {
			return &a.others[i]
		}
	}
	return nil
}

// drop forgets holders that no longer count, but for the claimant, and folds
// those that have ended: what they are charged becomes part of the base.
func (a *Account) drop(c *ratelimit.Claim) {
	oldest := a.foldBelow()
	gone := func(r record) bool {
		switch {
		case r.holder == c.Holder:
			return false
		case a.obsolete(&r, &c.Limit, c.Tally):
			return true
		case !a.ended(&r, oldest):
			return false
		}
		if c.Limit.Algorithm != ratelimit.TokenBucket { // a bucket's level knows
			a.base += r.charged()
		}
		a.folded = max(a.folded, r.fence)
		return true
	}
	a.others = slices.DeleteFunc(a.others, gone)
	if a.first.seq > 0 && gone(a.first) {
		a.first = record{}
	}
}

// ended tells whether a record may be folded: its holder has said that it ends,
// a while ago; or its lease has expired, and its fence is below oldest.
func (a *Account) ended(r *record, oldest ratelimit.Fence) bool {
	return r.window == a.window && (r.last && a.now >= r.expires.Add(FoldAfter) || a.now >= r.expires && r.fence < oldest)
}

// unfold makes a record again for a holder whose record was folded and who is
// still there: it has a fence of this life of the account, and no record. Since
// then it was granted nothing, and may have given something back; what it still
// has of its grants was therefore folded, that much at least.
func (a *Account) unfold(r *record, c *ratelimit.Claim) {
	if c.Window != a.window || c.Fence < a.born || c.Fence > a.folded {
		return
	}
	*r = record{holder: r.holder, window: a.window, fence: c.Fence, granted: c.Granted, spent: c.Spent, returned: c.Returned}
	if c.Limit.Algorithm != ratelimit.TokenBucket {
		a.base -= max(0, c.Granted-c.Returned)
	}
}

// foldBelow is the fence below which records of expired leases are folded; 0
// while there is room for more. Fences are drawn in the order of claims, so
// that the holders which have been silent for longest go first.
func (a *Account) foldBelow() ratelimit.Fence {
	if len(a.others) < MostRecords {
		return 0
	}
	fences := make([]ratelimit.Fence, 0, len(a.others)+1)
	a.each(func(r *record) { fences = append(fences, r.fence) })
	if len(fences) <= MostRecords {
		return 0
	}
	slices.Sort(fences)
	return fences[len(fences)-keptRecords]
}

// add makes room for a holder.
func (a *Account) add(h ratelimit.Holder) *record {
	if a.first.seq == 0 {
		a.first = record{holder: h}
		return &a.first
	}
	a.others = append(a.others, record{holder: h})
	return &a.others[len(a.others)-1]
}

// obsolete tells whether forgetting r admits nothing more: its window is over
// and corrects nothing, or its bucket would have filled since it was heard.
func (a *Account) obsolete(r *record, l *ratelimit.Limit, tally bool) bool {
	switch l.Algorithm {
	case ratelimit.FixedWindow:
		return r.window < a.window && (!tally || r.window < a.window-1)
	case ratelimit.SlidingWindow:
		return r.window < a.window-1
	default:
		periods := (a.now - r.expires) / ledgerTime(l.Period()/time.Microsecond)
		return tokens(periods) > 1+l.Burst/max(1, l.Requests)
	}
}
