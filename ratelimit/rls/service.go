package rls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// Options are what the server says about all answers. The zero value is the
// default but for NearLimitRatio.
type Options struct {
	ShadowMode bool // overall_code is always OK
	QuotaMode  bool // every descriptor but unlimited ones is a quota descriptor
	// Headers are added to responses if Limit is not "".
	Headers HeaderNames
	// DynamicMetadata puts the request and its rules' metadata into answers.
	DynamicMetadata bool
	// CalendarMonths makes windows of a month those of the calendar, also of
	// limits that requests bring along.
	CalendarMonths bool
	NearLimitRatio float64
	// Traced says that calls come with a span, which is told what was decided.
	Traced bool
	// MaxRequestBytes bounds the body of POST /json; 0 means MaxRequestBytes.
	MaxRequestBytes int
	// Budget is what bodies that are being read count in; nil: there is none.
	Budget *transport.Budget
	// Gate, if set, decides which calls are begun, and has what was charged given
	// back if the caller does not wait for the answer.
	Gate *shed.Gate
}

// HeaderNames are the response headers; "" leaves all of them out.
type HeaderNames struct{ Limit, Remaining, Reset string }

// Observer is told how long each call took.
type Observer interface{ Observe(seconds float64) }

// Service answers rate limit requests. It is safe for concurrent use.
type Service struct {
	Stats   Stats
	rules   func() *config.Rules
	limiter ratelimit.Limiter
	clock   ratelimit.Clock
	wall    func() time.Time
	latency Observer
	options Options
	log     *slog.Logger
	calls   sync.Pool
	large   chan struct{} // slots of large calls that are worked on
}

// A request of largeBytes or more may grow a hundred times while it is decided:
// each descriptor has a key, a verdict and a status. So few are at a time; others
// wait, as the bytes that they are.
const (
	largeBytes  = 4 << 10
	largeAtOnce = 16
)

// New makes a service that takes its rules from rules and its decisions from
// limiter. wall is asked only for bans, whose windows need no account.
func New(rules func() *config.Rules, limiter ratelimit.Limiter, clock ratelimit.Clock, wall func() time.Time,
	latency Observer, o Options, log *slog.Logger,
) *Service {
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = MaxRequestBytes
	}
	s := &Service{rules: rules, limiter: limiter, clock: clock, wall: wall, latency: latency, options: o, log: log}
	s.calls.New = func() any { return new(call) }
	s.large = make(chan struct{}, largeAtOnce)
	return s
}

// Errors of a call that are not the client's.
var (
	errNoConfig = errors.New("no rate limit configuration loaded")
	errInternal = errors.New("internal error, see the log")
	errLarge    = errors.New("too many large requests are being decided")
	errGone     = errors.New("the caller gave up before it was answered; nothing was charged")
)

// call is one request from bytes to bytes. It is pooled: nothing of it outlives
// the call but copies.
type call struct {
	service  *Service // that answered it
	in       []byte
	request  request
	matches  []match
	keys     []byte
	name     []byte // of statistics
	asks     []ratelimit.Ask
	verdicts []ratelimit.Verdict
	statuses []status
	over     bool // overall_code
	out      []byte
}

// match is what the rules say of one descriptor.
type match struct {
	rule     *ratelimit.Rule // nil: nothing limits it
	ask      int             // its place among the asks, or -1
	replaced bool
}

// answer decides the request in c.in and leaves the answer in c.out.
func (s *Service) answer(ctx context.Context, c *call) (err error) {
	start := s.clock()
	defer func() {
		if r := recover(); r != nil {
			s.Stats.Panics.Add(1)
			s.log.Error("a request failed: this is a bug in sluice, please report it", "panic", r, "stack",
				string(debug.Stack()))
			err = errInternal
		}
		s.Stats.count(err)
		if s.options.Traced {
			c.trace(ctx, err)
		}
		s.latency.Observe(s.clock().Sub(start).Seconds())
	}()
	if len(c.in) >= largeBytes {
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errLarge, ctx.Err())
		}
	}
	if err := c.request.decode(c.in); err != nil {
		return err
	}
	rules := s.rules()
	if rules == nil {
		return errNoConfig
	}
	c.match(s, rules.Domain(c.request.domain))
	if err := c.decide(ctx, s, start); err != nil {
		return err
	}
	if s.options.Gate != nil && ctx.Err() != nil {
		s.options.Gate.Gone()
		c.undo(s, start, everyRule)
		return errGone
	}
	c.conclude(s, start)
	c.encode(s)
	return nil
}

// match finds each descriptor's rule, drops those that another replaces, and
// collects what is to be asked.
func (c *call) match(s *Service, d *config.Domain) {
	c.matches, c.asks, c.keys = c.matches[:0], c.asks[:0], c.keys[:0]
	if d == nil {
		s.Stats.UnknownDomains.Named([]byte(c.request.domain)).Unlimited()
	}
	replaces := false
	for i := range c.request.descriptors {
		c.matches = append(c.matches, match{ask: -1})
		if d == nil {
			continue
		}
		m := &c.matches[i]
		start := len(c.keys)
		c.matchOne(s, d, &c.request.descriptors[i], m)
		if m.rule == nil || m.rule.Unlimited || m.rule.Limit.Requests == 0 {
			c.keys = c.keys[:start]
		} else {
			c.addAsk(m, &c.request.descriptors[i], start)
		}
		replaces = replaces || m.rule != nil && len(m.rule.Replaces) > 0
	}
	if replaces {
		c.dropReplaced()
	}
}

func (c *call) matchOne(s *Service, d *config.Domain, x *descriptor, m *match) {
	entries := c.request.entriesOf(x)
	if !x.hasOverride {
		m.rule, c.keys = d.Match(entries, c.keys)
		return
	}
	if s.options.CalendarMonths {
		x.override = x.override.Cut()
	}
	m.rule = &ratelimit.Rule{
		Domain: d.Name, Limit: x.override, Override: true, Coordination: d.Defaults, Counters: d.Overrides,
		MetricNames: ratelimit.MetricNaming{Detailed: true},
	}
	c.keys = d.OverrideKey(x.override, entries, c.keys)
}

func (c *call) addAsk(m *match, x *descriptor, start int) {
	kind, cost := c.request.ask(x)
	m.ask = len(c.asks)
	c.asks = append(c.asks, ratelimit.Ask{Rule: m.rule, Key: c.keys[start:], Cost: cost, Kind: kind})
}

// dropReplaced takes out the rules whose name another matched rule replaces.
func (c *call) dropReplaced() {
	kept := c.asks[:0]
	for i := range c.matches {
		m := &c.matches[i]
		m.replaced = m.rule != nil && !m.rule.Unlimited && c.isReplaced(m.rule.Name)
		if m.ask < 0 {
			continue
		}
		if m.replaced {
			m.ask = -1
			continue
		}
		kept = append(kept, c.asks[m.ask])
		m.ask = len(kept) - 1
	}
	c.asks = kept
}

func (c *call) isReplaced(name string) bool {
	for i := range c.matches {
		if r := c.matches[i].rule; r != nil && name != "" {
			for _, other := range r.Replaces {
				if other == name {
					return true
				}
			}
		}
	}
	return false
}

func (c *call) decide(ctx context.Context, s *Service, now ratelimit.Instant) error {
	for len(c.verdicts) < len(c.asks) {
		c.verdicts = append(c.verdicts, ratelimit.Verdict{})
	}
	c.verdicts = c.verdicts[:len(c.asks)]
	if len(c.asks) == 0 {
		return nil
	}
	s.limiter.Decide(ctx, now, c.asks, c.verdicts)
	for i := range c.verdicts {
		if c.verdicts[i].Err != nil {
			return c.verdicts[i].Err
		}
	}
	return nil
}

// status is what one descriptor is answered.
type status struct {
	rule      *ratelimit.Rule
	verdict   ratelimit.Verdict
	bare      bool // nothing but a code
	unlimited bool
	over      bool // its code
	quota     bool
}

// conclude turns verdicts into statuses and the overall code, counts them, and
// gives back what a refused request must not cost.
func (c *call) conclude(s *Service, now ratelimit.Instant) {
	c.statuses = c.statuses[:0]
	quota, quotaOver := 0, 0
	c.over = false
	for i := range c.matches {
		st := c.status(s, i)
		c.statuses = append(c.statuses, st)
		switch {
		case st.quota:
			quota++
			if st.over {
				quotaOver++
			}
		case st.over:
			c.over = true
		}
	}
	if quota > 0 && quota == quotaOver {
		c.over = true
	}
	if c.over && s.options.ShadowMode {
		c.over = false
		s.Stats.GlobalShadow.Add(1)
	}
	if c.over {
		c.refund(s, now)
	}
	s.Stats.countCode(c.over)
}

func (c *call) status(s *Service, i int) status {
	m := &c.matches[i]
	st := status{rule: m.rule, bare: m.rule == nil || m.replaced}
	if st.bare {
		st.quota = s.options.QuotaMode
		return st
	}
	st.unlimited = m.rule.Unlimited
	st.quota = !st.unlimited && (m.rule.Quota || s.options.QuotaMode)
	a, counters := ratelimit.Ask{Rule: m.rule, Cost: 1}, c.counters(m.rule, i)
	switch {
	case st.unlimited:
		counters.Unlimited()
		return st
	case m.ask >= 0:
		a, st.verdict = c.asks[m.ask], c.verdicts[m.ask]
		s.Stats.Sources[st.verdict.Source].Add(1)
	default: // requests_per_unit: 0
		now := ratelimit.LedgerTime(s.wall().UnixMicro())
		st.verdict = ratelimit.Verdict{
			OverLimit:  true,
			ResetAfter: m.rule.Limit.WindowEnd(m.rule.Limit.WindowAt(now)).Sub(now),
		}
	}
	near := ratelimit.Tokens(math.Floor(float64(m.rule.Limit.Capacity()) * s.options.NearLimitRatio))
	counters.Count(a, st.verdict, near)
	st.over = st.verdict.OverLimit
	if st.over && m.rule.Shadow {
		st.over = false
		counters.ShadowMode.Add(uint64(a.Cost))
	}
	return st
}

// counters are what a descriptor's rule is counted in: the rule's own, or those
// of a name that the request has a part in.
func (c *call) counters(r *ratelimit.Rule, descriptor int) *ratelimit.RuleCounters {
	if !r.MetricNames.FromRequest() {
		return r.Counters
	}
	c.name = c.name[:0]
	for level, e := range c.request.entriesOf(&c.request.descriptors[descriptor]) {
		c.name = r.AppendLevel(c.name, level, e.Key, e.Value)
	}
	return r.Counters.Named(c.name)
}

// refund takes a refused request back from the rules that say so, and from all
// rules if one that refused it does.
func (c *call) refund(s *Service, now ratelimit.Instant) {
	which := denyRefunds
	for i := range c.statuses {
		if st := &c.statuses[i]; st.over && denyRefunds(st.rule) {
			which = everyRule
		}
	}
	c.undo(s, now, which)
}

// everyRule and denyRefunds are which rules undo is for: all of them, or those that
// want nothing of a refused request.
func everyRule(*ratelimit.Rule) bool     { return true }
func denyRefunds(r *ratelimit.Rule) bool { return r.Coordination.OnDeny == ratelimit.DenyRefunds }

// undo takes back what was spent of some rules.
func (c *call) undo(s *Service, now ratelimit.Instant, of func(*ratelimit.Rule) bool) {
	n := 0
	for i := range c.asks {
		a := &c.asks[i]
		if a.Kind == ratelimit.Spend && of(a.Rule) {
			c.asks[n], c.verdicts[n] = c.asks[i], c.verdicts[i]
			n++
		}
	}
	if n > 0 {
		s.limiter.Undo(now, c.asks[:n], c.verdicts[:n])
	}
}
