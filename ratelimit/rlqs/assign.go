// Windows and leases of a session. After each message, acknowledgement or wake, work does what is due:
//
//	turn     windows that are over: what Envoys may still have is charged to the next (look)
//	simple   buckets without a budget: all, or nothing, or to be dropped
//	assign   the others: what there is (look), how much each gets (want), its charge (take), and the message (grant)
//
// Tokens are charged before an Envoy gets them. Only Holding decides when they may be credited.

package rlqs

import (
	"context"
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// demand is the charge that a bucket needs. 0 tokens are a grant of nothing, which needs no charge.
type demand struct {
	*bucket
	tokens tokens
}

// budget is what a bucket's limiter says that there is.
type budget struct {
	left   tokens
	ends   instant          // of the window
	window ratelimit.Window // its number; 0: it is not known, or a bucket's
	limit  *ratelimit.Limit // in force: that of the rule for requests of tokens, or an override of the key
}

// turned reports whether a window has begun since the last grant of a bucket, whose window was to end at ends. The end
// is known to within the jitter of answers: a change of more than half a window is more. A clock that is set ahead may
// begin another window that ends at nearly the same time.
func (x *budget) turned(b *bucket, ends instant) bool {
	return x.ends.Sub(ends) > sublease.WindowOf(&b.offer.rule.Limit)/2 || b.paid.window != 0 && x.window > b.paid.window
}

// work does the due work: ended windows, and leases for buckets that need one. Leases wait for the
// acknowledgement of the last answer, windows do not.
func (s *Session) work(ctx context.Context, now instant) {
	s.turn(ctx, now)
	// A second answer under way would make it unclear which grants an Envoy has.
	if s.Waiting() {
		return
	}
	want := s.scratch.want[:0]
	for _, b := range s.buckets {
		// A lease takes two actions: the first clears the rest of the bucket before. The rest stays due.
		if s.actions+2*len(want) >= mostActions {
			break
		}
		if b.due && s.simple(now, b) {
			want = append(want, b)
		}
	}
	s.scratch.want = want
	s.assign(ctx, now, want)
}

// simple does what needs no budget, and reports whether a lease may be needed.
func (s *Session) simple(now instant, b *bucket) (lease bool) {
	switch {
	case b.leaving != abandoned && b.offer.how == granted:
		return true
	case b.leaving == abandoned, b.holding.Idle() >= ForgottenAfter:
		b.leaving = abandoned
		s.abandon(b.subject.id)
		s.node.stats.Abandoned.Add(1)
	// A rule that lets all pass, or nothing, expires at the Envoy: it is repeated in the first report after half of
	// its time.
	case b.repeatedAt == 0 || now.Sub(b.repeatedAt) >= sublease.LongestTTL/2:
		s.allOrNothing(b.subject.id, b.offer.how == allowAll, sublease.LongestTTL)
		b.repeatedAt = now
	}
	b.due = false
	return false
}

// turn ends the windows that are over, and charges to the next ones what Envoys may still have of them. A bucket that
// can wait for its next report is not looked at. With thousands of silent buckets, each turn would cost a call of the
// limiter for all of them.
func (s *Session) turn(ctx context.Context, now instant) {
	var over []*bucket
	for _, b := range s.buckets {
		switch at := s.turnOf(b); {
		case at == 0 || now < at:
		case b.canWait(now):
			b.windowEnd = 0
		default:
			over = append(over, b)
		}
	}
	budgets := s.look(ctx, now, over)
	for i, b := range over {
		// A bucket that is silent gets its next lease when it reports, not at each turn.
		b.due = b.due || !b.holding.Silent(now) && b.leaving == staying
		b.windowEnd = budgets[i].ends.Add(turnLag)
	}
}

// turnOf is when a bucket's window is due; 0: it has none. The windows of all streams of a node end at once.
// Ten thousand requests for leases in the same moment would keep calls of RLS waiting, so they take turns.
// Charges to the next window are made without delay.
func (s *Session) turnOf(b *bucket) instant {
	if b.windowEnd == 0 || b.refills() || b.holding.Crossing() > 0 {
		return b.windowEnd
	}
	all := min(time.Duration(s.node.stats.Streams.Load())*turnEach, longestTurn)
	return b.windowEnd.Add(time.Duration(s.phase * float64(all)))
}

// look asks what there is of the buckets' budgets, and enters windows that have begun. The budgets are those of before
// the charges for what is carried.
func (s *Session) look(ctx context.Context, now instant, of []*bucket) []budget {
	budgets := s.budgets(ctx, now, of)
	var carried []demand
	for i, b := range of {
		if ends := b.holding.Ends(); ends != 0 && budgets[i].turned(b, ends) {
			// Undo does not reach into the window before.
			b.paid = payment{}
			carry := b.holding.Turn(now, budgets[i].ends)
			s.node.stats.Carried.Add(uint64(carry))
			carried = append(carried, demand{b, carry})
		}
	}
	// What Envoys may still have of the old window they may spend in the new one.
	s.charge(ctx, now, carried)
	return budgets
}

// budgets are what there is of the buckets' budgets, until it is called again.
func (s *Session) budgets(ctx context.Context, now instant, of []*bucket) []budget {
	x := s.scratch
	x.budgets = sized(x.budgets, len(of))
	x.reset()
	for i, b := range of {
		if b.refills() {
			x.budgets[i] = b.refilling(now)
		} else {
			x.ask(i, b.ask(ratelimit.Peek, 0))
		}
	}
	if len(x.asks) == 0 {
		return x.budgets
	}
	x.verdicts = sized(x.verdicts, len(x.asks))
	s.node.source.Limiter.Decide(ctx, now, x.asks, x.verdicts)
	for k, i := range x.of {
		x.budgets[i] = s.windowed(now, of[i], &x.verdicts[k])
	}
	return x.budgets
}

// refilling is the level of a token_bucket, without a call of its limiter. The rest at its last answer, and
// the rate of refill, are known, and a claim for each look would cost a ledger more than the leases do. A
// limiter with less refuses with its level (take).
func (b *bucket) refilling(now instant) budget {
	ends := b.holding.Ends()
	if now >= ends { // or it has none yet
		ends = now.Add(sublease.BucketWindow)
	}
	left, limit := b.pool.level(now, &b.offer.asking.Limit)
	return budget{left: left, ends: ends, limit: limit}
}

// windowed is what a verdict says. The wall clock says when the window ends without a ledger, and in debt of a sliding
// window: its verdict has the time until that is paid. Without a ledger, only a claim can tell what there is.
func (s *Session) windowed(now instant, b *bucket, v *ratelimit.Verdict) budget {
	l := &b.offer.asking.Limit
	// The usual case is a ledger that answered: its window ends at its clock, which others share.
	owes := v.OverLimit && l.Algorithm == ratelimit.SlidingWindow
	if v.Source != ratelimit.FromFallback && v.ResetAfter > 0 && !owes {
		return budget{v.Remaining, now.Add(v.ResetAfter), v.Window, v.InForce(b.offer.asking)}
	}
	at := ratelimit.LedgerTime(s.node.source.Wall().UnixMicro())
	// Without the ledger the rest is unknown. A node then has its share of the limit, or under open all of it.
	left := b.offer.rule.LocalShare(0).Limit.Capacity()
	switch {
	case owes:
		left = 0
	case b.offer.rule.Coordination.OnStoreFailure == ratelimit.FailOpen:
		left = l.Capacity()
	}
	return budget{left: left, ends: now.Add(l.WindowEnd(l.WindowAt(at)).Sub(at)), limit: l}
}

// assign grants leases to buckets that need one. The budgets of all are asked in one call of the limiter, and their
// demands charged in another.
func (s *Session) assign(ctx context.Context, now instant, of []*bucket) {
	budgets := s.look(ctx, now, of)
	demands, ends := s.scratch.demands[:0], s.scratch.ends[:0]
	for i, b := range of {
		b.windowEnd = budgets[i].ends.Add(turnLag)
		if sublease.TTL(now, budgets[i].ends) == 0 {
			continue // not one whole second: it stays due until the next window
		}
		b.due = false
		b.exactly(&budgets[i])
		if n, wanted := s.want(now, b, budgets[i]); wanted {
			demands, ends = append(demands, demand{b, n}), append(ends, budgets[i].ends)
		}
	}
	s.scratch.demands, s.scratch.ends = demands, ends
	for i, got := range s.take(ctx, now, demands) {
		s.grant(now, demands[i], ends[i], got)
	}
}

// want is the size of a bucket's next lease. A bucket that is to be dropped goes through leaving first: DENY_ALL, its
// acknowledgement and a report after that, then the abandonment.
func (s *Session) want(now instant, b *bucket, of budget) (n tokens, wanted bool) {
	switch {
	// Its Envoy has applied DENY_ALL, and has no tokens of earlier leases: now it may drop the bucket.
	case b.leaving == silenced && b.holding.Settled():
		b.leaving, b.due = abandoned, true
		return 0, false
	// If a window's turn came between, the Envoy's tokens of the one before are unknown.
	case b.leaving == silenced:
		return 0, !b.holding.Granted()
	// A grant of 0 is sent first, so that the Envoy cannot spend its rest after the bucket is dropped.
	case b.holding.Idle() >= b.idleAfter() && b.holding.Settled():
		b.leaving = silenced
		return 0, true
	}
	// The rest is divided among the streams of this node, by their needs. Other nodes have leases of their own at the
	// ledger.
	holders, perSec := b.pool.sums()
	asking := *b.offer.asking
	asking.Limit = *of.limit
	return b.holding.Want(now, of.ends, sublease.Budget{
		Limit: of.limit.Capacity(), Left: of.left, Holders: holders, PerSecond: perSec,
		// Envoy's buckets are counted in 32 bits.
		Largest: min(asking.LargestLease(), math.MaxUint32),
		Refills: b.refills(), Refill: sublease.RefilledIn(of.limit, sublease.BucketWindow),
	})
}

// grant sends the taken tokens. If they are no more than the Envoy has already, though it needed more, they
// would not help, and are given back.
func (s *Session) grant(now instant, d demand, ends instant, got tokens) {
	b, h := d.bucket, &d.holding
	has := h.Likely()
	if b.refills() {
		has = h.InUse()
	}
	switch {
	case got == 0 && b.leaving != silenced && !h.Deniable():
		return
	// A new lease replaces the bucket that the Envoy has, and would lower it.
	case got > 0 && d.tokens > has && got <= has:
		s.credit(now, b, got)
		return
	}
	// Its message is the next answer: only one is under way, and that is acknowledged (work).
	ttl := sublease.TTL(now, ends)
	// Without this first action Envoy would scale the rest of the bucket before, or keep it (see the package's doc).
	s.allOrNothing(b.subject.id, nothing, denial(now, ends))
	if got > 0 {
		s.oneShot(b.subject.id, got, ttl)
		s.node.stats.Assignments.Add(1)
		s.node.stats.Granted.Add(uint64(got))
	}
	h.Grant(now, ends, got, ttl, s.sent+1)
	b.show(s.node)
}

// denial is how long nothing is to pass where nothing is left: until the window ends.
func denial(now, ends instant) time.Duration {
	// Envoys reckon in whole seconds. Rounded up, nothing passes before the window has ended.
	return (ends.Sub(now) + time.Second).Truncate(time.Second)
}

// take charges the available part of the demand, and returns the part of each, until it is called again. A demand that
// is refused is charged the rest instead, so that the last tokens are used.
func (s *Session) take(ctx context.Context, now instant, of []demand) []tokens {
	x := s.scratch
	x.got = sized(x.got, len(of))
	x.reset()
	for i, d := range of {
		if d.tokens > 0 {
			x.ask(i, d.ask(ratelimit.Spend, d.tokens))
		}
	}
	s.node.spend(ctx, now, x, func(i int, v *ratelimit.Verdict) {
		of[i].observe(now, v)
		if !v.OverLimit {
			x.got[i] = v.Charged
			of[i].pay(v)
		}
	})
	return x.got
}

// spend decides the asks of x, and once more those for less that were refused with a rest: their rule refunds denials,
// so that a refusal has taken nothing. use gets each verdict, with whose it is; of one ask, it may be called twice. The
// second call can be refused as well, where others took the rest.
func (n *Node) spend(ctx context.Context, now instant, x *scratch, use func(of int, v *ratelimit.Verdict)) {
	for range 2 {
		if len(x.asks) == 0 {
			return
		}
		x.verdicts = sized(x.verdicts, len(x.asks))
		n.source.Limiter.Decide(ctx, now, x.asks, x.verdicts)
		again := 0
		for k, i := range x.of {
			v, a := &x.verdicts[k], x.asks[k]
			use(i, v)
			// Less in any case, for the same amount would be refused again.
			a.Cost = min(v.Remaining, a.Cost-1)
			if v.OverLimit && a.Cost > 0 {
				x.asks[again], x.of[again] = a, i
				again++
			}
		}
		x.asks, x.of = x.asks[:again], x.of[:again]
	}
}

// observe records the rest by a verdict.
func (b *bucket) observe(now instant, v *ratelimit.Verdict) {
	if b.refills() && v.Source != ratelimit.FromFallback {
		b.pool.observe(now, v)
	}
}

// pay records a charge, so that it can be given back. Admissions by on_store_failure are not recorded: their
// account is unknown.
func (b *bucket) pay(v *ratelimit.Verdict) {
	if v.Source == ratelimit.FromFallback {
		return
	}
	// Only charges of one window can be given back together.
	if v.Window != b.paid.window {
		b.paid.tokens = 0
	}
	b.paid = payment{b.paid.tokens + v.Charged, v.Window, v.Source}
}

// charge charges what Envoys have, as far as there is so much: only that can be credited later.
func (s *Session) charge(ctx context.Context, now instant, of []demand) {
	for i, got := range s.take(ctx, now, of) {
		of[i].holding.Charge(got)
		s.node.stats.Uncovered.Add(uint64(of[i].tokens - got))
	}
}
