package leasing

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Concurrency decides asks under concurrency limits by slots at a ledger: one operation to take a slot, and one to give
// it back. Those that come at the same time travel together. It is safe for concurrent use, and blocks as long as a
// rule's deadline at most.
//
// Guarantee: while the ledger keeps its data, no key has more slots than its limit. A slot that may have been taken for
// a request that was refused is given back as soon as the ledger answers. A slot that is given back while the ledger
// does not answer is given back later, unless this node ends before: then it comes back when its time is over.
type Concurrency struct {
	// Alone decides under on_store_failure: local, divided by Nodes; nil Nodes: their number is not known.
	Alone *Local
	Nodes func() int

	ledger    account.SlotLedger
	clock     ratelimit.Clock
	hash      keytable.Hasher
	lanes     [slotLanes]slotLane
	fallbacks [len(ratelimit.FallbackReasons)]atomic.Uint64
	apart     atomic.Bool // Alone may have slots
}

const (
	// slotLanes are how many messages are on their way at the same time: a key's one after the other.
	slotLanes = 8
	// mostSlotAsks is how many asks travel together, and mostSlotQueue how many wait for that in each lane.
	mostSlotAsks, mostSlotQueue = 256, 8192
	// owedEvery is after what time slots are given back once more that the ledger has not heard of.
	owedEvery = 100 * time.Millisecond
)

// slotLane is the way of some keys to the ledger.
type slotLane struct {
	mu      sync.Mutex
	queue   []*slotCall // guarded by mu
	owed    []slotOwed  // guarded by mu; Invariant: at most mostSlotQueue
	sending bool        // guarded by mu
	wakes   bool        // guarded by mu; a timer runs
	breaker Breaker     // guarded by mu
}

// slotOwed is a slot that may still be taken at the ledger, and is to be given back.
type slotOwed struct {
	account.SlotAsk
	till instant // from then on it has come back by itself
}

// slotCall is an ask under way.
type slotCall struct {
	account.SlotAsk
	answer account.SlotAnswer
	done   chan struct{} // nil: nobody waits
	left   bool          // guarded by the lane's mu: nobody waits any more
	refuse bool          // guarded by the lane's mu: and the request was refused
	ended  bool          // guarded by the lane's mu
}

// NewConcurrency makes a limiter whose slots are at a ledger.
func NewConcurrency(ledger account.SlotLedger, alone *Local, clock ratelimit.Clock) *Concurrency {
	return &Concurrency{Alone: alone, ledger: ledger, clock: clock, hash: keytable.NewHasher()}
}

func (f *Concurrency) lane(key []byte) *slotLane { return &f.lanes[f.hash.Of(key)%slotLanes] }

// Decide implements [ratelimit.Limiter].
func (f *Concurrency) Decide(
	ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict,
) {
	calls, patience := make([]*slotCall, len(asks)), time.Duration(0)
	for i := range asks {
		patience = max(patience, asks[i].Rule.Coordination.Deadline())
		calls[i] = f.begin(now, &asks[i], &verdicts[i])
	}
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

// begin sends an ask. It returns nil where it is decided.
func (f *Concurrency) begin(now instant, a *ask, v *verdict) *slotCall {
	if f.apart.Load() && a.Kind == ratelimit.Release {
		f.decideAlone(now, a)
	}
	if a.Kind == ratelimit.Charge || a.Window == 0 && a.Kind != ratelimit.Peek {
		*v = a.DecideSlot(0, ratelimit.NoSlot) // it names no slot
		v.OverLimit = v.OverLimit && a.Kind == ratelimit.Spend
		return nil
	}
	c := &slotCall{SlotAsk: slotAsk(a), done: make(chan struct{})}
	c.Key = KeyName(a.Key)
	l := f.lane(a.Key)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.breaker.Refuses(now):
		l.owe(now, a)
		f.remindLocked(l)
		f.fail(now, a, v, ratelimit.FallbackBreaker)
		return nil
	case len(l.queue) >= mostSlotQueue:
		l.owe(now, a)
		f.fail(now, a, v, ratelimit.FallbackQueueFull)
		return nil
	}
	l.queue = append(l.queue, c)
	f.sendLocked(l)
	return c
}

// end takes in the answer to a call, or decides without.
func (f *Concurrency) end(ctx context.Context, now instant, c *slotCall, a *ask, v *verdict) {
	l := f.lane(a.Key)
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
	c.left, c.refuse = true, v.OverLimit || ctx.Err() != nil // of a caller that has gone, nothing ends
	if c.ended && (c.refuse || a.Kind == ratelimit.Release) {
		l.owe(now, a) // it may have been taken
	}
}

// fail decides without the ledger, as the rule's on_store_failure says.
func (f *Concurrency) fail(now instant, a *ask, v *verdict, why ratelimit.FallbackReason) {
	f.fallbacks[why].Add(1)
	*v = verdict{}
	switch policy := a.Rule.Coordination.OnStoreFailure; {
	case a.Kind != ratelimit.Spend: // nothing is taken; what is given back is owed
		v.Charged = min(a.Cost, 1)
	case policy == ratelimit.FailOpen:
		v.Charged, v.Window = 1, a.Window
	case policy == ratelimit.FailLocal:
		f.apart.Store(true)
		*v = f.decideAlone(now, a)
	default: // nothing is known of how many are taken
		*v = a.DecideSlot(a.Rule.Limit.Requests, ratelimit.NoSlot)
	}
	v.Source, v.Reason = ratelimit.FromFallback, why
}

func (f *Concurrency) decideAlone(now instant, a *ask) verdict {
	own, nodes := *a, 0
	if f.Nodes != nil {
		nodes = f.Nodes()
	}
	own.Rule = a.Rule.LocalShare(nodes)
	var one [1]verdict
	f.Alone.Decide(context.Background(), now, []ask{own}, one[:])
	return one[0]
}

// owe notes that an ask's slot is to be given back; the caller holds l.mu. Of too many the oldest is left to its time.
func (l *slotLane) owe(now instant, a *ask) {
	if a.Kind == ratelimit.Peek {
		return
	}
	x := slotAsk(a)
	x.Key, x.Op = KeyName(a.Key), account.SlotGive
	l.oweLocked(slotOwed{x, now.Add(x.TTL)})
}

func (l *slotLane) oweLocked(x slotOwed) {
	if len(l.owed) >= mostSlotQueue {
		l.owed = l.owed[1:]
	}
	l.owed = append(l.owed, x)
}

// send carries messages to the ledger until nothing waits.
func (f *Concurrency) send(l *slotLane) {
	for {
		l.mu.Lock()
		now := f.clock()
		batch := l.batchLocked(now)
		if len(batch) == 0 {
			l.sending = false
			f.remindLocked(l)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		asks, answers := make([]account.SlotAsk, len(batch)), make([]account.SlotAnswer, len(batch))
		for i, c := range batch {
			asks[i] = c.SlotAsk
		}
		ctx, cancel := context.WithTimeout(context.Background(), TimeLimit)
		f.ledger.Slots(ctx, asks, answers)
		cancel()
		l.mu.Lock()
		l.answered(f.clock(), batch, answers)
		l.mu.Unlock()
	}
}

// batchLocked takes what leaves next: also slots that are owed, while the ledger answers.
func (l *slotLane) batchLocked(now instant) (batch []*slotCall) {
	if len(l.queue) == 0 && len(l.owed) == 0 || !l.breaker.Allow(now) {
		return nil
	}
	n := min(len(l.owed), mostSlotAsks/2)
	for _, x := range l.owed[:n] {
		if now < x.till {
			batch = append(batch, &slotCall{SlotAsk: x.SlotAsk, left: true})
		}
	}
	l.owed = l.owed[n:]
	n = min(len(l.queue), mostSlotAsks-n)
	for _, c := range l.queue[:n] {
		if c.Op != account.SlotTake || !c.refuse { // else it takes nothing
			batch = append(batch, c)
		}
	}
	l.queue = l.queue[n:]
	return batch
}

// answered takes in what came of a message; the caller holds l.mu.
func (l *slotLane) answered(now instant, batch []*slotCall, answers []account.SlotAnswer) {
	failed := 0
	for i, c := range batch {
		c.answer, c.ended = answers[i], true
		if c.answer.Err != nil {
			failed++
		}
		if c.done != nil {
			close(c.done)
		}
		// What may be taken for nobody is given back, and what was not given back is tried again.
		taken := c.Op == account.SlotTake && c.refuse && (c.answer.Has || c.answer.Err != nil)
		if c.left && (taken || c.Op == account.SlotGive && c.answer.Err != nil) {
			back := c.SlotAsk
			back.Op = account.SlotGive
			l.oweLocked(slotOwed{back, now.Add(c.TTL)})
		}
	}
	if failed == len(batch) {
		l.breaker.Failure(now, rand.Float64())
	} else {
		l.breaker.Success()
	}
}

// remindLocked has what is left be sent later; the caller holds l.mu.
func (f *Concurrency) remindLocked(l *slotLane) {
	if l.sending || l.wakes || len(l.owed)+len(l.queue) == 0 {
		return
	}
	l.wakes = true
	time.AfterFunc(owedEvery, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wakes = false
		f.sendLocked(l)
	})
}

// sendLocked begins to send what waits, if anything does; the caller holds l.mu.
func (f *Concurrency) sendLocked(l *slotLane) {
	if !l.sending && len(l.owed)+len(l.queue) > 0 {
		l.sending = true
		go f.send(l)
	}
}

// Undo implements [ratelimit.Limiter]: nobody waits for it.
func (f *Concurrency) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		a, v := asks[i], &verdicts[i]
		if a.Kind != ratelimit.Spend || v.Charged == 0 {
			continue
		}
		a.Kind = ratelimit.Release
		if f.apart.Load() {
			f.decideAlone(now, &a)
		}
		l := f.lane(a.Key)
		l.mu.Lock()
		l.owe(now, &a)
		f.sendLocked(l)
		l.mu.Unlock()
	}
}

// Fallbacks are decisions without the ledger, by reason.
func (f *Concurrency) Fallbacks() (n [len(ratelimit.FallbackReasons)]uint64) {
	for i := range n {
		n[i] = f.fallbacks[i].Load()
	}
	return n
}

// Look is what the ledger knows of a key's slots. It asks the ledger.
func (f *Concurrency) Look(ctx context.Context, _ ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	v := ratelimit.Look{Account: KeyName(a.Key)}
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
	asks[0].Key, asks[0].Op = KeyName(a.Key), op
	f.ledger.Slots(ctx, asks, answers)
	return answers[0]
}

// Run waits until ctx is done, and then gives back what is owed, if the ledger answers.
func (f *Concurrency) Run(ctx context.Context) {
	<-ctx.Done()
	var all sync.WaitGroup
	defer all.Wait()
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		if !l.sending && len(l.owed) > 0 {
			l.sending = true
			all.Go(func() { f.send(l) })
		}
		l.mu.Unlock()
	}
}
