package leasing

import (
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// LedgerNow is what this process's ledger clock shows at an instant.
func (l *Local) LedgerNow(now ratelimit.Instant) ratelimit.LedgerTime { return l.ledgerNow(now) }

// Predictable makes a limiter that was not used yet do the same in every run,
// for simulations: its keys' places are then no secret.
func (l *Local) Predictable() *Local {
	l.predictable()
	return l
}

// Parts is in how many parts keys are kept, each under a lock of its own.
func (l *Local) Parts() int { return len(l.tracked.shards) }

// Part is the part that a key is kept in.
func (l *Local) Part(key []byte) int { return int(l.tracked.ShardOf(l.tracked.Hash.ID(key))) }

// Visit is a walk through one part. Its zero value, with Part set, begins it.
type Visit struct {
	Part int
	at   keytable.Cursor
}

// Visit shows the next few keys of a part, which see must not keep, and must
// not ask the Local about: it is called under the part's lock. It reports
// whether every key that has been in the part since the visit began was shown.
func (l *Local) Visit(v *Visit, see func(key []byte)) (done bool) {
	s := &l.tracked.shards[v.Part]
	s.mu.Lock()
	defer s.mu.Unlock()
	v.at = s.keys.Walk(v.at, func(c *counterCell) { see(s.keys.Key(c)) })
	if v.at.Done {
		*v = Visit{Part: v.Part}
		return true
	}
	return false
}

// Has tells whether the key has an account here.
func (l *Local) Has(key []byte) bool {
	s, _, c := l.tracked.locked(key)
	defer s.mu.Unlock()
	return c != nil
}

// TakeOut takes a key's account away, for another process: from here on the key
// is unknown here. ok is false where there is none, or one that means nothing.
func (l *Local) TakeOut(now ratelimit.Instant, key []byte) (a ledger.Statement, ok bool) {
	return l.tracked.takeOut(l.at(now), key)
}

// Adopt goes on with an account from another process, whose ledger's clock
// showed sent a moment ago. If the key is known here already, what was charged
// there is charged here too; of two buckets the emptier one counts, for how large
// they are only a rule says. It reports false when there is no room: then the
// key shares a budget, as any beyond the most that may be tracked.
//
// Where the sender's clock is behind this one's, the account goes on by the
// sender's until its window ends: otherwise what is left of the window would be
// granted once there, and the next window too early here. Where it is ahead,
// the account waits (see account.clock).
func (l *Local) Adopt(now ratelimit.Instant, key []byte, x ledger.Statement, sent ratelimit.LedgerTime) bool {
	at := l.at(now)
	return l.tracked.adopt(at, key, &x, max(0, at.ledger-(sent-x.Lag)))
}

// Settle settles claims of other holders, whose Key is the key as it is. What
// this process has leased of such a key goes back first. Grants have an Err
// where there is no room. It never blocks.
func (l *Local) Settle(now ratelimit.Instant, claims []ratelimit.Claim, grants []ratelimit.Grant) {
	at := l.at(now)
	for i := range claims {
		grants[i] = l.tracked.settleFor(at, []byte(claims[i].Key), &claims[i])
	}
}
