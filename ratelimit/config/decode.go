package config

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The fields of each kind of map, and what fills them in.
type fields[T any] map[string]func(*decoder, *T, *field)

// inherited fields may stand at the root and in any descriptor.
func inherited[T any](of func(*T) *Inherited, more fields[T]) fields[T] {
	more["algorithm"] = func(d *decoder, t *T, f *field) { d.algorithm(of(t), f) }
	more["burst"] = func(d *decoder, t *T, f *field) { d.burst(of(t), f) }
	more["coordination"] = func(d *decoder, t *T, f *field) { d.coordination(of(t), f) }
	return more
}

var (
	fileFields       fields[File]
	descriptorFields fields[Descriptor]
	limitFields      fields[RateLimit]
	replacesFields   fields[Replacement]
	inheritedFields  fields[Inherited]
)

func init() { // descriptors hold descriptors
	fileFields = inherited(func(f *File) *Inherited { return &f.Defaults }, fields[File]{
		"domain":      func(d *decoder, t *File, f *field) { t.Domain = d.text(f) },
		"descriptors": func(d *decoder, t *File, f *field) { t.Descriptors = d.descriptors(f) },
	})
	descriptorFields = inherited(func(x *Descriptor) *Inherited { return &x.Inherited }, fields[Descriptor]{
		"key":             func(d *decoder, t *Descriptor, f *field) { t.Key = d.text(f) },
		"value":           func(d *decoder, t *Descriptor, f *field) { t.Value = d.text(f) },
		"rate_limit":      func(d *decoder, t *Descriptor, f *field) { t.Limit = d.limit(f) },
		"descriptors":     func(d *decoder, t *Descriptor, f *field) { t.Descriptors = d.descriptors(f) },
		"shadow_mode":     func(d *decoder, t *Descriptor, f *field) { t.Shadow = d.flag(f) },
		"quota_mode":      func(d *decoder, t *Descriptor, f *field) { t.Quota = d.flag(f) },
		"detailed_metric": func(d *decoder, t *Descriptor, f *field) { t.Detailed = d.flag(f) },
		"value_to_metric": func(d *decoder, t *Descriptor, f *field) { t.ValueToMetric = d.flag(f) },
		"share_threshold": func(d *decoder, t *Descriptor, f *field) { t.ShareThreshold = d.flag(f) },
		"metadata":        func(d *decoder, t *Descriptor, f *field) { t.Metadata = d.metadata(f) },
	})
	limitFields = fields[RateLimit]{
		"requests_per_unit": func(d *decoder, t *RateLimit, f *field) { t.Requests = d.count(f) },
		"unit":              func(d *decoder, t *RateLimit, f *field) { t.Unit = d.text(f) },
		"unlimited":         func(d *decoder, t *RateLimit, f *field) { t.Unlimited = d.flag(f) },
		"name":              func(d *decoder, t *RateLimit, f *field) { t.Name = d.text(f) },
		"replaces":          func(d *decoder, t *RateLimit, f *field) { d.replaces(t, f) },
	}
	inheritedFields = inherited(func(in *Inherited) *Inherited { return in }, fields[Inherited]{})
	replacesFields = fields[Replacement]{
		"name": func(d *decoder, t *Replacement, f *field) { t.Name = d.text(f) },
	}
}

// elsewhere tells where a key that stands in the wrong map belongs. Theirs
// ignores it there; so do we, and say so.
var elsewhere = map[string]string{
	"domain": "at the root of the file", "descriptors": "at the root or in a descriptor",
	"key": "in a descriptor", "value": "in a descriptor", "rate_limit": "in a descriptor",
	"shadow_mode": "in a descriptor, beside rate_limit", "quota_mode": "in a descriptor, beside rate_limit",
	"detailed_metric": "in a descriptor, beside rate_limit", "value_to_metric": "in a descriptor, beside rate_limit",
	"share_threshold": "in a descriptor, beside rate_limit", "metadata": "in a descriptor, beside rate_limit",
	"requests_per_unit": "in rate_limit", "unit": "in rate_limit", "unlimited": "in rate_limit",
	"name": "in rate_limit", "replaces": "in rate_limit",
}

// decoder turns trees into Files. It collects what is wrong, and what is only
// odd, and goes on.
type decoder struct {
	problems Problems
	warnings Problems
	rules    int // descriptors so far, of all files
	most     int // that there may be
}

func (d *decoder) wrong(f *field, what string) {
	got := f.value.kind.String()
	if f.value.kind <= boolean && f.value.kind != null {
		got = strconv.Quote(shorten(f.value.text))
	}
	d.problems.add(f.value.place, "error loading config file: %s must be %s, not %s", f.key, what, got)
}

func shorten(s string) string { return cut(s, 60) }

// decode reads texts, and collects their problems. The result is of use only if
// there are none, but to find more of them.
func (d *decoder) decode(texts []Text, bounds Bounds) []File {
	left := bounds.Tokens
	decoded := make([]File, 0, len(texts))
	for _, text := range texts {
		if len(d.problems) > maxProblems {
			break
		}
		tree, syntax := parse(text.Name, text.Data, bounds, &left)
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

// fill fills t from the fields of v.
func fill[T any](d *decoder, t *T, v *value, known fields[T]) {
	for i := range v.fields {
		f := &v.fields[i]
		if set, ok := known[f.key]; ok {
			set(d, t, f)
			continue
		}
		if where, ok := elsewhere[f.key]; ok {
			d.warnings.add(f.place, "'%s' has no effect here: it belongs %s", f.key, where)
			continue
		}
		d.unknown(f, known.names())
	}
}

func (known fields[T]) names() []string {
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (d *decoder) unknown(f *field, known []string) {
	hint := "; known here: " + strings.Join(known, ", ")
	switch f.key {
	case "algorithm", "burst", "coordination":
		hint = "; it belongs in the descriptor, beside rate_limit"
	}
	d.problems.add(f.place, "config error, unknown key '%s'%s", shorten(f.key), hint)
}

func (d *decoder) file(v *value) File {
	f := File{Place: v.place}
	if v.kind != mapping && v.kind != null {
		d.problems.add(v.place, "error loading config file: it must be a map with domain and descriptors, not %s",
			v.kind)
		return f
	}
	f.Defaults.Place = v.place
	fill(d, &f, v, fileFields)
	if at := v.get("domain"); at != nil {
		f.Place = at.value.place
	}
	return f
}

func (d *decoder) descriptors(f *field) []Descriptor {
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

// another counts a descriptor, and tells whether there may be one more.
func (d *decoder) another(at Place) bool {
	if d.rules++; d.rules == d.most+1 {
		d.problems.add(at, "config error, all files together have more than %d descriptors, and this is the first "+
			"too many: have fewer, with patterns or values of requests, or raise CONFIG_MAX_RULES", d.most)
	}
	return d.rules <= d.most
}

// maps are the items of a list that may hold nothing but maps.
func (d *decoder) maps(f *field) []*value {
	if f.value.kind == null {
		return nil
	}
	if f.value.kind != sequence {
		d.wrong(f, "a list")
		return nil
	}
	var maps []*value
	for i := range f.value.items {
		item := &f.value.items[i]
		if item.kind != mapping {
			d.problems.add(item.place, "config error, yaml file contains list of type other than map: %s",
				shorten(item.text))
			continue
		}
		maps = append(maps, item)
	}
	return maps
}

func (d *decoder) limit(f *field) *RateLimit {
	if f.value.kind == null {
		return nil
	}
	if f.value.kind != mapping {
		d.wrong(f, "a map")
		return nil
	}
	l := &RateLimit{Place: f.place}
	fill(d, l, &f.value, limitFields)
	if at := f.value.get("unit"); at != nil {
		l.Place = at.value.place
	}
	return l
}

func (d *decoder) replaces(l *RateLimit, f *field) {
	for _, item := range d.maps(f) {
		other := Replacement{Place: item.place}
		fill(d, &other, item, replacesFields)
		l.Replaces = append(l.Replaces, other)
	}
}

// text is any scalar, as it was written.
func (d *decoder) text(f *field) string {
	if f.value.kind >= mapping {
		d.wrong(f, "a string")
	}
	return f.value.text
}

func (d *decoder) flag(f *field) bool {
	switch strings.ToLower(f.value.text) { // YAML 1.1, which theirs reads
	case "true", "yes", "on", "y":
		return true
	case "false", "no", "off", "n", "":
		if f.value.kind <= boolean {
			return false
		}
	}
	d.wrong(f, "true or false")
	return false
}

func (d *decoder) count(f *field) uint32 {
	if f.value.kind == null {
		return 0
	}
	n, err := strconv.ParseUint(strings.ReplaceAll(f.value.text, "_", ""), 0, 32)
	if f.value.kind != integer || err != nil {
		d.wrong(f, "a whole number from 0 to 4294967295")
	}
	return uint32(n)
}

func (d *decoder) algorithm(t *Inherited, f *field) {
	for i, name := range ratelimit.Algorithms {
		if f.value.text == name {
			a := ratelimit.Algorithm(i)
			t.Algorithm = &a
			return
		}
	}
	d.wrong(f, "one of "+strings.Join(ratelimit.Algorithms[:], ", "))
}

func (d *decoder) burst(t *Inherited, f *field) {
	n := ratelimit.Tokens(d.count(f))
	if n == 0 {
		d.wrong(f, "a whole number from 1 to "+strconv.Itoa(math.MaxUint32))
		return
	}
	t.Burst = &n
}

// coordination flattens the block into settings, and tries each of them.
func (d *decoder) coordination(t *Inherited, f *field) {
	if f.value.kind == null {
		return
	}
	if f.value.kind != mapping {
		d.wrong(f, "a map")
		return
	}
	for i := range f.value.fields {
		sub := &f.value.fields[i]
		if sub.key == "lease" && sub.value.kind == mapping {
			for j := range sub.value.fields {
				d.setting(t, "lease.", &sub.value.fields[j])
			}
			continue
		}
		d.setting(t, "", sub)
	}
}

func (d *decoder) setting(t *Inherited, prefix string, f *field) {
	name := prefix + f.key
	if !slices.Contains(ratelimit.CoordinationFields, name) {
		var known []string
		for _, k := range ratelimit.CoordinationFields {
			if sub, ok := strings.CutPrefix(k, prefix); ok {
				known = append(known, sub)
			}
		}
		d.problems.add(f.place, "config error, unknown key '%s'; known here: %s", shorten(f.key),
			strings.Join(known, ", "))
		return
	}
	if f.value.kind >= mapping || f.value.kind == null {
		d.wrong(f, "a single value")
		return
	}
	var probe ratelimit.Coordination
	if err := probe.Set(name, f.value.text); err != nil {
		d.problems.add(f.value.place, "config error, coordination: %v", err)
		return
	}
	t.Coordination = append(t.Coordination, Setting{f.value.place, name, f.value.text})
}

func (d *decoder) metadata(f *field) map[string]any {
	if f.value.kind == null {
		return nil
	}
	if f.value.kind != mapping {
		d.wrong(f, "a map")
		return nil
	}
	m, _ := plain(&f.value).(map[string]any)
	return m
}

// plain turns a tree into what JSON knows.
func plain(v *value) any {
	switch v.kind {
	case mapping:
		m := make(map[string]any, len(v.fields))
		for i := range v.fields {
			m[v.fields[i].key] = plain(&v.fields[i].value)
		}
		return m
	case sequence:
		items := make([]any, len(v.items))
		for i := range v.items {
			items[i] = plain(&v.items[i])
		}
		return items
	case integer, number:
		if n, err := strconv.ParseFloat(v.text, 64); err == nil {
			return n
		}
		return v.text
	case boolean:
		return v.text == "true" || v.text == "True" || v.text == "TRUE"
	case null:
		return nil
	default:
		return v.text
	}
}
