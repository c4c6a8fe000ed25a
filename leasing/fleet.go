package leasing

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Fleet decides on one of several nodes that share a ledger. It leases tokens
// ahead of demand and spends them without asking; a request waits for the
// ledger only when its lease has run out, and no longer than
// its rule's store_deadline: then its rule's on_store_failure decides. It is safe
// for concurrent use; a decision from a lease allocates nothing.
//
// Guarantee: as long as the ledger keeps its data, all nodes together never
// spend a key beyond its limit, but for what on_store_failure admits.
//
// Run must be running for claims to be sent.
type Fleet struct {
	FleetOptions
	ledgerSide
	keytable.Sharding
	shards   []fleetShard
	name     ratelimit.Holder // twice the holder; the node's two names are this and the next
	clock    ratelimit.Clock
	after    func(time.Duration, func()) // calls the function then
	fallback *Local                      // budgets of this node alone: for outages, and for keys beyond the table
	doubts
	sweeper
	stats fleetStats
}

// FleetOptions may be set before Run.
type FleetOptions struct {
	// Random replaces the randomness of pauses. It must be safe for concurrent use.
	Random func() float64
	// RawNames names accounts by their keys as they are: for a ledger that is no
	// operator's to look at.
	RawNames bool
	// Drift lets rules of mode approx spend before the ledger has answered; without,
	// they lease.
	Drift Drift
	// OnFailure is told of each batch that failed as a whole. It must not block.
	OnFailure func(error)
	// OnReconcile is told what claims have settled of drift. It must not block.
	OnReconcile func(Reconciliation)
	// OnAudit is told each answer to a claim of a rule that is audited, before anything
	// of it is spent.
	OnAudit func(*ratelimit.Claim, *ratelimit.Grant)
	// OnWarning is told of what the ledger says that cannot be (GrantError), of its clock
	// being set (ErrClockSet), and of accounts that it has lost (ErrEvicted). It must not
	// block.
	OnWarning func(error)
}

// ledgerSide is the way to the ledger, and what it can do.
type ledgerSide struct {
	ledger  ratelimit.Ledger
	lanes   []lane            // to its parts
	epochal ratelimit.Epochal // the ledger, if it can tell that it lost its data
	beats   bool              // it tells of its epochs
	recalls bool              // it can ask holders to give back what they have
	ended   atomic.Bool       // nothing more is told to the ledger
	gathers bool              // round trips to it are dear: claims that may wait for others do
}

// doubts are what the ledger may not know any more, and when it was last heard.
type doubts struct {
	heard      atomic.Int64  // when the ledger last answered
	doubt      atomic.Int64  // what was heard before this instant, the ledger may not know any more
	forgot     atomic.Int64  // when an account was found to be forgotten, where the ledger does not tell of its epochs
	lapsed     atomic.Int64  // leases from before are over: the ledger's clock has gone ahead of this node's
	evicted    atomic.Int64  // when all was last told again because single accounts were lost
	tellAtOnce chan struct{} // has the sweep look at that at once
	teller     teller        // the sweep's
}

// Partitioned is a ledger whose parts fail each by itself, such as a Redis
// Cluster. Claims of one part never wait for another.
type Partitioned interface {
	ratelimit.Ledger
	Partitions() int
	Partition(key string) int // below Partitions
}

// lane is the way to one part of the ledger: what waits to be sent there,
// whether it counts as dead, what time it is there, and whose data it has.
type lane struct {
	part  int
	queue chan *flight
	company
	mu       sync.Mutex
	breaker  Breaker           // guarded by mu
	answered instant           // guarded by mu: when it last answered
	clock    lease.LedgerClock // guarded by mu
	memory   memory            // guarded by mu
	steps    clockSteps        // guarded by mu
	losses   clockSteps        // guarded by mu
	set      instant           // guarded by mu: when the ledger's clock was last found to have been set; 0: never
}

// refused tells whether the breaker is open and no probe is due.
func (l *lane) refused(now instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaker.Refuses(now)
}

// time is what is known of the ledger's clock.
func (l *lane) time() lease.LedgerClock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock
}

type fleetStats struct {
	claims, evicted, stale, void, recoveries, roundTrips, failed atomic.Uint64

	claimsBy   [len(ratelimit.ClaimReasons)]atomic.Uint64
	fallbacks  [len(ratelimit.FallbackReasons)]atomic.Uint64
	storeTime  ratelimit.Distribution
	leaseSizes ratelimit.Distribution
	distrusted
}

// distrusted counts what the ledger said, or had lost, that cannot be.
type distrusted struct {
	rejected               [len(ratelimit.Rejections)]atomic.Uint64
	clockSteps             [2]atomic.Uint64 // ahead, back
	missing, missingTokens atomic.Uint64
}

// busyKey is one busy key on this node: what is known of it, and who waits for it. What is
// added here is packed, too: see packed.go.
type busyKey struct {
	lease.Held
	busySlot
	// flight is the claim under way, or nil; turning ends when the next window has begun, and
	// recalled when what others give back may be there.
	flight, turning, recalled *flight
}

// takes has a flight under way.
func (h *busyKey) takes(fl *flight) {
	h.flight = fl
	h.Flies(&fl.Flight)
}

// lands ends what is under way.
func (h *busyKey) lands() {
	h.flight = nil
	h.Lands()
}

// busySlot is where a key is.
type busySlot struct {
	id      keytable.ID
	shard   *fleetShard
	slot    uint32 // of the shard's busy keys
	touched bool   // asked for since the search for one to pack last came by
}

// Sizes of what is under way.
const (
	senders      = 4                    // batches under way at once, to each part of the ledger
	batchEvery   = time.Millisecond     // from when one leaves to the next, while they are prompt
	lateBatch    = 2 * time.Millisecond // after which others leave while one is under way
	batchSize    = 256                  // claims in one
	queueSize    = 8192                 // flights that wait for a sender
	claimTimeout = lease.ClaimTimeout
	sweepEvery   = 100 * time.Millisecond
	sweepParts   = 10 // a shard is looked at once in so many sweeps
)

// NewFleet makes a limiter that tracks at most maxKeys keys. holder must be
// new with each process, and below 1<<63.
func NewFleet(
	ledger ratelimit.Ledger, holder ratelimit.Holder, maxKeys int, clock ratelimit.Clock, wall time.Time,
) *Fleet {
	f := &Fleet{
		FleetOptions: FleetOptions{Random: rand.Float64},
		ledgerSide:   ledgerSide{ledger: ledger},
		name:         2 * holder, clock: clock,
		fallback: NewLocal(max(OverflowSlots, maxKeys/8), clock(), wall),
		after:    func(d time.Duration, call func()) { time.AfterFunc(d, call) },
	}
	arena := keytable.NewArena()
	parts, shares := keytable.NewSharding(maxKeys)
	f.Sharding, f.shards = parts, make([]fleetShard, len(shares))
	for i, share := range shares {
		f.shards[i].open(arena, share, f.name)
	}
	// Each part of the ledger has a queue, a breaker and a clock of its own: while one shard of a
	// Redis Cluster is dead, claims to the others go on. The queues together hold queueSize
	// flights, however many parts there are.
	lanes := 1
	if p, ok := ledger.(Partitioned); ok {
		lanes = p.Partitions()
	}
	f.lanes = make([]lane, lanes)
	for i := range f.lanes {
		l := &f.lanes[i]
		l.part, l.queue, l.company = i, make(chan *flight, queueSize/lanes), newCompany(queueSize/lanes)
	}
	f.epochal, f.beats = ledger.(ratelimit.Epochal)
	f.gathers = f.beats
	_, f.recalls = ledger.(ratelimit.Recaller)
	f.tellAtOnce = make(chan struct{}, 1)
	return f
}

// Holders are the names under which the ledger knows this node. There are two, which differ
// in the last bit: the lease of the next window is claimed while this one's is in use, and
// the ledger must have a record of each (docs/protocol.md, section 4.10).
func (f *Fleet) Holders() []ratelimit.Holder { return []ratelimit.Holder{f.name, f.name ^ 1} }

// keyName is a key as the ledger names its account.
func (f *Fleet) keyName(key []byte) string {
	if f.RawNames {
		return string(key)
	}
	return KeyName(key)
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

func (f *Fleet) shard(id keytable.ID) *fleetShard { return &f.shards[f.ShardOf(id)] }

// cell finds a key: its shard, whose lock the caller now holds and must release, and its
// cell, nil if it is not held.
func (f *Fleet) cell(key []byte) (*fleetShard, *heldCell) {
	id := f.Hash.ID(key)
	s := f.shard(id)
	s.mu.Lock()
	return s, s.keys.Get(id)
}

// locked finds a key: its shard, whose lock the caller now holds and must release, the
// key's ID, and what is known of it, nil if it is not held.
func (f *Fleet) locked(key []byte) (*fleetShard, keytable.ID, *busyKey) {
	id := f.Hash.ID(key)
	s := f.shard(id)
	s.mu.Lock()
	return s, id, s.find(id)
}

// Decide implements [ratelimit.Limiter]. It blocks for at most
// the longest store_deadline of their rules. All asks that need the ledger wait together.
func (f *Fleet) Decide(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	inside := f.atLedger(asks)
	if f.decide(now, asks, verdicts) {
		f.wait(ctx, now, asks, verdicts)
	}
	if inside {
		whole(asks, verdicts)
	}
}

// decide decides what can be decided without the ledger; it reports whether
// that is not all.
func (f *Fleet) decide(now instant, asks []ask, verdicts []verdict) (missed bool) {
	for i := range asks {
		ok := f.take(now, &asks[i], nil, &verdicts[i])
		if ok {
			f.spare(now, &asks[i], &verdicts[i])
		} else {
			// Mode approx may spend before the ledger has answered, while more than the low
			// watermark was left at the last answer (docs/protocol.md, section 4.12).
			verdicts[i], ok = f.drift(now, &asks[i], lease.NotYet)
		}
		if !ok {
			verdicts[i].Err = errUndecided
			missed = true
		}
	}
	return missed
}

var errUndecided = errors.New("not decided yet")

// take answers from the lease, and has it renewed in time. after is the flight
// that the ask has waited for, if any.
func (f *Fleet) take(now instant, a *ask, after *flight, v *verdict) bool {
	s, c := f.cell(a.Key)
	defer s.mu.Unlock()
	if c == nil {
		return false
	}
	// Most keys of a large table are cold (see fleetshard.go). Where the lease has enough, and
	// nothing else is to be done, the ask is answered from the packed form. Whatever needs more,
	// such as a claim, makes the key busy.
	if c.Val.slot == 0 && after == nil {
		if s.spendCold(c, now, a, v) {
			return true
		}
	}
	h := s.warm(c)
	if !h.touched {
		h.touched = true
	}
	ok := h.Take(now, a, after != nil, v)
	if t := h.Ready(); t != nil { // as do does, which is not inlined
		f.doAll(h, now, t)
	}
	return ok
}

// admit makes room for a key. One that the ledger knows all about may go for it when
// the table is full; before it grows, those that were not used for a long time.
func (f *Fleet) admit(s *fleetShard, now instant, id keytable.ID, key []byte) *busyKey {
	full := s.keys.Len() >= s.keys.Limit()
	h := s.add(id, key, func(c *heldCell) bool {
		var scratch busyKey
		h := s.view(c, &scratch)
		// The search for room goes round like the hand of a clock. A key that was used since the
		// hand last came by has a second chance.
		if h.touched {
			h.touched = false
			return false
		}
		if !h.MayGo(now, full) {
			return false
		}
		h.Finish()
		f.do(h, now)
		f.stats.evicted.Add(1)
		s.forget(c, h)
		return true
	})
	if h != nil {
		h.Begin(f.name)
	}
	return h
}

// Undo implements [ratelimit.Limiter].
func (f *Fleet) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	if f.atLedger(asks) {
		defer whole(asks, nil)
	}
	for i := range asks {
		a := &asks[i]
		switch verdicts[i].Source {
		case ratelimit.FromFallback:
			f.undoFallback(now, a, &verdicts[i])
			continue
		case ratelimit.FromOverflow, ratelimit.FromOwner:
			continue // not this node's lease
		case ratelimit.FromLease, ratelimit.FromClaim, ratelimit.FromDrift:
		}
		s, _, h := f.locked(a.Key)
		if h != nil {
			h.Undo(a, &verdicts[i])
		}
		s.mu.Unlock()
	}
}

// Stats returns the counts so far. It takes every lock once.
func (f *Fleet) Stats() ratelimit.LimiterStats {
	s := ratelimit.LimiterStats{
		Claims: f.stats.claims.Load(), Evicted: f.stats.evicted.Load(), Stale: f.stats.stale.Load(),
		Void:       f.stats.void.Load(),
		Recoveries: f.stats.recoveries.Load(), RoundTrips: f.stats.roundTrips.Load(), Failed: f.stats.failed.Load(),
		StoreTime: f.stats.storeTime.Counts(), LeaseSizes: f.stats.leaseSizes.Counts(),
	}
	for i := range f.stats.rejected {
		s.Rejected[i] = f.stats.rejected[i].Load()
	}
	for i := range f.stats.clockSteps {
		s.ClockSteps[i] = f.stats.clockSteps[i].Load()
	}
	s.Missing, s.MissingTokens = f.stats.missing.Load(), f.stats.missingTokens.Load()
	for i := range f.stats.claimsBy {
		s.ClaimsBy[i] = f.stats.claimsBy[i].Load()
	}
	for i := range f.shards {
		f.shards[i].mu.Lock()
		s.Leases += f.shards[i].keys.Len()
		f.shards[i].mu.Unlock()
	}
	for i := range f.stats.fallbacks {
		s.Fallbacks[i] = f.stats.fallbacks[i].Load()
	}
	if heard := f.heard.Load(); heard > 0 {
		s.SyncAge = f.clock().Sub(instant(heard))
	}
	s.Overflow = s.Fallbacks[ratelimit.FallbackTableFull]
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		s.BreakerOpen = s.BreakerOpen || l.breaker.Open()
		s.Queued, s.QueueSize = s.Queued+len(l.queue), s.QueueSize+cap(l.queue)
		l.mu.Unlock()
	}
	return s
}
