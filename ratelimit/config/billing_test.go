package config

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A month may begin on a day of the month in a time zone, and has accounts of its own.
func TestBilling(t *testing.T) {
	rules, problems := parseOne(`
domain: d
descriptors:
  - key: k
    value: a
    rate_limit: {unit: month, requests_per_unit: 30_000_000_000, billing: {day: 15, time_zone: America/New_York}}
  - {key: k, value: b, rate_limit: {unit: Month, requests_per_unit: 7, billing: {day: 15}}}
  - {key: k, value: c, rate_limit: {unit: month, unit_multiplier: 1, billing: {time_zone: Asia/Tokyo}}}
  - {key: k, value: d, rate_limit: {unit: month, requests_per_unit: 7, billing: {}}}
  - {key: k, value: e, rate_limit: {unit: month, requests_per_unit: 7, billing: }}
`)
	if problems != nil {
		t.Fatal(problems)
	}
	for i, want := range []string{
		"30000000000 per month from day 15, America/New_York", "7 per month from day 15, UTC",
		"0 per month from day 1, Asia/Tokyo", "7 per month from day 1, UTC", "7 per month from day 1, UTC",
	} {
		l := rules.All()[i].Limit
		if l.String() != want || l.Unit != ratelimit.BillingMonth || l.Multiplier != 0 ||
			l.Period() != 30*24*time.Hour {
			t.Errorf("%+v is %v, want %s", l, l, want)
		}
	}
}

// What cannot be billed so is refused by its name, with what to do instead.
func TestBillingIsRefused(t *testing.T) {
	for limit, want := range map[string]string{
		"unit: day, billing: {day: 15}": "the unit is 'day', and only months begin at a billing day; write unit: month",
		"unit: month, unit_multiplier: 2, billing: {day: 15}": "unit_multiplier is 2, and a billing period is one " +
			"month; remove one of the two",
		"unlimited: true, billing: {day: 15}": "an unlimited rule has no period; remove billing, or unlimited",
		"unit: month, billing: {day: 32}":     `day must be a day of the month, 1 to 31, not "32"`,
		"unit: month, billing: {day: 0}":      `day must be a day of the month, 1 to 31, not "0"`,
		"unit: month, billing: {day: first}":  "day must be a whole number",
		"unit: month, billing: {time_zone: New York}": `"New York" is not in the IANA database: use a name such ` +
			"as America/New_York or UTC",
		"unit: month, billing: {time_zone: EST5EDT6}": "unknown time zone EST5EDT6: use a name of the IANA database",
		"unit: month, billing: {time_zone: Local}":    `"Local" is not in`,
		"unit: month, billing: {day: 1, zone: UTC}":   "unknown key 'zone'",
		"unit: month, billing: 15":                    `billing must be a map, not "15"`,
		"unit: month, day: 15":                        "unknown key 'day'; it belongs in rate_limit, in billing: {day",
		"unit: month}, billing: {day: 15":             "unknown key 'billing'; it belongs in rate_limit",
	} {
		_, problems := parseOne("domain: d\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 1, " + limit + "}}]")
		if problems == nil || !strings.Contains(problems.Error(), want) {
			t.Errorf("%s: %v, want %s", limit, problems, want)
		}
	}
	for algorithm, want := range map[string]string{
		"sliding_window": "looks back over 30 days wherever they begin; use fixed_window, or remove billing",
		"token_bucket":   "has no window that could begin on a day; use fixed_window, or remove billing",
	} {
		_, problems := parseOne("domain: d\nalgorithm: " + algorithm + "\ndescriptors:\n" +
			"- {key: k, rate_limit: {unit: month, requests_per_unit: 1, billing: {day: 1}}}\n")
		if problems == nil || !strings.Contains(problems.Error(), "algorithm is "+algorithm+", which "+want) {
			t.Errorf("%s: %v, want %s", algorithm, problems, want)
		}
	}
}

// Months that the server has cut by the calendar are billed as any are.
func TestBillingOverrulesCalendarMonths(t *testing.T) {
	o := Options{Coordination: ratelimit.DefaultCoordination(), CalendarMonths: true}
	rules, _, problems := Parse([]Text{{Name: "f", Data: []byte("domain: d\ndescriptors:\n" +
		"- {key: a, rate_limit: {unit: month, requests_per_unit: 7, billing: {day: 15}}}\n" +
		"- {key: b, rate_limit: {unit: month, requests_per_unit: 7}}\n")}}, o)
	if problems != nil {
		t.Fatal(problems)
	}
	if all := rules.All(); all[0].Limit.Unit != ratelimit.BillingMonth || all[1].Limit.Unit != ratelimit.CalendarMonth {
		t.Errorf("%v, %v", all[0].Limit, all[1].Limit)
	}
}

// Rules that differ only by their billing have different fingerprints.
func TestBillingIsToldApart(t *testing.T) {
	prints := map[string]*Billing{}
	for text, b := range map[string]*Billing{
		"": nil, ", billing: {}": {}, ", billing: {day: 15}": {Day: 15},
		", billing: {day: 15, time_zone: Europe/Berlin}": {Day: 15, Zone: "Europe/Berlin"},
		", billing: {time_zone: Europe/Berlin}":          {Zone: "Europe/Berlin"},
	} {
		limit := &RateLimit{Unit: "month", Billing: b, Requests: 7}
		rules, problems := parseOne("domain: d\ndescriptors: [{key: k, rate_limit: {unit: month, " +
			"requests_per_unit: 7" + text + "}}]")
		if problems != nil {
			t.Fatalf("%v\n%s", problems, text)
		}
		want := ratelimit.Limit{Unit: ratelimit.Month, Requests: 7}
		if b != nil {
			want = (&compiler{}).billed(want, limit, nil)
		}
		want.Ceiling = ratelimit.MaxLimit
		if got := rules.All()[0].Limit; got != want {
			t.Errorf("%v became %v by way of\n%s", want, got, text)
		}
		if other, ok := prints[rules.Fingerprint()]; ok {
			t.Errorf("%+v and %+v have the same fingerprint", b, other)
		}
		prints[rules.Fingerprint()] = b
	}
}
