package config

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// inherited fields can stand at the root and in any descriptor.
func inherited[T any](of func(*T) *Inherited, more decoders[T]) decoders[T] {
	more["algorithm"] = func(d *decoder, t *T, f *yamlField) { d.algorithm(of(t), f) }
	more["burst"] = func(d *decoder, t *T, f *yamlField) { of(t).Burst = new(d.whole(f, 1, ratelimit.MaxLimit)) }
	more["max_override"] = func(d *decoder, t *T, f *yamlField) {
		of(t).MaxOverride = new(d.whole(f, 0, ratelimit.MaxLimit)) // nothing would mean no overrides
	}
	more["hold"] = func(d *decoder, t *T, f *yamlField) { of(t).Hold = d.hold(f) }
	more["coordination"] = func(d *decoder, t *T, f *yamlField) { d.coordination(of(t), f) }
	return more
}

var (
	fileFields       decoders[File]
	descriptorFields decoders[Descriptor]
	limitFields      decoders[RateLimit]
	replacesFields   decoders[Replacement]
	billingFields    decoders[Billing]
	inheritedFields  decoders[Inherited]
)

const mostUnits, mostAtOnce = ratelimit.Tokens(ratelimit.MaxPeriod / time.Second), ratelimit.MaxConcurrency

func init() { // descriptors hold descriptors
	fileFields = inherited(func(f *File) *Inherited { return &f.Defaults }, decoders[File]{
		"domain":      func(d *decoder, t *File, f *yamlField) { t.Domain = d.text(f) },
		"descriptors": func(d *decoder, t *File, f *yamlField) { t.Descriptors = d.descriptors(f) },
	})
	descriptorFields = inherited(func(x *Descriptor) *Inherited { return &x.Inherited }, decoders[Descriptor]{
		"key": func(d *decoder, t *Descriptor, f *yamlField) { t.Key = d.text(f) },
		"value": func(d *decoder, t *Descriptor, f *yamlField) {
			t.Value = d.value(f)
			t.ValuePlace = f.value.place
		},
		"rate_limit":      func(d *decoder, t *Descriptor, f *yamlField) { t.Limit = d.limit(f) },
		"descriptors":     func(d *decoder, t *Descriptor, f *yamlField) { t.Descriptors = d.descriptors(f) },
		"shadow_mode":     func(d *decoder, t *Descriptor, f *yamlField) { t.Shadow = d.flag(f) },
		"quota_mode":      func(d *decoder, t *Descriptor, f *yamlField) { t.Quota = d.flag(f) },
		"detailed_metric": func(d *decoder, t *Descriptor, f *yamlField) { t.Detailed = d.flag(f) },
		"value_to_metric": func(d *decoder, t *Descriptor, f *yamlField) { t.ValueToMetric = d.flag(f) },
		"share_threshold": func(d *decoder, t *Descriptor, f *yamlField) { t.ShareThreshold = d.flag(f) },
		"metadata":        func(d *decoder, t *Descriptor, f *yamlField) { t.Metadata = d.metadata(f) },
	})
	limitFields = decoders[RateLimit]{
		"requests_per_unit": func(d *decoder, t *RateLimit, f *yamlField) { t.Requests = d.tokens(f) },
		"unit":              func(d *decoder, t *RateLimit, f *yamlField) { t.Unit = d.text(f) },
		"unit_multiplier":   func(d *decoder, t *RateLimit, f *yamlField) { t.Multiplier = d.whole(f, 1, mostUnits) },
		"concurrency":       func(d *decoder, t *RateLimit, f *yamlField) { t.Concurrency = d.whole(f, 1, mostAtOnce) },
		"hold_ttl":          func(d *decoder, t *RateLimit, f *yamlField) { t.HoldTTL = d.duration(f) },
		"billing":           func(d *decoder, t *RateLimit, f *yamlField) { t.Billing = d.billing(f) },
		"unlimited":         func(d *decoder, t *RateLimit, f *yamlField) { t.Unlimited = d.flag(f) },
		"name":              func(d *decoder, t *RateLimit, f *yamlField) { t.Name = d.text(f) },
		"replaces":          func(d *decoder, t *RateLimit, f *yamlField) { d.replaces(t, f) },
	}
	inheritedFields = inherited(func(in *Inherited) *Inherited { return in }, decoders[Inherited]{})
	billingFields = decoders[Billing]{
		"day":       func(d *decoder, t *Billing, f *yamlField) { t.Day = d.whole(f, 1, 31) },
		"time_zone": func(d *decoder, t *Billing, f *yamlField) { t.Zone = d.zone(f) },
	}
	replacesFields = decoders[Replacement]{
		"name": func(d *decoder, t *Replacement, f *yamlField) { t.Name = d.text(f) },
	}
}

// elsewhereHint is for a key without effect in its map, and follows its right place. The likeliest
// reason is a missing indent.
func elsewhereHint(at *yamlValue, key string) string {
	_, of := limitFields[key]
	if limit := at.get("rate_limit"); of && limit != nil && limit.value.kind == null {
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
		if len(d.problems) > maxProblems {
			break
		}
		tree, syntax := parse(text, caps, &left)
		if len(syntax) > 0 {
			d.problems = append(d.problems, syntax...)
			if tree.kind == null {
				continue
			}
		}
		decoded = append(decoded, d.file(&tree))
	}
	return decoded
}

func (d *decoder) file(v *yamlValue) File {
	f := File{Place: v.place}
	if v.kind != mapping && v.kind != null {
		d.problems.add(v.place, "error loading config file: it must be a map with domain and descriptors, not %s%s",
			v.kind, fileHint(v.place.File, v.kind))
		return f
	}
	f.Defaults.Place = v.place
	fill(d, &f, v, fileFields)
	if at := v.get("domain"); at != nil {
		f.Place = at.value.place
	}
	return f
}

func (d *decoder) descriptors(f *yamlField) []Descriptor {
	var all []Descriptor
	for _, item := range d.maps(f) {
		if !d.another(item.place) {
			break
		}
		x := Descriptor{Place: item.place}
		fill(d, &x, item, descriptorFields)
		x.Inherited.Place = item.place
		all = append(all, x)
	}
	return all
}

func (d *decoder) limit(f *yamlField) *RateLimit {
	if f.value.kind == null {
		d.warnings.addKind(NoEffect, f.place, "'rate_limit' is empty and limits nothing: write unit and "+
			"requests_per_unit, indented further than rate_limit")
		return nil
	}
	at := f.value.get("requests_per_unit")
	none := (at == nil || at.value.kind == null) && f.value.get("concurrency") == nil
	l := block(d, &RateLimit{Place: f.place, NoRequests: none}, f, limitFields)
	if at := f.value.get("unit"); at != nil {
		l.Place = at.value.place
	}
	return l
}

func (d *decoder) replaces(l *RateLimit, f *yamlField) {
	for _, item := range d.maps(f) {
		other := Replacement{Place: item.place}
		fill(d, &other, item, replacesFields)
		l.Replaces = append(l.Replaces, other)
	}
}

// billing is a block of its own, because day and zone need each other.
func (d *decoder) billing(f *yamlField) *Billing {
	b := &Billing{Place: f.place}
	if f.value.kind == null {
		return b // from the first, in UTC
	}
	return block(d, b, f, billingFields)
}

// CheckInherited returns the problems of a text that may have only fields that descriptors inherit.
func CheckInherited(text Text) Problems {
	caps := DefaultCaps()
	tree, problems := parse(text, caps, &caps.Tokens)
	d := decoder{problems: problems}
	fill(&d, new(Inherited), &tree, inheritedFields)
	return append(d.problems, d.warnings...) // warnings are of other fields
}
