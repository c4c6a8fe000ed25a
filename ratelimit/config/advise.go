package config

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// advise warns about valid rules: settings without effect, and values that probably match other
// requests than intended. Its time is proportional to the rules. Patterns are compared with earlier
// ones, for at most maxCompared bytes in all.
func advise(files []File, rules *Rules) Problems {
	a := adviser{left: maxCompared, named: map[string]Place{}, replaceable: map[string]map[string]bool{}}
	for _, d := range rules.inOrder() {
		if len(d.root) == 0 {
			a.addKind(NoRules, d.place, "the domain '%s' has no descriptors: its requests are not limited",
				cut(d.Name, maxName))
		}
		a.replaceable[d.Name] = map[string]bool{}
	}
	for _, r := range rules.list {
		if r.Name != "" {
			a.replaceable[r.Domain][r.Name] = true
		}
	}
	// All names that a rule can replace are known before the first rule is looked at.
	for i := range files {
		f := &files[i]
		a.domain = f.Domain
		a.level(rules.domains[f.Domain].root, f.Descriptors, f.Domain)
	}
	return a.Problems
}

// maxCompared bounds the bytes of patterns that are compared with earlier ones, which is quadratic in the patterns of a
// key.
const maxCompared = 16 << 20

// adviser walks descriptors together with their compiled nodes: the first have places, the second have the order of
// matches. It collects warnings, up to maxProblems.
type adviser struct {
	Problems    // warnings
	domain      string
	left        int                        // of maxCompared
	named       map[string]Place           // of rules, by name in statistics
	replaceable map[string]map[string]bool // rate_limit.name of all rules of a domain
}

// level takes descriptors with their compiled siblings, which may come from several files.
func (a *adviser) level(at level, descriptors []Descriptor, above string) {
	for i := range descriptors {
		if len(a.Problems) > maxProblems {
			return
		}
		d := &descriptors[i]
		siblings, name := at[d.Key], above+"."+d.Segment()
		own := siblings.written[d.Value] // there is one: rules with problems are not advised on
		// spelling and limit look at the descriptor alone, the others at its siblings.
		a.spelling(d, name)
		a.limit(d, name)
		a.hidden(d, own, siblings, above)
		if d.Limit == nil {
			a.unlimited(d, a.next(d, own, siblings), name)
		}
		a.level(own.below, d.Descriptors, name)
	}
}

// likeRegexp matches regular expressions, such as "^/api", "user-.*", "\d+" or "[0-9]+", but no paths, names or
// addresses. A dot behind a digit does not count: 10.* is a usual pattern.
var likeRegexp = regexp.MustCompile(`^\^|(^|\D)\.[*+]|\$$|\\[dws.]|\(\?|\[[a-z0-9]-[a-z0-9]\]`)

// rangeKeys are keys for which Envoy sends a range: it masks addresses, or matches them and sends a text.
var rangeKeys = []string{"masked_remote_address", "remote_address_match"}

// spelling warns about keys and values that match fewer requests than they seem to: with white space, address ranges,
// and regular expressions. Envoy sends texts, and values are compared as texts.
func (a *adviser) spelling(d *Descriptor, name string) {
	for _, part := range [][2]string{{"key", d.Key}, {"value", d.Value}} {
		if what, text := part[0], part[1]; text != strings.TrimSpace(text) {
			a.about(name, Misread, d.Place, "the %s %q begins or ends with white space, which requests "+
				"must have, too", what, shorten(text))
		}
	}
	// A masked address is sent with its length, such as 10.1.0.0/16, and matches as a text.
	_, err := netip.ParsePrefix(d.Value)
	if err == nil && !slices.Contains(rangeKeys, d.Key) {
		a.about(name, Range, d.ValuePlace, "the value %q is a range, and values are compared as text: "+
			"no address matches. Use the key masked_remote_address, for which Envoy masks addresses, and the "+
			"first address of the range with its length as the value", shorten(d.Value))
	}
	if likeRegexp.MatchString(d.Value) {
		a.about(name, Misread, d.ValuePlace, "the value %q looks like a regular expression, but only "+
			"'*' is special: it stands for any text", shorten(d.Value))
	}
}

// limit warns about unusual limits, about fields that need a limit, and about limits with the same
// name in statistics. The key a_b, and the key a with the value b, have one name.
func (a *adviser) limit(d *Descriptor, name string) {
	l := d.Limit
	if l == nil {
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"shadow_mode", d.Shadow},
			{"quota_mode", d.Quota},
			{"detailed_metric", d.Detailed},
			{"metadata", d.Metadata != nil},
		} {
			if f.set {
				a.about(name, NoEffect, d.Place, "%s has no effect: the descriptor has no rate_limit, and "+
					"those below do not inherit it", f.name)
			}
		}
		return
	}
	// Names join keys and values by dots and underscores, so that two paths can have one.
	if first, twice := a.named[name]; twice {
		a.about(name, SameName, d.Place, "metrics and statistics add it to the rule%s, which has the same "+
			"name and matches other requests; rename one of them", first.after(" at "))
	} else {
		a.named[name] = d.Place
	}
	if l.Unlimited && d.Metadata != nil {
		a.about(name, NoEffect, d.Place, "metadata has no effect: the rule is unlimited")
	}
	switch {
	case l.Unlimited && l.Requests > 0:
		a.about(name, NoEffect, l.Place, "requests_per_unit has no effect: the rule is unlimited")
	case !l.Unlimited && !l.Counts && l.Concurrency == 0:
		a.about(name, ZeroLimit, l.Place, "requests_per_unit is not set: it is 0, and every request is "+
			"refused; write requests_per_unit: 0 if that is meant")
	}
	names := a.replaceable[a.domain]
	for _, other := range l.Replaces {
		if !names[other.Name] {
			a.about(name, NoEffect, other.Place, "it replaces '%s', and no rule of the domain has that "+
				"rate_limit.name%s", shorten(other.Name), ratelimit.DidYouMean(other.Name, someNames(names)))
		}
	}
}

// someNames are similar names, few enough to compare.
func someNames(names map[string]bool) []string {
	const most = 100
	if len(names) > most {
		return nil
	}
	return slices.Collect(maps.Keys(names))
}

// hidden warns about a pattern, or a key without a value, that never applies because an earlier
// pattern matches all of its requests. A pattern covers another one if and only if it matches the
// other's text.
func (a *adviser) hidden(d *Descriptor, own *node, s *siblings, above string) {
	earlier, text, hint := s.wildcards, "*", "; remove one of them"
	if own.exact {
		return // exact values are tried first
	}
	if own != s.bare {
		earlier, text = s.wildcards[:own.nth-1], d.Value
		hint = "; patterns are tried in the order of the file: move it up"
	}
	if first := a.firstMatch(earlier, text); first != nil {
		a.addKind(Hidden, d.Place, "%s.%s can never apply: %s%s is tried before it, and matches all of its requests%s",
			cut(above, maxName), shorten(d.Segment()), shorten(first.segment(d.Key)), first.place.after(" at "), hint)
	}
}

// firstMatch is the first wildcard that matches a value, or nil. It is nil, too, when the bytes for comparisons are
// used up: a warning may then be missing.
func (a *adviser) firstMatch(wildcards []*node, value string) *node {
	for _, n := range wildcards {
		a.left -= len(value) + len(n.pattern.text)
		if a.left < 0 {
			return nil
		}
		if n.pattern.matches(value) {
			return n
		}
	}
	return nil
}

// unlimited warns about a descriptor without a limit. It limits nothing, and requests that it
// matches are not tried against others, because matching never goes back.
func (a *adviser) unlimited(d *Descriptor, instead *node, name string) {
	leaf := len(d.Descriptors) == 0
	const meant = "; write rate_limit: {unlimited: true} if that is meant"
	switch name = cut(name, maxName); {
	// Without this descriptor, its requests would have a limit. It may have been written for those below it only.
	case instead != nil && instead.rule != nil && !instead.rule.Unlimited:
		what := "has neither rate_limit nor descriptors"
		if !leaf {
			what = "has no rate_limit of its own"
		}
		a.addKind(NoLimit, d.Place, "%s %s: requests that end there are not limited, because %s%s is not tried for "+
			"them%s", name, what, shorten(instead.segment(d.Key)), instead.place.after(" at "), meant)
	case leaf:
		a.addKind(NoLimit, d.Place, "%s has neither rate_limit nor descriptors: it limits nothing%s", name, meant)
	}
}

// next is the match of d's requests without d, or nil: a later pattern, or the bare key. A value is a pattern's text
// here, as in hidden.
func (a *adviser) next(d *Descriptor, own *node, s *siblings) *node {
	if own == s.bare {
		return nil
	}
	if n := a.firstMatch(s.wildcards[own.nth:], d.Value); n != nil || a.left < 0 {
		return n
	}
	return s.bare
}

// withoutEffect is the reason why a rule's own setting has no effect, or "": it belongs to other modes. A setting in no
// mode's list applies to all.
func withoutEffect(field string, c *ratelimit.Coordination) string {
	if field == "reclaim" && c.Reclaim == ratelimit.ReclaimEager && c.Mode.Spec().Owned {
		return fmt.Sprintf("mode %s does not reclaim tokens eagerly", c.Mode)
	}
	var of []string
	for i, name := range ratelimit.ModeNames() {
		if slices.Contains(ratelimit.Mode(i).Spec().Fields, field) {
			of = append(of, name)
		}
	}
	if len(of) == 0 || slices.Contains(of, c.Mode.String()) {
		return ""
	}
	return fmt.Sprintf("it applies to mode %s, and this rule has %s", strings.Join(of, " and "), c.Mode)
}
