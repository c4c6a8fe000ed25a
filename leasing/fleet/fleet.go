package fleet

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

type (
	tokens  = ratelimit.Tokens
	instant = ratelimit.Instant
	window  = ratelimit.Window
)

// Options are what a Fleet may be told. They are set before Run.
type Options struct {
	Nodes     func() int  // how many are alive; nil: one
	OnFailure func(error) // of a round trip; it is called often
	OnWarning func(error) // of an answer that cannot be
	// OnAudit is told each answer to a claim of a rule that is audited, before anything of it is spent.
	OnAudit func(*account.Claim, *account.Grant)
}

// Fleet implements [ratelimit.Limiter]. It is safe for concurrent use. Run must run for it to ask the ledger.
type Fleet struct {
	Options
	ledger account.Ledger
	clock  ratelimit.Clock
	keytable.Sharding
	name      ratelimit.Holder // the first
	forgotten atomic.Uint64    // keys: each has those that come behind it have another name
	shards    []shard
	alone     *leasing.Local // for outages
	lane      lane
	stats     stats
}

// Sizes of what is under way.
const (
	senders   = 4
	batchSize = 256
	queueSize = 8192
	timeLimit = time.Second // of a round trip: then it has failed
	sweep     = 100 * time.Millisecond
)

// New makes a limiter that tracks at most maxKeys keys. holder is account.NewHolder's, new with each process.
func New(ledger account.Ledger, holder ratelimit.Holder, maxKeys int, clock ratelimit.Clock, wall time.Time) *Fleet {
	f := &Fleet{
		ledger: ledger, clock: clock, name: holder,
		alone: leasing.NewLocal(max(leasing.OverflowSlots, maxKeys/8), clock(), wall),
	}
	parts, shares := keytable.NewSharding(maxKeys)
	f.Sharding, f.shards = parts, make([]shard, len(shares))
	for i, share := range shares {
		f.shards[i] = shard{keys: map[keytable.ID]*key{}, most: share}
	}
	f.lane.queue = make(chan *flight, queueSize)
	return f
}

// SyncClock is for the budgets of this node alone; see [leasing.Local.SyncClock].
func (f *Fleet) SyncClock(now instant, wall time.Time) { f.alone.SyncClock(now, wall) }

// Run asks the ledger until ctx is done, and then gives back what is in hand.
func (f *Fleet) Run(ctx context.Context) {
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range senders {
		all.Go(func() { f.send(stop) })
	}
	tick := time.NewTicker(sweep)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		select {
		case <-tick.C:
			f.sweep(f.clock(), n)
		case <-ctx.Done():
		}
	}
	f.leave()
	close(stop)
	all.Wait()
}

// Recalled has tokens of an account given back, for another node needs them. It does not block.
func (f *Fleet) Recalled(name string, w window) {
	bytes, ok := leasing.KeyOfName(name)
	if !ok {
		return // nothing of this version's
	}
	s, id, k := f.find(&ratelimit.Ask{Key: bytes})
	defer s.mu.Unlock()
	if k != nil && k.Window == w {
		k.Recalled(f.clock())
		f.launchLocked(s, id, k)
	}
}

// Decide implements [ratelimit.Limiter]. It blocks for at most the longest store_deadline of the rules.
func (f *Fleet) Decide(ctx context.Context, now instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	var waits []*waiter
	for i := range asks {
		w := waiter{ask: &asks[i], verdict: &verdicts[i]}
		if f.look(now, &w); !w.done {
			waits = append(waits, &w)
		}
	}
	if len(waits) > 0 {
		f.wait(ctx, waits)
	}
}

// waiter is one ask that needs the ledger.
type waiter struct {
	ask     *ratelimit.Ask
	verdict *ratelimit.Verdict
	flight  *flight
	booking bool // the verdict is final, and waits for being booked
	waits   tokens
	with    bool // the flight takes it along: it was not written yet
	done    bool
}

// wait looks again whenever something has been heard, until all is decided or the time is over.
func (f *Fleet) wait(ctx context.Context, waits []*waiter) {
	longest := time.Duration(0)
	for _, w := range waits {
		longest = max(longest, w.ask.Rule.Coordination.Deadline())
	}
	late := time.NewTimer(longest)
	defer late.Stop()
	for _, w := range waits {
		for !w.done {
			select {
			case <-w.flight.done:
				f.look(f.clock(), w)
				continue
			case <-late.C:
				late.Reset(0) // for the others
			case <-ctx.Done():
			}
			f.decideLate(ctx, f.clock(), w)
		}
	}
}

// decideLate decides what was not heard of in time. What is only to be booked is, later.
func (f *Fleet) decideLate(ctx context.Context, now instant, w *waiter) {
	if w.done = true; w.booking {
		return
	}
	s, _, k := f.find(w.ask)
	defer s.mu.Unlock()
	w.waitsLocked(k, 0)
	// A late answer is no outage: where the key is known to be used up, that decides.
	const waited = true
	if k != nil {
		known := k.Heard != 0 && k.Sum >= w.ask.Rule.Limit.Capacity()
		if k.Take(now, w.ask, waited, known, w.verdict) != hold.Asks {
			return
		}
	}
	f.failLocked(ctx, now, w, k, ratelimit.FallbackDeadline)
}

// find returns the key of an ask, nil if it is not tracked, with its shard locked.
func (f *Fleet) find(a *ratelimit.Ask) (*shard, keytable.ID, *key) {
	id := f.Hash.ID(a.Key)
	s := &f.shards[f.ShardOf(id)]
	s.mu.Lock()
	return s, id, s.keys[id]
}

// look answers an ask, or sees to it that it is behind a flight.
func (f *Fleet) look(now instant, w *waiter) {
	s, id, k := f.find(w.ask)
	defer s.mu.Unlock()
	if k == nil {
		if k = f.addLocked(s, id, w.ask, now); k == nil {
			f.failLocked(context.Background(), now, w, nil, ratelimit.FallbackTableFull)
			return
		}
	}
	k.rule = w.ask.Rule
	if w.booking {
		f.bookedLocked(s, id, k, w)
		return
	}
	there := f.lane.time()
	if !f.enterLocked(now, &there, id, k) {
		f.uncertainLocked(k, w, &there, now)
		return
	}
	asked := w.with && w.flight.heard
	hopeless := asked && (w.flight.refused || w.flight.recalling && w.ask.Cost > w.flight.most)
	switch k.Take(now, w.ask, asked, hopeless, w.verdict) {
	case hold.Answered:
		w.done = true
		w.waitsLocked(k, 0)
		if k.Due(now, &k.rule.Limit) {
			f.launchLocked(s, id, k)
		}
	case hold.Booked:
		w.booking, w.with = true, false
		w.waitsLocked(k, 0)
		f.bookedLocked(s, id, k, w)
	case hold.Asks, hold.Turns:
		f.askLocked(now, s, id, k, w)
	}
}

// enterLocked sees to it that the key is in the window that goes on; false: it is not certain which that is.
func (f *Fleet) enterLocked(now instant, there *hold.LedgerClock, id keytable.ID, k *key) bool {
	if k.flight == nil && k.Stale(now, &k.rule.Limit) {
		k.Restart()
		k.as = f.nextName()
	}
	over, certain := k.Enter(now, there, &k.rule.Limit)
	f.tellLocked(id, k, over)
	return certain
}

// nextName is a name of this node that no key has had before.
func (f *Fleet) nextName() ratelimit.Holder {
	return f.name + ratelimit.Holder(f.forgotten.Add(1)&(1<<28-1))
}

// askLocked has the ledger asked for what a waiter needs, or says that it cannot be.
func (f *Fleet) askLocked(now instant, s *shard, id keytable.ID, k *key, w *waiter) {
	switch {
	case w.with && w.flight.err != nil && !retried(w.flight.err):
		f.failLocked(context.Background(), now, w, k, reason(w.flight.err))
		return
	case w.with && w.flight.recalling:
		// Others were asked to give back: that takes about as long as a round trip.
		w.flight, w.with = f.rest(recallPause), false
		return
	}
	need := w.ask.Cost
	if w.ask.Kind != ratelimit.Spend {
		need = 0
	}
	fl, why := f.joinLocked(s, id, k)
	if fl == nil {
		f.failLocked(context.Background(), now, w, k, why)
		return
	}
	w.flight, w.with = fl, !fl.written
	w.waitsLocked(k, need)
}

// waitsLocked says how much a waiter waits for; 0: it waits no longer.
func (w *waiter) waitsLocked(k *key, n tokens) {
	if k != nil {
		k.Waiting += n - w.waits
		w.waits = n
	}
}

const recallPause = 2 * time.Millisecond

// retried tells whether an error says nothing of the store: the claim is made again.
func retried(err error) bool {
	return errors.Is(err, errNoAnswer) || errors.Is(err, account.ErrOvertaken) || errors.Is(err, account.ErrOver)
}

// bookedLocked has what was charged or refunded be told, and the waiter wait for that.
func (f *Fleet) bookedLocked(s *shard, id keytable.ID, k *key, w *waiter) {
	if w.with && w.flight.told || !k.Untold() && !k.Asked() {
		w.done = true
		return
	}
	fl, _ := f.joinLocked(s, id, k)
	if fl == nil { // it is told when the store is back
		w.done = true
		return
	}
	w.flight, w.with = fl, !fl.written
}

// uncertainLocked has a waiter wait until it is clear which window it is: for a first answer of the ledger, or for a
// moment.
func (f *Fleet) uncertainLocked(k *key, w *waiter, there *hold.LedgerClock, now instant) {
	w.with = false
	if there.At != 0 {
		w.flight = f.rest(time.Millisecond)
		return
	}
	if fl := f.greetLocked(); fl != nil {
		w.flight = fl
		return
	}
	f.failLocked(context.Background(), now, w, k, ratelimit.FallbackBreaker)
}

// Undo implements [ratelimit.Limiter].
func (f *Fleet) Undo(now instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		v := verdicts[i]
		if v.Source == ratelimit.FromFallback {
			f.undoAlone(now, &asks[i], &v)
			v.Window = v.Booked // what is booked for the ledger, beside what this node's own budget had
		}
		s, _, k := f.find(&asks[i])
		if k != nil {
			k.Undo(&asks[i], &v)
		}
		s.mu.Unlock()
	}
}

// undoAlone takes back what a verdict without the ledger took of this node's own budget, if it was one that does.
func (f *Fleet) undoAlone(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) {
	policy := a.Rule.Coordination.OnStoreFailure
	spent := policy == ratelimit.FailLocal || v.Reason == ratelimit.FallbackTableFull && policy != ratelimit.FailClosed
	if !spent || v.Charged <= 0 {
		return
	}
	own, at := *a, *v
	own.Rule, at.Source = a.Rule.LocalShare(), ratelimit.FromLease
	f.alone.Undo(now, []ratelimit.Ask{own}, []ratelimit.Verdict{at})
}

// jitter is from 0 to 1: nodes must not probe a store in step.
func jitter() float64 { return rand.Float64() } //nolint:gosec // no secret
