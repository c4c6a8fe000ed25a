package config

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

func parseOne(text string) (*Rules, Problems) {
	rules, _, problems := Parse([]Text{{Name: "f", Data: []byte(text)}},
		Options{Coordination: ratelimit.DefaultCoordination()})
	return rules, problems
}

// A window may be several units long, up to a year, and has accounts of its own.
func TestUnitMultiplier(t *testing.T) {
	rules, problems := parseOne(`
domain: d
descriptors:
  - {key: five, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 7}}
  - {key: one, rate_limit: {unit: minute, unit_multiplier: 1, requests_per_unit: 7}}
  - {key: large, rate_limit: {unit: month, requests_per_unit: 1_000_000_000_000}}
`)
	if problems != nil {
		t.Fatal(problems)
	}
	all := rules.All()
	if p, s := all[0].Limit.Period(), all[0].Limit.String(); p != 5*time.Minute || s != "7 per 5 minutes" {
		t.Errorf("%v, %s", p, s)
	}
	if p := all[1].Limit.Period(); p != time.Minute {
		t.Error(p)
	}
	if n := all[2].Limit.Requests; n != ratelimit.MaxLimit {
		t.Error(n)
	}
	for limit, want := range map[string]string{
		"{unit: minute, unit_multiplier: 0, requests_per_unit: 1}": "unit_multiplier must be a whole " +
			"number from 1 on",
		"{unit: minute, unit_multiplier: x, requests_per_unit: 1}": "unit_multiplier must be a whole number",
		"{unit: year, unit_multiplier: 2, requests_per_unit: 1}": "unit_multiplier is 2, and the maximum for a " +
			"year is 1",
		"{unit: second, unit_multiplier: 31536001}": "unit_multiplier is 31536001, and the maximum " +
			"for a second is 31536000",
		"{unlimited: true, unit_multiplier: 2}": "unit_multiplier is 2, and an " +
			"unlimited rule has no unit",
		"{unit: month, requests_per_unit: 1000000000001}": "requests_per_unit must be a whole " +
			"number from 0 to 1000000000000",
		"{unit: month, requests_per_unit: 99999999999999999999}": "requests_per_unit must be a whole " +
			"number from 0 to 1000000000000",
		"{unit: month, requests_per_unit: -1}": "requests_per_unit must be a whole number",
		"{unit: minute, unit_multiplier: 1000000001, unlimited: false}": "unit_multiplier is 1000000001, and " +
			"the maximum for a minute is 525600",
	} {
		_, problems := parseOne("domain: d\ndescriptors: [{key: k, rate_limit: " + limit + "}]")
		if problems == nil || !strings.Contains(problems.Error(), want) {
			t.Errorf("%s: %v, want %s", limit, problems, want)
		}
	}
}
