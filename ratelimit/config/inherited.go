// Coordination, which is a map in files and a list of settings in an Inherited. Only what is written is in that list:
// each field is inherited by itself.

package config

import (
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// algorithm is one of those that files can name. Concurrency is none: the field concurrency of a limit selects it.
func (d *decoder) algorithm(f *yamlField) *ratelimit.Algorithm {
	i := d.oneOf(f, ratelimit.RateAlgorithms())
	if i < 0 {
		return nil
	}
	return new(ratelimit.Algorithm(i))
}

// coordination splits the block into settings, and tries each of them.
func (d *decoder) coordination(t *Inherited, f *yamlField) {
	if f.value.kind != mapping && f.value.kind != null {
		d.wrongly(f, "a map", shapeHint(f))
	}
	for i := range f.value.fields {
		sub := &f.value.fields[i]
		if sub.key != "lease" { // the only field that is a map
			d.setting(t, "", sub)
			continue
		}
		if sub.value.kind != mapping {
			d.wrongly(sub, "a map of size", shapeHint(sub))
		}
		for j := range sub.value.fields {
			d.setting(t, "lease.", &sub.value.fields[j])
		}
	}
}

// setting tries a field with its value, and keeps it as a text: ratelimit.Coordination reads it again in each scope
// that inherits it. prefix is "lease." for fields of that map.
func (d *decoder) setting(t *Inherited, prefix string, f *yamlField) {
	name := prefix + f.key
	if !slices.Contains(ratelimit.CoordinationFields, name) {
		var known []string
		for _, k := range ratelimit.CoordinationFields {
			if sub, ok := strings.CutPrefix(k, prefix); ok {
				known = append(known, sub)
			}
		}
		d.unknown(f, known)
		return
	}
	if f.value.kind >= mapping || f.value.kind == null {
		d.wrong(f, "a single value")
		return
	}
	// A value that cannot be read is reported once, here, and not by each rule below.
	var probe ratelimit.Coordination
	if err := probe.Set(name, f.value.text); err != nil {
		d.problems.add(f.value.place, "config error, coordination: %v", err)
		return
	}
	t.Coordination = append(t.Coordination, Setting{f.value.place, name, f.value.text})
}
