package main

// thePlan is the core, and the tests that are to guard it.
var thePlan = plan{
	files: []string{
		"leasing/ledger/account.go", "leasing/ledger/grant.go", "leasing/ledger/records.go", "leasing/ledger/bucket.go", "leasing/ledger/till.go", "leasing/ledger/draw.go", "leasing/ledger/settle.lua", "leasing/ledger/epoch.go", "leasing/ledger/epoch.lua",
		"leasing/internal/lease/lease.go", "leasing/internal/lease/held.go", "leasing/internal/lease/claim.go", "leasing/internal/lease/draw.go", "leasing/internal/lease/answer.go",
		"leasing/internal/lease/next.go", "leasing/internal/lease/share.go", "leasing/internal/lease/plan.go", "leasing/internal/lease/unasked.go",
		"leasing/internal/lease/demand.go", "leasing/internal/lease/gauges.go", "leasing/internal/lease/recall.go", "leasing/internal/lease/ledgerclock.go",
		"leasing/internal/lease/packed.go", "leasing/internal/keytable/table.go", "leasing/internal/keytable/sharding.go",
		"leasing/flight.go", "leasing/waiting.go", "leasing/company.go", "leasing/batch.go", "leasing/failure.go", "leasing/loss.go", "leasing/breaker.go", "leasing/renewer.go", "leasing/late.go",
		"approx/keeper.go", "approx/plan.go", "approx/seats.go", "approx/seats.lua",
		"routing/decide.go", "routing/members.go", "routing/handover.go", "routing/fetch.go", "routing/outbox.go", "routing/internal/moved/moved.go", "routing/core.go", "routing/gossip.go", "routing/ring/kept.go", "routing/ring/ring.go", "routing/internal/hot/hot.go",
	},
	// As many as a run of an hour can hold, fewest where most are alike: what is
	// written twice has most of its faults in both at once, for in one alone the
	// test that compares the two finds what is wrong.
	percent: map[string]int{
		"leasing/ledger/account.go": 15, "leasing/ledger/grant.go": 15, "leasing/ledger/records.go": 15, "leasing/ledger/bucket.go": 40, "leasing/ledger/settle.lua": 9,
		"leasing/ledger/till.go": 30, "leasing/ledger/draw.go": 40, "leasing/ledger/till.go+leasing/ledger/settle.lua": 60, "leasing/internal/lease/draw.go": 60,
		"leasing/ledger/account.go+leasing/ledger/settle.lua": 45, "leasing/ledger/grant.go+leasing/ledger/settle.lua": 45, "leasing/ledger/records.go+leasing/ledger/settle.lua": 60,
		"leasing/ledger/bucket.go+leasing/ledger/settle.lua": 60,
		"leasing/ledger/epoch.go":                            25, "leasing/ledger/epoch.lua": 25,
		"leasing/internal/lease/lease.go": 35, "leasing/internal/lease/held.go": 35, "leasing/internal/lease/claim.go": 40,
		"leasing/internal/lease/answer.go": 40, "leasing/internal/lease/next.go": 45, "leasing/internal/lease/share.go": 30,
		"leasing/internal/lease/plan.go": 45, "leasing/internal/lease/unasked.go": 45, "leasing/internal/lease/demand.go": 45,
		"leasing/internal/lease/gauges.go": 60, "leasing/internal/lease/recall.go": 60, "leasing/internal/lease/ledgerclock.go": 60,
		"leasing/internal/lease/packed.go": 20, "leasing/internal/keytable/table.go": 30,
		"leasing/flight.go": 50, "leasing/waiting.go": 50, "leasing/company.go": 60, "leasing/batch.go": 30, "leasing/failure.go": 60, "leasing/loss.go": 25, "leasing/breaker.go": 60,
		"leasing/renewer.go": 60, "leasing/late.go": 60,
		"approx/keeper.go": 35, "approx/plan.go": 40, "approx/seats.go": 40, "approx/seats.lua": 25,
		"routing/decide.go": 25, "routing/members.go": 25, "routing/handover.go": 25, "routing/fetch.go": 40, "routing/outbox.go": 40, "routing/internal/moved/moved.go": 20,
		"routing/core.go": 35, "routing/gossip.go": 35, "routing/ring/kept.go": 60, "routing/ring/ring.go": 45, "routing/internal/hot/hot.go": 40,
	},
	suites: []suite{
		{dir: "leasing", waits: "^TestFleet|^TestMoreKeys"},
		{dir: "leasing/internal/lease"},
		{dir: "leasing/internal/keytable"},
		{
			dir:   "leasing/ledger",
			skip:  "^TestAccountOfOneHolderAllocatesNothing$", // a call of a copy by its number makes the account escape
			waits: "^TestRedisReloads",
			// A tenth finds most of what is wrong in one ledger alone, and the rest must not be left out for
			// its time.
			slices: []slice{
				{"TestRedisAnswersAsMemoryDoes", []string{"-compared", "60"}},
				{"TestRedisAnswersAsMemoryDoes", []string{"-compared-first", "60", "-compared", "240"}},
				{"TestRedisAnswersAsMemoryDoes", []string{"-compared-first", "300", "-compared", "300"}},
			},
			labels: []string{"Histor=histories", "TestRedis.*AsMemoryDoes=comparison"},
		},
		{dir: "approx", waits: "^Test(Drift|OverAdmission|OneNode)", labels: []string{"TestSeats$=comparison"}},
		{dir: "routing/internal/moved"},
		{dir: "routing/internal/hot"},
		{dir: "routing/ring"},
		{dir: "routing", waits: "^Test(Router|Gossip|DNS)"},
		{
			dir:  "bench/sim",
			skip: "^(TestHistoriesFindBugs|TestLargeFleets)$", // the one builds the product for each bug, the other plays for long
			slices: []slice{
				{"TestHistories", []string{"-histories", "99"}},
				{"TestHistories", []string{"-seed", "100", "-histories", "301"}},
			},
			labels: []string{"Histor|PlainFleets|RingComes=histories"},
		},
	},
}
