package leasing

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-gate/sluice/ratelimit"
)

// pool is a bounded table of leases and the ledger in this process that grants
// them. It is safe for concurrent use.
type pool struct {
	ledger  *Memory
	shards  []leaseShard
	claims  atomic.Uint64
	evicted atomic.Uint64
}

type leaseShard struct {
	mu     sync.Mutex
	leases slab[lease] // guarded by mu
	seq    uint64      // guarded by mu; grows with every claim, over evictions too
	_      [32]byte
}

// moment is one instant on both clocks.
type moment struct {
	node   instant
	ledger ledgerTime
}

// localHolder is the one holder of an in-process ledger that nobody else uses.
const localHolder ratelimit.Holder = 1

func newPool(maxKeys int) *pool {
	p := &pool{ledger: NewMemory(maxKeys, nil), shards: make([]leaseShard, shardCount(maxKeys))}
	for i := range p.shards {
		p.shards[i].leases = newSlab[lease](shareOf(maxKeys, i, len(p.shards)))
	}
	return p
}

func (p *pool) hash() hasher { return p.ledger.hash }

func (p *pool) shard(hash uint64) *leaseShard {
	return &p.shards[hash>>32%uint64(len(p.shards))]
}

// continuous limits regain tokens at every instant. Here a claim costs no more
// than a look-up, so they claim for each decision, and what is said to remain
// is exact.
func continuous(l *ratelimit.Limit) bool { return l.Algorithm != ratelimit.FixedWindow }

// decide answers, or reports that the ledger is full.
func (p *pool) decide(at moment, key []byte, a *ask) (verdict, bool) {
	hash := p.hash().of(key)
	s := p.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	through := continuous(&a.Rule.Limit)
	c := s.leases.get(hash, key)
	if c == nil {
		return p.decideNew(s, at, hash, key, a)
	}
	if !c.hot {
		c.hot = true
	}
	if v, ok := c.val.take(at.node, a, through); ok {
		return v, true
	}
	if !p.claim(s, at, hash, key, &c.val, a) {
		return verdict{}, false
	}
	return c.val.settled(at.node, a, through), true
}

// decideNew asks the ledger first, so that a key which it will not have costs
// no other its lease.
func (p *pool) decideNew(s *leaseShard, at moment, hash uint64, key []byte, a *ask) (verdict, bool) {
	var fresh lease
	if !p.claim(s, at, hash, key, &fresh, a) {
		return verdict{}, false
	}
	v := fresh.settled(at.node, a, continuous(&a.Rule.Limit))
	if c := p.admit(s, at, hash, key); c != nil {
		c.val = fresh
	} else {
		p.release(s, at, hash, key, &fresh)
	}
	return v, true
}

// claim asks the ledger for what an ask needs, and for a lease beyond it if
// the limit allows to keep one.
func (p *pool) claim(s *leaseShard, at moment, hash uint64, key []byte, l *lease, a *ask) bool {
	waiting := tokens(0)
	if a.Kind == ratelimit.Spend {
		waiting = min(a.Cost, a.Rule.Limit.Capacity()+1) // more makes no difference
	}
	if !continuous(&a.Rule.Limit) {
		want := waiting
		if waiting > 0 {
			want = leaseSize(a.Rule, waiting)
		}
		return p.settle(s, at, hash, key, l, l.claim(at.node, s.seq+1, a.Rule, waiting, want, false))
	}
	ok := p.settle(s, at, hash, key, l, l.claim(at.node, s.seq+1, a.Rule, waiting, waiting, true))
	if ok && waiting > l.left(at.node) && l.available > 0 && a.Rule.Coordination.OnDeny == ratelimit.DenyCharges {
		retry, cost := l.retry, l.retryCost
		p.settle(s, at, hash, key, l, l.claim(at.node, s.seq+1, a.Rule, l.available, l.available, true)) // to be drained
		l.retry, l.retryCost = retry, cost
	}
	return ok
}

func (p *pool) settle(s *leaseShard, at moment, hash uint64, key []byte, l *lease, m ratelimit.Claim) bool {
	s.seq = m.Seq
	m.Holder = localHolder
	g := p.ledger.settleAt(at.ledger, hash, key, &m)
	p.claims.Add(1)
	l.apply(at.node, &m, &g, 0, at.node.Add(g.ResetAfter))
	return g.Err == nil
}

// leaseSize is what to ask for when waiting tokens are needed: the rule's
// size, or everything; the ledger tapers it, and nobody else wants it.
func leaseSize(r *ratelimit.Rule, waiting tokens) tokens {
	size := r.Coordination.Lease
	want := r.Limit.Capacity()
	if size.Fixed > 0 {
		want = size.Fixed
	} else if size.Max > 0 {
		want = size.Max
	}
	return max(want, size.Min, waiting)
}

// admit makes room for a new lease. One that was not used for a while gives
// its tokens back to the ledger, which goes on to know what was spent.
func (p *pool) admit(s *leaseShard, at moment, hash uint64, key []byte) *cell[lease] {
	if c := s.leases.add(hash, key); c != nil {
		return c
	}
	s.leases.evict(evictTries, func(c *cell[lease]) bool {
		p.evicted.Add(1)
		key := c.key[:c.len]
		p.release(s, at, c.fullHash(), key, &c.val)
		return true
	})
	return s.leases.add(hash, key)
}

// release tells the ledger what a lease spent, before it is forgotten. When its
// window is over there is nothing to tell: both go by the same clock.
func (p *pool) release(s *leaseShard, at moment, hash uint64, key []byte, l *lease) {
	if at.node >= l.reset && l.algorithm != ratelimit.TokenBucket {
		return
	}
	s.seq++
	m := l.release(at.node, s.seq)
	m.Holder = localHolder
	p.ledger.settleAt(at.ledger, hash, key, &m)
}

// undo takes back what a verdict charged, if its lease is still here.
func (p *pool) undo(key []byte, a *ask, v *verdict) {
	hash := p.hash().of(key)
	s := p.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.leases.get(hash, key); c != nil {
		c.val.undo(a, v, continuous(&a.Rule.Limit))
	}
}

func (p *pool) stats(s *ratelimit.LimiterStats) {
	s.Claims += p.claims.Load()
	s.Evicted += p.evicted.Load()
	s.Accounts += p.ledger.Accounts()
	for i := range p.shards {
		p.shards[i].mu.Lock()
		s.Leases += p.shards[i].leases.size
		p.shards[i].mu.Unlock()
	}
}
