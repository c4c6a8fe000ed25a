package rlqs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

const (
	// IdleAfter is the time without requests after which an Envoy must drop a bucket, if less than a quarter
	// of its budget is left.
	IdleAfter = 30 * time.Second
	// ForgottenAfter is the same while more is left. Dropping a bucket earlier would save a few hundred
	// bytes, and refuse the first request of quiet Envoys each time.
	ForgottenAfter = 5 * time.Minute
	// StuckAfter is how long an Envoy may take to acknowledge an answer.
	StuckAfter = 10 * time.Second
	// turnLag is the time after a window's known end at which the next is requested.
	turnLag = 5 * time.Millisecond
	// turnEach is the delay of each stream's claim after the previous one, and longestTurn bounds the sum: all
	// streams report within it, and then need no claim. Ten thousand streams that claim within it are as many a
	// second as those that report at any time. In less time they would keep the processors busy for more than
	// one second in a hundred, which delays one call of RLS in a hundred.
	turnEach    = 500 * time.Microsecond
	longestTurn = sublease.ReportEvery
	// reportsATurn are handled before other goroutines have their turn: a message may have thousands.
	reportsATurn = 64
)

// Session is one stream, driven from outside. Its driver calls Reports, Acked and Wake, sends the result of
// Answer after each, and ends with Close. It has no goroutine and reads no clock. Reports, Acked and Wake
// block while the limiter decides (ratelimit.StoreDeadline, a few times). It is not safe for concurrent use.
type Session struct {
	// Name is what people are shown of the Envoy. It may be set before the first call.
	Name string
	// Waited is for how long the message of the next Reports may have been at this node.
	Waited time.Duration
	node   *Node
	// phase is the session's place among all streams when a window turns, from 0 to 1: they take turns (turnOf).
	phase  float64
	domain string
	// rules are those in force at the last message. Buckets are served anew by the next message after a change.
	rules *config.Rules
	// generation counts these, so that a bucket shows whether it was served by them.
	generation uint32
	// buckets are sorted by the canonical name of their subject, for placeOf.
	buckets []*bucket
	// next is the next answer, to be sent once the last one is acknowledged, and actions how many it has. While
	// something is handled, it is in scratch.next.
	next    []byte
	actions int
	// sent and acked count answers. Invariant: acked is at most sent, which is at most one more.
	sent, acked uint64
	sentAt      instant
	scratch     *scratch // while something is handled
}

// NewSession makes a session of a stream that has just begun.
func (n *Node) NewSession() *Session {
	// Multiples of the golden ratio lie evenly, however many there are.
	_, place := math.Modf(float64(n.sessions.Add(1)) / math.Phi)
	return &Session{node: n, phase: place}
}

// BadReportError is the fault of an Envoy's message, which ends its stream.
type BadReportError struct{ message string }

// Error says it.
func (e *BadReportError) Error() string { return e.message }

func bad(format string, args ...any) error {
	return &BadReportError{ratelimit.OneLine(fmt.Sprintf(format, args...))}
}

var errNoRules = errors.New("no rate limit configuration loaded")

// Reports handles a message, a RateLimitQuotaUsageReports, which is not kept. An error ends the stream: a
// *BadReportError is the caller's; otherwise there are no rules yet.
//
// The steps: the domain, which is that of the stream; each report (reported), in the order of the message; and what is
// due (work). Usage without a grant is charged meanwhile. A message with a mistake is handled up to that.
func (s *Session) Reports(ctx context.Context, now ratelimit.Instant, message []byte) error {
	rules := s.node.source.Rules()
	// Without rules each bucket would look as if nothing limited it, and be let through.
	if rules == nil {
		return errNoRules
	}
	domain, err := domainOf(message)
	switch {
	case err != nil:
		return err
	// The first message names the domain of the stream, and later ones may leave it out.
	case s.domain == "" && domain == "":
		return bad("the first message of a stream must name its domain")
	case s.domain == "" && len(domain) > s.node.options.BucketBytes:
		return bad("the domain has %d bytes, and the maximum is %d", len(domain), s.node.options.BucketBytes)
	case s.domain == "":
		s.domain = strings.Clone(domain)
	case domain != "" && domain != s.domain:
		return bad("a stream of domain %q reports for domain %q: a stream has one", s.domain, domain)
	}
	s.begin()
	defer s.end()
	if s.rules != rules {
		s.rules = rules
		s.generation++
	}
	of := rules.Domain(s.domain)
	excess := s.scratch.excess[:0]
	err = eachReport(message, &s.scratch.report, func(r *report) error {
		b, over, err := s.reported(now, of, r)
		// Requests that passed without a grant are charged all the same, because they count against the limit.
		if over > 0 {
			excess = append(excess, demand{b, over})
		}
		// A call of the limiter may wait for the ledger. Its work grows with the square of its asks.
		if len(excess) == mostActions {
			s.charge(ctx, now, excess)
			excess = excess[:0]
		}
		return err
	})
	s.scratch.excess = excess
	// What comes before a mistake was admitted all the same.
	s.charge(ctx, now, excess)
	if err == nil {
		s.work(ctx, now)
	}
	return err
}

// reported handles one report of a message, and returns the usage without a possible grant. b is nil for a bucket that
// is refused, or is being dropped.
func (s *Session) reported(now instant, domain *config.Domain, r *report) (b *bucket, excess tokens, err error) {
	b, err = s.bucket(r)
	if err != nil {
		return nil, 0, err
	}
	if s.node.stats.Reports.Add(1)%reportsATurn == 0 {
		runtime.Gosched()
	}
	// An abandoned bucket's Envoy may have reported before it read the abandonment. It has been
	// told to let nothing pass, so that there is nothing to grant.
	if b == nil || b.leaving == abandoned {
		return nil, 0, nil
	}
	// The rules may have changed since the last report, and with them how the bucket is served.
	b.serve(s.node, s.rules, domain)
	// serve has found that its rule is gone.
	if b.leaving == abandoned {
		return nil, 0, nil
	}
	return b, s.report(now, b, r.Usage), nil
}

// bucket finds a bucket, or subscribes to it; nil: the stream or the node has as many as it may. Then its Envoy gets
// DENY_ALL, or with SHADOW_MODE ALLOW_ALL, for a minute, and must drop the bucket when it is idle. An error is of a
// BucketId out of bounds.
func (s *Session) bucket(r *report) (*bucket, error) {
	name := appendName(s.scratch.name[:0], r.id())
	s.scratch.name = name
	at, found := s.placeOf(name)
	if found && !r.more {
		return s.buckets[at], nil
	}
	// What a stream has subscribed to was within the bounds then.
	if err := r.measure(&s.node.options); err != nil {
		return nil, err
	}
	var x *subject
	if len(s.buckets) < s.node.options.Buckets {
		x = s.node.subscribe(name, r.id())
	}
	if x == nil {
		s.node.stats.Refused.Add(1)
		// An Envoy that repeats a refused bucket must not make the next answer longer without a bound.
		switch id := appendID(nil, r.id()); {
		case s.actions >= mostActions || len(s.scratch.next) >= mostRefusals:
		// Its Envoy reports all of its buckets in one message, which must not grow without a bound either.
		case r.Allowed+r.Denied == 0:
			s.abandon(id)
		default:
			s.allOrNothing(id, passes(s.node.source.ShadowMode), sublease.LongestTTL)
		}
		return nil, nil
	}
	b := &bucket{of: s, subject: x}
	s.buckets = slices.Insert(s.buckets, at, b)
	s.node.stats.Buckets.Add(1)
	return b, nil
}

// report handles one bucket's report, and returns the usage without a possible grant.
func (s *Session) report(now instant, b *bucket, u sublease.Usage) (excess tokens) {
	n := s.node
	n.stats.Allowed.Add(uint64(u.Allowed))
	n.stats.Denied.Add(uint64(u.Denied))
	b.count(u)
	// The need for another lease follows from the ledger's next answer (work).
	b.due = true
	u.Waited = s.Waited
	o := b.holding.Report(now, u)
	// Nothing was granted for this bucket, so that nothing can be proven dead or be in excess.
	if b.offer.how != granted {
		// A rule of 0 denies by intent. Others are denied because they cannot be served so, which
		// an operator should see.
		if b.offer.how == denyAll && b.offer.rule.Limit.Requests > 0 {
			n.stats.Unserved.Add(1)
		}
		return 0
	}
	if o.Lost {
		n.stats.LostReports.Add(1)
	}
	if b.refills() {
		n.stats.Forgone.Add(uint64(o.Credit))
	} else {
		s.credit(now, b, o.Credit)
	}
	// Requests have come again, so that the bucket is not idle any more.
	if u.Allowed+u.Denied > 0 {
		b.leaving = staying
	}
	b.show(n)
	n.stats.Excess.Add(uint64(o.Excess))
	return o.Excess
}

// credit gives back tokens that are proven dead, by an Undo of their charge. At most the charges of the present window:
// those of an earlier one ended with it.
func (s *Session) credit(now instant, b *bucket, c tokens) {
	c = min(c, b.paid.tokens)
	if c <= 0 {
		return
	}
	b.paid.tokens -= c
	ask := b.ask(ratelimit.Spend, c)
	s.node.source.Limiter.Undo(now, []ratelimit.Ask{ask}, []ratelimit.Verdict{b.paid.verdict(c)})
	s.node.stats.Credited.Add(uint64(c))
}

// Acked records that the Envoy has received all answers up to one, counted from 1. Buckets that it must drop are
// dropped here: it has read that. Then the next answer may go out.
func (s *Session) Acked(ctx context.Context, now ratelimit.Instant, upto uint64) {
	// Only sent answers can have been acknowledged, and acknowledgements may repeat themselves.
	upto = min(upto, s.sent)
	if upto <= s.acked {
		return
	}
	s.begin()
	defer s.end()
	s.acked = upto
	s.buckets = slices.DeleteFunc(s.buckets, func(b *bucket) bool {
		b.holding.Acked(now, upto)
		// The Envoy has read that it must drop the bucket. A due bucket has not been sent yet.
		dropped := b.leaving == abandoned && !b.due
		if dropped {
			b.quit(s.node)
			s.node.release(b.subject)
		}
		return dropped
	})
	s.work(ctx, now)
}

// Wake records that Next has come. Then a window has ended, or the Envoy is stuck, which the driver asks first.
func (s *Session) Wake(ctx context.Context, now ratelimit.Instant) {
	s.begin()
	defer s.end()
	s.work(ctx, now)
}

// Next is when Wake is due at the latest; 0: there is nothing to wake up for. It visits all buckets.
func (s *Session) Next() ratelimit.Instant {
	var next instant
	sooner := func(t instant) {
		if t > 0 && (next == 0 || t < next) {
			next = t
		}
	}
	for _, b := range s.buckets {
		sooner(s.turnOf(b))
	}
	// An answer that is not acknowledged ends the stream in time.
	if s.Waiting() {
		sooner(s.sentAt.Add(StuckAfter))
	}
	return next
}

// Waiting reports whether the last answer has not been acknowledged.
func (s *Session) Waiting() bool { return s.acked < s.sent }

// Stuck reports whether the Envoy does not read its answers, which ends its stream.
func (s *Session) Stuck(now ratelimit.Instant) bool {
	return s.Waiting() && now >= s.sentAt.Add(StuckAfter)
}

// Answer is what to send now, a RateLimitQuotaResponse, which is the caller's; nil: nothing, or
// the last answer is not acknowledged yet.
func (s *Session) Answer(now ratelimit.Instant) []byte {
	// One answer at a time is under way, so that an acknowledgement says which grants have arrived.
	if s.Waiting() || s.actions == 0 {
		return nil
	}
	m := s.next
	s.next, s.actions = nil, 0
	s.sent++
	s.sentAt = now
	s.node.stats.Messages.Add(1)
	return m
}

// Debt is a correction of a budget that is due some time after the end of a stream.
type Debt struct {
	At     ratelimit.Instant
	ask    ratelimit.Ask
	refund *ratelimit.Verdict // to be undone; nil: the ask is to be charged
}

// Close handles the end of the stream. The grants of its Envoy stay charged in their window. The debts are the tokens
// that it may spend in the next window, and with reclaim those that it cannot spend any more.
func (s *Session) Close(now ratelimit.Instant) (debts []Debt) {
	for _, b := range s.buckets {
		if b.offer.how == granted {
			debts = append(debts, b.debts(now)...)
		}
		b.quit(s.node)
		s.node.release(b.subject)
	}
	s.buckets = nil
	return debts
}

// debts are the corrections of a bucket whose stream has ended. What its Envoy may spend in the next window is charged
// there. With reclaim, what it cannot spend any more is given back in this one.
func (b *bucket) debts(now instant) (debts []Debt) {
	crossing, unspent, expires := b.holding.Leave(now)
	ends, back := b.holding.Ends(), expires.Add(keepalive)
	if crossing > 0 {
		// A moment after the window's end, which is known to within a little.
		debts = append(debts, Debt{At: ends.Add(sublease.Slack), ask: b.ask(ratelimit.Spend, crossing)})
	}
	// Without reclaim the tokens stay charged until the window ends. With it they are given back, but not before the
	// Envoy's lease has certainly expired. What comes back with time is not given back (sublease.Refills).
	give := min(unspent, b.paid.tokens)
	if give > 0 && b.offer.rule.Reclaims() && back < ends {
		v := b.paid.verdict(give)
		debts = append(debts, Debt{At: back, ask: b.ask(ratelimit.Spend, give), refund: &v})
	}
	return debts
}

// keepalive is how long a connection may be silent before it counts as dead: messages under way on a dead one are lost.
const keepalive = 80 * time.Second

// Settle books debts. What others have spent is counted. It blocks while the limiter decides. A refund whose window has
// ended meanwhile has no effect.
func (n *Node) Settle(ctx context.Context, now ratelimit.Instant, due []*Debt) {
	x, left := new(scratch), tokens(0)
	for i, d := range due {
		if d.refund != nil {
			n.source.Limiter.Undo(now, []ratelimit.Ask{d.ask}, []ratelimit.Verdict{*d.refund})
			n.stats.Credited.Add(uint64(d.ask.Cost))
			continue
		}
		n.stats.Carried.Add(uint64(d.ask.Cost))
		left += d.ask.Cost
		x.ask(i, d.ask)
	}
	n.spend(ctx, now, x, func(_ int, v *ratelimit.Verdict) { left -= v.Charged }) // of a refusal nothing
	n.stats.Uncovered.Add(uint64(max(0, left)))
}
