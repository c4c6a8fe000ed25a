package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

func holdText(hold, more string) string {
	return "domain: d\ndescriptors:\n  - key: k\n    " + more + "\n    hold: " + hold +
		"\n    rate_limit: {unit: hour, requests_per_unit: 1000}\n"
}

// A hold is read as it is written, and written as it was read.
func TestHoldsAreRead(t *testing.T) {
	for hold, want := range map[string]string{
		"{amount: 20}":                                    "{amount: 20, ttl: 10m, on_unknown: charge}",
		"{from: request}":                                 "{from: request, ttl: 10m, on_unknown: charge}",
		"{from: request, max: 9, ttl: 90s}":               "{from: request, max: 9, ttl: 1m30s, on_unknown: charge}",
		"{learned: 0.9, max: 1_000, on_unknown: release}": "{learned: 0.9, max: 1000, ttl: 10m, on_unknown: release}",
		"{amount: 20, on: [1, 0, 1]}":                     "{amount: 20, on: [0, 1]}",
		"{amount: 1000, ttl: 24h}":                        "{amount: 1000, ttl: 24h, on_unknown: charge}",
		"{from: request, ttl: 1s, max: 1}":                "{from: request, max: 1, ttl: 1s, on_unknown: charge}",
	} {
		for _, text := range []string{holdText(hold, ""), holdText(want, "")} {
			r := mustParse(t, text).All()[0]
			if got := r.Hold.String(); got != want {
				t.Errorf("%s is %s, must be %s", hold, got, want)
			}
			if r.Coordination.OnDeny != ratelimit.DenyRefunds {
				t.Errorf("%s: a refused request is charged", hold)
			}
		}
	}
}

// What cannot be meant is refused, by name.
func TestHoldsThatAreWrong(t *testing.T) {
	for hold, want := range map[string]string{
		"7":                                         "hold must be a map",
		"{}":                                        "no amount, from or learned",
		"{amount: 1, from: request}":                "hold has amount and from; write one",
		"{amount: 0}":                               "hold.amount is 0",
		"{amount: 1001}":                            "hold.amount is 1001, must be between 1 and the limit (1000)",
		"{amount: 5, max: 7}":                       "hold.max is 7, and has no effect with amount",
		"{amount: many}":                            "amount must be a whole number",
		"{from: response}":                          "from must be request",
		"{from: request, max: 1001}":                "hold.max is 1001, must be at most the limit (1000)",
		"{from: request, max: 0}":                   "max must be a whole number from 1 on",
		"{learned: 0.9}":                            "hold.max is missing",
		"{learned: 1, max: 10}":                     "hold.learned is 1, must be above 0 and below 1",
		"{learned: 0, max: 10}":                     "hold.learned is 0",
		"{learned: .nan, max: 10}":                  "learned must be a number",
		"{learned: p90, max: 10}":                   "learned must be a number",
		"{amount: 5, ttl: 0s}":                      "hold.ttl is 0s, must be between 1s and 24h",
		"{amount: 5, ttl: 25h}":                     "hold.ttl is 25h0m0s",
		"{amount: 5, ttl: 10}":                      "ttl must be a duration",
		"{amount: 5, on_unknown: maybe}":            "on_unknown must be one of charge, release",
		"{amount: 5, on: 0}":                        "on must be a list of numbers",
		"{amount: 5, on: []}":                       "on must be a list of numbers",
		"{amount: 5, on: [a]}":                      "on must be a whole number",
		"{amount: 5, on: [1,2,3,4,5,6,7,8,9]}":      "hold.on has 9 numbers, and the maximum is 8",
		"{from: request, on: [0]}":                  "hold.on needs amount",
		"{amount: 5, on: [0], ttl: 1m}":             "hold.ttl is 1m, and a hold without an id has none",
		"{amount: 5, on: [0], on_unknown: release}": "hold.on_unknown is release, and without an id",
		"{amount: 5, timeout: 7s}":                  "unknown key 'timeout'",
	} {
		_, _, problems := Parse([]Text{{Name: "f", Data: []byte(holdText(hold, ""))}}, options())
		if len(problems) == 0 || !strings.Contains(problems.Error(), want) {
			t.Errorf("%s: %v, must say %q", hold, problems, want)
		}
	}
}

// A hold goes down to rules below, as a whole; holds with an id need keys, and others do not.
func TestHoldsAreInherited(t *testing.T) {
	const text = `domain: d
hold: {from: request, max: 7, ttl: 1m}
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: b, hold: {amount: 3, on: [0]}, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: c, rate_limit: {unlimited: true}}
  - {key: e, coordination: {debt: carry}, rate_limit: {unit: hour, requests_per_unit: 1000}}
`
	all := mustParse(t, text).All()
	for i, want := range []string{"{from: request, max: 7, ttl: 1m, on_unknown: charge}", "{amount: 3, on: [0]}", ""} {
		if got := all[i].Hold.String(); got != want {
			t.Errorf("rule %d holds %q, must be %q", i, got, want)
		}
	}
	if !all[3].Limit.Carries {
		t.Error("a rule that holds carries no debt: what costs more than it held is charged beyond the limit")
	}
	o := options()
	o.NoHolds = errors.New("there are no keys")
	_, _, problems := Parse([]Text{{Name: "f", Data: []byte(text)}}, o)
	if len(problems) != 2 || !strings.Contains(problems[0].Error(), "there are no keys") {
		t.Errorf("without keys: %v", problems)
	}
	one := strings.Replace(text, "hold: {from: request, max: 7, ttl: 1m}\n", "", 1)
	if _, _, problems = Parse([]Text{{Name: "f", Data: []byte(one)}}, o); len(problems) > 0 {
		t.Errorf("a hold without an id: %v", problems)
	}
}

// A concurrency limit is read as it is written, holds one slot, and says what does not go with it.
func TestConcurrencyLimits(t *testing.T) {
	text := func(limit string) string {
		return "domain: d\nalgorithm: sliding_window\ndescriptors:\n  - key: k\n    rate_limit: " + limit + "\n"
	}
	for limit, want := range map[string]string{
		"{concurrency: 32}":                   "32 at once, each for 10m at most",
		"{concurrency: 1, hold_ttl: 90s}":     "1 at once, each for 1m30s at most",
		"{concurrency: 10000, hold_ttl: 24h}": "10000 at once, each for 24h at most",
	} {
		r := mustParse(t, text(limit)).All()[0]
		if r.Limit.String() != want || r.Hold == nil || r.Hold.TTL != r.Limit.Period() ||
			r.Coordination.OnDeny != ratelimit.DenyRefunds {
			t.Errorf("%s is %v, with the hold %v", limit, r.Limit, r.Hold)
		}
	}
	for limit, want := range map[string]string{
		"{concurrency: 0}":                       "concurrency must be a whole number from 1 on",
		"{concurrency: 10001}":                   "concurrency is 10001, must be at most 10000",
		"{concurrency: 3, hold_ttl: 1500ms}":     "hold_ttl is 1.5s, must be whole seconds, from 1s to 24h",
		"{concurrency: 3, hold_ttl: 25h}":        "hold_ttl is 25h0m0s",
		"{concurrency: 3, unit: minute}":         "concurrency counts requests in flight",
		"{concurrency: 3, requests_per_unit: 9}": "concurrency counts requests in flight",
		"{concurrency: 3, unlimited: true}":      "concurrency counts requests in flight",
		"{hold_ttl: 3s, unit: minute}":           "hold_ttl applies to concurrency",
		"{concurrency: 3, billing: {day: 3}}":    "concurrency counts requests in flight",
	} {
		if _, problems := parseText(text(limit)); !strings.Contains(problems.Error(), want) {
			t.Errorf("%s: %v, must be about %q", limit, problems, want)
		}
	}
}

// A refused request of a rule with a hold is charged 0. Other settings are reported, at any level.
func TestHoldsRefuseToChargeDenials(t *testing.T) {
	const limit = "rate_limit: {unit: hour, requests_per_unit: 9}"
	const charge = "coordination: {on_deny: charge}"
	for text, line := range map[string]string{
		"coordination: {on_deny: charge}\ndescriptors:\n- {key: k, hold: {amount: 5}, " + limit + "}\n": ":2:",
		"hold: {amount: 5}\ndescriptors:\n- {key: k, " + charge + ", " + limit + "}\n":                  ":4:",
		"hold: {amount: 5, on: [0]}\ndescriptors:\n- {key: k, " + charge + ", " +
			limit + "}\n": ":4:",
		charge + "\ndescriptors:\n- {key: k, hold: {amount: 5}, coordination: {on_deny: refund}, " +
			limit + "}\n- {key: l, " + limit + "}\n- {key: m, hold: {amount: 5}, rate_limit: {unlimited: true}}\n": "",
	} {
		_, _, problems := Parse([]Text{{Name: "f", Data: []byte("domain: d\n" + text)}}, options())
		if line == "" {
			if problems != nil {
				t.Errorf("%s: %v", text, problems)
			}
			continue
		}
		const want = "on_deny is charge, and a rule with a hold charges a refused request nothing"
		said := problems.Error()
		if len(problems) != 1 || !strings.Contains(said, want) || !strings.Contains(said, line) {
			t.Errorf("%s: %v, want %s", text, problems, line)
		}
	}
}
