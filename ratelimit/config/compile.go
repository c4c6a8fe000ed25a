// The walk over files and descriptors. A scope goes down with it: it is copied for each descriptor, and has what that
// inherits. compiler.go makes a limit, a hold and a ceiling of what the scope has at a rule.

package config

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
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
	// Also the readable parts of files with problems are compiled, only to find further problems.
	files := d.decode(texts, caps)
	compiled, doubts, faults := Compile(files, o)
	problems = slices.Concat(d.problems, faults)
	if len(problems) > 0 {
		return nil, d.warnings.sorted(), problems.sorted()
	}
	warnings = slices.Concat(d.warnings, doubts, advise(files, compiled))
	return compiled, warnings.sorted(), nil
}

// Compile turns decoded files into rules, or reports all errors. Its time and memory are proportional to the
// descriptors, except for names (maxPathBytes).
func Compile(files []File, o Options) (rules *Rules, warnings, problems Problems) {
	c := compiler{options: o, rules: &Rules{domains: map[string]*Domain{}, counters: countersByName{}}}
	for i := range files {
		c.file(&files[i])
	}
	if len(c.problems) > 0 {
		return nil, nil, c.problems
	}
	c.rules.settle()
	return c.rules, c.warnings, nil
}

// file compiles the descriptors of a file into its domain. A domain in a second file is an error, unless MergeDomains
// joins them; its settings at the root are those of its file.
func (c *compiler) file(f *File) {
	if f.Domain == "" {
		c.problems.add(f.Place, "config file cannot have empty domain; write domain: NAME at its top, as Envoy's "+
			"filter names it")
	}
	root := scope{
		compiler: c, names: f.Domain, domain: c.rules.domains[f.Domain], coordination: c.options.Coordination,
	}
	root.inherit(&f.Defaults)
	switch {
	case root.domain == nil: // the first file of the domain
		root.domain = &Domain{
			Name: f.Domain, Defaults: root.coordination, root: level{}, place: f.Place,
			Overrides: c.counters(f.Domain, OverridePath),
		}
		c.rules.domains[f.Domain] = root.domain
	case !c.options.MergeDomains && f.Domain != "":
		c.problems.add(f.Place, "duplicate domain '%s' in config file%s; a domain is in one file, unless "+
			"MERGE_DOMAIN_CONFIG joins them", cut(f.Domain, maxName), root.domain.place.after("; the first is at "))
		root.domain = &Domain{root: level{}} // its own problems are still found
	}
	root.level(root.domain.root, f.Descriptors)
}

// OverridePath replaces the path in keys of limits that requests contain.
const OverridePath = "(request override)"

// inherit applies the settings of a file or a descriptor, which those below inherit. The algorithm comes before burst,
// which fits only one. Of settings that do not fit together, the one that is written here is at fault: Validate would
// report those of above again, in each descriptor below.
func (s *scope) inherit(in *Inherited) {
	s.hold = cmp.Or(in.Hold, s.hold)
	s.maxOverride = cmp.Or(in.MaxOverride, s.maxOverride)
	if in.Algorithm != nil {
		s.algorithm = *in.Algorithm
	}
	if in.Burst != nil {
		s.burst = *in.Burst
		if s.algorithm != ratelimit.TokenBucket {
			s.wrong(in.Place, "config error, burst applies to algorithm: token_bucket, and this is %s; write "+
				"algorithm: token_bucket, or remove burst", s.algorithm)
		}
	}
	for i := range in.Coordination {
		set := &in.Coordination[i]
		_ = s.coordination.Set(set.Field, set.Text) // the decoder has tried it
		for _, err := range s.coordination.Validate() {
			if wrong, ok := errors.AsType[*ratelimit.FieldError](err); ok && wrong.Field == set.Field {
				s.wrong(set.Place, "config error, coordination: %v", err)
			}
		}
		if set.Field == "on_deny" {
			// Whether it is written at all, and where, counts for rules with holds and for the default.
			s.onDeny = set
		}
	}
}

// level compiles descriptors into a level, in the order in which they are written: patterns match in that order.
func (s *scope) level(at level, descriptors []Descriptor) {
	for i := range descriptors {
		s.descriptor(at, &descriptors[i])
	}
}

// descriptor compiles a descriptor, and those below it. The steps: its names, which are bounded; its own scope; its
// node among its siblings; and its rule, if it has a limit.
func (s *scope) descriptor(at level, d *Descriptor) {
	if d.Key == "" {
		s.wrong(d.Place, "descriptor has empty key")
	}
	// In the original, wildcards match the text KEY_VALUE, so that one at the end of a key matches other keys. As a
	// plain key, it would limit nothing.
	if d.Value == "" && strings.HasSuffix(d.Key, "*") {
		s.wrong(d.Place, "the key '%s' ends with '*': envoyproxy/ratelimit applies it to each key that "+
			"begins so, and here a key has no wildcards; write a descriptor for each key", d.Key)
	}
	// A full name includes the names above it: a long key with many descriptors below it, or nested
	// long keys, take quadratic space.
	size := len(s.names) + len(d.Key) + len(d.Value)
	s.paths += size
	if s.paths > maxPathBytes {
		// The one that crosses the bound reports it.
		if s.paths-size <= maxPathBytes { // once
			s.wrong(d.Place, "config error, the names of all descriptors, each with those above it, are "+
				"more than %d bytes: use shorter keys and values, or fewer below long ones", maxPathBytes)
		}
		return
	}
	// Clip, because siblings append to the same slices: without it, one would write into the array of another.
	own, segment := *s, d.Segment()
	own.names += "." + segment
	own.keys = append(slices.Clip(s.keys), segment)
	// A shared level is named by its pattern, with value_to_metric or without.
	own.metric = append(slices.Clip(s.metric), d.ValueToMetric && !d.ShareThreshold)
	own.shared = append(slices.Clip(s.shared), d.ShareThreshold)
	own.inherit(&d.Inherited)

	n := &node{pattern: pattern{text: d.Value}, share: d.ShareThreshold, below: level{}, place: d.Place}
	if d.ShareThreshold && !strings.Contains(d.Value, "*") {
		own.wrong(d.Place, "share_threshold can only be used with wildcard values (containing '*'), but found "+
			"key '%s'", segment)
	}
	if first := at.place(n, d); first != nil {
		own.wrong(d.Place, "duplicate descriptor composite key '%s'%s; for two limits on one key, "+
			"let Envoy send a second descriptor with another key, for example generic_key before it",
			cut(own.names, maxName), first.place.after("; the first is at "))
	}
	if n.nth == maxPatterns+1 { // once
		own.wrong(d.Place, "config error, the key '%s' has more than %d patterns at one place, from this one on, and "+
			"each request tries them one after the other: use values, or no value", d.Key, maxPatterns)
	}
	if d.Limit != nil {
		own.idle(d)
		n.rule = own.rule(d)
		n.prefix = ratelimit.AppendPrefix(nil, s.domain.Name, n.rule.Limit)
		s.rules.list = append(s.rules.list, n.rule)
	}
	own.level(n.below, d.Descriptors)
}

// idle warns about a rule's own settings that have no effect in its mode. Inherited settings can be for its siblings.
func (s *scope) idle(d *Descriptor) {
	for _, set := range d.Inherited.Coordination {
		if why := withoutEffect(set.Field, &s.coordination); why != "" {
			s.warnings.about(s.names, NoEffect, set.Place, "%s has no effect: %s", set.Field, why)
		}
	}
}

// place puts a node among its siblings, or returns the equal one. Then the new node is in no table: what is below it is
// compiled only to find its problems.
func (l level) place(n *node, d *Descriptor) (first *node) {
	s := l[d.Key]
	if s == nil {
		s = &siblings{written: map[string]*node{}}
		l[d.Key] = s
	}
	first = s.written[d.Value]
	if first != nil {
		return first
	}
	s.written[d.Value] = n
	switch {
	case d.Value == "":
		s.bare = n
	case strings.Contains(d.Value, "*"):
		n.pattern = newPattern(d.Value)
		s.wildcards = append(s.wildcards, n)
		n.nth = len(s.wildcards)
	default:
		n.exact = true
	}
	return nil
}

// rule makes the rule of a descriptor with a limit, of its own fields and of what its scope has inherited. Its counters
// continue those of the rule of the same name in force.
func (s *scope) rule(d *Descriptor) *ratelimit.Rule {
	l := d.Limit
	r := &ratelimit.Rule{
		Domain: s.domain.Name, Path: strings.Join(s.keys, "."), Keys: s.keys, Name: l.Name, Unlimited: l.Unlimited,
		Shadow: d.Shadow, Quota: d.Quota, Metadata: d.Metadata, Coordination: s.coordination,
		MetricNames: ratelimit.MetricNaming{Detailed: d.Detailed, Shared: s.shared},
		Counters:    s.counters(s.domain.Name, strings.Join(s.keys, "\x00")),
	}
	if slices.Contains(s.metric, true) {
		r.MetricNames.Levels = s.metric
	}
	if l.Concurrency > 0 {
		r.Limit = s.concurrent(l)
	} else {
		r.Limit = s.inPeriod(l)
	}
	for _, other := range l.Replaces {
		switch other.Name {
		case "":
			s.wrong(other.Place, "should not have an empty replaces entry")
		case l.Name:
			s.wrong(other.Place, "replaces should not contain name of same descriptor")
		}
		// Whether a rule has that name, advise says: it may be in another file.
		r.Replaces = append(r.Replaces, other.Name)
	}
	// No file says on_deny, and neither does the server: the default is that of the algorithm. Where tokens return,
	// charges for refused requests would use up the refill, and nothing would pass while demand is above it.
	if s.onDeny == nil && r.Coordination.OnDeny == ratelimit.DenyCharges {
		r.Coordination.OnDeny = r.Limit.Algorithm.OnDeny()
	}
	s.holds(r, l.Place)
	if d.Inherited.Hold != nil && (l.Unlimited || l.Concurrency > 0) {
		why := "the rule limits requests in flight"
		if l.Unlimited {
			why = "the rule is unlimited"
		}
		s.warnings.about(s.names, NoEffect, d.Inherited.Hold.Place, "hold has no effect: %s", why)
	}
	s.overridden(r, d)
	for _, doubt := range declare.Doubts(r) {
		s.warnings.about(s.names, Ineffective, l.Place, "%s", doubt)
	}
	return r
}
