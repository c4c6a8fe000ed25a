package rls

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/holds"
)

// call is one request from bytes to bytes. It is pooled: nothing of it outlives the call but copies. No lock guards it:
// the goroutine that answers owns it, and the limiter has asks and verdicts only during Decide and Undo.
type call struct {
	// in has the request's bytes, which its strings lie in; keys has the keys of all its asks, one behind the other.
	// Both stay with the call when it is pooled, so that a typical call allocates nothing.
	in      []byte
	request request
	matches []match
	keys    []byte
	// name is space for the names of statistics.
	name     []byte
	asks     []ratelimit.Ask
	verdicts []ratelimit.Verdict
	holds    []held       // of the matches that hold or settle
	parts    []holds.Part // of the answer's hold
	hold     []byte       // the answer's; empty: nothing is held
	// slot is the number of the answer's hold, for all its budgets: of the hold's text, and of the slots under
	// concurrency limits. 0: no descriptor holds.
	slot uint64
	// spared says of each ask whether its charge is given back.
	spared []bool
	// over is the overall_code.
	over bool
	out  []byte // the answer as bytes
}

// match is what the rules say of one descriptor, and what it is answered.
type match struct {
	// of is in call.request, which is decoded whole before the first match, so that its slice does not move any more.
	of   *descriptor
	rule *ratelimit.Rule // nil: nothing limits it
	// ask is the descriptor's place among the asks; -1: it has none, because nothing needs to be
	// asked or another rule replaces its own.
	ask int
	// hash is of the key, for the local cache. It is kept because the key of a rule that is not asked is dropped.
	hash     uint64
	replaced bool
	// settles is set if the descriptor brings the cost of an earlier request. Its code is always OK, and is not read.
	settles bool
	verdict ratelimit.Verdict
	// over is the descriptor's code: its verdict, unless the rule is in shadow mode.
	over bool
	// quota is set if it refuses only together with all other quota descriptors.
	quota bool
}

// answer decides the request in c.in and leaves the answer in c.out. It blocks while the store is asked, at most for
// the rules' deadlines or until ctx ends.
func (s *Service) answer(ctx context.Context, c *call) error {
	start := s.clock()
	if len(c.in) >= largeBytes {
		return s.answerLarge(ctx, c, start)
	}
	return s.answerOne(ctx, c, start)
}

// ended counts a call that began at start.
func (s *Service) ended(ctx context.Context, c *call, start ratelimit.Instant, err error) {
	s.Stats.count(err)
	if s.options.Traced {
		c.trace(ctx, err)
	}
	s.latency.Observe(s.clock().Sub(start).Seconds())
}

// answerOne decides the request in c.in, of any size, and counts it. The steps: decode, match, decide, and conclude or,
// where the caller has gone meanwhile, undo.
func (s *Service) answerOne(ctx context.Context, c *call, start ratelimit.Instant) (err error) {
	// A bug that one request meets must not end the process, and with it the requests of all others.
	defer func() {
		if r := recover(); r != nil {
			s.Bug(r)
			err = errInternal
		}
		s.ended(ctx, c, start, err)
	}()
	// Nothing has been charged yet, so that a request which makes no sense costs no budget.
	if err := c.request.decode(c.in); err != nil {
		if errors.Is(err, errNoDescriptors) {
			s.Stats.NoDescriptors.Named([]byte(c.request.domain)).Sources[ratelimit.FromLease].Add(1)
		}
		return err
	}
	// The rules are read once. If they change meanwhile, this request is decided by the old ones as a whole.
	rules := s.rules()
	if rules == nil {
		return errNoConfig
	}
	c.match(s, rules.Domain(c.request.domain))
	c.decide(ctx, s, start)
	// The caller has gone, and gets no answer. The charges of its request are given back, so that a caller who repeats
	// it is not charged twice. What it has settled stays settled, and the costs of an ended request stay charged:
	// gateways do not repeat the call at the end.
	if ctx.Err() != nil {
		if s.options.Gate != nil {
			s.options.Gate.Gone()
		}
		c.over = true // nothing of it passes
		c.spared = append(c.spared[:0], make([]bool, len(c.asks))...)
		for i := range c.matches {
			if m := &c.matches[i]; m.ask >= 0 {
				c.spared[m.ask] = c.asks[m.ask].Kind == ratelimit.Spend && !m.of.settles
			}
		}
		c.concludeHolds(s)
		c.undo(s, start)
		return errGone
	}
	c.conclude(s, start)
	c.encode(s)
	return nil
}

// match finds each descriptor's rule, drops those that another replaces, and collects the asks.
//
// The ask of a match is at its place in asks, and verdicts will have the same places. Keys lie in c.keys. When that
// grows, the keys of earlier asks stay in the old array, which nothing changes.
func (c *call) match(s *Service, d *config.Domain) {
	c.matches = c.matches[:0]
	c.asks = c.asks[:0]
	c.keys = c.keys[:0]
	c.holds = c.holds[:0]
	c.slot = 0
	for i := range c.request.descriptors {
		c.matches = append(c.matches, match{of: &c.request.descriptors[i], ask: -1})
	}
	// As envoyproxy/ratelimit, an unknown domain limits nothing, and is counted by its name.
	if d == nil {
		unknown := s.Stats.UnknownDomains.Named([]byte(c.request.domain))
		unknown.Sources[ratelimit.FromLease].Add(1)
		unknown.TotalHits.Add(uint64(len(c.request.descriptors)))
		return
	}
	replaces := false
	// Descriptors with sluice_end come last: another one of the call may bring the cost, which settles the hold. Then
	// the end finds it settled and charges nothing.
	for _, ends := range [...]bool{false, true} {
		for i := range c.matches {
			if m := &c.matches[i]; m.of.ends == ends {
				replaces = c.matchOne(s, d, m) || replaces
			}
		}
	}
	// Only now are all matches known: a rule may replace one of an earlier descriptor.
	if replaces {
		c.dropReplaced()
	}
	if !slices.ContainsFunc(c.matches, func(m match) bool { return m.rule != nil }) {
		c.countUnlimited(s, d)
	}
}

// countUnlimited counts a request without a rule, if no rule has one of its keys. It finds typing errors in a key, in
// Envoy or in the rules, which admit all requests. Where a rule has other values of the key, requests without a rule
// are usual.
func (c *call) countUnlimited(s *Service, d *config.Domain) {
	for i := range c.matches {
		key := d.Unknown(c.request.entriesOf(c.matches[i].of))
		if key == "" {
			continue
		}
		// The name is built behind the keys, and dropped again.
		start := len(c.keys)
		c.keys = append(append(append(c.keys, d.Name...), ratelimit.NameSeparator...), key...)
		s.Stats.Unlimited.Named(c.keys[start:]).Sources[ratelimit.FromLease].Add(1)
		c.keys = c.keys[:start]
		return
	}
}

// matchOne finds a descriptor's rule, and adds its ask. It reports whether the rule replaces others. A descriptor
// without a rule, without a limit, or with a limit of 0 gets no ask: its answer is the same whatever was used.
func (c *call) matchOne(s *Service, d *config.Domain, m *match) (replaces bool) {
	x := m.of
	start := len(c.keys)
	m.settles = x.settles
	entries := c.request.entriesOf(x)
	if x.hasOverride {
		if s.options.CalendarMonths {
			x.override = x.override.Cut()
		}
		m.rule = d.OverrideRule(x.override)
		c.keys = d.OverrideKey(x.override, entries, c.keys)
	} else {
		m.rule, c.keys = d.Match(entries, c.keys)
	}
	// The hash is taken here, for the keys of rules that need not be asked are dropped next.
	if known := s.options.LocalCache; known != nil && m.rule != nil {
		m.hash = known.hash(c.keys[start:])
	}
	kind, cost := c.request.ask(x)
	ask := ratelimit.Ask{Rule: m.rule, Key: c.keys[start:], Cost: cost, Kind: kind}
	switch {
	// Nothing has to be asked: the answer is the same whatever was used.
	case m.rule == nil || m.rule.Unlimited || m.rule.RefusesAll():
	case m.rule.Hold != nil || x.settles:
		c.addHeld(s, m, ask)
	default:
		c.ask(m, ask)
	}
	if m.ask < 0 {
		// The next descriptor's key takes the place of an unused one.
		c.keys = c.keys[:start]
	}
	return m.rule != nil && len(m.rule.Replaces) > 0
}

// ask adds what a descriptor asks.
func (c *call) ask(m *match, a ratelimit.Ask) {
	m.ask = len(c.asks)
	c.asks = append(c.asks, a)
}

// dropReplaced takes out the rules whose name another matched rule replaces. A rule may do so that is itself replaced.
// The names are gathered once: to look through those of each rule, for each descriptor, would take minutes.
//
// The asks that stay are appended behind all others, and then moved to the front together. In place, one could
// overwrite another: the asks of ends come last, whatever their match's place.
func (c *call) dropReplaced() {
	seen, replaced := map[*ratelimit.Rule]bool{}, map[string]bool{}
	for i := range c.matches {
		r := c.matches[i].rule
		if r == nil || len(r.Replaces) == 0 || seen[r] {
			continue
		}
		seen[r] = true
		for _, name := range r.Replaces {
			replaced[name] = true
		}
	}
	all := len(c.asks)
	for i := range c.matches {
		m := &c.matches[i]
		m.replaced = m.rule != nil && !m.rule.Unlimited && replaced[m.rule.Name]
		if m.ask < 0 {
			continue
		}
		if m.replaced {
			m.ask = -1
			continue
		}
		c.ask(m, c.asks[m.ask])
		m.ask -= all
	}
	c.asks = c.asks[:copy(c.asks, c.asks[all:])]
}

// decide asks the limiter once for all descriptors. It fills each verdict whole, so that those of the previous request
// need not be cleared.
func (c *call) decide(ctx context.Context, s *Service, now ratelimit.Instant) {
	c.verdicts = slices.Grow(c.verdicts[:0], len(c.asks))[:len(c.asks)]
	if len(c.asks) > 0 {
		s.limiter.Decide(ctx, now, c.asks, c.verdicts)
	}
}
