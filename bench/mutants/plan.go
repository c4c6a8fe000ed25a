package main

// thePlan is the core, and the tests that guard it.
var thePlan = plan{
	files: []string{
		"leasing/account/account.go", "leasing/account/bucket.go", "leasing/account/records.go", "leasing/account/recall.go", "leasing/account/refill.go", "leasing/account/span.go",
		"leasing/account/kept.go", "leasing/account/cas.go", "leasing/account/store.go", "leasing/account/epoch.go", "leasing/account/wire.go",
		"leasing/internal/hold/part.go", "leasing/internal/hold/key.go", "leasing/internal/hold/take.go", "leasing/internal/hold/drift.go", "leasing/internal/hold/wants.go",
		"leasing/internal/hold/demand.go", "leasing/internal/hold/ledgerclock.go", "leasing/internal/keytable/table.go", "leasing/internal/keytable/sharding.go",
		"leasing/call.go", "leasing/lane.go", "leasing/batch.go", "leasing/shard.go", "leasing/sweep.go", "leasing/failure.go", "leasing/breaker.go", "leasing/counter.go", "leasing/lent.go", "leasing/held.go",
		"approx/keeper.go", "approx/plan.go", "approx/seats.go", "approx/stored.go",
		"routing/decide.go", "routing/members.go", "routing/handover.go", "routing/fetch.go", "routing/outbox.go", "routing/internal/moved/moved.go", "routing/core.go", "routing/gossip.go", "routing/ring/kept.go", "routing/ring/ring.go", "routing/internal/hot/hot.go",
	},
	// As many as fit into a run of an hour, fewest where most are similar.
	percent: map[string]int{
		"leasing/account/account.go": 25, "leasing/account/bucket.go": 25, "leasing/account/records.go": 40, "leasing/account/recall.go": 40, "leasing/account/refill.go": 40, "leasing/account/span.go": 40,
		"leasing/account/kept.go": 20, "leasing/account/cas.go": 30, "leasing/account/store.go": 20, "leasing/account/epoch.go": 25, "leasing/account/wire.go": 15,
		"leasing/internal/hold/part.go": 45, "leasing/internal/hold/key.go": 40, "leasing/internal/hold/take.go": 45, "leasing/internal/hold/drift.go": 60, "leasing/internal/hold/wants.go": 60,
		"leasing/internal/hold/demand.go": 45, "leasing/internal/hold/ledgerclock.go": 45, "leasing/internal/keytable/table.go": 25, "leasing/internal/keytable/sharding.go": 60,
		"leasing/call.go": 40, "leasing/lane.go": 30, "leasing/batch.go": 35, "leasing/shard.go": 30, "leasing/sweep.go": 30, "leasing/failure.go": 60, "leasing/breaker.go": 60,
		"leasing/counter.go": 25, "leasing/lent.go": 25, "leasing/held.go": 30,
		"approx/keeper.go": 35, "approx/plan.go": 40, "approx/seats.go": 40, "approx/stored.go": 40,
		"routing/decide.go": 25, "routing/members.go": 25, "routing/handover.go": 25, "routing/fetch.go": 40, "routing/outbox.go": 40, "routing/internal/moved/moved.go": 20,
		"routing/core.go": 35, "routing/gossip.go": 35, "routing/ring/kept.go": 60, "routing/ring/ring.go": 45, "routing/internal/hot/hot.go": 40,
	},
	suites: []suite{
		{dir: "leasing", waits: "Redis|^TestMoreKeys"},
		{dir: "leasing/internal/hold"},
		{dir: "leasing/internal/keytable"},
		{
			dir:   "leasing/account",
			skip:  "^TestClaimsAllocateNothing$|^TestPlanted|^TestPage", // the first: a call of a copy by its number makes the account escape
			waits: "^Test(Cluster|Epoch|Connections|Recalls|Pipeline)",
		},
		{dir: "approx", waits: "^Test(Drift|OverAdmission|OneNode)"},
		{dir: "routing/internal/moved"},
		{dir: "routing/internal/hot"},
		{dir: "routing/ring"},
		{dir: "routing", waits: "^Test(Router|Gossip|DNS)"},
		{
			dir:  "bench/sim",
			skip: "^(TestHistoriesFindBugs|TestHistoriesOnRealStores|TestLargeFleets)$", // builds the product, starts servers, plays for long
			slices: []slice{
				{"TestHistories", []string{"-histories", "99"}},
				{"TestHistories", []string{"-seed", "100", "-histories", "301"}},
			},
		},
	},
}
