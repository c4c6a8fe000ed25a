package leasing

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Short names of the domain's types, for this package.
type (
	instant    = ratelimit.Instant
	ledgerTime = ratelimit.LedgerTime
	tokens     = ratelimit.Tokens
	window     = ratelimit.Window
	ask        = ratelimit.Ask
	verdict    = ratelimit.Verdict
)

// Drift is the budget of each key that this node may spend before the ledger has answered. Package approx
// implements it.
type Drift interface {
	// Share returns the tokens of that budget, for each key under the rule, in a window that began at begins by the
	// ledger's clock. It returns 0 if this node may not drift now, and does not block.
	Share(now ratelimit.Instant, rule *ratelimit.Rule, begins ratelimit.LedgerTime) ratelimit.Tokens
}

// FleetOptions configure a Fleet. Set them before Run.
type FleetOptions struct {
	Nodes func() int // number of live nodes, as last read; 0: unknown
	// Peers is the number of nodes that may each admit a part of a limit in a young epoch, this one included. 0: it is
	// unknown, and this node admits none. All nodes that admit a part must count each other.
	Peers  func() int
	Random func() float64 // from 0 to 1, so that nodes do not probe a store at the same time. Safe for concurrent use
	// Drift lets rules that drift spend before the ledger has answered; nil: they lease.
	Drift Drift
	// RawNames names accounts by the bytes of their keys: for a ledger that operators do not read.
	RawNames bool

	// Callbacks. They must not block.
	OnFailure func(error) // of a round trip, or of a message in it; called often
	OnWarning func(error) // of an invalid answer, and of accounts that the ledger has lost
	// OnAudit receives each answer to a message of an audited rule, before its tokens are spent.
	OnAudit func(*ratelimit.Rule, *account.Claim, *account.Grant)
}

// Fleet implements [ratelimit.Limiter]: a node of a fleet that shares limits through a ledger. It is safe for
// concurrent use. It claims from the ledger only while Run runs.
type Fleet struct {
	FleetOptions
	ledger account.Ledger
	clock  ratelimit.Clock
	keytable.Sharding
	names
	shards []shard
	alone  *local.Limiter // for outages
	lanes  []fleetLane    // one for each part of the ledger
	after  func(time.Duration, func())
	sweeper
	// ended is set after the last sweep, and before the lanes stop.
	ended atomic.Bool // there are no more reports to the ledger
	stats stats
}

// names are this node's names in the ledger, and the registration with which leases under some of them end.
type names struct {
	// reclaim is the registration, and name the first of the node's names.
	reclaim reclaim
	name    ratelimit.Holder // the first
	dropped atomic.Uint64    // dropped keys: each of them changes the name of later keys
}

// sweeper is the state of sweeps. Only the goroutine of Run uses its plain fields.
type sweeper struct {
	part          int     // number of the next sweep, of sweepParts
	lives         []uint8 // of the epochs of all parts, as the sweep began
	resting       use     // stands for that of a key without one, in a sweep
	gauged        gauges
	leaving       atomic.Bool // the node ends: only waiting requests cause claims
	evicted       atomic.Bool // single accounts may be lost: all totals are to be stated again
	missedRecalls atomic.Bool // recalls may have been missed: likewise
	restated      instant     // time of the last such restatement; 0: never
	restatedKeys  int         // claims of it so far
}

// Bounds of messages in flight.
const (
	// flights is the minimum of concurrent round trips to each part of the ledger, and mostFlights the maximum. In
	// between, one leaves in each fanned of a round trip, so that messages do not wait longer for a far ledger.
	flights, mostFlights = 4, 32
	fanned               = 5 * time.Millisecond
	queueSize            = 8192
	// KeyBytes is the maximum bytes of a key, busy keys included, for MAX_KEYS. See [local.KeyBytes].
	KeyBytes = 800
	// SweepEvery is the interval at which Run looks after keys without requests.
	SweepEvery = 100 * time.Millisecond
)

// unknownNodes is the number of live nodes until it is set.
func unknownNodes() int { return 0 }

// NewFleet makes a limiter that tracks at most maxKeys keys. holder comes from account.NewHolder, new for each process.
// For outages, it also has budgets of this node alone, for an eighth as many keys.
func NewFleet(
	ledger account.Ledger, holder ratelimit.Holder, maxKeys int, clock ratelimit.Clock, wall time.Time,
) *Fleet {
	ignore := func(error) {}
	f := &Fleet{
		FleetOptions: FleetOptions{
			Nodes: unknownNodes, Peers: unknownNodes, OnFailure: ignore, OnWarning: ignore,
			Random: rand.Float64, //nolint:gosec // no secret
		},
		ledger: ledger, clock: clock, names: names{name: holder},
		sweeper: sweeper{
			gauged: gauges{sums: map[*ratelimit.RuleCounters]gauge{}},
		},
		alone: local.New(max(local.OverflowSlots, maxKeys/8), clock(), wall),
		after: func(d time.Duration, call func()) { time.AfterFunc(d, call) },
	}
	f.reclaim.open()
	arena := keytable.NewArena()
	parts, shares := keytable.NewSharding(maxKeys)
	f.Sharding, f.shards = parts, make([]shard, len(shares))
	for i, share := range shares {
		f.shards[i].open(arena, share, &f.reclaim.ends)
	}
	f.openLanes()
	return f
}

// openLanes makes a lane for each part of the ledger.
func (f *Fleet) openLanes() {
	parts := 1
	if p, ok := f.ledger.(account.Partitioned); ok {
		parts = p.Partitions()
	}
	f.lanes, f.lives = make([]fleetLane, parts), make([]uint8, parts)
	for i := range f.lanes {
		l := &f.lanes[i]
		// All parts together queue as many urgent messages as one would, and each may queue all of the patient ones.
		l.part = i
		l.Options = lane.Options{
			Size: queueSize / parts, Patient: queueSize, Flights: l.flights, Clock: f.clock,
			After: func(d time.Duration, call func()) { f.after(d, call) },
		}
	}
}

// SyncClock is for the budgets of this node alone; see [local.Limiter.SyncClock]. If the ledger has answered, they have
// the ledger's windows: with those of a wall clock that differs, a node would admit its part twice in one of these.
func (f *Fleet) SyncClock(now instant, wall time.Time) {
	if at := f.LedgerTime(now); at != 0 {
		wall = time.UnixMicro(int64(at))
	}
	f.alone.SyncClock(now, wall)
}

// LedgerTime is the ledger's time at an instant, by the first part that has answered; 0: none has.
func (f *Fleet) LedgerTime(now instant) ledgerTime {
	for i := range f.lanes {
		if there := f.lanes[i].time(); there.At != 0 {
			early, _ := there.Between(now)
			return early
		}
	}
	return 0
}

// Alone is this node's own budgets for outages.
func (f *Fleet) Alone() *local.Limiter { return f.alone }

// Run sends claims until ctx is done, and then gives back all tokens in hand. At its end: stop sweeps, give back all
// tokens, refuse new messages, and wait for those under way.
func (f *Fleet) Run(ctx context.Context) {
	var all sync.WaitGroup
	for i := range f.lanes {
		l := &f.lanes[i]
		l.Start(func(batch []message) { f.settle(l, batch) })
	}
	if s, ok := f.ledger.(server); ok {
		all.Go(func() { f.attend(ctx, s) })
	}
	upkeep.Every(ctx, SweepEvery, func() { f.sweep(f.clock()) })
	f.leave()
	f.ended.Store(true)
	for i := range f.lanes {
		all.Go(f.lanes[i].Stop)
	}
	all.Wait()
}

// Decide implements [ratelimit.Limiter]. It blocks at most for the longest store_deadline of the rules. With the
// tokens in hand, it does not block and does not allocate.
func (f *Fleet) Decide(ctx context.Context, now instant, asks []ask, verdicts []verdict) {
	if c := f.begin(now, asks, verdicts); c != nil {
		f.wait(ctx, c)
	}
}

// begin decides all asks that can be decided at once; nil: none is left. The usual request ends here, without a call:
// with a single lock of its key's shard.
func (f *Fleet) begin(now instant, asks []ask, verdicts []verdict) *call {
	var c *call
	for i := range asks {
		// Asks of one key are answered in their order.
		verdicts[i] = verdict{}
		if (c == nil || !c.waitsFor(asks[i].Key, len(c.waits))) && f.spend(now, &asks[i], &verdicts[i]) {
			continue
		}
		if c == nil {
			c = &call{Fleet: f}
		}
		c.add(&asks[i], &verdicts[i])
	}
	if c == nil || !c.advance(now) {
		return nil
	}
	return c
}

// spend answers a request from the tokens in hand, if they suffice. Under another rule than the key's last one, the
// call moves the key first.
func (f *Fleet) spend(now instant, a *ask, v *verdict) bool {
	s, id, c := f.find(a.Key)
	defer s.mu.Unlock()
	if c == nil || s.rules.of(c) != a.Rule {
		return false
	}
	k := s.entry(now, id, c)
	if !k.Spend(now, a, v) {
		return false
	}
	v.Window = k.account(&a.Rule.Limit)
	if k.use.flight == nil {
		f.renewLocked(now, k)
	}
	return true
}

// wait looks again after each answer, until all asks are decided or the time is over. advance is called a last time
// after the deadline, and then decides all that are left.
func (f *Fleet) wait(ctx context.Context, c *call) {
	ratelimit.Waits(ctx)
	timer := time.NewTimer(c.patience())
	defer timer.Stop()
	for more := true; more; more = c.advance(f.clock()) {
		// One timer bounds all rounds together, so that a series of insufficient answers cannot keep a request beyond
		// its deadline. It runs for the check_timeout of rules that drift, then for the rest of the deadline.
		select {
		case <-c.next(): // it counts even if it is late
			select {
			case <-timer.C:
			default:
				continue
			}
		case <-timer.C:
		case <-ctx.Done():
		}
		if rest := c.timeOver(ctx.Err() != nil); rest > 0 {
			timer.Reset(rest)
		}
	}
}

// Undo implements [ratelimit.Limiter]. It also takes back charges that the ledger has already: the next message then
// states a refund.
func (f *Fleet) Undo(now instant, asks []ask, verdicts []verdict) {
	for i := range asks {
		v := verdicts[i]
		switch v.Source {
		case ratelimit.FromFallback:
			f.undoAlone(now, &asks[i], &v)
			v.Window = v.Booked // the part that is booked for the ledger, without the charge of this node's own budget
		case ratelimit.FromOverflow, ratelimit.FromOwner:
			continue // of another node
		case ratelimit.FromLease, ratelimit.FromClaim, ratelimit.FromDrift:
		}
		f.visit(now, asks[i].Key, func(k entry) {
			if v.Window == k.account(&asks[i].Rule.Limit) {
				v.Window = k.Window
				k.Undo(&v)
			}
		})
	}
}

// Recalled gives back tokens of an account, because another node needs them. Without a name, all totals are stated
// again, because a recall may have been missed. It does not block.
func (f *Fleet) Recalled(name string, w window) {
	if name == "" {
		f.missedRecalls.Store(true)
		return
	}
	bytes, ok := []byte(name), f.RawNames
	if !ok {
		bytes, ok = ratelimit.KeyOfName(name)
	}
	if !ok {
		return // no account of this version
	}
	now := f.clock()
	f.visit(now, bytes, func(k entry) {
		if k.Deadline != 0 && k.Window == w { // a request of another node waits for it
			f.recallLocked(now, k)
		}
	})
}

// newAlias is a new name of this node, for a key of a rule. Keys that are tracked from now on have other names. The
// number between two counts of dropped is this key's alone.
func (f *Fleet) newAlias(r *ratelimit.Rule) uint32 { return aliasOf(r, f.dropped.Add(2)-1) }

func (f *Fleet) sizing(r *ratelimit.Rule, l *fleetLane) lease.Sizing {
	return lease.Sizing{Rule: r, Nodes: max(1, f.Nodes()), Trip: l.roundTrip()}
}

// keyName is the ledger's name of a key. It is made for each message, and not kept with the key: a hit needs no name.
func (f *Fleet) keyName(key []byte) string {
	if f.RawNames {
		return string(key)
	}
	return ratelimit.KeyName(key)
}

// laneOf is the lane of the account's part.
func (f *Fleet) laneOf(name string) *fleetLane {
	if len(f.lanes) == 1 {
		return &f.lanes[0]
	}
	return &f.lanes[f.ledger.(account.Partitioned).Partition(name)] //nolint:forcetypeassert // openLanes has checked it
}

var _ interface {
	ratelimit.Limiter
	ratelimit.Inspector
} = (*Fleet)(nil)

// recallLocked gives back the tokens in hand, and claims again: the answer to a message in flight may be older. That
// answer may return the same tokens: again makes another message follow it.
func (f *Fleet) recallLocked(now instant, k entry) {
	k.Recalled(now)
	if fl, _ := f.joinLocked(k); fl != nil && fl.written {
		fl.again = true
	}
}

// renewLocked sends a message in the background, if there is something to report or to claim. It follows each decision
// from tokens in hand, so its first questions must be cheap.
func (f *Fleet) renewLocked(now instant, k entry) {
	if k.use.flight != nil || f.ended.Load() { // the lanes have stopped
		return
	}
	l := f.lane(k)
	wait, due := k.Due(now, f.sizing(k.rule(), l))
	if !due { // as for most requests, which share nothing with those of other keys
		return
	}
	_, young := l.young(now)
	if !young { // otherwise sweeps state all that there is
		f.launchLocked(k, wait)
	}
}
