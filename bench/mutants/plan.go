package main

// thePlan is the core, and the tests that are to guard it.
var thePlan = plan{
	files: []string{
		"leasing/account.go", "leasing/bucket.go", "leasing/settle.lua",
		"leasing/lease.go", "leasing/flight.go", "leasing/batch.go", "leasing/next.go", "leasing/drift.go", "leasing/plan.go",
		"leasing/failure.go", "leasing/epoch.go", "leasing/loss.go", "leasing/epoch.lua", "leasing/ledgerclock.go", "leasing/breaker.go", "leasing/demand.go", "leasing/renewer.go", "leasing/recall.go", "leasing/late.go",
		"approx/keeper.go", "approx/plan.go", "approx/seats.go", "approx/seats.lua",
		"routing/decide.go", "routing/members.go", "routing/handover.go", "routing/fetch.go", "routing/outbox.go", "routing/parcel.go", "routing/core.go", "routing/gossip.go",
	},
	// As many as a run of an hour can hold, fewest where most are alike: what is
	// written twice has most of its faults in both at once, for in one alone the
	// test that compares the two finds what is wrong.
	percent: map[string]int{
		"leasing/account.go": 15, "leasing/bucket.go": 40, "leasing/settle.lua": 12,
		"leasing/account.go+leasing/settle.lua": 60, "leasing/bucket.go+leasing/settle.lua": 60,
		"leasing/lease.go": 50, "leasing/flight.go": 50, "leasing/batch.go": 30, "leasing/next.go": 60, "leasing/drift.go": 30,
		"leasing/plan.go": 60, "leasing/failure.go": 60, "leasing/epoch.go": 25, "leasing/loss.go": 25, "leasing/epoch.lua": 25,
		"leasing/ledgerclock.go": 60, "leasing/demand.go": 60, "leasing/renewer.go": 60, "leasing/recall.go": 60, "leasing/late.go": 60,
		"approx/keeper.go": 50, "approx/plan.go": 40, "approx/seats.go": 40, "approx/seats.lua": 25,
		"routing/decide.go": 35, "routing/members.go": 35, "routing/handover.go": 35, "routing/fetch.go": 40, "routing/outbox.go": 40, "routing/parcel.go": 20,
		"routing/core.go": 35, "routing/gossip.go": 35,
	},
	suites: []suite{
		{dir: "leasing", waits: "^TestFleet|^TestRedisReloads|^TestMoreKeys", labels: []string{"Histor=histories", "TestRedisAnswersAsMemoryDoes=comparison"}},
		{dir: "approx", waits: "^Test(Drift|OverAdmission|OneNode)", labels: []string{"TestSeats$=comparison"}},
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
