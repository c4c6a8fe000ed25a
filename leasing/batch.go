package leasing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
)

// settle settles messages in one round trip, and applies the answers. It holds no lock in the meantime, and runs in a
// goroutine of its lane. The breaker decides after the messages are written: those that it refuses are failed like a
// lost trip, and their keys claim next.
func (f *Fleet) settle(l *fleetLane, all []message) {
	// A beat travels alone: it reaches all servers of the part, and claims only the servers of their accounts.
	isBeat := func(m message) bool { _, is := m.(*beat); return is }
	if i := slices.IndexFunc(all, isBeat); i >= 0 && len(all) > 1 {
		// A lane has at most one beat (fleetLane.beat). It follows the other messages in the same flight.
		defer f.settle(l, all[i:i+1:i+1])
		all = slices.Concat(all[:i], all[i+1:])
	}
	if len(all) == 0 {
		return
	}
	b := f.pack(l, all)
	grants := make([]account.Grant, len(b.claims))
	if !l.Allow(b.sent) {
		b.failed(lane.ErrOpen)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lane.TimeLimit)
	defer cancel()
	var epoch ratelimit.Epoch
	var from, to ledgerTime
	var err error
	if p, ok := f.ledger.(account.Partitioned); ok && len(b.claims) == 0 {
		epoch, from, to, err = p.Ask(ctx, l.part)
	} else {
		epoch, from, err = f.ledger.Settle(ctx, b.claims, grants)
		to = from
	}
	f.stats.storeTime.Observe(int64(f.clock().Sub(b.sent) / time.Microsecond))
	b.answered(grants, epoch, from, to, err)
}

// batch is a list of messages for one round trip.
type batch struct {
	*Fleet
	lane   *fleetLane
	claims []account.Claim
	of     []message // one for each claim
	other  []message // without a claim
	sent   instant
	alone  bool  // none of the lane's was in flight when it left
	err    error // of the round trip
}

// pack writes messages. A message that has nothing to send is left out. Its waiters are awake already.
func (f *Fleet) pack(l *fleetLane, all []message) *batch {
	b := &batch{Fleet: f, lane: l, sent: f.clock(), alone: l.Alone()}
	there, is := l.read()
	early, _ := there.Between(b.sent)
	q := lease.Asking{Now: b.sent, Epoch: is.epoch, Young: is.epoch.Young(early)}
	for _, m := range all {
		if c, ok := m.write(f, &q, &there); ok {
			b.claims, b.of = append(b.claims, c), append(b.of, m)
		} else if g, ok := m.(*beat); ok {
			b.other = append(b.other, g)
		}
	}
	return b
}

// failed handles a batch without an answer. It may have been settled at the ledger nevertheless.
func (b *batch) failed(err error) {
	b.answered(make([]account.Grant, len(b.claims)), ratelimit.Epoch{}, 0, 0, err)
}

// answered applies the answers of a batch. The ledger's time at the part is between from and to; 0: unknown. The lane's
// time and epoch come first, because the answers of keys are judged by them.
func (b *batch) answered(grants []account.Grant, e ratelimit.Epoch, from, to ledgerTime, err error) {
	now := b.clock()
	b.err = err
	b.lane.observe(b, now, from, to, e, err)
	b.count(grants, err)
	a := lease.Answer{Now: now, Epoch: e}
	for i, m := range b.of {
		g := &grants[i]
		if g.Err == nil {
			g.Err = err
		}
		b.audit(m.stated().rule, &b.claims[i], g)
		m.apply(b, now, g, &a)
	}
	for _, m := range b.other {
		m.apply(b, now, &account.Grant{Err: err}, &a)
	}
}

// observe applies the ledger's time and its epoch. A new epoch begins a new life of the lane: sweeps state all totals
// again until each key has it (reportedLife). The first epoch of a process is no loss.
func (l *fleetLane) observe(b *batch, now instant, from, to ledgerTime, e ratelimit.Epoch, err error) {
	switch {
	case errors.Is(err, lane.ErrOpen): // it was not sent
		return
	case errors.Is(err, account.ErrMoved):
		// The part's servers answer, and its slots move.
		l.Undecided()
		return
	case err != nil:
		l.Failure(now, b.Random())
		return
	}
	l.Success()
	if b.alone { // otherwise batches may wait for each other in the ledger, and more flights would lengthen it
		l.took(now.Sub(b.sent))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered = now
	if e.ID != l.epoch.ID {
		l.first = l.epoch.ID == 0
		// A new process admits no part: others may not count it yet.
		l.peers = 0
		if !l.first {
			b.stats.recoveries.Add(1)
			l.peers = b.Peers()
		}
		// Sweeps now state the total of each key again.
		l.life++
		l.began = l.life
	}
	l.epoch, l.asked = e, b.sent
	if from > 0 && !l.waits(from) {
		b.stepped(l.clock.Observe(b.sent, now, from, to))
	}
}

// firstWait is a beat of nodes that have read another epoch, and the trip in which they say so.
const firstWait = 3 * beatEvery / 2

// waits reports whether the first epoch of this process is so new that nodes which have read another may not have said
// so yet. Until then, the lane has no clock, so that nothing is claimed.
func (e *epochs) waits(at ledgerTime) bool {
	return e.first && e.epoch.Began.Add(-ratelimit.YoungMost) <= at && at < e.epoch.Began.Add(firstWait)
}

// stepLeast is the smallest change of the ledger's clock that is reported. Smaller ones are usual with NTP.
const stepLeast = time.Second

// stepped reports a step of the ledger's clock. Leases end by the bounds of before, and windows are read anew from now
// on.
func (f *Fleet) stepped(by time.Duration) {
	switch {
	case by >= stepLeast:
		f.stats.clockSteps[0].Add(1)
	case by <= -stepLeast:
		f.stats.clockSteps[1].Add(1)
	default:
		return
	}
	f.OnWarning(fmt.Errorf("%w (by at least %v)", ErrClockSet, by.Round(time.Millisecond)))
}

// inWindow reports whether a message is about an account of a window.
func inWindow(c *account.Claim) bool { return c.Limit.Algorithm != ratelimit.TokenBucket }

// count counts a round trip and its answers. A beat has no grant, and counts as a round trip only.
func (b *batch) count(grants []account.Grant, err error) {
	f := b.Fleet
	f.stats.roundTrips.Add(1)
	f.stats.claims.Add(uint64(len(grants)))
	if err != nil {
		f.stats.failed.Add(1)
	}
	failed := err
	for i := range grants {
		g := &grants[i]
		f.stats.claimsBy[b.of[i].reason()].Add(1)
		switch {
		case errors.Is(g.Err, account.ErrAnswer):
			f.stats.rejected.Add(1)
			f.OnWarning(g.Err)
		case errors.Is(g.Err, account.ErrOvertaken):
			f.stats.stale.Add(1)
		case g.Err != nil && !retried(g.Err): // the store refuses this message alone, such as a script, without memory
			failed = cmp.Or(failed, g.Err)
		case g.Granted > 0:
			f.stats.leaseSizes.Observe(int64(g.Granted))
		}
	}
	if failed != nil {
		f.OnFailure(failed)
	}
}

// audit records an answer before the key uses it, so that tokens are on record before they are spent.
func (f *Fleet) audit(r *ratelimit.Rule, c *account.Claim, g *account.Grant) {
	if r.Coordination.Audit && f.OnAudit != nil {
		f.OnAudit(r, c, g)
	}
}
