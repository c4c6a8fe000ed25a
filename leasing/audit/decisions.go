package audit

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Decisions is a limiter that records what its base decides under audited rules: what was admitted, and what was
// refused, for each key and window. It writes them once a second, and at the end. A crash loses up to a second of them.
// It is safe for concurrent use. Decisions and messages are separate events, because most decisions cause no message.
type Decisions struct {
	ratelimit.NodeLimiter // the base

	record *Record
	holder string
	// time divides windows of decisions that name none, as those of on_store_failure. It is the ledger's clock, as far
	// as this node has read it.
	time func(ratelimit.Instant) ratelimit.LedgerTime

	mu   sync.Mutex
	open map[decided]*Event // guarded by mu; not written yet
}

// decided is what an event is about. Rules are compared by their pointers: after a reload, the decisions on a key
// continue in another event.
type decided struct {
	rule   *ratelimit.Rule
	key    string
	window ratelimit.Window
}

const (
	// writeEvery is the interval of writes, and mostOpen the number of keys and windows from which they are written at
	// once.
	writeEvery = time.Second
	mostOpen   = 10_000
)

// NewDecisions makes one. holder is this process's name in the record. time is the ledger's time at an instant, as far
// as it is known.
func NewDecisions(
	base ratelimit.NodeLimiter, r *Record, holder ratelimit.Holder, time func(ratelimit.Instant) ratelimit.LedgerTime,
) *Decisions {
	return &Decisions{
		NodeLimiter: base, record: r, holder: account.HolderName(holder), time: time, open: map[decided]*Event{},
	}
}

// Run writes what is decided, until ctx is done.
func (d *Decisions) Run(ctx context.Context) {
	upkeep.Every(ctx, writeEvery, d.Write)
	d.Write()
}

// Decide implements [ratelimit.Limiter]. The base has the verdicts before they are counted, and they are written up to
// a second later.
func (d *Decisions) Decide(
	ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict,
) {
	d.NodeLimiter.Decide(ctx, now, asks, verdicts)
	for i := range asks {
		if asks[i].Rule.Coordination.Audit {
			d.count(now, &asks[i], &verdicts[i], once)
		}
	}
}

// Undo implements [ratelimit.Limiter]. Requests that are taken back were refused by another limit.
func (d *Decisions) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	d.NodeLimiter.Undo(now, asks, verdicts)
	for i := range asks {
		if asks[i].Rule.Coordination.Audit && asks[i].Kind == ratelimit.Spend {
			d.count(now, &asks[i], &verdicts[i], takenBack)
		}
	}
}

// times is how often a decision counts.
type times int64

const once, takenBack times = 1, -1

// count adds a decision to the event of its key and window, or takes it back. A refund lowers what was admitted, and a
// charge raises it. A request that is taken back was refused by another limit, so it counts as refused here, too.
func (d *Decisions) count(now ratelimit.Instant, a *ratelimit.Ask, v *ratelimit.Verdict, n times) {
	if a.Kind == ratelimit.Peek || a.OfSlot() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.event(now, a, v)
	cost := a.Cost * ratelimit.Tokens(n)
	switch {
	case a.Kind == ratelimit.Refund, a.Kind == ratelimit.Release:
		add(&e.Admitted, -cost)
	// A shadow rule refuses nothing.
	case !v.OverLimit || a.Rule.Shadow:
		add(&e.Admitted, cost)
		if n == takenBack {
			add(&e.Refused, a.Cost)
		}
	default:
		if n == once {
			add(&e.Refused, cost)
		}
		add(&e.RefusedCharged, (v.Charged+v.Debt)*ratelimit.Tokens(n))
	}
	if len(d.open) >= mostOpen {
		d.write()
	}
}

// add adds tokens to a sum, which stays where it would overflow: a caller may give 2^63-1 tokens back, and again.
func add(to *tokens, n tokens) {
	if sum := *to + n; (sum > *to) == (n > 0) {
		*to = sum
	}
}

// event is the open event of a decision. The caller holds mu.
func (d *Decisions) event(now ratelimit.Instant, a *ratelimit.Ask, v *ratelimit.Verdict) *Event {
	of := decided{rule: a.Rule, window: v.Window}
	limit := &a.Rule.Limit
	switch {
	case limit.Algorithm == ratelimit.TokenBucket:
		of.window = 0
	// A verdict of on_store_failure has no account, but may be booked in one.
	case of.window == 0 && v.Booked != 0:
		of.window = v.Booked
	case of.window == 0:
		of.window = limit.WindowAt(d.time(now))
	}
	of.key = string(a.Key)
	e := d.open[of]
	if e == nil {
		made := newDecided(a.Rule, ratelimit.KeyName(a.Key), d.holder, of.window)
		e = &made
		d.open[of] = e
	}
	e.At = d.time(now)
	return e
}

// Write writes the open events.
func (d *Decisions) Write() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.write()
}

func (d *Decisions) write() {
	for _, e := range d.open {
		d.record.add(e)
	}
	clear(d.open)
}
