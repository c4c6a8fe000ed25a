package config

import (
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Debt is carried by the rules that say so, and by what they hand down to limits that requests bring along.
func TestDebtIsCarriedByRulesThatSaySo(t *testing.T) {
	rules, problems := parseOne(`domain: d
coordination: {debt: carry}
descriptors:
- {key: a, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: b, coordination: {debt: forget}, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: c, algorithm: token_bucket, coordination: {debt: forget}, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: u, algorithm: token_bucket, rate_limit: {unlimited: true}}
`)
	if problems != nil {
		t.Fatal(problems)
	}
	for key, want := range map[string]bool{"a": true, "b": false, "c": false, "u": false} {
		if r, _ := rules.Domain("d").Match([]Entry{{Key: key}}, nil); r.Limit.Carries != want {
			t.Errorf("%s carries: %v", key, r.Limit.Carries)
		}
	}
	brought := ratelimit.Limit{Unit: ratelimit.Day, Requests: 3}
	if r := rules.Domain("d").OverrideRule(brought); !r.Limit.Carries || rules.Domain("d").OverrideRule(brought) != r {
		t.Errorf("a limit that a request brings along: %+v", r.Limit)
	}
}

// What cannot carry debt is refused, with what to do instead.
func TestDebtIsRefused(t *testing.T) {
	for rule, want := range map[string]string{
		"algorithm: token_bucket, coordination: {debt: carry}": "debt is carry, and algorithm is token_bucket, which " +
			"pays debt off by itself; use fixed_window, or write debt: forget",
		"algorithm: sliding_window, coordination: {debt: carry}": "and algorithm is sliding_window",
		"coordination: {debt: carry, on_deny: refund}": "debt is carry, and on_deny is refund, which charges nothing " +
			"beyond the limit; write on_deny: charge, or debt: forget",
		"coordination: {debt: carries}": `debt: "carries" is not one of forget, carry`,
	} {
		_, problems := parseOne("domain: d\ndescriptors:\n- {key: k, " + rule +
			", rate_limit: {unit: day, requests_per_unit: 1}}\n")
		if problems == nil || !strings.Contains(problems.Error(), want) || !strings.Contains(problems.Error(), ":3:") {
			t.Errorf("%s: %v, want %s", rule, problems, want)
		}
	}
}
