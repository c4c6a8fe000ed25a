package leasing

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Concurrency decides asks under concurrency limits by slots at a ledger: one operation takes a slot, and one gives
// it back. Asks at the same time share a round trip. It is safe for concurrent use, and blocks at most for a rule's
// deadline.
//
// Guarantee: while the ledger keeps its data, a key has at most as many slots as its limit, plus admissions by
// on_store_failure. Slots of refused requests, and of callers that have given up, are given back as soon as the
// ledger answers. So are slots whose end was reported during an outage. A lane keeps up to mostGives of them, until
// this node ends. Lost slots return at the end of their time.
type Concurrency struct {
	// Alone decides under on_store_failure: local, divided by Nodes, which is 0 if unknown.
	Alone *Local
	Nodes func() int
	// OnFailure gets the error of a message that failed as a whole. It must not block.
	OnFailure func(error)

	ledger account.SlotLedger
	part   func(key string) int // of the ledger; nil: it has one
	clock  ratelimit.Clock
	hash   keytable.Hasher
	lanes  []slotLane
	stats  slotStats
	sends  sync.WaitGroup
}

// slotStats counts the work of a Concurrency.
type slotStats struct {
	failed    atomic.Uint64 // messages
	time      ratelimit.Distribution
	fallbacks [len(ratelimit.FallbackReasons)]atomic.Uint64
}

const (
	// slotLanes is the number of concurrent messages if the ledger has one part: those of a key leave one after the
	// other. Otherwise each part has a lane, so that a failed part delays no other.
	slotLanes = 8
	// mostSlotAsks bounds the asks of a message, and mostSlotQueue those that wait in each lane.
	mostSlotAsks, mostSlotQueue = 256, 8192
	// mostGives bounds the slots that each lane keeps to give back.
	mostGives = 1 << 15
	// giveAgain is the time after which a failed give is repeated.
	giveAgain = 100 * time.Millisecond
)

// slotLane sends the asks of some keys to the ledger, one message after the other.
//
// Invariant: a slot's give leaves after its take has been answered, or the take never leaves. A caller gives a slot
// back after its wait for the take. By then the take is answered, in flight, or gone.
type slotLane struct {
	mu      sync.Mutex
	takes   []*slotCall // guarded by mu; also looks: asks with a waiting caller
	gives   []*slotCall // guarded by mu
	failed  []*slotCall // guarded by mu: gives to be tried again
	sending bool        // guarded by mu
	wakes   bool        // guarded by mu: a timer runs
	closed  bool        // guarded by mu
	breaker Breaker     // guarded by mu
}

// slotCall is an ask. Its fields are guarded by its lane's mu.
type slotCall struct {
	account.SlotAsk
	till   instant // end of the slot, as far as it is taken now
	answer account.SlotAnswer
	done   chan struct{}
	ended  bool
	sent   bool
	gone   bool // the caller has gone before it was sent
}

// NewConcurrency makes a limiter with slots at a ledger. alone decides without the ledger.
func NewConcurrency(ledger account.SlotLedger, alone *Local, clock ratelimit.Clock) *Concurrency {
	f := &Concurrency{
		Alone: alone, Nodes: unknownNodes, OnFailure: func(error) {}, ledger: ledger, clock: clock,
		hash: keytable.NewHasher(),
	}
	lanes := slotLanes
	if p, ok := ledger.(Partitioned); ok && p.Partitions() > 1 {
		f.part, lanes = p.Partition, p.Partitions()
	}
	f.lanes = make([]slotLane, lanes)
	return f
}

func (f *Concurrency) lane(key string) *slotLane {
	if f.part != nil {
		return &f.lanes[f.part(key)]
	}
	return &f.lanes[f.hash.Of([]byte(key))%slotLanes]
}

// Decide implements [ratelimit.Limiter].
func (f *Concurrency) Decide(
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

// begin sends an ask. It returns nil if the ask is decided.
func (f *Concurrency) begin(now instant, a *ask, v *verdict) *slotCall {
	c := slotCallOf(now, a)
	switch {
	case c.Op == account.SlotLook && a.Kind != ratelimit.Peek: // it has no slot
		*v = a.DecideSlot(0, ratelimit.NoSlot)
		return nil
	case c.Op == account.SlotGive:
		f.give(now, a, c)
		return c
	}
	l := f.lane(c.Key)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.breaker.Refuses(now):
		f.fail(now, a, v, ratelimit.FallbackBreaker)
		return nil
	case len(l.takes) >= mostSlotQueue:
		f.fail(now, a, v, ratelimit.FallbackQueueFull)
		return nil
	}
	l.takes = append(l.takes, c)
	f.sendLocked(l)
	return c
}

func slotCallOf(now instant, a *ask) *slotCall {
	c := &slotCall{SlotAsk: slotAsk(a), done: make(chan struct{})}
	c.Key, c.till = ratelimit.KeyName(a.Key), now.Add(c.TTL)
	return c
}

// give gives a slot back, at the ledger and here.
func (f *Concurrency) give(now instant, a *ask, c *slotCall) {
	f.Alone.DecideShare(now, a, f.Nodes())
	l := f.lane(c.Key)
	l.mu.Lock()
	defer l.mu.Unlock()
	f.giveLocked(l, c)
}

func (f *Concurrency) giveLocked(l *slotLane, c *slotCall) {
	if len(l.gives)+len(l.failed) >= mostGives {
		c.finish(account.SlotAnswer{Err: errGives})
		return
	}
	l.gives = append(l.gives, c)
	f.sendLocked(l)
}

var errGives = errors.New("too many slots are to be given back: this one comes back when its time is over")

// finish wakes the caller. The first answer counts.
func (c *slotCall) finish(answer account.SlotAnswer) {
	if !c.ended {
		c.answer, c.ended = answer, true
		close(c.done)
	}
}

// end applies the answer to a call, or decides without one.
func (f *Concurrency) end(ctx context.Context, now instant, c *slotCall, a *ask, v *verdict) {
	l := f.lane(c.Key)
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.ended && c.answer.Err == nil {
		*v = a.DecideSlot(c.answer.Taken, ratelimit.SlotHeld(c.answer.Has && c.Op != account.SlotLook))
		v.Source = ratelimit.FromClaim
		return
	}
	why := ratelimit.FallbackDeadline
	if c.ended {
		why = ratelimit.FallbackError
	}
	f.fail(now, a, v, why)
	// It may have been taken. If the caller has gone, its request never ends.
	c.gone = !c.sent
	if c.sent && c.Op == account.SlotTake && (v.OverLimit || ctx.Err() != nil) {
		back := slotCallOf(now, a)
		back.Op = account.SlotGive
		f.giveLocked(l, back)
	}
}

// fail decides without the ledger, by the rule's on_store_failure.
func (f *Concurrency) fail(now instant, a *ask, v *verdict, why ratelimit.FallbackReason) {
	f.stats.fallbacks[why].Add(1)
	*v = verdict{}
	switch policy := a.Rule.Coordination.OnStoreFailure; {
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

// sendLocked starts to send waiting asks, if there are any; the caller holds l.mu.
func (f *Concurrency) sendLocked(l *slotLane) {
	if !l.sending && !l.closed && len(l.gives)+len(l.takes) > 0 {
		l.sending = true
		f.sends.Go(func() { f.send(l) })
	}
}

// send carries messages to the ledger until its queue is empty, or the ledger counts as dead.
func (f *Concurrency) send(l *slotLane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		all := l.packLocked(f.clock())
		if len(all) == 0 {
			l.sending = false
			f.remindLocked(l)
			return
		}
		l.mu.Unlock()
		asks, answers := make([]account.SlotAsk, len(all)), make([]account.SlotAnswer, len(all))
		for i, c := range all {
			asks[i] = c.SlotAsk
		}
		ctx, cancel := context.WithTimeout(context.Background(), TimeLimit)
		sent := f.clock()
		f.ledger.Slots(ctx, asks, answers)
		f.stats.time.Observe(int64(f.clock().Sub(sent) / time.Microsecond))
		cancel()
		l.mu.Lock()
		f.answeredLocked(l, all, answers)
	}
}

// remindLocked schedules the rest for later.
func (f *Concurrency) remindLocked(l *slotLane) {
	if l.wakes || l.closed || len(l.gives)+len(l.failed)+len(l.takes) == 0 {
		return
	}
	l.wakes = true
	time.AfterFunc(giveAgain, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wakes = false
		l.gives, l.failed = append(l.failed, l.gives...), nil
		f.sendLocked(l)
	})
}

// packLocked takes the next asks from the queue, gives first, or none while the ledger counts as dead.
func (l *slotLane) packLocked(now instant) []*slotCall {
	for len(l.gives) > 0 && now >= l.gives[0].till {
		l.gives[0].finish(account.SlotAnswer{}) // its time is over
		l.gives = l.gives[1:]
	}
	l.takes = slices.DeleteFunc(l.takes, func(c *slotCall) bool { return c.gone })
	// Ask the breaker last, so that its one probe is never an empty message.
	if len(l.gives)+len(l.takes) == 0 || !l.breaker.Allow(now) {
		return nil
	}
	gives := min(len(l.gives), mostSlotAsks/2)
	takes := min(len(l.takes), mostSlotAsks-gives)
	all := slices.Concat(l.gives[:gives], l.takes[:takes])
	l.gives, l.takes = l.gives[gives:], slices.Delete(l.takes, 0, takes)
	for _, c := range all {
		c.sent = true
	}
	return all
}

// answeredLocked applies the answers to a message.
func (f *Concurrency) answeredLocked(l *slotLane, all []*slotCall, answers []account.SlotAnswer) {
	dead := true
	for i, c := range all {
		err := answers[i].Err
		foreign := errors.Is(err, account.ErrRecord)
		dead = dead && err != nil && !errors.Is(err, account.ErrContended) && !foreign
		c.finish(answers[i])
		if c.Op == account.SlotGive && err != nil && !foreign {
			l.failed = append(l.failed, c)
		}
	}
	if !dead {
		l.breaker.Success()
		return
	}
	f.stats.failed.Add(1)
	l.breaker.Failure(f.clock(), rand.Float64())
	f.OnFailure(answers[0].Err)
}

// Undo implements [ratelimit.Limiter]. It does not wait for the ledger.
func (f *Concurrency) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		a := asks[i]
		if a.Kind != ratelimit.Spend || verdicts[i].Charged == 0 {
			continue
		}
		a.Kind = ratelimit.Release
		f.give(now, &a, slotCallOf(now, &a))
	}
}

// Stats returns the counts so far.
func (f *Concurrency) Stats() ratelimit.LimiterStats {
	s := ratelimit.LimiterStats{Failed: f.stats.failed.Load(), StoreTime: f.stats.time.Counts()}
	s.RoundTrips = s.StoreTime.Count
	for i := range s.Fallbacks {
		s.Fallbacks[i] = f.stats.fallbacks[i].Load()
	}
	return s
}

// Look returns the ledger's view of a key's slots. It asks the ledger.
func (f *Concurrency) Look(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
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
func (f *Concurrency) Reset(ctx context.Context, _ ratelimit.Instant, a *ratelimit.Ask) error {
	return f.ask(ctx, a, account.SlotClear).Err
}

func (f *Concurrency) ask(ctx context.Context, a *ask, op account.SlotOp) account.SlotAnswer {
	asks, answers := []account.SlotAsk{slotAsk(a)}, make([]account.SlotAnswer, 1)
	asks[0].Key, asks[0].Op = ratelimit.KeyName(a.Key), op
	f.ledger.Slots(ctx, asks, answers)
	return answers[0]
}

// Run waits until ctx is done, and then for messages in flight. Slots to give back leave once more, even if the
// ledger counts as dead. Then it sends nothing more.
func (f *Concurrency) Run(ctx context.Context) {
	<-ctx.Done()
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		l.gives, l.failed, l.breaker = append(l.failed, l.gives...), nil, Breaker{}
		f.sendLocked(l)
		l.closed = true
		l.mu.Unlock()
	}
	f.sends.Wait()
}
