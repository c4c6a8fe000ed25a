package leasing

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Local decides on one node, by counters in its own process. Every answer is
// exact, the remaining count included, and nothing ever waits. It is safe for
// concurrent use; a decision about a known key allocates nothing.
//
// Guarantee: no key is ever spent beyond its limit, however many keys there
// are. When more keys are in use than it may track, a new one shares one of
// OverflowSlots budgets, each as large as the limit, with the other untracked
// keys of its rule: it may be refused early, and is never admitted beyond the
// limit. When even these are too many, it is refused.
type Local struct {
	tracked  *counters
	overflow *counters
	epoch    atomic.Int64 // what to add to an Instant to get the ledger's nanoseconds
	shared   atomic.Uint64
}

// What a key takes at most, in bytes: for MAX_KEYS. It is the worst that a client can bring
// about, who makes keys longer and longer, and keeps a part of the shorter ones in use
// (keytable's TestKeysThatStay). Of a Fleet, busy keys are included.
const (
	LocalKeyBytes = 550
	FleetKeyBytes = 800
)

// OverflowSlots is how many budgets the untracked keys of one rule share.
const OverflowSlots = 64

// NewLocal makes a limiter that tracks at most maxKeys keys, and an eighth as
// many overflow budgets. wall is the wall clock's time at the instant now;
// windows are cut by it. See SyncClock.
func NewLocal(maxKeys int, now ratelimit.Instant, wall time.Time) *Local {
	arena := keytable.NewArena()
	l := &Local{tracked: newCounters(arena, maxKeys), overflow: newCounters(arena, max(OverflowSlots, maxKeys/8))}
	l.tracked.before = l.overflowed
	l.SyncClock(now, wall)
	return l
}

// overflowed is what the budget was charged that a key has shared while it was not
// tracked, and may have used up alone.
func (l *Local) overflowed(a *ask) counter {
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

// SyncClock tells which wall-clock time an instant is, so that windows follow
// the wall clock's corrections. A step back makes running windows longer; it
// never gives a budget twice.
func (l *Local) SyncClock(now ratelimit.Instant, wall time.Time) {
	l.epoch.Store(wall.UnixNano() - int64(now))
}

// Decide implements [ratelimit.Limiter]. It never blocks.
func (l *Local) Decide(_ context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	at := l.ledgerNow(now)
	for i := range asks {
		verdicts[i] = verdict{}
		if !l.tracked.decide(at, &asks[i], &verdicts[i]) {
			l.decideOverflow(at, &asks[i], &verdicts[i])
		}
	}
}

// DecideFor decides one ask of a holder that leases the key (mode routing without a store): first what it says of its
// lease is booked, and then it is leased more. Where there is no room for the key there is no lease, and nothing
// that it says is booked. It never blocks.
func (l *Local) DecideFor(
	now ratelimit.Instant, h ratelimit.Holder, m Totals, a *ratelimit.Ask, v *ratelimit.Verdict,
) Lease {
	at := l.ledgerNow(now)
	*v = verdict{}
	x, ok := l.tracked.decideFor(at, h, &m, a, v)
	if !ok {
		l.decideOverflow(at, a, v)
	}
	return x
}

func (l *Local) decideOverflow(at ledgerTime, a *ask, v *verdict) {
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

// overflowKey names the budget that an untracked key shares. Whatever clients
// send, there are only so many: a client's own limits share by their unit.
func (l *Local) overflowKey(b []byte, a *ask) []byte {
	path := a.Rule.Path
	if a.Rule.Override {
		path = ""
	}
	slot := l.tracked.Hash.Of(a.Key) % OverflowSlots
	b = append(b, 0xfe, byte(slot), byte(a.Rule.Limit.Unit), byte(a.Rule.Limit.Algorithm)) // no Unit is 0xfe
	return ratelimit.SealKey(ratelimit.AppendEntry(b, a.Rule.Domain, path, false), 0)
}

// Undo implements [ratelimit.Limiter]. A verdict of another limiter (an owner's,
// or a fallback's) charged nothing here and is left alone.
func (l *Local) Undo(_ ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
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
func (l *Local) Stats() ratelimit.LimiterStats {
	return ratelimit.LimiterStats{Overflow: l.shared.Load(), Accounts: l.tracked.len() + l.overflow.len()}
}

func (l *Local) ledgerNow(now instant) ledgerTime {
	return ledgerTime((int64(now) + l.epoch.Load()) / int64(time.Microsecond))
}

// predictable makes a limiter that was not used yet do the same in every run.
func (l *Local) predictable() {
	l.tracked.Hash, l.overflow.Hash = keytable.Hasher{}, keytable.Hasher{}
}
