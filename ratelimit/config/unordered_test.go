package config

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

const unorderedRules = `
domain: d
descriptors:
- key: tier
  value: gold
  descriptors:
  - key: api_key
    rate_limit: {unit: minute, requests_per_unit: 10}
- key: tier
  descriptors:
  - key: api_key
    value: a*
    rate_limit: {unit: minute, requests_per_unit: 20}
- key: api_key
  descriptors:
  - key: zone
    descriptors:
    - key: tier
      rate_limit: {unit: minute, requests_per_unit: 30}
- key: api_key
  value: x
  rate_limit: {unit: minute, requests_per_unit: 40}
`

func TestMatchUnordered(t *testing.T) {
	rules, _, problems := Parse([]Text{{Name: "r", Data: []byte(unorderedRules)}},
		Options{Coordination: ratelimit.DefaultCoordination()})
	if problems != nil {
		t.Fatal(problems)
	}
	d := rules.Domain("d")
	for _, c := range []struct {
		entries []Entry
		want    ratelimit.Tokens // of the rule; -1: none
	}{
		{[]Entry{{"tier", "gold"}, {"api_key", "k"}}, 10},
		{[]Entry{{"tier", "iron"}, {"api_key", "ab"}}, 20},
		{[]Entry{{"tier", "iron"}, {"api_key", "k"}}, -1},
		{[]Entry{{"tier", "gold"}, {"api_key", "k"}, {"zone", "z"}}, 30},
		{[]Entry{{"api_key", "x"}}, 40},
		{[]Entry{{"api_key", "y"}}, -1},
		{[]Entry{{"tier", "gold"}}, -1},
		{[]Entry{{"tier", "gold"}, {"other", "k"}}, -1},
		{nil, -1},
	} {
		rapid.Check(t, func(t *rapid.T) {
			entries := rapid.Permutation(c.entries).Draw(t, "order")
			rule, key := d.MatchUnordered(entries, nil)
			if c.want < 0 {
				if rule != nil {
					t.Fatalf("%v matches %v", c.entries, rule.Limit)
				}
				return
			}
			if rule == nil || rule.Limit.Requests != c.want {
				t.Fatalf("%v matches %v, want the rule of %d", c.entries, rule, c.want)
			}
			again, want := d.Match(entries, nil)
			if again != rule || !slices.Equal(key, want) {
				t.Fatalf("%v: the key is not that of the same descriptor over RLS", c.entries)
			}
		})
	}
}
