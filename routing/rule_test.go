package routing

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
	"github.com/sluice-gate/sluice/routing/wire"
)

func billed(r *ratelimit.Rule) {
	calendar, err := zone.Calendar(15, "America/New_York")
	if err != nil {
		panic(err)
	}
	r.Limit = r.Limit.Billed(calendar)
}

// A message has the parts of a rule that its owner decides by.
func TestRulesTravel(t *testing.T) {
	rows := map[string]func(*ratelimit.Rule){
		"refunds": func(r *ratelimit.Rule) { r.Coordination.OnDeny = ratelimit.DenyRefunds }, // leases for Envoys refund
		"a lease": func(r *ratelimit.Rule) {
			c := &r.Coordination
			c.Lease.Fixed, c.StoreDeadline = 7, 30*time.Millisecond
		},
		"a billing month":   billed,
		"a year of seconds": func(r *ratelimit.Rule) { r.Limit.Unit, r.Limit.Multiplier = ratelimit.Second, 31_536_000 },
		"a long name in the audit": func(r *ratelimit.Rule) {
			r.Coordination.Audit, r.Path = true, strings.Repeat("é", maxRuleName)
		},
	}
	for mode := range ratelimit.ModeNames() {
		rows["mode "+ratelimit.Mode(mode).String()] = func(r *ratelimit.Rule) {
			r.Coordination.Mode = ratelimit.Mode(mode)
		}
	}
	var cache ruleCache
	for what, change := range rows {
		r := routed(1000)
		change(r)
		bytes := ruleBytes(r)
		got, err := cache.get(bytes)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		c, want := &got.Coordination, &r.Coordination
		if got.Limit != r.Limit || c.Mode != want.Mode || c.OnDeny != want.OnDeny ||
			c.Lease.Fixed != want.Lease.Fixed || c.StoreDeadline != want.StoreDeadline {
			t.Errorf("%s: the owner has %+v", what, got)
		}
	}
}

// What no rule says is malformed: in each row one number or name of a good message is another.
func TestOddRulesAreRefused(t *testing.T) {
	plain := func(*ratelimit.Rule) {}
	sliding := func(m *wire.Rule) { m.Algorithm = uint32(ratelimit.SlidingWindow) }
	for _, c := range []struct {
		what  string
		of    func(*ratelimit.Rule)
		spoil func(*wire.Rule)
	}{
		{"a mode that there is not", plain, func(m *wire.Rule) { m.Mode = 99 }},
		{"a unit of an earlier release", plain, func(m *wire.Rule) { m.Unit = 200 }},
		{"a limit below 0", plain, func(m *wire.Rule) { m.Requests = -1 }},
		{"a period beyond all time", plain, func(m *wire.Rule) { m.Multiplier = 2 }},
		{"no billing day", billed, func(m *wire.Rule) { m.BillingDay = 0 }},
		{"billing day 32", billed, func(m *wire.Rule) { m.BillingDay = 32 }},
		{"no zone", billed, func(m *wire.Rule) { m.TimeZone = "" }},
		{"no such zone", billed, func(m *wire.Rule) { m.TimeZone = "Europe/Berln" }},
		{"billing months of a sliding window", billed, sliding},
		{"several billing months", billed, func(m *wire.Rule) { m.Multiplier = 2 }},
		{"a unit without billing months", billed, func(m *wire.Rule) { m.Unit = uint32(ratelimit.Month) }},
		{"a unit that is none", billed, func(m *wire.Rule) { m.Unit = 10 }},
		{"a long name", plain, func(m *wire.Rule) { m.Path = strings.Repeat("x", maxRuleName) }},
	} {
		r := routed(1000)
		c.of(r)
		m := ruleMessage(r)
		if _, err := readRule(m); err != nil {
			t.Fatal(err)
		}
		c.spoil(m)
		if got, err := readRule(m); err == nil {
			t.Errorf("%s: read as %+v", c.what, got)
		}
	}
}
