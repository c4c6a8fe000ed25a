package slots

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Limiter decides asks under concurrency limits by slots at a ledger: one operation takes a slot, and one gives
// it back. Asks at the same time share a round trip. It is safe for concurrent use, and blocks at most for a rule's
// deadline.
//
// Slots of refused requests, and of callers that have given up, are given back as soon as the
// ledger answers. So are slots whose end was reported during an outage. A lane keeps up to mostGives of them, until
// this node ends. Lost slots return at the end of their time.
type Limiter struct {
	// Alone decides under on_store_failure: local, divided by Nodes, which is 0 if unknown.
	Alone *local.Limiter
	Nodes func() int
	// OnFailure gets the error of a message that failed as a whole. It must not block.
	OnFailure func(error)

	ledger account.SlotLedger
	part   func(key string) int // of the ledger; nil: it has one
	clock  ratelimit.Clock
	hash   keytable.Hasher
	// lanes are those of the parts, or slotLanes of one part.
	lanes []slotLane
	stats slotStats
}

// slotStats counts the work of a Limiter.
type slotStats struct {
	// failed counts messages without an answer to any of their asks.
	failed    atomic.Uint64
	time      ratelimit.Distribution
	fallbacks [len(ratelimit.FallbackReasons)]atomic.Uint64
}

const (
	// slotLanes is the number of concurrent messages if the ledger has one part: those of a key leave one after the
	// other. Otherwise each part has a lane, so that a failed part delays no other.
	slotLanes = 8
	// mostSlotQueue bounds the asks that wait in each lane. mostGives bounds the slots that are to be given back, and
	// those that are to be given back again.
	mostSlotQueue, mostGives = 8192, 1 << 15
	// giveAgain is the time after which a failed give is repeated.
	giveAgain = 100 * time.Millisecond
)

// slotLane sends the asks of some keys to the ledger, one message after the other.
//
// Invariant: a slot's give leaves after its take has been answered, or the take never leaves. A caller gives a slot
// back after its wait for the take. By then the take is answered, in flight, or gone.
type slotLane struct {
	lane.Queue[*slotCall]
	lane.Breaker

	mu     sync.Mutex
	failed []*slotCall // guarded by mu: gives to be tried again. Invariant: at most mostGives
	wakes  bool        // guarded by mu: a timer runs
	ended  bool        // guarded by mu: gives are tried no more
}

// slotCall is an ask. A call belongs to a caller, which waits for done, and to a lane. The caller's wait can end first:
// then mu decides whether the ask still leaves.
type slotCall struct {
	account.SlotAsk
	// till is the end of the slot, as far as it is taken now. After it, a give has nothing to give back.
	till ratelimit.Instant
	done chan struct{}

	mu     sync.Mutex
	answer account.SlotAnswer // guarded by mu
	ended  bool               // guarded by mu
	sent   bool               // guarded by mu
	gone   bool               // guarded by mu: the caller has gone before it was sent
}

// New makes a limiter with slots at a ledger. alone decides without the ledger.
func New(ledger account.SlotLedger, alone *local.Limiter, clock ratelimit.Clock) *Limiter {
	f := &Limiter{
		Alone: alone, Nodes: func() int { return 0 }, OnFailure: func(error) {}, ledger: ledger, clock: clock,
		hash: keytable.NewHasher(),
	}
	lanes := slotLanes
	if p, ok := ledger.(account.Partitioned); ok && p.Partitions() > 1 {
		// All asks of a key are about one slot set, and so in one part.
		f.part, lanes = p.Partition, p.Partitions()
	}
	f.lanes = make([]slotLane, lanes)
	for i := range f.lanes {
		l := &f.lanes[i]
		l.Options = lane.Options{
			// One message of a lane is in flight at a time. So the order of a lane's asks is the order at the ledger.
			Size: mostSlotQueue, Patient: mostGives, Flights: func() int { return 1 }, Clock: clock,
			After: func(d time.Duration, call func()) { time.AfterFunc(d, call) },
		}
		l.Start(func(all []*slotCall) { f.settle(l, all) })
	}
	return f
}

// lane is the lane of a key. All asks of a key are in one lane, so its take and its give are never in flight together.
func (f *Limiter) lane(key string) *slotLane {
	if f.part != nil {
		return &f.lanes[f.part(key)]
	}
	return &f.lanes[f.hash.Of([]byte(key))%slotLanes]
}

// Decide implements [ratelimit.Limiter]. All asks leave before the first wait. One timer bounds the wait for all of
// them, by the longest deadline of the rules.
func (f *Limiter) Decide(
	ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict,
) {
	calls, patience := make([]*slotCall, len(asks)), time.Duration(0)
	for i := range asks {
		patience = max(patience, asks[i].Rule.Coordination.Deadline())
		calls[i] = f.begin(now, &asks[i], &verdicts[i])
	}
	if !slices.ContainsFunc(calls, func(c *slotCall) bool { return c != nil }) {
		return
	}
	ratelimit.Waits(ctx)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for i, c := range calls {
		if c == nil {
			continue
		}
		select {
		case <-c.done:
		case <-timer.C:
			timer.Reset(0) // for all that follow
		case <-ctx.Done():
		}
		f.end(ctx, now, c, &asks[i], &verdicts[i])
	}
}

// begin sends an ask. It returns nil if the ask is decided. The lane keeps a give until the ledger answers, so
// on_store_failure decides nothing about it.
func (f *Limiter) begin(now ratelimit.Instant, a *ratelimit.Ask, v *ratelimit.Verdict) *slotCall {
	c := slotCallOf(now, a)
	switch {
	case c.Op == account.SlotLook && a.Kind != ratelimit.Peek: // it has no slot
		*v = a.DecideSlot(0, ratelimit.NoSlot)
		return nil
	case c.Op == account.SlotGive:
		// The slot may have been taken in an outage, from this node's own budget.
		f.Alone.DecideShare(now, a, f.Nodes())
		f.give(a, c)
		return c
	}
	l := f.lane(c.Key)
	switch {
	case l.Refuses(now):
		f.fail(now, a, v, ratelimit.FallbackBreaker)
	case !l.Send(c, lane.GatherFor(a.Rule)):
		f.fail(now, a, v, ratelimit.FallbackQueueFull)
	default:
		return c
	}
	return nil
}

// slotCallOf is the call of an ask. Its key is the ledger's name, and its end counts from now: the ledger's may be a
// little later.
func slotCallOf(now ratelimit.Instant, a *ratelimit.Ask) *slotCall {
	c := &slotCall{SlotAsk: account.SlotAskOf(a), done: make(chan struct{})}
	c.Key, c.till = ratelimit.KeyName(a.Key), now.Add(c.TTL)
	return c
}

// give gives a slot back at the ledger. A give is patient: it leaves with the next message of the lane, or after its
// wait.
func (f *Limiter) give(a *ratelimit.Ask, c *slotCall) {
	if !f.lane(c.Key).Later(c, lane.GatherFor(a.Rule)) {
		c.finish(account.SlotAnswer{Err: errGives})
	}
}

var errGives = errors.New("too many slots are to be given back: this one comes back when its time is over")

// finish wakes the caller. The first answer counts. A give that is tried again has finished for its caller before.
func (c *slotCall) finish(answer account.SlotAnswer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.answer, c.ended = answer, true
		close(c.done)
	}
}

// end applies the answer to a call, or decides without one.
func (f *Limiter) end(ctx context.Context, now ratelimit.Instant, c *slotCall, a *ratelimit.Ask, v *ratelimit.Verdict) {
	c.mu.Lock()
	answer, ended, sent := c.answer, c.ended, c.sent
	// A take that has not left by now never leaves (leaves).
	c.gone = !sent
	c.mu.Unlock()
	if ended && answer.Err == nil {
		*v = a.DecideSlot(answer.Taken, ratelimit.SlotHeld(answer.Has && c.Op != account.SlotLook))
		v.Source = ratelimit.FromClaim
		return
	}
	why := ratelimit.FallbackDeadline
	if ended {
		why = lane.Reason(answer.Err)
	}
	f.fail(now, a, v, why)
	// It may have been taken. If the caller has gone, its request never ends.
	if sent && c.Op == account.SlotTake && (v.OverLimit || ctx.Err() != nil) {
		back := slotCallOf(now, a)
		back.Op = account.SlotGive
		f.give(a, back)
	}
}

// fail decides without the ledger, by the rule's on_store_failure. An admission under open has the number of its slot,
// so that its end gives back what a late take may have taken.
func (f *Limiter) fail(now ratelimit.Instant, a *ratelimit.Ask, v *ratelimit.Verdict, why ratelimit.FallbackReason) {
	f.stats.fallbacks[why].Add(1)
	*v = ratelimit.Verdict{}
	switch policy := a.Rule.Coordination.OnStoreFailure; {
	// Without the number of taken slots, a peek passes.
	case a.Kind == ratelimit.Peek && policy == ratelimit.FailOpen:
	case a.Kind != ratelimit.Spend && a.Kind != ratelimit.Peek: // a slot to give back is kept
		v.Charged = min(a.Cost, 1)
	case policy == ratelimit.FailOpen:
		v.Charged, v.Window = 1, a.Window
	case policy == ratelimit.FailLocal:
		*v = f.Alone.DecideShare(now, a, f.Nodes())
	default: // the number of taken slots is unknown
		*v = a.DecideSlot(a.Rule.Limit.Requests+1, ratelimit.NoSlot)
	}
	v.Source, v.Reason = ratelimit.FromFallback, why
}

// settle settles the asks of a batch in one message, gives first: then takes of the same message find their slots free.
func (f *Limiter) settle(l *slotLane, all []*slotCall) {
	sent := f.clock()
	all = slices.DeleteFunc(all, func(c *slotCall) bool { return !c.leaves(sent) })
	if len(all) == 0 { // the breaker's one probe is never an empty message
		return
	}
	slices.SortStableFunc(all, func(a, b *slotCall) int { return cmp.Compare(b.Op, a.Op) })
	asks, answers := make([]account.SlotAsk, len(all)), make([]account.SlotAnswer, len(all))
	for i, c := range all {
		asks[i] = c.SlotAsk
	}
	if l.Allow(sent) {
		ctx, cancel := context.WithTimeout(context.Background(), lane.TimeLimit)
		f.ledger.Slots(ctx, asks, answers)
		cancel()
		f.stats.time.Observe(int64(f.clock().Sub(sent) / time.Microsecond))
		f.judge(l, answers)
	} else {
		for i := range answers {
			answers[i].Err = lane.ErrOpen
		}
	}
	var failed []*slotCall
	for i, c := range all {
		c.finish(answers[i])
		err := answers[i].Err
		// A record of another release stays as it is, however often a give is tried.
		if c.Op == account.SlotGive && err != nil && !errors.Is(err, account.ErrRecord) {
			failed = append(failed, c)
		}
	}
	l.again(f.clock, failed)
}

// again keeps failed gives, as far as there is room, and tries them again later. Other slots come back when their time
// is over. A timer runs while there are any. It calls again without new ones, which starts the next timer if some are
// left.
func (l *slotLane) again(clock ratelimit.Clock, gives []*slotCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = append(l.failed, gives[:min(len(gives), mostGives-len(l.failed))]...)
	if l.wakes || l.ended || len(l.failed) == 0 {
		return
	}
	l.wakes = true
	time.AfterFunc(giveAgain, func() {
		l.mu.Lock()
		l.wakes = false
		n := len(l.failed)
		switch { // while the ledger counts as dead, one message is the probe
		case l.Refuses(clock()):
			n = 0
		case l.Open():
			n = min(n, lane.BatchSize)
		}
		l.retryLocked(n)
		l.mu.Unlock()
		l.again(clock, nil)
	})
}

// retryLocked puts some failed gives into the queue again. They wait for no others: they have waited before.
func (l *slotLane) retryLocked(n int) {
	for _, c := range l.failed[:n] {
		// If the queue is full, the slot comes back when its time is over.
		l.Later(c, 0)
	}
	l.failed = slices.Delete(l.failed, 0, n)
}

// leaves reports whether a call is still of use, and notes that it leaves.
func (c *slotCall) leaves(now ratelimit.Instant) bool {
	if c.Op == account.SlotGive && now >= c.till { // the slot's time is over
		c.finish(account.SlotAnswer{})
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = c.Op == account.SlotGive || !c.gone
	return c.sent
}

// judge notes whether the ledger has answered any ask of a message. An error of the record is an answer, too.
func (f *Limiter) judge(l *slotLane, answers []account.SlotAnswer) {
	for i := range answers {
		err := answers[i].Err
		if err == nil || errors.Is(err, account.ErrContended) || errors.Is(err, account.ErrRecord) {
			l.Success()
			return
		}
	}
	f.stats.failed.Add(1)
	l.Failure(f.clock(), rand.Float64())
	f.OnFailure(answers[0].Err)
}

// Undo implements [ratelimit.Limiter]. It does not wait for the ledger: another limit has refused the request already.
func (f *Limiter) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		a := asks[i]
		if a.Kind != ratelimit.Spend || verdicts[i].Charged == 0 {
			continue
		}
		a.Kind = ratelimit.Release
		f.Alone.DecideShare(now, &a, f.Nodes())
		f.give(&a, slotCallOf(now, &a))
	}
}

// Stats returns the counts so far.
func (f *Limiter) Stats() ratelimit.LimiterStats {
	s := ratelimit.LimiterStats{Failed: f.stats.failed.Load(), StoreTime: f.stats.time.Counts()}
	s.RoundTrips = s.StoreTime.Count
	for i := range s.Fallbacks {
		s.Fallbacks[i] = f.stats.fallbacks[i].Load()
	}
	return s
}

// Look returns the ledger's view of a key's slots. It asks the ledger.
func (f *Limiter) Look(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	v := ratelimit.Look{Account: ratelimit.KeyName(a.Key), Alone: f.Alone.DecideShare(now, a, f.Nodes()).Remaining}
	if x := f.ask(ctx, a, account.SlotLook); x.Err != nil {
		v.LedgerError = x.Err.Error()
	} else {
		limit := a.Rule.Limit.Requests
		v.Ledger = &ratelimit.AccountLook{Limit: limit, Charged: x.Taken, Free: limit - x.Taken}
	}
	return v
}

// Reset gives all slots of a key back. It asks the ledger.
func (f *Limiter) Reset(ctx context.Context, _ ratelimit.Instant, a *ratelimit.Ask) error {
	return f.ask(ctx, a, account.SlotClear).Err
}

// ask sends one operation by itself, in the caller's time, for views and resets.
func (f *Limiter) ask(ctx context.Context, a *ratelimit.Ask, op account.SlotOp) account.SlotAnswer {
	asks, answers := []account.SlotAsk{account.SlotAskOf(a)}, make([]account.SlotAnswer, 1)
	asks[0].Key, asks[0].Op = ratelimit.KeyName(a.Key), op
	f.ledger.Slots(ctx, asks, answers)
	return answers[0]
}

// Run waits until ctx is done, and then for messages in flight. Slots to give back leave once more, even if the
// ledger counts as dead. Then it sends nothing more.
func (f *Limiter) Run(ctx context.Context) {
	<-ctx.Done()
	var all sync.WaitGroup
	for i := range f.lanes {
		l := &f.lanes[i]
		// It closes the breaker, so that the last gives leave.
		l.Success()
		l.mu.Lock()
		l.ended = true
		l.retryLocked(len(l.failed))
		l.mu.Unlock()
		all.Go(l.Stop)
	}
	all.Wait()
}
