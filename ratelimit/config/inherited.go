package config

import (
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

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
		if sub.key != "lease" {
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
	var probe ratelimit.Coordination
	if err := probe.Set(name, f.value.text); err != nil {
		d.problems.add(f.value.place, "config error, coordination: %v", err)
		return
	}
	t.Coordination = append(t.Coordination, Setting{f.value.place, name, f.value.text})
}
