package envoy

import (
	"maps"
	"slices"
	"strings"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Quirks are differences between Envoy's filter and the protocol.
type Quirks struct {
	// FixedInterval reports every 5 s, whatever reporting_interval says.
	FixedInterval bool
	// DropsPerTimeUnit ignores an assignment of requests_per_time_unit.
	DropsPerTimeUnit bool
	// DropsNoStrategy ignores an assignment without a strategy, instead of allowing all.
	DropsNoStrategy bool
	// ScalesChanged starts a bucket that differs from the one before at
	// max_new * remaining/max_old, instead of full.
	ScalesChanged bool
	// WholeSecondFill takes only the whole seconds of fill_interval; less than one is a
	// division by zero: the bucket is always full.
	WholeSecondFill bool
	// ComparesLittle sees a change of a bucket only in max_tokens, tokens_per_fill and the
	// nanoseconds of fill_interval.
	ComparesLittle bool
	// WholeSecondTTL takes only the whole seconds of assignment_time_to_live.
	WholeSecondTTL bool
	// UnsetTTLExpires has an assignment without a TTL expire at once, instead of never.
	UnsetTTLExpires bool
	// IgnoresReuse falls back to no_assignment_behavior where expired_assignment_behavior
	// is reuse_last_assignment.
	IgnoresReuse bool
	// LosesReports drops counts while there is no stream to report them on.
	LosesReports bool
	// WholeSecondElapsed tells only the whole seconds of time_elapsed.
	WholeSecondElapsed bool
}

// Stock is what Envoy 1.40 does.
func Stock() Quirks {
	return Quirks{true, true, true, true, true, true, true, true, true, true, true}
}

// Behavior is what to do without an assignment.
type Behavior uint8

// The behaviors.
const (
	Deny Behavior = iota
	Allow
	Reuse // for Expired only: go on with the last assignment
)

// Options are the filter's settings.
type Options struct {
	Domain   string
	Interval time.Duration // reporting_interval; 0: StockInterval
	New      Behavior      // no_assignment_behavior
	Expired  Behavior      // expired_assignment_behavior
	// ExpiredFor is expired_assignment_behavior_timeout; 0: there is no such behavior,
	// and an expired assignment is as none.
	ExpiredFor time.Duration
	Quirks     Quirks
}

// StockInterval is how often stock Envoy reports.
const StockInterval = 5 * time.Second

// Wire is a client's connection to a server. Open reports whether a stream is open, or is being opened.
// Messages on a stream that breaks are lost. Neither blocks.
type Wire interface {
	Open() bool
	Send(*rlqs.RateLimitQuotaUsageReports)
}

// Client is one Envoy and one domain. It is not safe for concurrent use.
type Client struct {
	Options
	wire    Wire
	buckets map[string]*bucket
	order   []string
	stream  bool
	report  ratelimit.Instant // when the next reports are due; 0: nothing is reported yet
	opened  int
}

type bucket struct {
	id              *rlqs.BucketId
	allowed, denied uint64
	since           ratelimit.Instant
	active          *assignment // nil: no_assignment_behavior
	lapsed          bool        // active is what is used after it has expired
}

// assignment is what is in force.
type assignment struct {
	strategy *typev3.RateLimitStrategy // nil: all is allowed
	tokens   *tokenBucket              // of a strategy that has one
	expires  ratelimit.Instant         // 0: never
}

// New makes a client without buckets, which has no stream until the first request.
func New(o Options, w Wire) *Client {
	if o.Interval == 0 || o.Quirks.FixedInterval {
		o.Interval = StockInterval
	}
	return &Client{Options: o, wire: w, buckets: map[string]*bucket{}}
}

// Opened is how many streams it has opened.
func (c *Client) Opened() int { return c.opened }

// Connected tells whether it has a stream.
func (c *Client) Connected() bool { return c.stream }

// Request decides on a request. The first of a bucket subscribes to it, at once.
func (c *Client) Request(now ratelimit.Instant, id map[string]string) (allowed bool) {
	name := nameOf(id)
	b := c.buckets[name]
	if b == nil {
		allowed = c.New == Allow
		b = &bucket{id: &rlqs.BucketId{Bucket: maps.Clone(id)}, since: now}
		b.count(allowed)
		c.buckets[name] = b
		c.order = append(c.order, name)
		if c.report == 0 {
			c.report = now.Add(c.Interval)
			c.open()
		}
		c.send(c.usages(now, []*bucket{b}))
		return allowed
	}
	allowed = c.decide(now, b)
	b.count(allowed)
	return allowed
}

func (b *bucket) count(allowed bool) {
	if allowed {
		b.allowed++
	} else {
		b.denied++
	}
}

func (c *Client) decide(now ratelimit.Instant, b *bucket) bool {
	a := b.active
	if a == nil {
		return c.New == Allow
	}
	switch s := a.strategy.GetStrategy().(type) {
	case *typev3.RateLimitStrategy_BlanketRule_:
		return s.BlanketRule == typev3.RateLimitStrategy_ALLOW_ALL
	case *typev3.RateLimitStrategy_TokenBucket, *typev3.RateLimitStrategy_RequestsPerTimeUnit_:
		return a.tokens.take(now)
	}
	return true
}

// Broken takes in that the stream has ended.
func (c *Client) Broken() { c.stream = false }

func (c *Client) open() {
	if !c.stream {
		if c.stream = c.wire.Open(); c.stream {
			c.opened++
		}
	}
}

func (c *Client) send(usages []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage) {
	if c.stream && len(usages) > 0 {
		c.wire.Send(&rlqs.RateLimitQuotaUsageReports{Domain: c.Domain, BucketQuotaUsages: usages})
	}
}

// usages reads what was counted, and begins to count anew.
func (c *Client) usages(now ratelimit.Instant, of []*bucket) (all []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage) {
	if !c.stream && !c.Quirks.LosesReports {
		return nil
	}
	for _, b := range of {
		elapsed := now.Sub(b.since)
		if c.Quirks.WholeSecondElapsed {
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
		if a := b.active; a != nil && a.expires != 0 && (next == 0 || a.expires < next) {
			next = a.expires
		}
	}
	return next
}

// Tick does the due work: expired assignments end, and buckets are reported.
func (c *Client) Tick(now ratelimit.Instant) {
	for _, name := range c.order {
		if b := c.buckets[name]; b.active != nil && b.active.expires != 0 && now >= b.active.expires {
			c.expire(now, b)
		}
	}
	if c.report == 0 || now < c.report {
		return
	}
	c.report = now.Add(c.Interval)
	var all []*bucket
	for _, name := range c.order {
		all = append(all, c.buckets[name])
	}
	if !c.Quirks.LosesReports {
		c.open()
	}
	usages := c.usages(now, all)
	c.open()
	c.send(usages)
}

// expire ends an assignment, or what was used in its place.
func (c *Client) expire(now ratelimit.Instant, b *bucket) {
	reuse := c.Expired == Reuse && !c.Quirks.IgnoresReuse
	switch {
	case b.lapsed || c.ExpiredFor == 0 || c.Expired == Reuse && !reuse:
		b.active, b.lapsed = nil, false
	case reuse:
		b.active.expires, b.lapsed = now.Add(c.ExpiredFor), true
	default:
		rule := typev3.RateLimitStrategy_DENY_ALL
		if c.Expired == Allow {
			rule = typev3.RateLimitStrategy_ALLOW_ALL
		}
		b.active = &assignment{
			strategy: &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: rule}},
			expires:  now.Add(c.ExpiredFor),
		}
		b.lapsed = true
	}
}

// Receive takes in a message of the server's, action by action.
func (c *Client) Receive(now ratelimit.Instant, m *rlqs.RateLimitQuotaResponse) {
	for _, a := range m.GetBucketAction() {
		name := nameOf(a.GetBucketId().GetBucket())
		b := c.buckets[name]
		if b == nil {
			continue // it never asked for this bucket, or was told to abandon it
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
	s := x.GetRateLimitStrategy()
	a := &assignment{strategy: s}
	switch s.GetStrategy().(type) {
	case *typev3.RateLimitStrategy_TokenBucket:
		a.tokens = c.tokens(now, s, b)
	case *typev3.RateLimitStrategy_RequestsPerTimeUnit_:
		if c.Quirks.DropsPerTimeUnit {
			return
		}
		a.tokens = c.tokens(now, s, b)
	case nil:
		if c.Quirks.DropsNoStrategy {
			return
		}
	}
	switch ttl := x.GetAssignmentTimeToLive(); {
	case ttl == nil && !c.Quirks.UnsetTTLExpires:
	case c.Quirks.WholeSecondTTL:
		a.expires = now.Add(time.Duration(ttl.GetSeconds()) * time.Second)
	default:
		a.expires = now.Add(ttl.AsDuration())
	}
	b.active, b.lapsed = a, false
}

func nameOf(id map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(id)) {
		b.WriteString(k + "\x00" + id[k] + "\x00")
	}
	return b.String()
}

// Live is the number of requests that a bucket would pass now, if its timers are checked; MaxTokens: any
// number.
func (c *Client) Live(now ratelimit.Instant, id map[string]string) ratelimit.Tokens {
	b := c.buckets[nameOf(id)]
	if b == nil || b.active == nil || b.active.expires != 0 && now >= b.active.expires {
		if c.New == Allow {
			return ratelimit.MaxTokens
		}
		return 0
	}
	if t := b.active.tokens; t != nil {
		t.fill(now)
		return ratelimit.Tokens(t.level)
	}
	if s, ok := b.active.strategy.GetStrategy().(*typev3.RateLimitStrategy_BlanketRule_); ok &&
		s.BlanketRule == typev3.RateLimitStrategy_DENY_ALL {
		return 0
	}
	return ratelimit.MaxTokens
}
