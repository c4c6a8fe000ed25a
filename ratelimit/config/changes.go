// What a load changes, rule by rule: for logs, and for sluice check --from. The content of rules as texts, place by
// place, is in fingerprint.go. The effects of changes on tokens and leases are in rollout.go.

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ChangeKind tells how a rule changed.
type ChangeKind string

// The kinds of changes.
const (
	Added     ChangeKind = "added"
	Removed   ChangeKind = "removed"
	Changed   ChangeKind = "changed"
	Reordered ChangeKind = "reordered" // the patterns of a key change their order
)

// Change is the difference of one rule between two sets of rules.
type Change struct {
	Rule   string        `json:"rule"` // DOMAIN.PATH
	Kind   ChangeKind    `json:"kind"`
	Limit  string        `json:"limit,omitempty"` // for an added or removed rule
	Fields []FieldChange `json:"fields,omitempty"`
}

// FieldChange is a setting with its values before and after.
type FieldChange struct {
	Field string `json:"field"`
	Old   string `json:"old"`
	New   string `json:"new"`
}

// What is the change without the rule's name.
func (c *Change) What() string {
	switch c.Kind {
	case Added, Removed:
		return string(c.Kind) + ": " + c.Limit
	case Reordered:
		return "the order of its patterns changes"
	}
	texts := make([]string, len(c.Fields))
	for i, f := range c.Fields {
		texts[i] = f.Field + " " + shown(f.Old) + " -> " + shown(f.New)
	}
	return strings.Join(texts, ", ")
}

// Renamed describes rules that seem to have another domain, key, value or depth: for each that is removed, one with the
// same limit is added. It is "" if there are none. Their number and the first names say enough about a push that
// renames all.
func Renamed(changes []Change) string {
	removed := map[string][]string{} // names by limit
	for _, c := range changes {
		if c.Kind == Removed {
			removed[c.Limit] = append(removed[c.Limit], c.Rule)
		}
	}
	// All domains have the same text, and so do all descriptors without a limit: a pair of them says nothing.
	delete(removed, aDomain)
	delete(removed, limitsNothing)
	n, names := 0, []string(nil)
	for _, c := range changes {
		before := removed[c.Limit]
		if c.Kind != Added || len(before) == 0 {
			continue
		}
		removed[c.Limit] = before[1:]
		n++
		if n <= shownNames {
			names = append(names, cut(before[0], maxName)+" -> "+cut(c.Rule, maxName))
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("rules that seem renamed: %d (such as %s). Their usage starts from 0, so that keys can use the "+
		"limit of each name in this window. To keep the usage, keep the names", n, strings.Join(names, ", "))
}

// shownNames is the maximum of names in such a message.
const shownNames = 3

// shown is a value in a message.
func shown(text string) string {
	if text == "" {
		return "(none)"
	}
	return shorten(text)
}

// Changes are the steps from old to other, in the order of the rules' names. There are none if and
// only if the fingerprints are equal. A descriptor without a limit counts as a rule if it has no
// descriptors, because it can keep others from matching.
func Changes(old, other *Rules) []Change {
	before, after := old.spots(), other.spots()
	all := maps.Clone(before)
	maps.Copy(all, after)
	var changes []Change
	for _, at := range slices.Sorted(maps.Keys(all)) {
		if c := change(before[at], after[at]); c.Kind != "" {
			c.Rule = spotName.Replace(strings.TrimSuffix(at, spotOrder))
			changes = append(changes, c)
		}
	}
	return changes
}

// change is the change of a spot. A missing spot is the zero one, and the zero Change is no change. Only one is
// reported: a rule that is added has no changed fields, and patterns in another order have their own spot.
func change(was, is spot) Change {
	switch {
	case was.limit == "" && is.limit != "":
		return Change{Kind: Added, Limit: is.limit}
	case was.limit != "" && is.limit == "":
		return Change{Kind: Removed, Limit: was.limit}
	case reordered(was.order, is.order):
		return Change{Kind: Reordered}
	case was.fields == nil, is.fields == nil:
		return Change{} // the rules below it, or its patterns, are reported instead
	case was.ruled != is.ruled: // a rule in place of a leaf without a limit, or the reverse
		return Change{Kind: Changed, Fields: []FieldChange{{"rate_limit", was.limit, is.limit}}}
	}
	var fields []FieldChange
	before, after := was.texts(), is.texts()
	for _, f := range slices.Concat(was.fields, is.fields) { // of requests in flight, or in a period
		old, text := before[f.Name], after[f.Name]
		if old != text {
			fields = append(fields, FieldChange{f.Name, old, text})
			before[f.Name] = text // once
		}
	}
	if len(fields) == 0 {
		return Change{}
	}
	return Change{Kind: Changed, Fields: fields}
}

// texts are a spot's fields by name.
func (p *spot) texts() map[string]string {
	texts := map[string]string{}
	for _, f := range p.fields {
		texts[f.Name] = f.Text
	}
	return texts
}

// The separators of a spot's place: they sort before other characters, so that a
// rule comes before those below it.
const (
	spotLevel = "\x00" // between levels
	spotValue = "\x01" // between a key and its value
	spotOrder = "\x02" // ends the place of all patterns of a key
)

// reordered reports whether the patterns of two orders that are in both change their order. Added and removed ones are
// reported. An order has the patterns of a key, between spotLevels.
func reordered(a, b string) bool {
	at := map[string]int{}
	for i, pattern := range strings.Split(a, spotLevel) {
		at[pattern] = i + 1
	}
	both := slices.DeleteFunc(strings.Split(b, spotLevel), func(pattern string) bool { return at[pattern] == 0 })
	return !slices.IsSortedFunc(both, func(x, y string) int { return at[x] - at[y] })
}
