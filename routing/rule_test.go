package routing_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
	"github.com/sluice-gate/sluice/routing"
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
			r.Coordination.Lease.Fixed, r.Coordination.StoreDeadline = 7, 30*time.Millisecond
		},
		"a billing month":   billed,
		"a year of seconds": func(r *ratelimit.Rule) { r.Limit.Unit, r.Limit.Multiplier = ratelimit.Second, 31_536_000 },
		"a long name in the audit": func(r *ratelimit.Rule) {
			r.Coordination.Audit, r.Path = true, strings.Repeat("é", 1000)
		},
	}
	for mode := range ratelimit.ModeNames() {
		rows["mode "+ratelimit.Mode(mode).String()] = func(r *ratelimit.Rule) { r.Coordination.Mode = ratelimit.Mode(mode) }
	}
	for what, change := range rows {
		r, m := routed(1000), &wire.Rule{}
		change(r)
		if err := proto.Unmarshal(routing.RuleBytes(r), m); err != nil {
			t.Fatal(err)
		}
		got, err := routing.ReadRule(m)
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
		{"billing months of a sliding window", billed, func(m *wire.Rule) { m.Algorithm = uint32(ratelimit.SlidingWindow) }},
		{"several billing months", billed, func(m *wire.Rule) { m.Multiplier = 2 }},
		{"a unit without billing months", billed, func(m *wire.Rule) { m.Unit = uint32(ratelimit.Month) }},
		{"a unit that is none", billed, func(m *wire.Rule) { m.Unit = 10 }},
		{"a long name", plain, func(m *wire.Rule) { m.Path = strings.Repeat("x", 1024) }},
	} {
		r := routed(1000)
		c.of(r)
		m := routing.RuleMessage(r)
		if _, err := routing.ReadRule(m); err != nil {
			t.Fatal(err)
		}
		c.spoil(m)
		if got, err := routing.ReadRule(m); err == nil {
			t.Errorf("%s: read as %+v", c.what, got)
		}
	}
}
