package config

import (
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Requests that bring the same limit are under the same rule, and however many limits
// they bring, a bounded number of rules is kept.
func TestOverrideRulesAreShared(t *testing.T) {
	d := &Domain{Name: "d", Defaults: ratelimit.DefaultCoordination()}
	limit := func(n int) ratelimit.Limit {
		return ratelimit.Limit{Unit: ratelimit.Minute, Requests: ratelimit.Tokens(n)}
	}
	one := d.OverrideRule(limit(7))
	if one.Limit != limit(7) || !one.Override || one.Domain != "d" {
		t.Errorf("%+v", one)
	}
	if d.OverrideRule(limit(7)) != one || d.OverrideRule(limit(8)) == one {
		t.Error("rules go by something else than limits")
	}
	for n := range 10 * mostOverrides {
		if d.OverrideRule(limit(n)); len(d.brought.rules) > mostOverrides {
			t.Fatalf("%d rules are kept", len(d.brought.rules))
		}
	}
}
