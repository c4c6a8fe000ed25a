package config

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A hint is a remedy for a problem. It begins with "; ", or is "" if there is none. Hints are for mistakes that people
// make: each guesses what was meant, and never changes what counts.

// unitHint is for a unit that is none.
func unitHint(unit string) string {
	if unit == "" {
		return "; unit is not set: write one of " + strings.Join(ratelimit.UnitNames(), ", ")
	}
	return nearHint(unit, ratelimit.UnitNames(), "Units are ")
}

// nearHint is for a name that is not one of those known: the nearest, or else all of them after an intro.
func nearHint(name string, known []string, intro string) string {
	all := intro + strings.Join(known, ", ")
	if hint := ratelimit.DidYouMean(name, known); hint != "" {
		return hint + " " + all
	}
	return "; " + strings.ToLower(all[:1]) + all[1:]
}

// unknownHint is for a key that the map has no field for.
func unknownHint(key string, known []string) string {
	if hint := unknownHints[key]; hint != "" {
		return hint
	}
	return nearHint(key, known, "Known here: ")
}

// unknownHints are for keys that are right elsewhere, or in other files. A near name would mislead.
var unknownHints = map[string]string{
	"overrides":    "; write max_override: 0 instead of overrides: false",
	"algorithm":    inDescriptor,
	"burst":        inDescriptor,
	"coordination": inDescriptor,
	"hold":         inDescriptor,
	"max_override": inDescriptor,
	"billing":      "; it belongs in rate_limit, next to unit: month",
	"day":          inBilling,
	"time_zone":    inBilling,
	"apiVersion": "; this looks like a Kubernetes object: write the rules without it, like in the data of a " +
		"ConfigMap",
}

const (
	inDescriptor = "; it belongs in the descriptor, next to rate_limit"
	inBilling    = "; it belongs in rate_limit, in billing: {day: 15, time_zone: America/New_York}"
)

// countHint is for a value that must be a whole number: "100" in quotes, 1e3, -1 for no limit, or 100/minute.
func countHint(f *yamlField) string {
	v := &f.value
	switch _, err := strconv.ParseUint(v.text, 10, 64); {
	case v.kind == str && err == nil:
		return "; write it without quotes: " + v.text
	case v.kind == number:
		n, err := strconv.ParseFloat(v.text, 64)
		if err == nil && n >= 0 && n <= float64(ratelimit.MaxLimit) && n == float64(int64(n)) {
			return "; write all its digits: " + strconv.FormatFloat(n, 'f', 0, 64)
		}
	case f.key == "requests_per_unit" && strings.HasPrefix(v.text, "-"):
		return "; for no limit, write unlimited: true instead"
	case v.kind == str && strings.Contains(v.text, "/"):
		return "; write the number alone, and its unit as unit: minute"
	}
	return ""
}

// shapeHint is for a scalar in place of a map, or a map in place of a list, such as coordination: routing, lease: 100
// or rate_limit: 100.
func shapeHint(f *yamlField) string {
	switch {
	case f.value.kind == mapping:
		return "; begin each of its items with '- '"
	case f.key == "coordination" && slices.Contains(ratelimit.ModeNames(), f.value.text):
		return "; write coordination: {mode: " + f.value.text + "}"
	case f.key == "lease" && f.value.kind == integer:
		return "; write lease: {size: " + shorten(f.value.text) + "}"
	case f.key == "rate_limit" && f.value.kind == integer:
		return "; write rate_limit: {unit: minute, requests_per_unit: " + shorten(f.value.text) + "}"
	}
	return ""
}

// fileHint is for a file without a map.
func fileHint(file string, k yamlKind) string {
	if k == sequence {
		return "; write domain: NAME, then the list below descriptors:"
	}
	return strayHint(file)
}

// strayHint is for a file that probably has no rules. A directory of rules is read whole, whatever the extensions, as
// envoyproxy/ratelimit does.
func strayHint(file string) string {
	switch filepath.Ext(file) {
	case ".md", ".txt", ".bak", ".orig", ".rej", ".swp", ".tmpl", ".sh", ".gz", ".yaml~", ".yml~":
		return "; every file below the directory is read as rules, whatever its name: move this one elsewhere"
	}
	return ""
}

// elsewhere names the right place of a key in the wrong map. envoyproxy/ratelimit ignores the key
// there; Sluice ignores it with a warning.
var elsewhere = map[string]string{
	"domain": "at the root of the file", "descriptors": "at the root or in a descriptor",
	"key": "in a descriptor", "value": "in a descriptor", "rate_limit": "in a descriptor",
	"shadow_mode": besideLimit, "quota_mode": besideLimit, "detailed_metric": besideLimit,
	"value_to_metric": besideLimit, "share_threshold": besideLimit, "metadata": besideLimit,
	"requests_per_unit": inLimit, "unit": inLimit, "unit_multiplier": inLimit, "unlimited": inLimit,
	"concurrency": inLimit, "hold_ttl": inLimit, "name": inLimit, "replaces": inLimit,
}

const (
	inLimit     = "in rate_limit"
	besideLimit = "in a descriptor, next to rate_limit"
)
