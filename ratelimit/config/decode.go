package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// decoder turns trees into Files. It collects errors and warnings, and continues. What reads a wrong value reports it,
// and returns a valid one, so that later checks report no second problem of it.
type decoder struct {
	problems Problems
	warnings Problems
	rules    int // descriptors so far, of all files
	most     int // maximum of rules
}

// wrong reports a value that is not as it must be: what, as in "a list".
func (d *decoder) wrong(f *yamlField, what string) { d.wrongly(f, what, "") }

// wrongly reports a value of the wrong form, with a hint.
func (d *decoder) wrongly(f *yamlField, what, hint string) {
	got := f.value.kind.String()
	if f.value.kind <= boolean && f.value.kind != null { // a scalar is shown, and of others their kind
		got = strconv.Quote(shorten(f.value.text))
	}
	d.problems.add(f.value.place, "error loading config file: %s must be %s, not %s%s", f.key, what, got, hint)
}

// fill reads the fields of v. A field that is known elsewhere is a warning, because envoyproxy/ratelimit ignores it
// there, and its files must load. An unknown one is an error, as there.
func (d *decoder) fill(v *yamlValue, known fields) {
	for i := range v.fields {
		f := &v.fields[i]
		read, where := known[f.key], elsewhere[f.key]
		switch {
		case read != nil:
			read(f)
		case where != "": // it is a field of another map
			d.warnings.addKind(NoEffect, f.place, "'%s' has no effect here: it belongs %s%s", f.key, where,
				elsewhereHint(v, f.key))
		default:
			d.unknown(f, slices.Sorted(maps.Keys(known)))
		}
	}
}

// block reads the fields of t from a map, or reports that f is none; then it is nil.
func block[T any](d *decoder, t *T, f *yamlField, known fields) *T {
	if f.value.kind != mapping {
		d.wrongly(f, "a map", shapeHint(f))
		return nil
	}
	d.fill(&f.value, known)
	return t
}

// unknown reports a key that no map has, with those of this map that it may mean.
func (d *decoder) unknown(f *yamlField, known []string) {
	d.problems.add(f.place, "config error, unknown key '%s'%s", shorten(f.key), unknownHint(f.key, known))
}

// another counts a descriptor, and reports whether the cap allows it. Descriptors cost far more than their bytes: each
// becomes a node, a path and maybe a rule.
func (d *decoder) another(at Place) bool {
	d.rules++
	if d.rules == d.most+1 {
		d.problems.add(at, "config error, all files together have more than %d descriptors, from this one on: use "+
			"fewer, with patterns or values of requests, or raise MAX_MEMORY", d.most)
	}
	return d.rules <= d.most
}

// maps are the items of a list of maps. Nothing is an empty list: a key whose list is commented out must load.
func (d *decoder) maps(f *yamlField) []*yamlValue {
	if f.value.kind != sequence && f.value.kind != null {
		d.wrongly(f, "a list", shapeHint(f))
	}
	var maps []*yamlValue
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

// zone is the name of a time zone. An empty one would mean UTC, which is rarely intended.
func (d *decoder) zone(f *yamlField) string {
	if f.value.text == "" && f.value.kind < mapping {
		d.wrong(f, "a name of the IANA database, such as America/New_York or UTC")
	}
	return d.text(f)
}

// text is any scalar, as written: a value 017 is the text 017, and not 15.
func (d *decoder) text(f *yamlField) string {
	if f.value.kind >= mapping {
		d.wrong(f, "a string")
	}
	return f.value.text
}

// value is a descriptor's value. An empty one matches as if it were missing, which is rarely
// intended.
func (d *decoder) value(f *yamlField) string {
	text := d.text(f)
	if text == "" && f.value.kind < mapping {
		d.warnings.addKind(Misread, f.place, "'value' is empty: the descriptor matches every value of its key that "+
			"no other names; leave 'value' out if that is meant")
	}
	return text
}

// flag is true or false, in the forms of YAML 1.1, which envoyproxy/ratelimit accepts. No value is false.
func (d *decoder) flag(f *yamlField) bool {
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

// oneOf is the place of a name among those that there are; -1: it is none of them.
func (d *decoder) oneOf(f *yamlField, names []string) int {
	i := slices.Index(names, f.value.text)
	if i < 0 {
		d.wrong(f, "one of "+strings.Join(names, ", "))
	}
	return i
}

// tokens is a number of tokens, in the range of limits. No value is 0.
func (d *decoder) tokens(f *yamlField) ratelimit.Tokens {
	if f.value.kind == null {
		return 0
	}
	return d.whole(f, 0, ratelimit.MaxLimit)
}

// whole is a number within bounds, in the forms of YAML 1.1: 100, 1_000, 0x64, or 0144 in base 8. A quoted number is
// none.
func (d *decoder) whole(f *yamlField, least, most ratelimit.Tokens) ratelimit.Tokens {
	n, err := strconv.ParseUint(strings.ReplaceAll(f.value.text, "_", ""), 0, 63)
	if f.value.kind != integer || err != nil || ratelimit.Tokens(n) < least || ratelimit.Tokens(n) > most {
		d.wrongly(f, fmt.Sprintf("a whole number from %d to %d", least, most), countHint(f))
		return least
	}
	return ratelimit.Tokens(n)
}

// metadata is a map of any content, as it goes into answers.
func (d *decoder) metadata(f *yamlField) map[string]any {
	m, ok := plain(&f.value).(map[string]any)
	if !ok && f.value.kind != null {
		d.wrong(f, "a map")
	}
	return m
}

// plain turns a tree into the types of encoding/json. All numbers are float64, as in a google.protobuf.Struct.
func plain(v *yamlValue) any {
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
		return strings.EqualFold(v.text, "true")
	case null:
		return nil
	default:
		return v.text
	}
}

// duration is a time such as 90s, within the bounds that the compiler checks.
func (d *decoder) duration(f *yamlField) time.Duration {
	n, err := time.ParseDuration(f.value.text)
	if err != nil || n == 0 { // 0 stands for a field that is not written
		d.wrong(f, "a duration from 1s to 24h, like 90s")
		return ratelimit.DefaultHoldTTL
	}
	return n
}
