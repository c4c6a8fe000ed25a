package config

import (
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

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
	warnings = append(append(d.warnings, c.warnings...), advise(files, rules)...)
	return rules, warnings.sorted().most(), nil
}

// Compile turns decoded files into rules, or reports all errors.
func Compile(files []File, o Options) (*Rules, Problems) { return newCompiler(o).compile(files) }

func newCompiler(o Options) *compiler {
	return &compiler{options: o, rules: &Rules{domains: map[string]*Domain{}, counters: countersByName{}}}
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
			Overrides: c.counters(f.Domain, OverridePath),
		}
		c.rules.domains[f.Domain] = c.domain
	case !c.options.MergeDomains && f.Domain != "":
		c.problems.add(f.Place, "duplicate domain '%s' in config file%s; a domain is in one file, unless "+
			"MERGE_DOMAIN_CONFIG joins them", cut(f.Domain, maxName), c.domain.place.after("; the first is at "))
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

func (c *compiler) level(at level, descriptors []Descriptor, above *scope) {
	for i := range descriptors {
		c.descriptor(at, &descriptors[i], above)
	}
}

func (c *compiler) descriptor(at level, d *Descriptor, above *scope) {
	if d.Key == "" {
		c.wrong(d.Place, above.names, "descriptor has empty key")
	}
	// In the original, wildcards match the text KEY_VALUE, so that one at the end of a key matches other keys. As a
	// plain key, it would limit nothing.
	if d.Value == "" && strings.HasSuffix(d.Key, "*") {
		c.wrong(d.Place, above.names, "the key '%s' ends with '*': envoyproxy/ratelimit applies it to each key that "+
			"begins so, and here a key has no wildcards; write a descriptor for each key", d.Key)
	}
	// A full name includes the names above it: a long key with many descriptors below it, or nested
	// long keys, take quadratic space.
	c.paths += len(above.names) + len(d.Key) + len(d.Value)
	if c.paths > maxPathBytes {
		if !c.full {
			c.full = true
			c.wrong(d.Place, above.names, "config error, the names of all descriptors, each with those above it, are "+
				"more than %d bytes: use shorter keys and values, or fewer below long ones", maxPathBytes)
		}
		return
	}
	s := *above
	s.names += "." + d.Segment()
	s.keys = append(slices.Clip(s.keys), d.Segment())
	s.metric = append(slices.Clip(s.metric), d.ValueToMetric && !d.ShareThreshold)
	s.shared = append(slices.Clip(s.shared), d.ShareThreshold)
	c.inherit(&s, &d.Inherited)

	n := &node{share: d.ShareThreshold, below: level{}, place: d.Place}
	if d.ShareThreshold && !strings.Contains(d.Value, "*") {
		c.wrong(d.Place, s.names, "share_threshold can only be used with wildcard values (containing '*'), but found "+
			"key '%s'", d.Segment())
	}
	if first := at.place(n, d); first != nil {
		c.wrong(d.Place, s.names, "duplicate descriptor composite key '%s'%s; for two limits on one key, "+
			"let Envoy send a second descriptor with another key, for example generic_key before it",
			cut(s.names, maxName), first.place.after("; the first is at "))
	}
	if d.Limit != nil {
		c.idle(d, &s)
		n.rule = c.rule(d, &s)
		n.prefix = ratelimit.AppendPrefix(nil, c.domain.Name, n.rule.Limit)
		c.rules.list = append(c.rules.list, n.rule)
	}
	c.level(n.below, d.Descriptors, &s)
}

// idle warns about a rule's own settings that have no effect. Inherited settings can be for its
// siblings.
func (c *compiler) idle(d *Descriptor, s *scope) {
	for _, set := range d.Inherited.Coordination {
		if why := withoutEffect(set.Field, s); why != "" {
			c.odd(NoEffect, set.Place, s.names, "%s has no effect: %s", set.Field, why)
		}
	}
}

// place puts a node among its siblings, or returns the equal one.
func (l level) place(n *node, d *Descriptor) (first *node) {
	s := l[d.Key]
	if s == nil {
		s = &siblings{exact: map[string]*node{}, patterns: map[string]*node{}}
		l[d.Key] = s
	}
	first = s.of(d.Value)
	if first != nil {
		return first
	}
	switch {
	case d.Value == "":
		s.bare = n
	case strings.Contains(d.Value, "*"):
		n.pattern, n.nth = newPattern(d.Value), len(s.wildcards)
		s.patterns[d.Value], s.wildcards = n, append(s.wildcards, n)
	default:
		s.exact[d.Value] = n
	}
	return nil
}

func (c *compiler) rule(d *Descriptor, s *scope) *ratelimit.Rule {
	l := d.Limit
	r := &ratelimit.Rule{
		Domain: c.domain.Name, Path: strings.Join(s.keys, "."), Keys: s.keys, Name: l.Name, Unlimited: l.Unlimited,
		Shadow: d.Shadow, Quota: d.Quota, Metadata: d.Metadata, Coordination: s.coordination,
		MetricNames: ratelimit.MetricNaming{Detailed: d.Detailed, Shared: s.shared},
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
		r.Limit.Burst = s.burst
		if s.burst == 0 || l.Requests == 0 { // a limit of 0 admits no burst
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
	if s.charges == nil && r.Coordination.OnDeny == ratelimit.DenyCharges {
		r.Coordination.OnDeny = r.Limit.Algorithm.OnDeny()
	}
	c.holds(r, s, l.Place)
	if d.Inherited.Hold != nil && (l.Unlimited || l.Concurrency > 0) {
		why := "the rule limits requests in flight"
		if l.Unlimited {
			why = "the rule is unlimited"
		}
		c.odd(NoEffect, d.Inherited.Hold.Place, s.names, "hold has no effect: %s", why)
	}
	c.overridden(r, d, s)
	for _, doubt := range r.Doubts() {
		c.odd(Ineffective, l.Place, s.names, "%s", doubt)
	}
	if c.domain.Name != "" {
		r.Counters = c.counters(r.Domain, strings.Join(r.Keys, "\x00"))
	}
	return r
}
