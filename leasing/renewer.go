package leasing

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Run sends claims until ctx is done, and then returns all that is unspent, for
// at most claimTimeout. It blocks.
func (f *Fleet) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range f.lanes {
		for range senders {
			wg.Go(func() { f.send(ctx, &f.lanes[i]) })
		}
	}
	wg.Go(func() { f.sweep(ctx) })
	wg.Wait()
	f.releaseAll()
}

// send takes flights off the queue, as many as are there, and settles them
// together.
func (f *Fleet) send(ctx context.Context, l *lane) {
	for {
		select {
		case <-ctx.Done():
			return
		case first := <-l.queue:
			f.settle(l, l.take(first))
		}
	}
}

// take takes what waits, up to a batch, behind what was taken already.
func (l *lane) take(flights ...*flight) []*flight {
	for len(flights) < batchSize {
		select {
		case fl := <-l.queue:
			flights = append(flights, fl)
		default:
			return flights
		}
	}
	return flights
}

// settle writes the claims of a batch, has them settled and takes in the
// grants. No lock is held meanwhile.
func (f *Fleet) settle(l *lane, flights []*flight) {
	b := f.pack(l, flights)
	grants := make([]ratelimit.Grant, len(flights))
	if !b.allowed() {
		fillErrors(grants, errBreaker)
		b.answered(grants)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()
	f.ledger.Settle(ctx, b.claims, grants)
	f.stats.storeTime.Observe(int64(f.clock().Sub(b.sent) / time.Microsecond))
	b.settled(grants)
	b.answered(grants)
}

// batch is flights that travel together.
type batch struct {
	*Fleet
	lane    *lane
	flights []*flight
	claims  []ratelimit.Claim
	sent    instant
}

// pack writes the claims of flights.
func (f *Fleet) pack(l *lane, flights []*flight) *batch {
	b := &batch{Fleet: f, lane: l, flights: flights, claims: make([]ratelimit.Claim, len(flights)), sent: f.clock()}
	for i, fl := range flights {
		b.claims[i] = f.write(b.sent, fl)
	}
	return b
}

// allowed asks the breaker whether the batch may be sent.
func (b *batch) allowed() bool {
	b.lane.mu.Lock()
	defer b.lane.mu.Unlock()
	return b.lane.breaker.allow(b.sent)
}

// settled counts that the batch was sent, and tells the breaker how it went.
func (b *batch) settled(grants []ratelimit.Grant) {
	b.stats.claims.Add(uint64(len(b.claims)))
	b.stats.roundTrips.Add(1)
	for i, fl := range b.flights {
		b.stats.claimsBy[fl.reason()].Add(1)
		g := &grants[i]
		switch got := g.Granted - b.claims[i].Granted; {
		case errors.Is(g.Err, ratelimit.ErrStaleClaim):
			b.stats.stale.Add(1)
		case g.Err == nil && g.Void:
			b.stats.void.Add(1)
		case g.Err == nil && got > 0:
			b.stats.leaseSizes.Observe(int64(got))
		}
	}
	b.judge(b.lane, grants)
}

// answered takes in the grants.
func (b *batch) answered(grants []ratelimit.Grant) {
	now := b.clock()
	there := b.lane.heard(b.sent, now, grants)
	for i, fl := range b.flights {
		if fl.claim.Audit != "" && b.OnAudit != nil {
			b.OnAudit(&fl.claim, &grants[i])
		}
		if r, ok := b.read(b.sent, now, there, fl, &grants[i]); ok && b.OnReconcile != nil {
			b.OnReconcile(r)
		}
	}
}

// fillErrors has all grants say the same.
func fillErrors(grants []ratelimit.Grant, err error) {
	for i := range grants {
		grants[i] = ratelimit.Grant{Err: err}
	}
}

// heard takes in what time it is in that part of the ledger, and returns what
// is known of it.
func (l *lane) heard(sent, answered instant, grants []ratelimit.Grant) ledgerClock {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range grants {
		if grants[i].Err == nil && grants[i].At > 0 {
			l.clock.heard(sent, answered, grants[i].At)
		}
	}
	return l.clock
}

// errBreaker answers the claims that were not sent.
var errBreaker = errors.New("the ledger does not answer, and is not asked for a while")

// write makes the claim of a flight from what is known now.
func (f *Fleet) write(now instant, fl *flight) ratelimit.Claim {
	s := f.shard(fl.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	if fl.final {
		fl.claim.Seq = s.seq
		return fl.claim
	}
	h := &s.leases.get(fl.hash, fl.key).val // it is not evicted while in flight
	fl.sent, fl.at = true, now
	name := h.name
	switch {
	case fl.ahead:
		fl.claim = h.claimAhead(now, s.seq, fl.giveUp)
		name ^= 1
	case fl.giveUp:
		fl.claim = h.lease.release(now, s.seq)
	default:
		f.turn(h, now, fl.hash, fl.key)
		if h.next == nil && now >= h.lease.reset && h.lease.window != 0 && h.rule.Coordination.Mode == ratelimit.Approx && h.lease.algorithm == ratelimit.FixedWindow {
			f.finish(h, fl.hash, fl.key)
			h.lease, h.reported = lease{}, 0
			h.name ^= 1
		}
		name = h.name
		waiting := fl.most(h.rule)
		if waiting > 0 && h.rule.Limit.Algorithm != ratelimit.FixedWindow {
			// Those refused since the last claim waited too: see plan.
			waiting = max(waiting, min(h.demand.refused, h.rule.Limit.Capacity()))
		}
		h.demand.measure(now, fl.waiting)
		want := h.demand.want(h.rule, fl.waiting) - h.lease.left(now) // a renewal fills up
		fl.claim = h.lease.claim(now, s.seq, h.rule, waiting, max(want, waiting), false)
		// In this window or not at all: if the next has its lease, and if the last
		// word on this one is to come.
		fl.claim.Ahead = h.next != nil || fl.claim.Tally && fl.claim.Window != 0 && h.lease.algorithm == ratelimit.FixedWindow
	}
	fl.claim.Key, fl.claim.Holder, fl.claim.Reset = fl.name, name, fl.reset
	fl.audited(h.rule)
	return fl.claim
}

// judge tells the breaker how a batch went.
func (f *Fleet) judge(l *lane, grants []ratelimit.Grant) {
	failed := 0
	var last error
	for i := range grants {
		if err := grants[i].Err; err != nil && !errors.Is(err, ratelimit.ErrStaleClaim) {
			failed++
			last = err
		}
	}
	if failed == len(grants) {
		f.stats.failed.Add(1)
		if f.OnFailure != nil {
			f.OnFailure(last)
		}
	}
	now := f.clock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if failed == len(grants) {
		l.breaker.failure(now, f.Random())
	} else {
		l.breaker.success()
		f.heard.Store(int64(now))
	}
}

// read takes in an answer, wakes those who wait, and tells what it settled of
// drift.
func (f *Fleet) read(sent, now instant, there ledgerClock, fl *flight, g *ratelimit.Grant) (r Reconciliation, drifted bool) {
	s := f.shard(fl.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if fl.final {
		return fl.reconciled(fl.rule, g)
	}
	h := &s.leases.get(fl.hash, fl.key).val
	h.flight = nil
	fl.err = g.Err
	defer close(fl.done)
	if g.Err != nil {
		return r, false
	}
	r, drifted = fl.reconciled(h.rule, g)
	if g.Relearning {
		if before := instant(f.relearn.Swap(int64(now))); before == 0 || now.Sub(before) > relearnTime {
			f.stats.recoveries.Add(1)
		}
	}
	if fl.ahead {
		h.keepNext(sent, now, there, fl, g, f.Random())
		h.gauge()
		return r, drifted
	}
	if g.Seq != h.lease.seq {
		return r, drifted // the next window's lease has taken its place
	}
	if g.Window != h.lease.window {
		h.carry(g.Window)
		h.bound = 0
	}
	h.countBound(g.Over)
	h.lease.apply(sent, &fl.claim, g, margin(h.rule, g.TTL), lasts(sent, now, there, &fl.claim.Limit, g))
	h.payOwed()
	h.lease.forgive(h.rule.DriftShare())
	h.heard, h.elsewhere, h.stranded = now, g.Outstanding, g.Stranded
	h.expires = sent.Add(g.TTL - margin(h.rule, g.TTL))
	h.agree()
	if h.reported = 0; g.Window == fl.claim.Window {
		h.reported = fl.claim.Spent
	}
	h.gauge()
	h.settled = h.lease.unspent() == 0 && h.lease.spent == fl.claim.Spent && g.Granted == fl.claim.Granted
	h.plan(sent, now, fl, g, f.Random())
	f.reportInTime(h, now, fl.key)
	return r, drifted
}

// reconciled is what an answer settled of drift, and counts what was over.
func (fl *flight) reconciled(rule *ratelimit.Rule, g *ratelimit.Grant) (Reconciliation, bool) {
	c := &fl.claim
	if g.Err != nil {
		return Reconciliation{}, false
	}
	if g.OverAdmitted > 0 && rule.Counters != nil {
		rule.Counters.OverAdmitted.Add(uint64(g.OverAdmitted))
	}
	drift := max(0, c.Spent-(c.Granted-c.Returned))
	return Reconciliation{
		Rule: rule, Key: fl.name, Window: g.Window, Fence: g.Fence, Drift: drift,
		Confirmed: min(drift, g.Granted-c.Granted), Over: g.OverAdmitted, Available: g.Available,
	}, drift > 0 || g.OverAdmitted > 0
}

// lasts is until when the grant's window certainly goes on, on this node's clock.
func lasts(sent, now instant, there ledgerClock, l *ratelimit.Limit, g *ratelimit.Grant) instant {
	if l.Algorithm == ratelimit.TokenBucket || g.At == 0 {
		return sent.Add(g.ResetAfter)
	}
	return there.notBefore(now, l.WindowEnd(g.Window))
}

// payOwed books what was admitted without the ledger, if that was in the
// lease's window.
func (h *held) payOwed() {
	if h.owedAt > h.lease.reset.Add(-h.rule.Limit.Period()) || h.rule.Limit.Algorithm == ratelimit.TokenBucket {
		h.lease.spent += min(h.owed, h.rule.Limit.Capacity())
	}
	h.owed = 0
}

// margin is how much earlier than the ledger a node takes its lease for expired:
// what two clocks may differ by meanwhile. Where expiry makes unreported tokens
// another's, it is also the time that a report may take.
func margin(rule *ratelimit.Rule, ttl time.Duration) time.Duration {
	if rule.Coordination.Eager() {
		return ttl / 4
	}
	return ttl / 20
}

// mustReport tells whether there is spending that expiry would undo.
func (h *held) mustReport() bool {
	return h.rule.Coordination.Eager() && h.lease.spent != h.reported
}

// reportInTime has what is spent by half the lease's time reported: reclaimed
// eagerly, it would be spent twice. What is spent later reports itself; see take.
func (f *Fleet) reportInTime(h *held, now instant, key []byte) {
	if !h.rule.Coordination.Eager() || h.after == never {
		return
	}
	seq, own := h.lease.seq, append([]byte(nil), key...)
	f.after(max(0, h.after.Sub(now)), func() {
		s, hash, c := f.locked(own)
		defer s.mu.Unlock()
		if c != nil && c.val.flight == nil && c.val.mustReport() && c.val.lease.seq == seq {
			f.launch(&c.val, f.newFlight(hash, own))
		}
	})
}

const never instant = 1<<63 - 1

// plan decides when the lease is renewed, or for how long not to ask.
func (h *held) plan(sent, now instant, fl *flight, g *ratelimit.Grant, jitter float64) {
	h.renewal = renewal{after: never}
	h.planAhead(sent, now, jitter)
	left := h.lease.unspent()
	short := fl.claim.Waiting > g.Granted-fl.claim.Granted
	if short && g.Outstanding > 0 && now >= h.lease.retry {
		// Somebody may return some: ask again, but not for each request.
		h.lease.retry = now.Add(backOff + time.Duration(jitter*float64(backOff)))
		h.lease.retryCost = grantable(g) + 1
	}
	got := g.Granted - fl.claim.Granted
	if h.lease.algorithm != ratelimit.FixedWindow && g.Available < max(1, h.rule.Limit.Capacity()/100) && float64(got) < h.demand.perSec*backOff.Seconds() {
		// Tokens come back one by one: let some gather, but none overflow.
		wait := backOff
		if h.lease.algorithm == ratelimit.TokenBucket {
			wait = min(wait, g.ResetAfter/2)
		}
		h.lease.retry = max(h.lease.retry, now.Add(wait))
		h.lease.retryCost = 1
	}
	if h.rule.Coordination.Eager() && (left > 0 || h.mustReport()) {
		h.after = sent.Add(g.TTL / 2)
	}
	if left <= 0 || g.Available == 0 && g.Outstanding == 0 && h.lease.algorithm == ratelimit.FixedWindow {
		return // nothing to renew, or nothing to be had
	}
	h.renewal = h.demand.renewal(sent, now, left, &fl.claim.Limit, g)
	if h.rule.Coordination.Mode == ratelimit.Approx {
		h.after = min(h.after, sent.Add(h.rule.SyncInterval()))
	}
}

// grantable is what the ledger had left for a claim.
func grantable(g *ratelimit.Grant) tokens {
	if g.Relearning {
		return 0
	}
	return g.Available
}

func reasonOf(err error) ratelimit.FallbackReason {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return ratelimit.FallbackDeadline
	case errors.Is(err, errBreaker):
		return ratelimit.FallbackBreaker
	case errors.Is(err, errQueueFull):
		return ratelimit.FallbackQueueFull
	}
	return ratelimit.FallbackError
}

// sweep looks through a part of the shards at a time: it returns what idle keys
// have not spent, and when the ledger has forgotten one key, tells it of all.
func (f *Fleet) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for part := 0; ; part++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.sweepPart(f.clock(), part)
		}
	}
}

// sweepPart looks through one of sweepParts.
func (f *Fleet) sweepPart(now instant, part int) {
	for i := part % sweepParts; i < len(f.shards); i += sweepParts {
		f.sweepShard(now, &f.shards[i])
	}
}

func (f *Fleet) sweepShard(now instant, s *fleetShard) {
	forgot := instant(f.relearn.Load())
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, tag := range s.leases.tags {
		c := &s.leases.cells[i]
		if tag == 0 || c.val.flight != nil {
			continue
		}
		f.turn(&c.val, now, c.fullHash(), c.key[:c.len])
		if c.val.lease.window == 0 || now >= c.val.lease.reset {
			c.val.gauges.set(nil, 0, 0, 0)
			f.finish(&c.val, c.fullHash(), c.key[:c.len])
			continue
		}
		idle := now.Sub(c.val.demand.lastUse) > idleAfter
		tell := idle && c.val.untold() || c.val.heard < forgot.Add(-sweepEvery)
		if tell {
			fl := f.newFlight(c.fullHash(), c.key[:c.len])
			fl.giveUp = idle
			f.launch(&c.val, fl)
		}
	}
}

// releaseAll returns everything that is unspent before the process ends.
func (f *Fleet) releaseAll() {
	var wg sync.WaitGroup
	for l, flights := range f.releases(f.clock()) {
		wg.Go(func() {
			for some := range slices.Chunk(flights, batchSize) {
				f.settle(l, some)
			}
		})
	}
	wg.Wait()
}

// releases are the flights that return everything that is unspent.
func (f *Fleet) releases(now instant) map[*lane][]*flight {
	all := map[*lane][]*flight{}
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		for j, tag := range s.leases.tags {
			c := &s.leases.cells[j]
			giveUp := func(ahead bool) {
				fl := f.newFlight(c.fullHash(), c.key[:c.len])
				fl.giveUp, fl.ahead = true, ahead
				c.val.flight = fl
				l := f.laneOf(fl.name)
				all[l] = append(all[l], fl)
			}
			if tag == 0 {
				continue
			}
			f.turn(&c.val, now, c.fullHash(), c.key[:c.len])
			if !c.val.settled && c.val.lease.window != 0 && now < c.val.lease.reset {
				giveUp(false)
			}
			if c.val.next != nil {
				giveUp(true)
			}
		}
		s.mu.Unlock()
	}
	return all
}
