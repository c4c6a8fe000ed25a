package rls

import "testing"

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
	f.hasLeft("hourly=1", 80)
	f.takes(desc("hourly=1,"+EntryEnd+"=,"+EntryHold+"="+hold), descOf("special=1", 5), descOf("usual=1", 7))
	f.hasLeft("hourly=1", 100)
	f.hasLeft("special=1", 95)
	f.hasLeft("usual=1", 100)
}
