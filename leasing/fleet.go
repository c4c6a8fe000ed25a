package leasing

import (
	"context"
	"errors"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Fleet decides on one of several nodes that share a ledger. It leases tokens
// ahead of demand and spends them without asking; a request waits for the
// ledger only when its lease has run out, and no longer than
// ratelimit.StoreDeadline: then its rule's on_store_failure decides. It is safe
// for concurrent use; a decision from a lease allocates nothing.
//
// Guarantee: as long as the ledger keeps its data, all nodes together never
// spend a key beyond its limit, but for what on_store_failure admits.
//
// Run must be running for claims to be sent.
type Fleet struct {
	ledger   ratelimit.Ledger
	holder   ratelimit.Holder
	clock    ratelimit.Clock
	seed     maphash.Seed
	shards   []fleetShard
	lanes    []lane
	fallback *Local // budgets of this node alone: for outages, and for keys beyond the table
	random   func() float64
	// OnFailure, if set before Run, is told of each batch that failed as a
	// whole. It must not block.
	OnFailure func(error)

	relearn atomic.Int64 // the last instant at which the ledger was found to have forgotten
	stats   fleetStats
}

// Partitioned is a ledger whose parts fail each by itself, such as a Redis
// Cluster. Claims of one part never wait for another.
type Partitioned interface {
	ratelimit.Ledger
	Partitions() int
	Partition(key string) int // below Partitions
}

// lane is the way to one part of the ledger: what waits to be sent there, and
// whether it counts as dead.
type lane struct {
	queue   chan *flight
	mu      sync.Mutex
	breaker breaker // guarded by mu
}

// refused tells whether the breaker is open and no probe is due.
func (l *lane) refused(now instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaker.refuses(now)
}

type fleetStats struct {
	claims, evicted atomic.Uint64
	fallbacks       [len(ratelimit.FallbackReasons)]atomic.Uint64
}

type fleetShard struct {
	mu     sync.Mutex
	leases slab[held] // guarded by mu
	seq    uint64     // guarded by mu
	_      [32]byte
}

// held is one key on this node.
type held struct {
	lease  lease
	demand demand
	flight *flight         // the claim that is under way, or nil
	rule   *ratelimit.Rule // as last asked for
	// Below renewBelow tokens, or from renewAfter on, the lease is renewed in
	// the background; both are set by a grant. 0 and never if nothing can come.
	renewBelow tokens
	renewAfter instant
	heard      instant // when the ledger was last heard
	// owed was admitted without the ledger while no lease said of which window
	// it was; the next grant books it, if its window had begun by owedAt.
	owed   tokens
	owedAt instant
	// settled says that the ledger knows all that was spent, and that nothing
	// is left to spend: the key can be forgotten.
	settled bool
}

// flight is a claim from when it is wanted until it is answered.
type flight struct {
	hash    uint64
	key     []byte
	name    string // of the key, in the ledger
	waiting tokens // of the requests behind it; guarded by the shard's mu
	giveUp  bool   // return what is unspent, and want nothing
	sent    bool   // guarded by the shard's mu
	claim   ratelimit.Claim
	at      instant
	done    chan struct{}
	err     error // read after done
}

// Sizes of what is under way.
const (
	senders      = 4    // batches under way at once, to each part of the ledger
	batchSize    = 256  // claims in one
	queueSize    = 8192 // flights that wait for a sender
	claimTimeout = time.Second
	backOff      = 60 * time.Millisecond // between claims while tokens are out elsewhere
	sweepEvery   = 100 * time.Millisecond
	sweepParts   = 10 // a shard is looked at once in so many sweeps
	idleAfter    = 2 * time.Second
)

// NewFleet makes a limiter that tracks at most maxKeys keys. holder must be
// new with each process.
func NewFleet(ledger ratelimit.Ledger, holder ratelimit.Holder, maxKeys int, clock ratelimit.Clock, wall time.Time) *Fleet {
	f := &Fleet{
		ledger: ledger, holder: holder, clock: clock, seed: maphash.MakeSeed(),
		shards:   make([]fleetShard, shardCount(maxKeys)),
		fallback: NewLocal(max(OverflowSlots, maxKeys/8), clock(), wall), random: rand.Float64,
	}
	for i := range f.shards {
		f.shards[i].leases = newSlab[held](shareOf(maxKeys, i, len(f.shards)))
	}
	parts := 1
	if p, ok := ledger.(Partitioned); ok {
		parts = p.Partitions()
	}
	f.lanes = make([]lane, parts)
	for i := range f.lanes {
		f.lanes[i].queue = make(chan *flight, queueSize/parts)
	}
	return f
}

// laneOf is the way to the part of the ledger that has the account.
func (f *Fleet) laneOf(name string) *lane {
	if p, ok := f.ledger.(Partitioned); ok {
		return &f.lanes[p.Partition(name)]
	}
	return &f.lanes[0]
}

// SyncClock is for the budgets of this node alone; see Local.SyncClock.
func (f *Fleet) SyncClock(now ratelimit.Instant, wall time.Time) { f.fallback.SyncClock(now, wall) }

func (f *Fleet) shard(hash uint64) *fleetShard { return &f.shards[hash>>32%uint64(len(f.shards))] }

// locked finds a key: its shard, whose lock the caller now holds and must
// release, the key's hash, and its cell, nil if the key is not held.
func (f *Fleet) locked(key []byte) (*fleetShard, uint64, *cell[held]) {
	hash := maphash.Bytes(f.seed, key)
	s := f.shard(hash)
	s.mu.Lock()
	return s, hash, s.leases.get(hash, key)
}

// Decide implements [ratelimit.Limiter]. It blocks for at most
// ratelimit.StoreDeadline. All asks that need the ledger wait together.
func (f *Fleet) Decide(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	missed := false
	for i := range asks {
		var ok bool
		if verdicts[i], ok = f.take(now, &asks[i], nil); !ok {
			verdicts[i].Err = errUndecided
			missed = true
		}
	}
	if missed {
		f.wait(ctx, now, asks, verdicts)
	}
}

var errUndecided = errors.New("not decided yet")

// take answers from the lease, and has it renewed in time. after is the flight
// that the ask has waited for, if any.
func (f *Fleet) take(now instant, a *ask, after *flight) (verdict, bool) {
	s, hash, c := f.locked(a.Key)
	defer s.mu.Unlock()
	if c == nil {
		return verdict{}, false
	}
	h := &c.val
	if !c.hot {
		c.hot = true
	}
	v, ok := h.lease.take(now, a, false)
	if !ok {
		return v, false
	}
	h.demand.lastUse = now
	h.demand.used += v.Charged
	h.settled = h.settled && v.Charged == 0 && a.Kind != ratelimit.Refund
	h.rule = a.Rule
	if after != nil {
		v.Source = ratelimit.FromClaim
	}
	if h.flight == nil && now >= h.lease.retry && (h.lease.unspent() < h.renewBelow || now >= h.renewAfter) {
		f.launch(h, hash, a.Key)
	}
	return v, true
}

// launch queues a claim for which nobody waits; the caller holds the shard's
// lock. It reports false when the queue is full.
func (f *Fleet) launch(h *held, hash uint64, key []byte) bool {
	fl := newFlight(hash, key)
	select {
	case f.laneOf(fl.name).queue <- fl:
		h.flight = fl
		return true
	default:
		return false
	}
}

func newFlight(hash uint64, key []byte) *flight {
	return &flight{hash: hash, key: append([]byte(nil), key...), name: KeyName(key), done: make(chan struct{})}
}

// wait has the ledger asked for what is undecided, again and again until all
// is decided or the deadline has passed.
func (f *Fleet) wait(ctx context.Context, start instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	timer := time.NewTimer(ratelimit.StoreDeadline)
	defer timer.Stop()
	flights := make([]*flight, len(asks))
	var fresh []*flight
	for now, late := start, false; ; now = f.clock() {
		open := 0
		fresh = fresh[:0]
		for i := range asks {
			if !errors.Is(verdicts[i].Err, errUndecided) {
				continue
			}
			reason := ratelimit.FallbackDeadline
			if late {
				flights[i] = nil
			} else {
				var launch bool
				if flights[i], launch, reason = f.join(now, &asks[i]); launch {
					fresh = append(fresh, flights[i])
				}
			}
			if flights[i] == nil {
				verdicts[i] = f.fail(ctx, now, &asks[i], reason)
				continue
			}
			open++
		}
		if open == 0 {
			return
		}
		for _, fl := range fresh { // now that all asks are behind them
			f.enqueue(fl)
		}
		for i := range asks {
			if !errors.Is(verdicts[i].Err, errUndecided) {
				continue
			}
			late = late || !await(ctx, flights[i], timer.C)
			verdicts[i] = f.settled(ctx, &asks[i], flights[i], late)
		}
	}
}

// await reports whether the flight ended in time.
func await(ctx context.Context, fl *flight, timer <-chan time.Time) bool {
	select {
	case <-fl.done: // even if it is late: it is here
		return true
	default:
	}
	select {
	case <-fl.done:
		return true
	case <-timer:
	case <-ctx.Done():
	}
	return false
}

// settled decides after a flight, if it can.
func (f *Fleet) settled(ctx context.Context, a *ask, fl *flight, late bool) verdict {
	now := f.clock()
	if v, ok := f.take(now, a, fl); ok {
		return v
	}
	select {
	case <-fl.done:
		if fl.err != nil {
			return f.fail(ctx, now, a, reasonOf(fl.err))
		}
	default:
	}
	if late {
		return f.fail(ctx, now, a, ratelimit.FallbackDeadline)
	}
	return verdict{Err: errUndecided}
}

// enqueue hands a flight to the senders; when there are too many, it has failed.
func (f *Fleet) enqueue(fl *flight) {
	select {
	case f.laneOf(fl.name).queue <- fl:
		return
	default:
	}
	s := f.shard(fl.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases.get(fl.hash, fl.key).val.flight = nil
	fl.err = errQueueFull
	close(fl.done)
}

var errQueueFull = errors.New("too many claims wait to be sent")

// join finds the claim that an ask waits for, or makes one, which the caller
// must enqueue; nil if there can be none, and why.
func (f *Fleet) join(now instant, a *ask) (fl *flight, launch bool, reason ratelimit.FallbackReason) {
	s, hash, c := f.locked(a.Key)
	defer s.mu.Unlock()
	if c == nil {
		if c = f.admit(s, now, hash, a.Key); c == nil {
			return nil, false, ratelimit.FallbackTableFull
		}
	}
	h := &c.val
	h.rule = a.Rule
	h.demand.lastUse = now
	waiting := tokens(0)
	if a.Kind == ratelimit.Spend {
		waiting = min(a.Cost, a.Rule.Limit.Capacity()+1) // more makes no difference
	}
	if h.flight != nil {
		if !h.flight.sent {
			h.flight.waiting += waiting
			h.flight.giveUp = false
		}
		return h.flight, false, 0
	}
	fl = newFlight(hash, a.Key)
	if f.laneOf(fl.name).refused(now) {
		return nil, false, ratelimit.FallbackBreaker
	}
	fl.waiting = waiting
	h.flight = fl
	return fl, true, 0
}

// admit makes room for a key; only one that the ledger knows all about may go.
func (f *Fleet) admit(s *fleetShard, now instant, hash uint64, key []byte) *cell[held] {
	if c := s.leases.add(hash, key); c != nil {
		return c
	}
	s.leases.evict(evictTries, func(c *cell[held]) bool {
		h := &c.val
		if h.flight != nil || !h.settled && now < h.lease.reset.Add(claimTimeout) {
			return false
		}
		f.stats.evicted.Add(1)
		return true
	})
	return s.leases.add(hash, key)
}

// Undo implements [ratelimit.Limiter].
func (f *Fleet) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		a := &asks[i]
		if verdicts[i].Source >= ratelimit.FromOverflow {
			continue // not this node's lease
		}
		s, _, c := f.locked(a.Key)
		if c != nil {
			c.val.lease.undo(a, &verdicts[i], a.Rule.Limit.Algorithm == ratelimit.TokenBucket)
			c.val.settled = false
		}
		s.mu.Unlock()
	}
}

// Stats returns the counts so far. It takes every lock once.
func (f *Fleet) Stats() ratelimit.LimiterStats {
	s := ratelimit.LimiterStats{Claims: f.stats.claims.Load(), Evicted: f.stats.evicted.Load()}
	for i := range f.shards {
		f.shards[i].mu.Lock()
		s.Leases += f.shards[i].leases.size
		f.shards[i].mu.Unlock()
	}
	for i := range f.stats.fallbacks {
		s.Fallbacks[i] = f.stats.fallbacks[i].Load()
	}
	s.Overflow = s.Fallbacks[ratelimit.FallbackTableFull]
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		s.BreakerOpen = s.BreakerOpen || l.breaker.open()
		l.mu.Unlock()
	}
	return s
}
