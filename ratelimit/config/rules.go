// Rules in force, and how a request's descriptor matches them. For the file
//
//	domain: edge
//	descriptors: [{key: tier, value: gold, descriptors: [{key: api_key, rate_limit: {unit: minute, ...}}]}]
//
// the rule of the descriptor tier=gold, api_key=abc is
//
//	domains["edge"].root["tier"].written["gold"].below["api_key"].bare.rule
//
// and its key, as ratelimit.KeyName shows it: minute|edge|tier=gold|api_key=abc.

package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Entry is one key and value of a request's descriptor.
type Entry struct{ Key, Value string }

// Rules has all domains, compiled. They are immutable and safe for concurrent use. Matching does not allocate. Nil
// Rules are empty: a node has none before its first load.
type Rules struct {
	domains  map[string]*Domain
	list     []*ratelimit.Rule // by file and then as written
	counters countersByName
	print    string // Fingerprint
}

// countersByName has counters by domain and by the rule's keys, which are joined by NUL. A name can have several: the
// rule of key a_b, and that of key a with value b. They are in the order of the files.
type countersByName map[[2]string][]*ratelimit.RuleCounters

// Domain has the rules of one domain, which may come from several files (MergeDomains).
type Domain struct {
	Name     string
	Defaults ratelimit.Coordination
	// Overrides are the counters of limits that requests contain.
	Overrides *ratelimit.RuleCounters
	brought   overrides // rules of limits that requests contain
	root      level
	// place is the domain's first file, for messages.
	place Place
}

// level has the nodes for one entry of a descriptor, by key.
type level map[string]*siblings

// siblings are the nodes with the same key. written has all of them, so that a second one with the same value is found;
// matching uses it for exact values only.
type siblings struct {
	written   map[string]*node // all, by their values in the rules
	wildcards []*node          // as written
	bare      *node
}

// node is a descriptor of the rules, with its place among its siblings. rule is nil if it has no rate_limit: then it
// only leads to those below it.
type node struct {
	pattern pattern // its text is the value in the rules
	exact   bool    // neither a wildcard nor bare
	nth     int     // of a wildcard: its place among its siblings, from 1
	share   bool    // all values that match share one budget
	rule    *ratelimit.Rule
	// prefix is the beginning of each key of its rule: the domain and the cut of windows. Requests do not have to write
	// it anew.
	prefix []byte
	below  level
	place  Place
}

// segment is a node's part in a rule's path. It is as the file has it, with a pattern's stars.
func (n *node) segment(key string) string {
	return (&Descriptor{Key: key, Value: n.pattern.text}).Segment()
}

// orNone makes nil Rules empty ones.
func (r *Rules) orNone() *Rules { return cmp.Or(r, &noRules) }

var noRules Rules // not changed

// Domain returns the rules of the named domain, or nil.
func (r *Rules) Domain(name string) *Domain { return r.orNone().domains[name] }

// Coordinated returns every rule, and for each domain one with Override, which has the coordination of limits that
// requests contain. Mode approx plans its seats by all of them, because it cannot foresee which limits requests bring.
func (r *Rules) Coordinated() []*ratelimit.Rule {
	all := slices.Clone(r.All())
	for _, d := range r.inOrder() {
		all = append(all, &ratelimit.Rule{Domain: d.Name, Override: true, Coordination: d.Defaults})
	}
	return all
}

// All returns every rule, by file and then as written. Callers must not change it.
func (r *Rules) All() []*ratelimit.Rule { return r.orNone().list }

// EachCounters calls f with all counters: of each rule, of each name that requests of a rule contained, and of limits
// that requests contained, domain by domain. keys are the parts of the name. Counters of a rule whose names are of
// requests are never used themselves.
func (r *Rules) EachCounters(f func(domain string, keys []string, c *ratelimit.RuleCounters)) {
	named := func(domain string, c *ratelimit.RuleCounters) {
		c.EachNamed(func(name string, c *ratelimit.RuleCounters) {
			f(domain, strings.Split(name, ratelimit.NameSeparator), c)
		})
	}
	for _, rule := range r.All() {
		if !rule.MetricNames.FromRequest() {
			f(rule.Domain, rule.Keys, rule.Counters)
			continue
		}
		named(rule.Domain, rule.Counters)
	}
	for _, d := range r.inOrder() {
		named(d.Name, d.Overrides)
	}
}

// DomainNames returns the names of at most that many domains, in their order.
func (r *Rules) DomainNames(most int) []string {
	names := slices.Sorted(maps.Keys(r.orNone().domains))
	return names[:min(most, len(names))]
}

// inOrder are the domains by name. Reports and fingerprints must not depend on the order of a map.
func (r *Rules) inOrder() []*Domain {
	domains := slices.Collect(maps.Values(r.orNone().domains))
	slices.SortFunc(domains, func(a, b *Domain) int { return cmp.Compare(a.Name, b.Name) })
	return domains
}

// Domains returns how many domains there are.
func (r *Rules) Domains() int { return len(r.orNone().domains) }

// Match finds the rule for a descriptor: at each level the exact value, then the wildcards as
// written, then the bare key, without going back. A rule applies only at the full depth of the
// entries. Match appends the budget's key to buf and returns it. If no rule matches, it returns nil
// and the unchanged buf.
//
// It allocates only if buf is too short.
func (d *Domain) Match(entries []Entry, buf []byte) (*ratelimit.Rule, []byte) {
	var path [maxFastDepth]*node
	// The path is kept, because a key needs to know at each level whether its values share a budget.
	nodes := path[:0]
	at := d.root
	var last *node
	for i := range entries {
		last = at.find(&entries[i])
		if last == nil {
			return nil, buf
		}
		nodes = append(nodes, last)
		at = last.below
	}
	if last == nil || last.rule == nil {
		return nil, buf
	}
	start := len(buf)
	buf = append(buf, last.prefix...)
	for i, n := range nodes {
		// A request's value may be written like the pattern. The mark of OfRule keeps their keys apart.
		value, whose := entries[i].Value, ratelimit.OfRequest
		if n.share {
			value, whose = n.pattern.text, ratelimit.OfRule
		}
		buf = ratelimit.AppendEntry(buf, entries[i].Key, value, whose)
	}
	return last.rule, ratelimit.SealKey(buf, start)
}

// Unknown is the first key of a descriptor for which no rule has a value at its place; "": there is none. Where the key
// has rules, and none for this value, a request without a rule is usual.
func (d *Domain) Unknown(entries []Entry) string {
	at := d.root
	for i := range entries {
		e := &entries[i]
		if at[e.Key] == nil {
			return e.Key
		}
		n := at.find(e)
		if n == nil {
			return ""
		}
		at = n.below
	}
	return ""
}

// maxFastDepth is the deepest descriptor that is matched without an allocation.
const maxFastDepth = 16

// find returns the node for an entry; nil: there is none. A request's value may be the text of a pattern, or empty:
// these are in written, and not exact.
func (l level) find(e *Entry) *node {
	s := l[e.Key]
	if s == nil {
		return nil
	}
	// The rules' order of precedence: exact, patterns as written, bare.
	if n := s.written[e.Value]; n != nil && n.exact {
		return n
	}
	for _, n := range s.wildcards {
		if n.pattern.matches(e.Value) {
			return n
		}
	}
	return s.bare
}

// OverrideKey appends the key of a limit that the request contains. Rules have no part in it, not even shared patterns.
func (d *Domain) OverrideKey(l ratelimit.Limit, entries []Entry, buf []byte) []byte {
	start := len(buf)
	buf = ratelimit.AppendPrefix(buf, d.Name, l)
	for i := range entries {
		buf = ratelimit.AppendEntry(buf, entries[i].Key, entries[i].Value, ratelimit.OfRequest)
	}
	return ratelimit.SealKey(buf, start)
}

// pattern is a value with one or more '*'. Each stands for any text, also an empty one.
// The parts of "/a*b" are "/a" and "b".
type pattern struct {
	text  string
	parts []string // between the stars
}

func newPattern(text string) pattern { return pattern{text, strings.Split(text, "*")} }

// matches finds each part at its first place after the previous one. For patterns with only stars, this finds a match
// if there is one: an earlier place leaves more for the parts behind it. The time is the length of s times the number
// of parts, at most.
func (p pattern) matches(s string) bool {
	last := len(p.parts) - 1
	first, ending := p.parts[0], p.parts[last]
	// The first part and the last one must not overlap: "ab*bc" does not match "abc".
	if len(s) < len(first)+len(ending) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, ending) {
		return false
	}
	s = s[len(first) : len(s)-len(ending)]
	for _, part := range p.parts[1:last] {
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return true
}
