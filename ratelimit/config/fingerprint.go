package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Fingerprint identifies rules: twelve hexadecimal digits.
//
// Guarantee: nodes with the same fingerprint decide every request by the same rule with the same
// settings, for any files, pushes and defaults. Nodes with different fingerprints do not, except by
// a chance of 1 in 2^48. Comments, file names and the order of rules without patterns do not count.
// Settings outside of the rules, such as SHADOW_MODE and the store, do not count either.
//
// It reads all rules, once at each load.
func (r *Rules) Fingerprint() string { return r.orNone().print }

// settle computes the values of complete rules. Every text is quoted, so that no two contents have the same bytes.
func (r *Rules) settle() {
	h, text := sha256.New(), []byte(nil)
	r.eachSpot(func(at string, p spot) {
		text = fmt.Appendf(text[:0], "%q%q%q%q", at, p.limit, p.order, strconv.FormatBool(p.ruled))
		for _, f := range p.fields {
			text = strconv.AppendQuote(strconv.AppendQuote(text, f.Name), f.Text)
		}
		_, _ = h.Write(append(text, '\n')) // a hash accepts all bytes
	})
	r.print = hex.EncodeToString(h.Sum(nil)[:6])
}

// ruleField is one setting of a rule in force.
type ruleField struct{ Name, Text string }

// fieldsOf has all settings of a rule, as rule files write them, in a fixed order. A setting that is missing here
// changes no fingerprint, and a reload does not log it: a test compares the fields of Rule with these. One that is left
// out of a file has the value in force.
func fieldsOf(r *ratelimit.Rule) []ruleField {
	unit := r.Limit.Unit.String()
	if r.Limit.Unit == ratelimit.CalendarMonth {
		unit += " (of the calendar)"
	}
	day, zone := "", ""
	if r.Limit.Calendar != 0 {
		day, zone = strconv.Itoa(r.Limit.Calendar.Day()), r.Limit.Calendar.Zone()
	}
	if r.Unlimited {
		unit = ""
	}
	metadata := ""
	if r.Metadata != nil {
		text, _ := json.Marshal(r.Metadata) // it has only types of JSON
		metadata = string(text)
	}
	replaced := ""
	if len(r.Replaces) > 0 {
		replaced = fmt.Sprintf("%q", r.Replaces)
	}
	// The largest ceiling is the default, and means that the file says nothing.
	ceiling := ""
	if r.Limit.Ceiling != ratelimit.MaxLimit {
		ceiling = fmt.Sprint(r.Limit.Ceiling)
	}
	hold := r.Hold.String()
	amount := []ruleField{
		{"requests_per_unit", fmt.Sprint(r.Limit.Requests)},
		{"unit", unit},
		{"unit_multiplier", fmt.Sprint(max(1, r.Limit.Multiplier))},
	}
	if r.Limit.Algorithm == ratelimit.Concurrency {
		hold, amount = "", []ruleField{
			{"concurrency", fmt.Sprint(r.Limit.Requests)}, {"hold_ttl", r.Limit.Period().String()},
		}
	}
	return slices.Concat(amount, []ruleField{
		{"billing.day", day},
		{"billing.time_zone", zone},
		{"unlimited", strconv.FormatBool(r.Unlimited)},
		{"algorithm", r.Limit.Algorithm.String()},
		{"burst", fmt.Sprint(r.Limit.Burst)},
		{"name", r.Name},
		{"replaces", replaced},
		{"shadow_mode", strconv.FormatBool(r.Shadow)},
		{"quota_mode", strconv.FormatBool(r.Quota)},
		{"detailed_metric", strconv.FormatBool(r.MetricNames.Detailed)},
		{"value_to_metric", fmt.Sprint(r.MetricNames.Levels)},
		{"metadata", metadata},
		{"hold", hold},
		{"max_override", ceiling},
	}, coordinationFields(&r.Coordination))
}

// spot is the content of one place in the rules: a domain, a descriptor, or all patterns of a key. Its place is a text,
// in which \x00 stands before a key and \x01 before a value:
//
//	edge                          the domain
//	edge\x00tier\x01gold          a descriptor
//	edge\x00path\x02              the order of the patterns of a key
//
// Two sets of rules are compared place by place.
type spot struct {
	// limit is shown for a rule that is added or removed; "": there is none to report.
	limit  string
	ruled  bool
	fields []ruleField
	order  string // of patterns
}

// The limits of spots without a rule.
const (
	aDomain       = "a domain"
	limitsNothing = "limits nothing"
)

// spots are all places with their contents.
func (r *Rules) spots() map[string]spot {
	all := map[string]spot{}
	r.eachSpot(func(at string, p spot) { all[at] = p })
	return all
}

// eachSpot calls f with all spots, in an order that the rules alone give.
func (r *Rules) eachSpot(f func(at string, p spot)) {
	for _, d := range r.inOrder() {
		at := spotText.Replace(d.Name)
		f(at, spot{limit: aDomain, fields: coordinationFields(&d.Defaults)})
		d.root.eachSpot(at, f)
	}
}

// eachSpot calls f with the spots of a level and below. Keys and exact values come by name, and patterns as they match,
// whose order is a spot of its own.
func (l level) eachSpot(above string, f func(at string, p spot)) {
	put := func(at string, n *node) {
		f(at, n.spot())
		n.below.eachSpot(at, f)
	}
	for _, key := range slices.Sorted(maps.Keys(l)) {
		s, at := l[key], above+spotLevel+spotText.Replace(key)
		for _, value := range slices.Sorted(maps.Keys(s.written)) {
			if s.written[value].exact {
				put(at+spotValue+spotText.Replace(value), s.written[value])
			}
		}
		order := make([]string, len(s.wildcards))
		for i, n := range s.wildcards {
			order[i] = spotText.Replace(n.pattern.text)
			put(at+spotValue+order[i], n)
		}
		if len(order) > 1 {
			f(at+spotOrder, spot{order: strings.Join(order, spotLevel)})
		}
		if s.bare != nil {
			put(at, s.bare)
		}
	}
}

// spot is a descriptor's. One that only leads to others has no limit and no fields but share_threshold, which is part
// of all keys below.
func (n *node) spot() spot {
	p := spot{fields: []ruleField{{"share_threshold", strconv.FormatBool(n.share)}}}
	switch {
	case n.rule != nil:
		p.ruled, p.fields = true, append(p.fields, fieldsOf(n.rule)...)
		p.limit = n.rule.Limit.String()
		if n.rule.Unlimited {
			p.limit = "unlimited"
		}
		p.limit += ", mode " + n.rule.Coordination.Mode.String()
	case len(n.below) == 0:
		p.limit = limitsNothing
	}
	return p
}

// coordinationFields are all settings of a coordination, as files write them.
func coordinationFields(c *ratelimit.Coordination) []ruleField {
	fields := make([]ruleField, 0, len(ratelimit.CoordinationFields))
	for _, field := range ratelimit.CoordinationFields {
		fields = append(fields, ruleField{field, c.Get(field)})
	}
	return fields
}

var (
	spotName = strings.NewReplacer(spotLevel, ".", spotValue, "_")
	// spotText keeps keys and values apart from separators: each of these bytes becomes two, which begin with \x03. The
	// result still sorts before other characters.
	spotText = strings.NewReplacer("\x00", "\x03\x03", "\x01", "\x03\x04", "\x02", "\x03\x05", "\x03", "\x03\x06")
)
