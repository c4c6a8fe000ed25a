package leasing

import (
	"math"
	"slices"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
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

// Account is all that a node knows of a key, enough to go on in another process, to the token
// (docs/internals/peers.md).
type Account struct {
	Algorithm ratelimit.Algorithm
	// Sum, Extra and State are those of a counter: of a window what was taken in it, of a sliding one what was in the
	// one before (of a fixed one, for how long it owes), and its number; of a token_bucket what others have in hand,
	// what it carries over, and its level.
	Sum   ratelimit.Tokens
	Extra int64
	State int64
	At    ratelimit.LedgerTime // up to when a bucket is refilled
	Dead  ratelimit.LedgerTime // from then on it means the same as none
	Lag   ratelimit.LedgerTime // by which its clock runs behind the sender's

	Lessees  []Lessee
	Override account.Overridden // of the key; its Set is 0 if there is none
}

// TakeOut takes a key's account away, for another process: from here on the key
// is unknown here. ok is false where there is none, or one that means nothing.
func (l *Local) TakeOut(now ratelimit.Instant, key []byte) (x Account, ok bool) {
	at := l.ledgerNow(now)
	s, id, c := l.tracked.locked(key)
	defer s.mu.Unlock()
	if c == nil {
		return Account{}, false
	}
	x = c.Val.export(algorithmOf(c))
	if k := s.of(c); k != nil {
		x.Lessees = slices.Concat(k.lessees, lesseesOf(k.slots))
		if k.over != nil {
			x.Override = k.over.Overridden
		}
	}
	if ok = !s.dead(c, at); ok {
		s.forget(id)
	} else {
		s.dropped = max(s.dropped, at)
	}
	s.keys.Remove(id)
	return x, ok
}

// export writes a counter down.
func (c *counter) export(algorithm ratelimit.Algorithm) Account {
	x := Account{Algorithm: algorithm, Sum: c.sum, Extra: c.extra, State: c.state, Dead: c.dead(algorithm)}
	if algorithm == ratelimit.TokenBucket {
		x.At = c.begins
	} else if lag, shifted := c.shifted(); shifted {
		x.Lag, x.Dead = lag, x.Dead-lag
	}
	return x
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
// the account waits (see counter.turn).
func (l *Local) Adopt(now ratelimit.Instant, key []byte, x Account, sent ratelimit.LedgerTime) bool {
	at := l.ledgerNow(now)
	s, id, c := l.tracked.locked(key)
	defer s.mu.Unlock()
	other := x.counter(max(0, at-(sent-x.Lag)))
	if c == nil {
		if c = l.tracked.add(s, at, id, key, x.Algorithm); c == nil {
			return false
		}
	}
	k := s.of(c)
	if len(x.Lessees) > 0 || x.Override.Set > 0 || x.Algorithm == ratelimit.Concurrency {
		k = s.beside(c)
		s.adoptOverride(k, &x.Override)
	}
	bucket := x.Algorithm == ratelimit.TokenBucket
	if x.Algorithm == ratelimit.Concurrency {
		s.adoptSlots(k, c, x.Lessees, at-sent)
		return true
	}
	if both := &c.Val; bucket != (algorithmOf(c) == ratelimit.TokenBucket) || both.ends == 0 {
		// It is new here, or has counted otherwise before.
		c.Val, c.Mark = other, c.Mark&isLent|uint8(x.Algorithm)
		if k != nil {
			k.lessees = nil
		}
	} else if bucket {
		both.mergeBucket(&other)
	} else {
		both.merge(&other)
		c.Mark = c.Mark&isLent | max(uint8(x.Algorithm), uint8(algorithmOf(c)))
	}
	if k != nil {
		k.merge(&c.Val, x.Lessees, bucket)
	}
	return true
}

// counter is what an account goes on as, whose clock runs behind this one's by lag.
func (x *Account) counter(lag ledgerTime) counter {
	c := counter{sum: x.Sum, extra: x.Extra, state: x.State, begins: shiftedBy(lag), ends: x.Dead}
	if x.Algorithm == ratelimit.TokenBucket && x.At != 0 {
		c.begins = x.At + lag
	} else if x.State == 0 || x.Algorithm == ratelimit.TokenBucket {
		return counter{}
	}
	if c.ends < math.MaxInt64-lag { // others look at it by this process's clock
		c.ends += lag
	}
	return c
}

// merge adds what was charged in the other's windows to those that are the same here. An older window than the
// other's ends first: it is over on one of the clocks, and otherwise what is charged in the newer one would be lost.
func (c *counter) merge(other *counter) {
	if c.state < other.state {
		*c, *other = *other, *c
	}
	before := other.sum // of the window before
	switch other.state {
	case c.state:
		lag, shifted := c.shifted()
		if by, too := other.shifted(); too && (!shifted || by > lag) {
			c.begins = other.begins
		}
		c.sum, before = charged(c.sum, other.sum), tokens(other.extra)
	case c.state - 1:
	default:
		before = 0
	}
	c.extra = charged(c.extra, before)
	if _, shifted := c.shifted(); shifted {
		c.ends = max(c.ends, other.ends)
	}
}

// mergeBucket leaves what either has left. Both keep room for what others have in hand.
func (c *counter) mergeBucket(other *counter) {
	if c.begins == 0 || other.begins == 0 {
		if c.begins == 0 {
			*c = *other
		}
		return
	}
	c.state = min(c.state, other.state) - int64(min(c.sum, other.sum))*account.Micro
	c.state = max(c.state, -int64(mostDebt)*account.Micro)
	c.sum, c.extra = charged(c.sum, other.sum), 0
	c.begins, c.ends = max(c.begins, other.begins), max(c.ends, other.ends)
}

// merge takes in another's records. Of one holder's the later is its truth; what the other says of the same totals was
// charged twice.
func (k *lent) merge(c *counter, others []Lessee, bucket bool) {
	for _, r := range others {
		if r.Until > 0 {
			k.soonest = min(k.soonest, r.Until)
		}
		i := slices.IndexFunc(k.lessees, func(known Lessee) bool { return known.Holder == r.Holder })
		if i < 0 {
			k.lessees = append(k.lessees, r)
			continue
		}
		known := &k.lessees[i]
		if known.Life < r.Life || known.Life == r.Life && known.Seq < r.Seq {
			*known, r = r, *known
		}
		if bucket {
			c.sum = charged(c.sum, -r.Hand)
		} else if r.Life == known.Life && r.Window == known.Window && r.Window == window(c.state) {
			c.sum = charged(c.sum, -r.Taken)
		}
	}
}
