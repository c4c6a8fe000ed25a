package table

import (
	"fmt"
	"testing"

	"github.com/sluice-gate/sluice/bench/plant"
)

const (
	tableFile  = "ratelimit/table/table.go"
	nodeFile   = "ratelimit/table/node.go"
	recordFile = "ratelimit/table/record.go"
)

// planted are faults, at least one for each rule of the package's doc. Histories find each.
var planted = []plant.Bug{
	{
		Name: "1: what arrives last counts", File: tableFile,
		Right: "case order > 0 || replace:", Wrong: "case order > 0 || replace || order < 0:",
	},
	{
		Name: "1: of two with one version, the first counts", File: recordFile,
		Right: "cmp.Compare(r.Ends, o.Ends), cmp.Compare(r.Value, o.Value))", Wrong: "0*len(o.Value))",
	},
	{
		Name: "2: the version is the clock", File: tableFile,
		Right: "r.Version = max(at, t.top+1)", Wrong: "r.Version = at",
	},
	{
		Name: "2: the version is above that of its key only", File: tableFile,
		Right: "r.Version = max(at, t.top+1)", Wrong: "r.Version = max(at, is.Version+1)",
	},
	{
		Name: "3: removals are kept for a minute", File: recordFile,
		Right: "return over && arrived.Add(Kept) < now", Wrong: "return over && arrived.Add(Kept/60) < now",
	},
	{
		Name: "3: a removal that arrives again is not kept for longer", File: tableFile,
		Right: "is.arrived, is.round = now, t.round", Wrong: "is.round = t.round",
	},
	{
		Name: "4: the place in the feed is the version", File: tableFile,
		Right: "t.place++", Wrong: "t.place = max(t.place, int64(next.Version))",
	},
	{
		Name: "5: nobody writes back", File: nodeFile,
		Right: "records := n.stillMissing(some)", Wrong: "records := n.stillMissing(some[:0])",
	},
	{
		Name: "5: another life is not read from its beginning", File: nodeFile,
		Right: "n.begin(page.Life)", Wrong: "n.life = page.Life",
	},
	{
		Name: "5: who has not written back sets", File: nodeFile,
		Right: "if !told {", Wrong: "if life == \"\" && !told {",
	},
	{
		Name: "5: what was set in a life before counts as read in this one", File: nodeFile,
		Right: "if n.life != life {", Wrong: "if false {",
	},
	{
		Name: "6: a node that was silent writes back", File: nodeFile,
		Right: "if now.Sub(n.heard) > Silence {", Wrong: "if now.Sub(n.heard) > 100*Silence {",
	},
	{
		Name: "6: a node that had read half of the table goes on", File: nodeFile,
		Right: "if now.Sub(n.heard) > Silence {", Wrong: "if n.looked && now.Sub(n.heard) > Silence {",
	},
	{
		Name: "6: a node that was silent keeps what the store lacks", File: nodeFile,
		Right: "n.drop(n.missing, n.silent)", Wrong: "_ = n.drop",
	},
	{
		Name: "6: a node that was silent keeps what is greater than the store's", File: nodeFile,
		Right: "n.take(page.Records, now, n.doubtful)", Wrong: "n.take(page.Records, now, false)",
	},
	{
		Name: "a stream begins with what is new", File: "ratelimit/table/stream.go",
		Right: "return &Stream{table: t}", Wrong: "return &Stream{table: t, place: t.place}",
	},
	{
		Name: "a message of a peer without an end is accepted", File: "ratelimit/table/stream.go",
		Right: "if n > uint64(len(b)) {", Wrong: "if n > uint64(len(b)) && err != nil {",
	},
}

func TestPlanted(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the tests once more, and plays histories for a minute")
	}
	tests, err := plant.Tests(t.Context(), "../..", "ratelimit/table", t.TempDir(), planted)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := tests.Command(t.Context(), "", "-test.run=^TestHistories$").CombinedOutput(); err != nil {
		t.Fatalf("without a bug: %v\n%s", err, out)
	}
	for _, bug := range planted {
		const all = "-test.run=^Test(Histories|Peers|Removals|Only|Half|Malformed)"
		out, err := tests.Command(t.Context(), bug.Name, all, fmt.Sprint("-histories=", *histories)).CombinedOutput()
		if err == nil {
			t.Errorf("NOT NOTICED: %s", bug.Name)
		}
		t.Logf("%s: %.200s", bug.Name, out)
	}
}
