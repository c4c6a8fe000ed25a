package config

import (
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A rule's ceiling is its own, or the nearest one above it. A setting without effect is reported.
func TestCeilings(t *testing.T) {
	for name, c := range map[string]struct {
		root, fields, limit string
		want                ratelimit.Tokens
		warning             string
	}{
		"by itself": {limit: "unit: day, requests_per_unit: 100", want: ratelimit.MaxLimit},
		"its own":   {fields: "max_override: 1_000", limit: "unit: day, requests_per_unit: 100", want: 1000},
		"inherited": {root: "max_override: 1000", limit: "unit: day, requests_per_unit: 100", want: 1000},
		"the nearest": {
			root: "max_override: 9", fields: "max_override: 1000", limit: "unit: day, requests_per_unit: 100",
			want: 1000,
		},
		"closed": {root: "max_override: 0", limit: "unit: day, requests_per_unit: 100"},
		"opened": {
			root: "max_override: 0", fields: "max_override: 100", limit: "unit: day, requests_per_unit: 100",
			want: 100,
		},
		"a ban":         {limit: "unit: day, requests_per_unit: 0"},
		"an allow-list": {fields: "max_override: 7", limit: "unit: day, requests_per_unit: 0", want: 7},
		"lower": {
			fields: "max_override: 7", limit: "unit: day, requests_per_unit: 100", want: 7,
			warning: "max_override is 7 and requests_per_unit 100: overrides can only lower the limit",
		},
		"lower, inherited": {root: "max_override: 7", limit: "unit: day, requests_per_unit: 100", want: 7},
		"unlimited": {
			fields: "max_override: 7", limit: "unlimited: true",
			warning: "max_override has no effect: the rule is unlimited",
		},
		"with debt": {
			fields: "max_override: 7, coordination: {debt: carry}", limit: "unit: day, requests_per_unit: 1",
			warning: "max_override has no effect: the rule has debt: carry",
		},
		"with a reserve": {
			fields:  "max_override: 700, coordination: {lease: {reserve: 10}}",
			limit:   "unit: day, requests_per_unit: 100",
			warning: "max_override has no effect: the rule has a lease.reserve",
		},
		"in flight": {
			fields: "max_override: 7", limit: "concurrency: 9",
			warning: "max_override has no effect: the rule limits requests in flight",
		},
	} {
		fields := ""
		if c.fields != "" {
			fields = c.fields + ", "
		}
		text := "domain: d\n" + c.root + "\ndescriptors:\n- {key: k, " + fields + "rate_limit: {" + c.limit + "}}\n"
		rules, warnings, problems := Parse([]Text{{Name: "f", Data: []byte(text)}}, options())
		if problems != nil {
			t.Errorf("%s: %v\n%s", name, problems, text)
			continue
		}
		if got := rules.All()[0].Limit.Ceiling; got != c.want {
			t.Errorf("%s: the ceiling is %d, must be %d\n%s", name, got, c.want, text)
		}
		if got := warnings.Error(); c.warning == "" && len(warnings) > 0 || !strings.Contains(got, c.warning) {
			t.Errorf("%s: it warns of %q, must be %q", name, got, c.warning)
		}
	}
	for fields, want := range map[string]string{
		"max_override: -1, rate_limit: {unit: day, requests_per_unit: 1}":      "max_override must be a whole number",
		"max_override: none, rate_limit: {unit: day, requests_per_unit: 1}":    "max_override must be a whole number",
		"overrides: false, rate_limit: {unit: day, requests_per_unit: 1}":      "write max_override: 0 instead",
		"rate_limit: {max_override: 10, unit: day, requests_per_unit: 1}":      "in the descriptor, next to rate_limit",
		"max_override: 1000000000001, rate_limit: {unit: day, concurrency: 9}": "from 0 to 1000000000000",
	} {
		_, problems := parseOne("domain: d\ndescriptors:\n- {key: k, " + fields + "}\n")
		if !strings.Contains(problems.Error(), want) {
			t.Errorf("%s: %v, must be %q", fields, problems, want)
		}
	}
}
