package local

import (
	"math"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Predictable makes an unused limiter do the same in every run, for simulations: the places of its keys are then no
// secret.
func (l *Limiter) Predictable() *Limiter {
	l.tracked.Hash, l.overflow.Hash = keytable.Hasher{}, keytable.Hasher{}
	return l
}

// Visit is a walk through the table. It begins with its zero value.
type Visit struct {
	part int
	at   keytable.Cursor
}

// Visit shows the next few keys that have an owner (mode routing). see runs under a lock of the table: it must not keep
// a key or call the Limiter. Visit reports whether it has shown every such key that was here since the visit began.
func (l *Limiter) Visit(v *Visit, see func(key []byte)) (done bool) {
	s := &l.tracked.shards[v.part]
	s.mu.Lock()
	defer s.mu.Unlock()
	v.at = s.keys.Walk(v.at, func(c *counterCell) {
		if c.Mark&isOwned != 0 {
			see(s.keys.Key(c))
		}
	})
	if v.at.Done {
		*v = Visit{part: (v.part + 1) % len(l.tracked.shards)}
	}
	return *v == Visit{}
}

// Has reports whether the key has an account here that moves with a ring: one of a mode with owners.
func (l *Limiter) Has(key []byte) bool {
	s, _, c := l.tracked.locked(key)
	defer s.mu.Unlock()
	return c != nil && c.Mark&isOwned != 0
}

// Account is the state of a key, complete enough to continue in another process, to the token
// (package routing).
type Account struct {
	Algorithm ratelimit.Algorithm
	// Sum, Extra and State are those of a counter. For a window: its usage, the usage of the previous window (of a
	// fixed window: the time for which it owes), and its number. For a token_bucket: 0, the rounding remainder, and the
	// level.
	Sum   ratelimit.Tokens
	Extra int64
	State int64
	// Begins and Ends are the window's, by the sender's clock. For a token_bucket: the time of its last refill, or 0,
	// and the time at which it is full again.
	Begins, Ends ratelimit.LedgerTime
	Limit        ratelimit.Tokens // for views; 0: unknown
}

// TakeOut removes a key's account, for another process: this process then has no state of the key. ok is false if there
// is none, or one without meaning. A key of an ended window is removed, and not sent. Its time of removal is kept
// (dropped), so that a step back of the clock does not grant the window again.
func (l *Limiter) TakeOut(now ratelimit.Instant, key []byte) (x Account, ok bool) {
	at := l.LedgerNow(now)
	s, id, c := l.tracked.locked(key)
	defer s.mu.Unlock()
	if c == nil {
		return Account{}, false
	}
	x = Account{
		Algorithm: algorithmOf(c), Sum: c.Val.sum, Extra: c.Val.extra, State: c.Val.state, Begins: c.Val.begins,
		Ends: c.Val.ends, Limit: l.tracked.limits.limit(c.Note),
	}
	ok = !s.dead(c, at)
	if ok {
		s.forget(id)
	} else {
		s.dropped = max(s.dropped, at)
	}
	s.keys.Remove(id)
	return x, ok
}

// Adopt continues an account of another process, whose ledger clock showed sent a moment ago. If the key exists here,
// its charges here count too. Of two buckets the emptier one counts, because only a rule has their size. It returns
// false if there is no room: then the key shares a budget, like all keys beyond the maximum.
//
// The window lasts until it has ended by both clocks (see counter.turn). If the sender's is behind, the rest of the
// window is granted there otherwise, and the next window too early here.
func (l *Limiter) Adopt(now ratelimit.Instant, key []byte, x Account, sent ratelimit.LedgerTime) bool {
	at := l.LedgerNow(now)
	s, id, c := l.tracked.locked(key)
	defer s.mu.Unlock()
	lag := at - sent
	other := x.counter(lag)
	if c == nil {
		c = l.tracked.add(s, at, id, key, x.Algorithm)
		if c == nil {
			return false
		}
	}
	// Only accounts of a mode with owners move.
	c.Mark, c.Note = c.Mark|isOwned, l.tracked.limits.note(x.Limit)
	bucket := x.Algorithm == ratelimit.TokenBucket
	if both := &c.Val; bucket != (algorithmOf(c) == ratelimit.TokenBucket) || both.ends == 0 {
		// It is new here, or has used another algorithm.
		c.Val = other
		setAlgorithm(c, x.Algorithm)
	} else if bucket {
		both.mergeBucket(&other)
	} else {
		// A sliding window has more to merge than a fixed one, and its number is larger.
		setAlgorithm(c, max(x.Algorithm, algorithmOf(c)))
		both.merge(&other, algorithmOf(c))
	}
	return true
}

// counter is the continuation of an account whose clock is lag behind this one's; below 0: ahead.
func (x *Account) counter(lag ledgerTime) counter {
	if x.Begins == 0 { // it was never used
		return counter{}
	}
	c := counter{sum: x.Sum, extra: x.Extra, state: x.State, begins: x.Begins + lag, ends: x.Ends}
	if c.ends < math.MaxInt64-max(0, lag) {
		c.ends += lag
	}
	if x.Algorithm == ratelimit.FixedWindow { // it is kept until it has ended by this clock
		c.extra = min(longestKept, c.extra+max(0, -int64(lag)))
	}
	return c
}

// merge adds the charges of the other's windows to the same windows here. An older window ends first: it is over on
// one of the clocks, and otherwise the charges of the newer one are lost.
func (c *counter) merge(other *counter, a ratelimit.Algorithm) {
	if c.state < other.state {
		// c has the newer window from here on.
		*c, *other = *other, *c
	}
	switch windows := c.state - other.state; {
	case windows == 0:
		c.begins, c.ends = max(c.begins, other.begins), max(c.ends, other.ends)
		c.sum, c.extra = booked(c.sum, other.sum), int64(booked(tokens(c.extra), tokens(other.extra)))
	case a == ratelimit.SlidingWindow && windows == 1:
		c.extra = int64(booked(tokens(c.extra), other.sum))
	}
}

// mergeBucket keeps the smaller level.
func (c *counter) mergeBucket(other *counter) {
	if other.begins == 0 {
		return
	}
	c.state, c.extra = min(c.state, other.state), 0
	c.begins, c.ends = max(c.begins, other.begins), max(c.ends, other.ends)
}
