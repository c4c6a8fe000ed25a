// The maps of a rule file: for each, a table of its fields, and what reads it. A new field has a line here and one in
// schema.go, which a test compares.

package config

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// fields are the known fields of a map, each with what reads its value.
type fields map[string]func(*yamlField)

// into stores what is read. Most fields are a place in a struct, and a reader of decode.go.
func into[T any](to *T, read func(*yamlField) T) func(*yamlField) {
	return func(f *yamlField) { *to = read(f) }
}

// mostUnits is a year of seconds, the longest period in the shortest unit. The compiler has the bound of the unit that
// is written.
const mostUnits, mostAtOnce = ratelimit.Tokens(ratelimit.MaxPeriod / time.Second), ratelimit.MaxConcurrency

// fileFields are those at the root of a file. The place of a file is that of its domain, for errors about it.
func (d *decoder) fileFields(t *File) fields {
	return d.inherited(&t.Defaults, fields{
		"domain": func(f *yamlField) {
			t.Domain = d.text(f)
			t.Place = f.value.place
		},
		"descriptors": into(&t.Descriptors, d.descriptors),
	})
}

// descriptorFields are those of a descriptor. The place of its value is kept for warnings about that.
func (d *decoder) descriptorFields(t *Descriptor) fields {
	return d.inherited(&t.Inherited, fields{
		"key": into(&t.Key, d.text),
		"value": func(f *yamlField) {
			t.Value = d.value(f)
			t.ValuePlace = f.value.place
		},
		"rate_limit":      into(&t.Limit, d.limit),
		"descriptors":     into(&t.Descriptors, d.descriptors),
		"shadow_mode":     into(&t.Shadow, d.flag),
		"quota_mode":      into(&t.Quota, d.flag),
		"detailed_metric": into(&t.Detailed, d.flag),
		"value_to_metric": into(&t.ValueToMetric, d.flag),
		"share_threshold": into(&t.ShareThreshold, d.flag),
		"metadata":        into(&t.Metadata, d.metadata),
	})
}

// limitFields are those of a rate_limit block. Its place is that of its unit, about which most errors are. A number
// without a value counts as not written.
func (d *decoder) limitFields(t *RateLimit) fields {
	return fields{
		"requests_per_unit": func(f *yamlField) {
			t.Requests = d.tokens(f)
			t.Counts = f.value.kind != null
		},
		"unit": func(f *yamlField) {
			t.Unit = d.text(f)
			t.Place = f.value.place
		},
		"unit_multiplier": func(f *yamlField) { t.Multiplier = d.whole(f, 1, mostUnits) },
		"concurrency":     func(f *yamlField) { t.Concurrency = d.whole(f, 1, mostAtOnce) },
		"hold_ttl":        into(&t.HoldTTL, d.duration),
		"billing":         into(&t.Billing, d.billing),
		"unlimited":       into(&t.Unlimited, d.flag),
		"name":            into(&t.Name, d.text),
		"replaces":        into(&t.Replaces, d.replaces),
	}
}

// billingFields are those of a billing block.
func (d *decoder) billingFields(t *Billing) fields {
	return fields{
		"day":       func(f *yamlField) { t.Day = d.whole(f, 1, 31) },
		"time_zone": into(&t.Zone, d.zone),
	}
}

func (d *decoder) replacesFields(t *Replacement) fields {
	return fields{"name": into(&t.Name, d.text)}
}

// inherited adds the fields that can stand at the root and in any descriptor.
func (d *decoder) inherited(t *Inherited, more fields) fields {
	more["algorithm"] = into(&t.Algorithm, d.algorithm)
	more["burst"] = func(f *yamlField) { t.Burst = new(d.whole(f, 1, ratelimit.MaxLimit)) }
	more["max_override"] = func(f *yamlField) {
		t.MaxOverride = new(d.whole(f, 0, ratelimit.MaxLimit)) // nothing would mean no overrides
	}
	more["hold"] = into(&t.Hold, d.hold)
	more["coordination"] = func(f *yamlField) { d.coordination(t, f) }
	return more
}

// elsewhereHint is for a key without effect in its map, and follows its right place. The likeliest
// reason is a missing indent.
func elsewhereHint(at *yamlValue, key string) string {
	limit := at.get("rate_limit")
	if elsewhere[key] == inLimit && limit != nil && limit.value.kind == null {
		return "; indent it further than rate_limit"
	}
	return ""
}

// decode reads texts, and collects their problems. If there are any, the result serves only to find
// more of them.
func (d *decoder) decode(texts []Text, caps Caps) []File {
	left := caps.Tokens
	decoded := make([]File, 0, len(texts))
	for _, text := range texts {
		// More are not reported.
		if len(d.problems) > maxProblems {
			break
		}
		tree, syntax := parse(text, caps, &left)
		d.problems = append(d.problems, syntax...)
		if len(syntax) == 0 || tree.kind != null {
			decoded = append(decoded, d.file(&tree))
		}
	}
	return decoded
}

// file decodes the tree of a file. An empty file has no domain, which the compiler reports.
func (d *decoder) file(v *yamlValue) File {
	f := File{Place: v.place}
	if v.kind != mapping && v.kind != null {
		d.problems.add(v.place, "error loading config file: it must be a map with domain and descriptors, not %s%s",
			v.kind, fileHint(v.place.File, v.kind))
		return f
	}
	f.Defaults.Place = v.place
	d.fill(v, d.fileFields(&f))
	return f
}

// descriptors is a list of them, with all below. It stops at the cap of rules.
func (d *decoder) descriptors(f *yamlField) []Descriptor {
	var all []Descriptor
	for _, item := range d.maps(f) {
		if !d.another(item.place) {
			break
		}
		x := Descriptor{Place: item.place, Inherited: Inherited{Place: item.place}}
		d.fill(item, d.descriptorFields(&x))
		all = append(all, x)
	}
	return all
}

// limit is a rate_limit block; nil: there is none. An empty one is a mistake of indentation: it limits nothing, which a
// warning says.
func (d *decoder) limit(f *yamlField) *RateLimit {
	if f.value.kind == null {
		d.warnings.addKind(NoEffect, f.place, "'rate_limit' is empty and limits nothing: write unit and "+
			"requests_per_unit, indented further than rate_limit")
		return nil
	}
	l := &RateLimit{Place: f.place}
	return block(d, l, f, d.limitFields(l))
}

// replaces is a list of maps with a name each: [{name: other}].
func (d *decoder) replaces(f *yamlField) (all []Replacement) {
	for _, item := range d.maps(f) {
		other := Replacement{Place: item.place}
		d.fill(item, d.replacesFields(&other))
		all = append(all, other)
	}
	return all
}

// billing is a block of its own, because day and zone need each other.
func (d *decoder) billing(f *yamlField) *Billing {
	b := &Billing{Place: f.place}
	if f.value.kind == null {
		return b // from the first, in UTC
	}
	return block(d, b, f, d.billingFields(b))
}

// CheckInherited returns the problems of a text that may have only fields that descriptors inherit. Package xds asks so
// about a resource's additions, which it copies into the text of a rule.
func CheckInherited(text Text) Problems {
	caps := DefaultCaps()
	tree, problems := parse(text, caps, &caps.Tokens)
	d := decoder{problems: problems}
	d.fill(&tree, d.inherited(new(Inherited), fields{}))
	return append(d.problems, d.warnings...) // warnings are of other fields
}
