package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// decoder turns trees into Files. It collects errors and warnings, and continues.
type decoder struct {
	problems Problems
	warnings Problems
	rules    int // descriptors so far, of all files
	most     int // maximum of rules
}

func (d *decoder) wrong(f *field, what string) { d.wrongly(f, what, "") }

// wrongly reports a value of the wrong form, with a hint.
func (d *decoder) wrongly(f *field, what, hint string) {
	got := f.value.kind.String()
	if f.value.kind <= boolean && f.value.kind != null {
		got = strconv.Quote(shorten(f.value.text))
	}
	d.problems.add(f.value.place, "error loading config file: %s must be %s, not %s%s", f.key, what, got, hint)
}

func shorten(s string) string { return cut(s, 60) }

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

// fill fills t from the fields of v.
func fill[T any](d *decoder, t *T, v *value, known fields[T]) {
	for i := range v.fields {
		f := &v.fields[i]
		if set, ok := known[f.key]; ok {
			set(d, t, f)
			continue
		}
		if where, ok := elsewhere[f.key]; ok {
			d.warnings.addKind(NoEffect, f.place, "'%s' has no effect here: it belongs %s%s", f.key, where,
				elsewhereHint(v, f.key))
			continue
		}
		d.unknown(f, known.names())
	}
}

func (d *decoder) unknown(f *field, known []string) {
	d.problems.add(f.place, "config error, unknown key '%s'%s", shorten(f.key), unknownHint(f.key, known))
}

func (d *decoder) file(v *value) File {
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

// another counts a descriptor, and reports whether the cap allows it.
func (d *decoder) another(at Place) bool {
	if d.rules++; d.rules == d.most+1 {
		d.problems.add(at, "config error, all files together have more than %d descriptors, from this one on: use "+
			"fewer, with patterns or values of requests, or raise MAX_MEMORY", d.most)
	}
	return d.rules <= d.most
}

// maps are the items of a list of maps.
func (d *decoder) maps(f *field) []*value {
	if f.value.kind == null {
		return nil
	}
	if f.value.kind != sequence {
		d.wrongly(f, "a list", shapeHint(f))
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
		d.warnings.addKind(NoEffect, f.place, "'rate_limit' is empty and limits nothing: write unit and "+
			"requests_per_unit, indented further than rate_limit")
		return nil
	}
	if f.value.kind != mapping {
		d.wrongly(f, "a map", shapeHint(f))
		return nil
	}
	l := &RateLimit{Place: f.place}
	at := f.value.get("requests_per_unit")
	l.NoRequests = (at == nil || at.value.kind == null) && f.value.get("concurrency") == nil
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

// billing is a block of its own, because day and zone need each other.
func (d *decoder) billing(f *field) *Billing {
	b := &Billing{Place: f.place}
	if f.value.kind == null {
		return b // from the first, in UTC
	}
	if f.value.kind != mapping {
		d.wrongly(f, "a map", shapeHint(f))
		return nil
	}
	fill(d, b, &f.value, billingFields)
	return b
}

// zone is the name of a time zone. An empty one would mean UTC.
func (d *decoder) zone(f *field) string {
	if f.value.text == "" && f.value.kind < mapping {
		d.wrong(f, "a name of the IANA database, such as America/New_York or UTC")
	}
	return d.text(f)
}

// text is any scalar, as written.
func (d *decoder) text(f *field) string {
	if f.value.kind >= mapping {
		d.wrong(f, "a string")
	}
	return f.value.text
}

// value is a descriptor's value. An empty one matches as if it were missing, which is rarely
// intended.
func (d *decoder) value(f *field) string {
	text := d.text(f)
	if text == "" && f.value.kind < mapping {
		d.warnings.addKind(Misread, f.place, "'value' is empty: the descriptor matches every value of its key that "+
			"no other names; leave 'value' out if that is meant")
	}
	return text
}

func (d *decoder) flag(f *field) bool {
	switch strings.ToLower(f.value.text) { // YAML 1.1, as in envoyproxy/ratelimit
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

// tokens is a number of tokens, in the range of limits.
func (d *decoder) tokens(f *field) ratelimit.Tokens {
	if f.value.kind == null {
		return 0
	}
	return d.whole(f, 0, ratelimit.MaxLimit)
}

// whole is a number within bounds.
func (d *decoder) whole(f *field, least, most ratelimit.Tokens) ratelimit.Tokens {
	n, err := strconv.ParseUint(strings.ReplaceAll(f.value.text, "_", ""), 0, 63)
	if f.value.kind != integer || err != nil || ratelimit.Tokens(n) < least || ratelimit.Tokens(n) > most {
		d.wrongly(f, fmt.Sprintf("a whole number from %d to %d", least, most), countHint(f))
		return least
	}
	return ratelimit.Tokens(n)
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

// plain turns a tree into the types of encoding/json.
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
		if n, err := strconv.ParseInt(v.text, 0, 64); err == nil { // 0x10, 017 and 1_000, too
			return float64(n)
		}
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
