package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/bench/plant"
)

// plan names the mutated code, and its tests.
type plan struct {
	root   string
	files  []string // relative to the root
	suites []suite
}

// suite is one package's tests.
type suite struct {
	dir    string
	skip   string  // a pattern of tests to skip
	slices []slice // of a test that takes arguments to play more
}

// slice is a test with its own arguments, which replaces the test.
type slice struct {
	test string
	args []string
}

// thePlan is the core, and the tests that guard it.
var thePlan = plan{
	files: []string{
		"leasing/account/account.go", "leasing/account/bucket.go", "leasing/account/records.go", "leasing/account/recall.go", "leasing/account/refill.go", "leasing/account/span.go",
		"leasing/account/kept.go", "leasing/account/cas.go", "leasing/account/store.go", "leasing/account/epoch.go", "leasing/account/wire.go",
		"leasing/internal/lease/part.go", "leasing/internal/lease/key.go", "leasing/internal/lease/take.go", "leasing/internal/lease/drift.go",
		"leasing/internal/lease/demand.go", "leasing/internal/lease/ledgerclock.go", "leasing/internal/keytable/table.go",
		"leasing/call.go", "leasing/lane.go", "leasing/batch.go", "leasing/flight.go", "leasing/late.go", "leasing/lane/lane.go", "leasing/lane/breaker.go", "leasing/reclaim.go", "leasing/shard.go", "leasing/sweep.go", "leasing/failure.go", "leasing/local/counter.go",
		"approx/keeper.go", "approx/plan.go", "approx/seats.go", "approx/stored.go",
		"routing/request.go", "routing/instore.go", "routing/storeless.go", "routing/arrears.go", "routing/serve.go", "routing/verdict.go", "routing/undo.go", "routing/members.go", "routing/presence.go", "routing/handover.go", "routing/inbox.go", "routing/fetch.go", "routing/outbox.go", "routing/internal/moved/moved.go", "routing/core.go", "routing/gossip.go", "routing/ring/kept.go", "routing/ring/ring.go", "routing/internal/hot/hot.go", "routing/internal/hot/here.go",
	},
	suites: []suite{
		{dir: "leasing"},
		{dir: "leasing/local"},
		{dir: "leasing/lane"},
		{dir: "leasing/internal/lease"},
		{dir: "leasing/internal/keytable"},
		{
			dir:  "leasing/account",
			skip: "^TestClaimsAllocateNothing$|^TestPlanted|^TestPage", // the first: a call of a copy by its number makes the account escape
		},
		{dir: "approx"},
		{dir: "routing/internal/moved"},
		{dir: "routing/internal/hot"},
		{dir: "routing/ring"},
		{dir: "routing"},
		{
			dir:  "bench/sim",
			skip: "^(TestHistoriesFindBugs|TestHistoriesOnRealStores)$", // builds the product, starts servers
			slices: []slice{
				{"TestHistories", []string{"-histories", "99"}},
				{"TestHistories", []string{"-seed", "100", "-histories", "301"}},
			},
		},
	},
}

// chosen are the plan's files that match patterns, with commas between; all, of none.
func (p *plan) chosen(patterns string) (files []string, err error) {
	if patterns == "" {
		return p.files, nil
	}
	for pattern := range strings.FieldsFuncSeq(patterns, func(r rune) bool { return r == ',' || r == ' ' }) {
		before := len(files)
		for _, f := range p.files {
			if ok, _ := path.Match(pattern, f); ok && !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
		if len(files) == before {
			return nil, fmt.Errorf("no file to mutate is named %s: there are %s", pattern, strings.Join(p.files, " "))
		}
	}
	return files, nil
}

// mutants are all faults of the plan's files, and the hand-made ones. misfits lists hand-made faults that no longer
// fit the source. The others run all the same.
func (p *plan) mutants(packages map[string]*goPackage, byHands []byHand) (all []*mutant, misfits []string, err error) {
	for _, name := range p.files {
		pkg := packages[path.Dir(name)]
		f := pkg.files[name]
		if f == nil {
			return nil, nil, fmt.Errorf("%s is no file of its package on this system", name)
		}
		all = append(all, pkg.faults(f)...)
	}
	all = distinct(all)
	for _, b := range byHands {
		var f *plant.File
		if pkg := packages[path.Dir(b.File)]; pkg != nil {
			f = pkg.files[b.File]
		}
		if f == nil {
			misfits = append(misfits, fmt.Sprintf("%q is to change %s, which is not among the files to mutate", b.Name, b.File))
			continue
		}
		e, err := f.Plant(plant.Bug(b))
		if err != nil {
			misfits = append(misfits, fmt.Sprintf("%q: %v", b.Name, err))
			continue
		}
		all = append(all, newMutant(f.Text, b.Name, byHandKind, e))
	}
	return all, misfits, nil
}

// distinct drops mutants that change nothing, or change the same as another. Mutants of a function with the same
// text get an ordinal.
func distinct(all []*mutant) (kept []*mutant) {
	seen, alike := map[plant.Edit]bool{}, map[string]int{}
	for _, m := range all {
		if m.old == m.new || seen[m.edit] {
			continue
		}
		seen[m.edit] = true
		k := m.key()
		alike[k]++
		m.nth = alike[k]
		kept = append(kept, m)
	}
	return kept
}
