package main

// thePlan is the core, and the tests that are to guard it.
var thePlan = plan{
	files: []string{
		"leasing/account.go", "leasing/bucket.go", "leasing/settle.lua",
		"leasing/lease.go", "leasing/flight.go", "leasing/batch.go", "leasing/next.go", "leasing/drift.go", "leasing/plan.go",
		"leasing/failure.go", "leasing/epoch.go", "leasing/loss.go", "leasing/epoch.lua", "leasing/ledgerclock.go", "leasing/breaker.go", "leasing/demand.go", "leasing/renewer.go",
		"approx/keeper.go", "approx/plan.go", "approx/seats.go", "approx/seats.lua",
		"routing/decide.go", "routing/members.go", "routing/handover.go", "routing/fetch.go", "routing/outbox.go", "routing/parcel.go",
	},
	// What is written twice has most of its faults in both at once; in one
	// alone, the test that compares the two finds what is wrong.
	percent: map[string]int{"leasing/account.go": 40, "leasing/bucket.go": 60, "leasing/settle.lua": 30, "approx/seats.go": 60, "approx/seats.lua": 50},
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
				{"TestHistories", []string{"-seed", "401", "-histories", "1600"}},
			},
			labels: []string{"TestHistories|TestPlainFleets=histories"},
		},
	},
}
