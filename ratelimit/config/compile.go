package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

// Options are the server's settings for all rules.
type Options struct {
	// Coordination is the default of rules.
	Coordination ratelimit.Coordination
	// MergeDomains joins the descriptors of files with the same domain.
	MergeDomains bool
	// CalendarMonths makes windows of a month calendar months.
	CalendarMonths bool
	// Caps bound the files. Zero: the default.
	Caps Caps
	// NoHolds is the reason why rules cannot have holds with an id. Nil: they can.
	NoHolds error
	// Counters returns the counters of a rule, also after a reload. keys are the rule's keys,
	// joined by NUL. Nil means new counters each time.
	Counters func(domain, keys string) *ratelimit.RuleCounters
}

// Parse reads and compiles texts, under the bounds of the options. It returns nil rules if there is
// any error. Warnings do not stop it.
func Parse(texts []Text, o Options) (rules *Rules, warnings, problems Problems) {
	caps := o.Caps.OrDefault()
	d := decoder{most: caps.Rules}
	if err := caps.all(texts); err != nil {
		d.problems.add(Place{File: "config"}, "%v", err)
		return nil, nil, d.problems
	}
	files := d.decode(texts, caps)
	c := newCompiler(o)
	rules, problems = c.compile(files)
	problems = append(d.problems, problems...)
	if len(problems) > 0 {
		return nil, d.warnings.sorted(), problems.sorted().most()
	}
	warnings = append(append(d.warnings, c.warnings...), advise(files)...)
	return rules, warnings.sorted().most(), nil
}

// Compile turns decoded files into rules, or reports all errors.
func Compile(files []File, o Options) (*Rules, Problems) { return newCompiler(o).compile(files) }

func newCompiler(o Options) *compiler {
	c := &compiler{options: o, rules: &Rules{domains: map[string]*Domain{}}, counted: map[[2]string]int{}}
	if c.options.Counters == nil {
		c.options.Counters = func(string, string) *ratelimit.RuleCounters { return new(ratelimit.RuleCounters) }
	}
	return c
}

func (c *compiler) compile(files []File) (*Rules, Problems) {
	for i := range files {
		c.file(&files[i])
	}
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	c.rules.settle()
	return c.rules, nil
}

type compiler struct {
	options  Options
	rules    *Rules
	domain   *Domain
	problems Problems
	warnings Problems
	full     bool
	paths    int               // bytes of all descriptors' full names
	counted  map[[2]string]int // rules by domain and keys
}

// scope has the settings that a node inherits.
type scope struct {
	names        string // "domain.key_value", as in messages
	path         string // the same without the domain, as in statistics
	keys         []string
	metric       []bool
	algorithm    ratelimit.Algorithm
	burst        ratelimit.Tokens // 0: requests_per_unit
	coordination ratelimit.Coordination
	hold         *Hold // nil: requests cost their hits
	maxOverride  *ratelimit.Tokens
	charges      *Place // place of the last on_deny: charge
}

// wrong reports an error of a descriptor or a domain. Pushed rules have no lines: their errors name
// the rule.
func (c *compiler) wrong(at Place, names, format string, args ...any) {
	if at.Line == 0 && names != "" {
		format = strings.ReplaceAll(cut(names, maxName), "%", "%%") + ": " + format
	}
	c.problems.add(at, format, args...)
}

// odd reports a warning.
func (c *compiler) odd(kind Kind, at Place, names, format string, args ...any) {
	c.warnings.addKind(kind, at, "%s: %s", cut(names, maxName), fmt.Sprintf(format, args...))
}

func (c *compiler) file(f *File) {
	if f.Domain == "" {
		c.problems.add(f.Place, "config file cannot have empty domain; write domain: NAME at its top, as Envoy's "+
			"filter names it")
	}
	root := scope{names: f.Domain, coordination: c.options.Coordination}
	c.inherit(&root, &f.Defaults)
	c.domain = c.rules.domains[f.Domain]
	switch {
	case c.domain == nil:
		c.domain = &Domain{
			Name: f.Domain, Defaults: root.coordination, root: level{}, place: f.Place,
			Overrides: c.options.Counters(f.Domain, OverridePath),
		}
		c.rules.domains[f.Domain] = c.domain
	case !c.options.MergeDomains && f.Domain != "":
		c.problems.add(f.Place, "duplicate domain '%s' in config file%s; a domain is in one file, unless "+
			"MERGE_DOMAIN_CONFIG joins them", cut(f.Domain, maxName), firstAt(c.domain.place))
		c.domain = &Domain{root: level{}} // its own problems are still found
	}
	c.level(c.domain.root, f.Descriptors, &root)
}

// OverridePath replaces the path in keys of limits that requests contain.
const OverridePath = "(request override)"

func (c *compiler) inherit(s *scope, in *Inherited) {
	if in.Hold != nil {
		s.hold = in.Hold
	}
	if in.MaxOverride != nil {
		s.maxOverride = in.MaxOverride
	}
	if in.Algorithm != nil {
		s.algorithm = *in.Algorithm
	}
	if in.Burst != nil {
		s.burst = *in.Burst
		if s.algorithm != ratelimit.TokenBucket {
			c.wrong(in.Place, s.names, "config error, burst applies to algorithm: token_bucket, and this is %s; write "+
				"algorithm: token_bucket, or remove burst", s.algorithm)
		}
	}
	inherited := s.coordination.Validate()
	for _, setting := range in.Coordination {
		if err := s.coordination.Set(setting.Field, setting.Text); err != nil {
			c.wrong(setting.Place, s.names, "config error, coordination: %v", err)
		}
		if setting.Field == "on_deny" {
			s.charges = nil
			if s.coordination.OnDeny == ratelimit.DenyCharges {
				s.charges = &setting.Place
			}
		}
	}
	for _, err := range s.coordination.Validate() {
		if !slices.ContainsFunc(inherited, func(old error) bool { return old.Error() == err.Error() }) {
			c.wrong(in.placeOf(err), s.names, "config error, coordination: %v", err)
		}
	}
}

// placeOf is the place of the setting of an error: the last one of its name, or else the first of
// all.
func (in *Inherited) placeOf(err error) Place {
	at := in.Coordination[0].Place
	if field, ok := errors.AsType[*ratelimit.FieldError](err); ok {
		for _, set := range in.Coordination {
			if set.Field == field.Field {
				at = set.Place
			}
		}
	}
	return at
}

func (c *compiler) level(at level, descriptors []Descriptor, above *scope) {
	for i := range descriptors {
		c.descriptor(at, &descriptors[i], above)
	}
}

func (c *compiler) descriptor(at level, d *Descriptor, above *scope) {
	if d.Key == "" {
		c.wrong(d.Place, above.names, "descriptor has empty key")
	}
	// A full name includes the names above it: a long key with many descriptors below it, or nested
	// long keys, take quadratic space.
	if c.paths += len(above.names) + len(d.Key) + len(d.Value); c.paths > maxPathBytes {
		if !c.full {
			c.full = true
			c.wrong(d.Place, above.names, "config error, the names of all descriptors, each with those above it, are "+
				"more than %d bytes: use shorter keys and values, or fewer below long ones", maxPathBytes)
		}
		return
	}
	s := *above
	s.names += "." + d.Segment()
	s.path = strings.TrimPrefix(s.path+"."+d.Segment(), ".")
	s.keys = append(slices.Clip(s.keys), d.Segment())
	s.metric = append(slices.Clip(s.metric), d.ValueToMetric && !d.ShareThreshold)
	c.inherit(&s, &d.Inherited)

	n := &node{share: d.ShareThreshold, below: level{}, place: d.Place}
	wildcard := strings.Contains(d.Value, "*")
	if d.ShareThreshold && !wildcard {
		c.wrong(d.Place, s.names, "share_threshold can only be used with wildcard values (containing '*'), but found "+
			"key '%s'", d.Segment())
	}
	if first := at.place(n, d, wildcard); first != nil {
		c.wrong(d.Place, s.names, "duplicate descriptor composite key '%s'%s; for two limits on one key, "+
			"let Envoy send a second descriptor with another key, for example generic_key before it",
			cut(s.names, maxName), firstAt(first.place))
	}
	if d.Limit != nil {
		c.idle(d, &s)
		if n.rule = c.rule(d, &s); n.rule != nil {
			n.prefix = ratelimit.AppendPrefix(nil, c.domain.Name, n.rule.Limit)
			c.rules.list = append(c.rules.list, n.rule)
		}
	}
	c.level(n.below, d.Descriptors, &s)
}

// idle warns about a rule's own settings that have no effect. Inherited settings can be for its
// siblings.
func (c *compiler) idle(d *Descriptor, s *scope) {
	if hold := d.Inherited.Hold; hold != nil && d.Limit.Unit == "" && d.Descriptors == nil {
		c.odd(NoEffect, hold.Place, s.names, "hold has no effect: the rule has concurrency, or is unlimited")
	}
	for _, set := range d.Inherited.Coordination {
		if why := idle(set.Field, s); why != "" {
			c.odd(NoEffect, set.Place, s.names, "%s has no effect: %s", set.Field, why)
		}
	}
}

// firstAt names the place of the first of two duplicates.
func firstAt(at Place) string {
	if at.Line == 0 {
		return ""
	}
	return "; the first is at " + at.String()
}

// place puts a node among its siblings, or returns the equal one.
func (l level) place(n *node, d *Descriptor, wildcard bool) (first *node) {
	s := l[d.Key]
	if s == nil {
		s = &siblings{exact: map[string]*node{}}
		l[d.Key] = s
	}
	switch {
	case d.Value == "":
		if s.bare != nil {
			return s.bare
		}
		s.bare = n
	case wildcard:
		n.pattern = newPattern(d.Value)
		if s.patterns[d.Value] != nil {
			return s.patterns[d.Value]
		}
		if s.patterns == nil {
			s.patterns = map[string]*node{}
		}
		s.patterns[d.Value] = n
		s.wildcards = append(s.wildcards, n)
	default:
		if s.exact[d.Value] != nil {
			return s.exact[d.Value]
		}
		s.exact[d.Value] = n
	}
	return nil
}

func (c *compiler) rule(d *Descriptor, s *scope) *ratelimit.Rule {
	l := d.Limit
	r := &ratelimit.Rule{
		Domain: c.domain.Name, Path: s.path, Keys: s.keys, Name: l.Name, Unlimited: l.Unlimited,
		Shadow: d.Shadow, Quota: d.Quota, Metadata: d.Metadata, Coordination: s.coordination,
		MetricNames: ratelimit.MetricNaming{Detailed: d.Detailed},
	}
	if slices.Contains(s.metric, true) {
		r.MetricNames.Levels = s.metric
	}
	unit := c.unit(l, s)
	for _, other := range l.Replaces {
		switch other.Name {
		case "":
			c.wrong(other.Place, s.names, "should not have an empty replaces entry")
		case l.Name:
			c.wrong(other.Place, s.names, "replaces should not contain name of same descriptor")
		}
		r.Replaces = append(r.Replaces, other.Name)
	}
	r.Limit = ratelimit.Limit{
		Algorithm: s.algorithm, Unit: unit, Multiplier: uint32(l.Multiplier), Requests: l.Requests,
	}
	if s.algorithm == ratelimit.TokenBucket {
		if r.Limit.Burst = s.burst; s.burst == 0 || l.Requests == 0 { // a limit of 0 admits no burst
			r.Limit.Burst = r.Limit.Requests
		}
	}
	if l.Concurrency > 0 {
		r.Limit = c.concurrent(l, s)
	}
	if c.options.CalendarMonths {
		r.Limit = r.Limit.Cut()
	}
	if l.Billing != nil && l.Concurrency == 0 {
		r.Limit = c.billed(r.Limit, l, s)
	}
	c.holds(r, s, l.Place)
	c.carried(r, l, s)
	c.overridden(r, d, s)
	for _, doubt := range r.Doubts() {
		c.odd(Ineffective, l.Place, s.names, "%s", doubt)
	}
	if c.domain.Name != "" {
		r.Counters = c.counters(r)
	}
	r.Prepare()
	return r
}

// counters are the rule's own. Another rule of the same name has others, which statistics add.
func (c *compiler) counters(r *ratelimit.Rule) *ratelimit.RuleCounters {
	keys := strings.Join(r.Keys, "\x00")
	name := [2]string{r.Domain, keys}
	if c.counted[name]++; c.counted[name] > 1 {
		keys += fmt.Sprint("\x00\x00", c.counted[name])
	}
	return c.options.Counters(r.Domain, keys)
}

// unit is the unit of a limit, and reports what does not fit it.
func (c *compiler) unit(l *RateLimit, s *scope) ratelimit.Unit {
	unit, known := ratelimit.ParseUnit(l.Unit)
	switch {
	case l.Concurrency > 0:
	case l.HoldTTL != 0:
		c.wrong(l.Place, s.names, "config error, hold_ttl applies to concurrency; add concurrency, or remove hold_ttl")
	case l.Unlimited && l.Unit != "":
		c.wrong(l.Place, s.names, "should not specify rate limit unit when unlimited; remove the unit and the "+
			"number, or unlimited")
	case !l.Unlimited && !known:
		c.wrong(l.Place, s.names, "invalid rate limit unit '%s'%s", shorten(l.Unit), unitHint(l.Unit))
	case l.Unlimited && l.Multiplier > 0:
		c.wrong(l.Place, s.names, "config error, unit_multiplier is %d, and an unlimited rule has no unit",
			l.Multiplier)
	case known && l.Multiplier > ratelimit.Tokens(unit.MostMultiplier()):
		c.wrong(l.Place, s.names, "config error, unit_multiplier is %d, and the maximum for a %s is %d",
			l.Multiplier, unit, unit.MostMultiplier())
	}
	return unit
}

// carried makes the rule carry its debt, or reports why it cannot.
func (c *compiler) carried(r *ratelimit.Rule, l *RateLimit, s *scope) {
	// Costs above the hold are charged beyond the limit, for any on_deny.
	of := r.Coordination
	if r.Hold != nil {
		of.OnDeny = ratelimit.DenyCharges
	}
	if r.Limit.Carries = of.Carries(r.Limit); r.Limit.Carries || r.Unlimited ||
		s.coordination.Debt == ratelimit.DebtForgotten {
		return
	}
	if r.Limit.Algorithm != ratelimit.FixedWindow {
		c.wrong(l.Place, s.names, "config error, coordination: debt is carry, and algorithm is %s, which carries no "+
			"debt; use fixed_window, or write debt: forget", r.Limit.Algorithm)
		return
	}
	c.wrong(l.Place, s.names, "config error, coordination: debt is carry, and on_deny is %s, which charges nothing "+
		"beyond the limit; write on_deny: charge, or debt: forget", s.coordination.OnDeny)
}

// billed is the limit with billing months, or unchanged if it cannot have them.
func (c *compiler) billed(limit ratelimit.Limit, l *RateLimit, s *scope) ratelimit.Limit {
	wrong := func(format string, args ...any) {
		c.wrong(l.Billing.Place, s.names, "config error, billing: "+format, args...)
	}
	switch {
	case l.Unlimited:
		wrong("an unlimited rule has no period; remove billing, or unlimited")
	case limit.Unit != ratelimit.Month && limit.Unit != ratelimit.CalendarMonth:
		wrong("the unit is '%s', and only months begin at a billing day; write unit: month, or remove billing",
			shorten(l.Unit))
	case l.Multiplier > 1:
		wrong("unit_multiplier is %d, and a billing period is one month; remove one of the two", l.Multiplier)
	case limit.Algorithm == ratelimit.SlidingWindow:
		wrong("algorithm is sliding_window, which looks back over 30 days wherever they begin; use fixed_window, " +
			"or remove billing")
	case limit.Algorithm == ratelimit.TokenBucket:
		wrong("algorithm is token_bucket, which has no window that could begin on a day; use fixed_window, or " +
			"remove billing")
	default:
		calendar, err := zone.Calendar(int(max(1, l.Billing.Day)), cmp.Or(l.Billing.Zone, "UTC"))
		if err == nil {
			return limit.Billed(calendar)
		}
		wrong("%v", err)
	}
	return limit
}
