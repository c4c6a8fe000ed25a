package leasing

import (
	"errors"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// lateReport is the last report on an account whose window is over. It has the whole part of the ended window, so the
// key goes on with the next one at once.
type lateReport struct {
	lease.Part
	statement
	// name and as are those of the account: the key may have left the table, or have another name by now.
	name string
	as   ratelimit.Holder
	// tries is the number of attempts that failed. It is in Seq and in the message's number.
	tries int
	until instant // it is tried until then, because its usage counts in the next window; 0: lateTries times
}

// lateTries bounds the reports on an account whose window is over. Of one that still counts, the pauses double up to
// lateDoublings times. mostLate bounds the number of these, which take memory outside of the table of keys.
const lateTries, lateDoublings, mostLate = 3, 5, 10_000

// lastSeq is the first number of late reports: above those of all other claims, and exact as a double in a script. At a
// million claims a second, a shard would reach it after 35 years.
const lastSeq = 1 << 50

func (l *lateReport) reason() ratelimit.ClaimReason { return ratelimit.ClaimFinal }

// write states the totals of the ended window, without a need and with nothing in hand. A repetition has a higher Seq:
// the first one may have arrived.
func (l *lateReport) write(_ *Fleet, q *lease.Asking, _ *lease.LedgerClock) (account.Claim, bool) {
	l.GiveBack(0)
	c := account.Claim{Key: l.name, Limit: l.rule.Limit, Holder: l.as, Seq: lastSeq + uint64(l.tries)}
	l.Write(&l.message, uint32(l.tries+1), c, q)
	return l.message.Claim, true
}

// apply ends the report if it was booked, or if the ledger no longer keeps the account. In a young epoch the answer
// does not count, but the ledger has the total.
func (l *lateReport) apply(b *batch, _ instant, g *account.Grant, a *lease.Answer) {
	counts := l.Apply(&l.message, g, a)
	booked := counts || g.Err == nil && !l.message.Claim.Draws() && l.message.In(a.Epoch)
	if !booked && !errors.Is(g.Err, account.ErrOver) {
		l.Lost(&l.message)
		b.retryLate(l)
		return
	}
	if g.Err == nil {
		drift, beyond := l.message.Drift(), l.beyond
		// A draw states no totals: all of it is drift.
		if l.message.Claim.Draws() {
			drift += l.message.Claim.Want
		}
		l.reconcile(l.rule, &beyond, drift, g)
	}
	b.endLate(l)
}

// reportLocked reports an account whose window is over, if the ledger's total differs, or may differ because of a
// message in flight, whose answer will not count. Tokens in hand go back where the next window counts them as usage.
// Tokens in hand of a fixed window need no report: they end with it.
func (f *Fleet) reportLocked(k entry, ended lease.Part, beyond lease.Excess) {
	limit := &k.rule().Limit
	counts := limit.Algorithm == ratelimit.SlidingWindow // in the next window
	hand := counts && ended.Taken > ended.Spent
	// Others may take back what it has not reported.
	if k.cell.Val.lapses() && ended.Recent() > 0 || !f.mayAsk(f.clock(), k) {
		// A draw would not say that the tokens are spent.
		ended.Restate()
	}
	if ended.Deadline == 0 || !ended.Unreported() && !ended.InFlight() && !hand {
		return
	}
	ended.Deadline = lease.Never // nothing of it is spent any more
	late := &lateReport{
		Part: ended, statement: statement{rule: k.rule(), beyond: beyond}, name: f.keyName(k.key()), as: f.as(k),
	}
	if counts {
		late.until = f.clock().Add(limit.Period()) // the account is kept as long
	}
	f.reportLate(late)
}

// restateBeforeLocked states the usage of a sliding window's previous one again, after a loss of data; false: there is
// no room for the message.
func (f *Fleet) restateBeforeLocked(k entry) bool {
	part, counts := k.Before()
	if !counts {
		return true
	}
	l := &lateReport{
		Part: part, statement: statement{rule: k.rule()}, name: f.keyName(k.key()), as: f.as(k), until: k.CurrentUntil,
	}
	return f.sendLater(f.laneOf(l.name), l, lease.Batch)
}

// as is this node's name for a key in the ledger.
func (f *Fleet) as(k entry) ratelimit.Holder { return f.name + ratelimit.Holder(k.cell.Val.alias) }

// reportLate sends a late report with other messages: no request waits for it.
func (f *Fleet) reportLate(l *lateReport) {
	if !f.sendLater(f.laneOf(l.name), l, lease.Batch) {
		f.retryLate(l)
	}
}

// retryLate repeats a late report later. After lateTries it is lost, or when its account is over. A node that has ended
// tries none: timers would keep it in memory for up to a window.
func (f *Fleet) retryLate(l *lateReport) {
	pause := SweepEvery << min(l.tries, lateDoublings)
	l.tries++
	if l.tries == lateTries {
		f.stats.late.Add(1)
	}
	again := l.tries < lateTries || f.clock() < l.until && f.stats.late.Load() <= mostLate
	if again && !f.ended.Load() {
		f.after(pause, func() { f.reportLate(l) })
		return
	}
	f.stats.unreported.Add(1)
	f.endLate(l)
}

// endLate ends a report. Only one that was tried for long was counted.
func (f *Fleet) endLate(l *lateReport) {
	if l.tries >= lateTries {
		f.stats.late.Add(-1)
	}
}
