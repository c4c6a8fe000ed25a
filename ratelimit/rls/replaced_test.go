package rls

import (
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// An end without a cost is decided after the other descriptors, and each is decided once, also if a rule replaces
// others.
func TestEndsBeforeReplacingRules(t *testing.T) {
	f := holdFixtureOf(t, `
domain: d
descriptors:
  - key: hourly
    hold: {amount: 20, on_unknown: release}
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: special
    rate_limit: {name: special, replaces: [{name: usual}], unit: hour, requests_per_unit: 100}
  - key: usual
    rate_limit: {name: usual, unit: hour, requests_per_unit: 100}
`)
	hold, _ := f.takes(desc("hourly=1"))
	f.takes(desc("hourly=1,"+EntryEnd+"=,"+EntryHold+"="+hold), descOf("special=1", 5), descOf("usual=1", 7))
	for key, want := range map[string]ratelimit.Tokens{"hourly=1": 100, "special=1": 95, "usual=1": 100} {
		if got := f.left(key); got != want {
			t.Errorf("%s has %d left, must be %d", key, got, want)
		}
	}
}
