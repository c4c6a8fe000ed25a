package local

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Limiter decides on one node. It is safe for concurrent use. A decision about a tracked key does not allocate.
//
// When more keys are in use than it may track, the untracked keys of a rule share OverflowSlots budgets, each as large
// as the limit. They may be refused early, and are never admitted beyond the limit. When even these budgets have no
// room, it refuses. With evictions, a client could cycle keys and get each limit again. With refusals, one could lock
// out all new keys (docs/adr, decision 3).
type Limiter struct {
	tracked  *counters
	overflow *counters
	// offset is from an Instant's nanoseconds to those of the wall clock. It is atomic, because decisions read it
	// without a lock.
	offset atomic.Int64
	shared atomic.Uint64
}

// KeyBytes is the maximum bytes of a key, for MAX_KEYS. It is the worst case that a client can cause with longer and
// longer keys, while it keeps a part of the shorter ones in use (keytable's TestKeysThatStay).
const KeyBytes = 550

// OverflowSlots is the number of budgets that the untracked keys of one rule share.
const OverflowSlots = 64

// New makes a limiter that tracks at most maxKeys keys, and an eighth as many overflow budgets. wall is the time
// of the wall clock at the instant now, which divides windows. See SyncClock.
func New(maxKeys int, now ratelimit.Instant, wall time.Time) *Limiter {
	arena := keytable.NewArena()
	l := &Limiter{tracked: newCounters(arena, maxKeys), overflow: newCounters(arena, max(OverflowSlots, maxKeys/8))}
	l.tracked.before = l.overflowed
	l.SyncClock(now, wall)
	return l
}

// overflowed is the usage of the budget that a key has shared while it was not tracked, because the key may have
// spent all of it.
func (l *Limiter) overflowed(a *ask) counter {
	if l.shared.Load() == 0 {
		return counter{}
	}
	var buf [2 * ratelimit.MaxKeyLen]byte
	s, _, c := l.overflow.locked(l.overflowKey(buf[:0], a))
	defer s.mu.Unlock()
	if c != nil {
		return c.Val
	}
	return counter{}
}

// SyncClock sets the wall-clock time of an instant, so that windows follow corrections of the wall clock. A step back
// makes current windows longer. It never grants a budget twice.
func (l *Limiter) SyncClock(now ratelimit.Instant, wall time.Time) {
	l.offset.Store(wall.UnixNano() - int64(now))
}

// Decide implements [ratelimit.Limiter]. It never blocks. A key without room in the table is decided by a budget that
// it shares.
func (l *Limiter) Decide(_ context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	at := l.LedgerNow(now)
	for i := range asks {
		verdicts[i] = verdict{}
		if !l.tracked.decide(at, &asks[i], &verdicts[i]) {
			l.decideOverflow(at, &asks[i], &verdicts[i])
		}
	}
}

// DecideShare decides an ask by this node's share of the limit, as one of so many (ratelimit.Rule.LocalShare).
func (l *Limiter) DecideShare(now ratelimit.Instant, a *ratelimit.Ask, nodes int) ratelimit.Verdict {
	own, v := *a, [1]verdict{}
	own.Rule = a.Rule.LocalShare(nodes)
	l.Decide(context.Background(), now, []ask{own}, v[:])
	return v[0]
}

// UndoShare takes back its charge.
func (l *Limiter) UndoShare(now ratelimit.Instant, a *ratelimit.Ask, v *ratelimit.Verdict, nodes int) {
	own, at := *a, *v
	// The verdict is a fallback's for its caller, and for this limiter it is one of its own.
	own.Rule, at.Source = a.Rule.LocalShare(nodes), ratelimit.FromLease
	l.Undo(now, []ask{own}, []verdict{at})
}

// decideOverflow decides an ask by a budget that its key shares with other keys of the rule. If even that has no room,
// it refuses.
func (l *Limiter) decideOverflow(at ledgerTime, a *ask, v *verdict) {
	l.shared.Add(1)
	if a.OfSlot() { // its slots would not be found again
		*v = a.DecideSlot(a.Rule.Limit.Requests, ratelimit.NoSlot)
		v.Source = ratelimit.FromOverflow
		return
	}
	var buf [2 * ratelimit.MaxKeyLen]byte
	at = l.tracked.since(at, a)
	own := *a
	own.Key = l.overflowKey(buf[:0], a)
	if !l.overflow.decide(at, &own, v) {
		*v = verdict{OverLimit: true, ResetAfter: a.Rule.Limit.Period()}
	}
	v.Source = ratelimit.FromOverflow
}

// overflowKey names the budget that an untracked key shares. Their number is bounded for any requests: limits that
// clients send have no path, and share by their unit.
func (l *Limiter) overflowKey(b []byte, a *ask) []byte {
	slot := l.tracked.Hash.Of(a.Key) % OverflowSlots
	b = append(b, 0xfe, byte(slot), byte(a.Rule.Limit.Unit), byte(a.Rule.Limit.Algorithm)) // no Unit is 0xfe
	return ratelimit.SealKey(ratelimit.AppendEntry(b, a.Rule.Domain, a.Rule.Path, false), 0)
}

// Undo implements [ratelimit.Limiter]. It ignores the verdict of another limiter (an owner's, or a fallback's), which
// charged nothing here.
func (l *Limiter) Undo(_ ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		switch verdicts[i].Source {
		case ratelimit.FromLease, ratelimit.FromClaim:
			l.tracked.undo(asks[i].Key, &asks[i], &verdicts[i])
		case ratelimit.FromOverflow:
			var buf [2 * ratelimit.MaxKeyLen]byte
			l.overflow.undo(l.overflowKey(buf[:0], &asks[i]), &asks[i], &verdicts[i])
		case ratelimit.FromOwner, ratelimit.FromDrift, ratelimit.FromFallback:
		}
	}
}

// Stats returns the counts so far. It takes every lock once.
func (l *Limiter) Stats() ratelimit.LimiterStats {
	return ratelimit.LimiterStats{Overflow: l.shared.Load(), Accounts: l.tracked.len() + l.overflow.len()}
}

// LedgerNow is the time of this process's ledger clock at an instant.
func (l *Limiter) LedgerNow(now ratelimit.Instant) ratelimit.LedgerTime {
	return ledgerTime((int64(now) + l.offset.Load()) / int64(time.Microsecond))
}
