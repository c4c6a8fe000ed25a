package ledger

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Check looks at an account right after a claim was settled, with its answer,
// and says which invariant of the ledger does not hold, if one does not
// (docs/protocol.md, sections 4.1 and 4.3). It is for simulations and tests.
func (m *Memory) Check(claim *ratelimit.Claim, answer *ratelimit.Grant) error {
	s, c := m.locked([]byte(claim.Key))
	defer s.mu.Unlock()
	if c == nil {
		return nil
	}
	if err := c.val.checkCopy(claim, answer); err != nil {
		return err
	}
	return c.val.check(&claim.Limit)
}

// locked finds an account, nil if there is none, and its shard, whose lock the
// caller now holds and must release.
func (m *Memory) locked(key []byte) (*memoryShard, *cell[Account]) {
	hash := m.hash.Of(key)
	s := &m.shards[hash>>32%uint64(len(m.shards))]
	s.mu.Lock()
	return s, s.accounts.get(hash, key)
}

// Booked is what a ledger has on its books for a holder of a key.
type Booked struct {
	Granted, InFlight, Spent, Returned tokens // of the holder
	Window                             window
	Expires                            ledgerTime // the lease
	Charged                            tokens     // to the holder
	InAll, Available                   tokens     // in that window
	Current                            window     // the account's
}

// Booked is what is on the books for the holder of a claim that was settled just now; 0
// where there is nothing. It is for simulations and tests.
func (m *Memory) Booked(c *ratelimit.Claim) (b Booked) {
	s, cell := m.locked([]byte(c.Key))
	defer s.mu.Unlock()
	if cell == nil {
		return b
	}
	a := &cell.val
	b.Current = a.window
	if r := a.find(c.Holder); r != nil {
		b.Granted, b.InFlight, b.Spent, b.Returned, b.Window, b.Expires = r.granted, r.inflight, r.spent, r.returned,
			r.window, r.expires
		b.Charged, b.InAll, b.Available = r.charged(), a.charged(r.window), a.available(c, r.window)
	}
	return b
}

// Reclaimed tells whether a claim comes with the fence of a lease that was
// reclaimed, or will be when it is settled: then it must be answered void.
func (m *Memory) Reclaimed(claim *ratelimit.Claim) bool {
	s, c := m.locked([]byte(claim.Key))
	defer s.mu.Unlock()
	if c == nil {
		return false
	}
	a, now := &c.val, m.clock()
	if a.now-now >= ledgerTime(claim.Limit.Period()/time.Microsecond) {
		return false // the account moves back, and its leases with it
	}
	now = max(now, a.now) // it waits for a clock that went back
	r := a.find(claim.Holder)
	return r != nil && claim.Reclaim == ratelimit.ReclaimEager && claim.Seq > r.seq && claim.Fence == r.fence &&
		claim.Window == r.window &&
		(claim.Limit.Algorithm == ratelimit.TokenBucket || claim.Limit.WindowAt(now) == r.window) &&
		(r.closed || r.eager && now >= r.expires)
}

// checkCopy is that the ledger's record of a holder is a copy of its claim, plus
// the grant in flight.
func (a *Account) checkCopy(c *ratelimit.Claim, g *ratelimit.Grant) error {
	if g.Err != nil || c.Window == 0 {
		return nil //nolint:nilerr // an answer that is an error settles nothing
	}
	r := a.find(c.Holder)
	switch {
	case r == nil || r.closed || r.seq != c.Seq || r.window != c.Window && c.Limit.Algorithm != ratelimit.TokenBucket:
	case r.spent != c.Spent || r.returned != c.Returned:
		return fmt.Errorf("holder %d claims that it has spent %d and returned %d, and its record says %d and %d",
			c.Holder, c.Spent, c.Returned, r.spent, r.returned)
	case r.granted+r.inflight != g.Granted:
		return fmt.Errorf("holder %d was answered %d granted, and its record says %d", c.Holder, g.Granted,
			r.granted+r.inflight)
	}
	return nil
}

func (a *Account) check(limit *ratelimit.Limit) error {
	if limit.Algorithm == ratelimit.TokenBucket {
		held := tokens(0)
		a.each(func(r *record) {
			if a.now < r.expires && !r.closed {
				held += r.outstanding()
			}
		})
		if a.level < 0 || a.level+int64(held)*Micro > int64(limit.Burst)*Micro {
			return fmt.Errorf("the bucket's level is %d micro-tokens, and live leases hold "+
				"%d tokens: together they must be 0 to %d", a.level, held, limit.Burst)
		}
		return nil
	}
	c := &ratelimit.Claim{Limit: *limit}
	var err error
	for _, at := range [2]window{a.window, a.window + 1} {
		free := a.free(c, at)
		a.each(func(r *record) { // one that has just been granted what it had not spent
			if r.window == at && r.expires.Sub(a.now) > 0 && r.inflight > 0 && r.paid() > r.spent && free < 0 &&
				r.fence == a.fence {
				err = fmt.Errorf("window %d: holder %d was granted %d when %d more than the limit of %d were charged",
					at, r.holder, r.inflight, -free, limit.Requests)
			}
		})
	}
	return err
}

// Predictable makes a ledger that was not used yet do the same in every run,
// for simulations: its keys' places are then no secret.
func (m *Memory) Predictable() *Memory {
	m.hash = keytable.Hasher{}
	return m
}

// Forget loses all accounts, as FLUSHALL would.
func (m *Memory) Forget() {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		s.accounts, s.floor = newSlab[Account](s.accounts.limit), 0
		s.mu.Unlock()
	}
}
