package envoy

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Quirks are differences between Envoy's filter and the protocol that some Envoy may mend.
type Quirks struct {
	// ScalesChanged starts a bucket that differs from the one before at
	// max_new * remaining/max_old, instead of full.
	ScalesChanged bool
	// ComparesLittle sees a change of a bucket only in max_tokens, tokens_per_fill and the
	// nanoseconds of fill_interval.
	ComparesLittle bool
	// WholeSecondTTL takes only the whole seconds of assignment_time_to_live.
	WholeSecondTTL bool
	// LosesReports drops counts while there is no stream to report them on.
	LosesReports bool
	// WholeSecondElapsed tells only the whole seconds of time_elapsed.
	WholeSecondElapsed bool
}

// Stock is what Envoy 1.40 does.
func Stock() Quirks { return Quirks{true, true, true, true, true} }

// Interval is how often Envoy reports.
const Interval = 5 * time.Second

// Wire is a client's connection to a server. Open reports whether a stream is open, or is being opened.
// Messages on a stream that breaks are lost. Neither blocks.
type Wire interface {
	Open() bool
	Send(*rlqs.RateLimitQuotaUsageReports)
}

// Client is one Envoy and one domain. It is not safe for concurrent use.
type Client struct {
	domain  string
	quirks  Quirks
	wire    Wire
	buckets map[string]*bucket
	order   []string
	stream  bool
	report  ratelimit.Instant // when the next reports are due; 0: nothing is reported yet
}

// bucket is one that the client has subscribed to. The counts are those since the last report, which started at since.
type bucket struct {
	id              *rlqs.BucketId
	allowed, denied uint64
	since           ratelimit.Instant
	active          *assignment // nil: no request is allowed (no_assignment_behavior)
}

// assignment is the one in force.
type assignment struct {
	tokens  *tokenBucket // nil: all requests are allowed, or none
	allows  bool
	expires ratelimit.Instant
}

// New makes a client without buckets, which has no stream until the first request.
func New(domain string, q Quirks, w Wire) *Client {
	return &Client{domain: domain, quirks: q, wire: w, buckets: map[string]*bucket{}}
}

// Request decides on a request. The first of a bucket subscribes to it, at once. The first request is refused and
// reported as denied: a bucket without an assignment allows none.
func (c *Client) Request(now ratelimit.Instant, id map[string]string) (allowed bool) {
	name := NameOf(id)
	b := c.buckets[name]
	if b == nil {
		b = &bucket{id: &rlqs.BucketId{Bucket: maps.Clone(id)}, since: now, denied: 1}
		c.buckets[name] = b
		c.order = append(c.order, name)
		if c.report == 0 {
			c.report = now.Add(Interval)
			c.open()
		}
		c.send(c.usages(now, []*bucket{b}))
		return false
	}
	if a := b.active; a != nil {
		allowed = a.allows || a.tokens != nil && a.tokens.take(now)
	}
	if allowed {
		b.allowed++
	} else {
		b.denied++
	}
	return allowed
}

// Broken records that the stream has ended.
func (c *Client) Broken() { c.stream = false }

func (c *Client) open() {
	if !c.stream {
		c.stream = c.wire.Open()
	}
}

func (c *Client) send(usages []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage) {
	if c.stream && len(usages) > 0 {
		c.wire.Send(&rlqs.RateLimitQuotaUsageReports{Domain: c.domain, BucketQuotaUsages: usages})
	}
}

// usages reads the counts, and starts them anew. With LosesReports, counts start anew although there is no stream to
// send them on.
func (c *Client) usages(now ratelimit.Instant, of []*bucket) (all []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage) {
	if !c.stream && !c.quirks.LosesReports {
		return nil
	}
	for _, b := range of {
		elapsed := now.Sub(b.since)
		if c.quirks.WholeSecondElapsed {
			elapsed = elapsed.Truncate(time.Second)
		}
		all = append(all, &rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: b.id, TimeElapsed: durationpb.New(elapsed), NumRequestsAllowed: b.allowed, NumRequestsDenied: b.denied,
		})
		b.allowed, b.denied, b.since = 0, 0, now
	}
	return all
}

// Next is when Tick is due; 0: there is nothing to wait for.
func (c *Client) Next() ratelimit.Instant {
	next := c.report
	for _, b := range c.buckets {
		if a := b.active; a != nil && a.expires < next {
			next = a.expires
		}
	}
	return next
}

// Tick does the due work: expired assignments end, and buckets are reported. Stock Envoy reads the counts before it
// opens a new stream, so those of the time without one are lost. A mended one opens the stream first.
func (c *Client) Tick(now ratelimit.Instant) {
	for _, name := range c.order {
		if b := c.buckets[name]; b.active != nil && now >= b.active.expires {
			b.active = nil
		}
	}
	if c.report == 0 || now < c.report {
		return
	}
	c.report = now.Add(Interval)
	var all []*bucket
	for _, name := range c.order {
		all = append(all, c.buckets[name])
	}
	if !c.quirks.LosesReports {
		c.open()
	}
	usages := c.usages(now, all)
	c.open()
	c.send(usages)
}

// Receive handles a message of the server's, action by action.
func (c *Client) Receive(now ratelimit.Instant, m *rlqs.RateLimitQuotaResponse) {
	for _, a := range m.GetBucketAction() {
		name := NameOf(a.GetBucketId().GetBucket())
		b := c.buckets[name]
		if b == nil {
			continue // it never subscribed to this bucket, or had to abandon it
		}
		switch x := a.GetBucketAction().(type) {
		case *rlqs.RateLimitQuotaResponse_BucketAction_AbandonAction_:
			delete(c.buckets, name)
			c.order = slices.DeleteFunc(c.order, func(s string) bool { return s == name })
		case *rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_:
			c.assign(now, b, x.QuotaAssignmentAction)
		}
	}
}

func (c *Client) assign(now ratelimit.Instant, b *bucket, x *rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction) {
	a := &assignment{}
	switch s := x.GetRateLimitStrategy().GetStrategy().(type) {
	case *typev3.RateLimitStrategy_TokenBucket:
		a.tokens = c.tokens(now, s.TokenBucket, b)
	case *typev3.RateLimitStrategy_BlanketRule_:
		a.allows = s.BlanketRule == typev3.RateLimitStrategy_ALLOW_ALL
	default:
		return
	}
	ttl := x.GetAssignmentTimeToLive().AsDuration()
	if c.quirks.WholeSecondTTL {
		ttl = ttl.Truncate(time.Second)
	}
	a.expires = now.Add(ttl)
	b.active = a
}

// NameOf is the name of a bucket at a client: its id as a text.
func NameOf(id map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(id)) {
		b.WriteString(k + "\x00" + id[k] + "\x00")
	}
	return b.String()
}

// Live is the number of requests that the bucket of a name (NameOf) would pass now, if its timers are checked;
// MaxTokens: any number.
func (c *Client) Live(now ratelimit.Instant, name string) ratelimit.Tokens {
	b := c.buckets[name]
	switch {
	case b == nil || b.active == nil || now >= b.active.expires:
		return 0
	case b.active.allows:
		return ratelimit.MaxTokens
	case b.active.tokens == nil:
		return 0
	}
	b.active.tokens.fill(now)
	return ratelimit.Tokens(b.active.tokens.level)
}

// tokenBucket is a bucket in force.
type tokenBucket struct {
	of         shape
	max, level float64
	perSec     float64 // +Inf: it is always full
	at         ratelimit.Instant
}

// shape is how a bucket is assigned.
type shape struct {
	max, fill uint32
	interval  time.Duration
}

func (b *tokenBucket) take(now ratelimit.Instant) bool {
	b.fill(now)
	if b.level < 1 {
		return false
	}
	b.level--
	return true
}

func (b *tokenBucket) fill(now ratelimit.Instant) {
	if added := b.perSec * now.Sub(b.at).Seconds(); !math.IsNaN(added) { // 0 seconds of +Inf
		b.level = min(b.max, b.level+added)
	}
	if math.IsInf(b.perSec, 1) {
		b.level = b.max
	}
	b.at = now
}

// tokens is the bucket of an assignment: the one before, if nothing has changed. Of fill_interval only the whole
// seconds count, and less than one is a division by zero.
func (c *Client) tokens(now ratelimit.Instant, s *typev3.TokenBucket, b *bucket) *tokenBucket {
	fill := uint32(1)
	if n := s.GetTokensPerFill(); n != nil {
		fill = n.GetValue()
	}
	of := shape{s.GetMaxTokens(), fill, s.GetFillInterval().AsDuration()}
	t := &tokenBucket{
		of: of, max: float64(of.max), level: float64(of.max), perSec: float64(fill) / math.Trunc(of.interval.Seconds()), at: now,
	}
	if b.active == nil || b.active.tokens == nil {
		return t
	}
	was := b.active.tokens
	if c.same(was.of, of) {
		return was
	}
	if c.quirks.ScalesChanged {
		was.fill(now)
		if was.max > 0 {
			t.level = math.Floor(t.max * was.level / was.max)
		}
	}
	return t
}

func (c *Client) same(a, b shape) bool {
	if c.quirks.ComparesLittle {
		return a.max == b.max && a.fill == b.fill && a.interval%time.Second == b.interval%time.Second
	}
	return a == b
}
