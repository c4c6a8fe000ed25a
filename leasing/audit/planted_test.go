package audit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-gate/sluice/bench/plant"
)

// planted are faults of the replay, each of which a test must notice.
var planted = []struct{ name, right, wrong string }{
	{"events count twice", "if seen[*e] {", "if false {"},
	{"events count as they come", "slices.SortStableFunc(events, inOrder)", ""},
	{"the lowest limit counts", "max(w.Limit, e.Limit), max(w.Bound", "e.Limit, max(w.Bound"},
	{"what changed nothing counts", "case WasFailed, WasOvertaken, WasOver:", "case WasFailed:"},
	{"what was lost is not seen", "max(e.Sum-w.vain, w.Taken), w.Limit", "e.Sum-w.vain, w.Limit"},
	{"a draw is spent", "w.take(h, e.Total-h.vain, h.spent)", "w.take(h, e.Total-h.vain, e.Total)"},
	{"what is drawn in vain stays", "w.vain -= h.vain\n", ""},
	{"what is drawn in vain is used", "max(e.Sum-w.vain, w.Taken), w.Limit", "max(e.Sum, w.Taken), w.Limit"},
	{"a missing file is not seen", "max(0, w.Sum-w.vain-w.Taken)", "0"},
	{"what is charged counts again", "max(0, e.Spent-max(e.Taken, h.total))", "max(0, e.Spent-e.Taken)"},
	{"grants are told as charges", "granted = min(granted, w.Beyond)", "granted = min(0, w.Beyond)"},
	{"charges excuse grants", "w.Over += granted", "w.Over += max(0, granted-w.Charged)"},
	{"a debt that was paid stays", "w.Debt = min(w.Debt+charged, w.Beyond)", "w.Debt += charged"},
	{"a refund is given back", "max(0, h.total-total-refunded)", "max(0, h.total-total)"},
	{"what is cut is refunded", "min(e.Spent+e.Cut, e.Total-e.Granted)", "min(e.Spent, e.Total-e.Granted)"},
	{"debt breaks a limit", "return w.Over <= w.Bound", "return w.Over+w.Debt <= w.Bound"},
	{"nothing may be over", "return w.Over <= w.Bound", "return w.Over <= 0"},
	{"a bucket's charge is not seen", "charged, refunded := max(0, e.Spent-max(0, e.Taken))", "charged, refunded := max(0, e.Spent-max(e.Spent, e.Taken))"},
}

// Each planted fault is noticed. It builds the tests once, with all faults in them.
func TestPlanted(t *testing.T) {
	if os.Getenv(plant.Variable) != "" || testing.Short() {
		t.Skip("this is a run with a fault, or one that is to be short")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bugs := make([]plant.Bug, len(planted))
	for i, p := range planted {
		bugs[i] = plant.Bug{Name: p.name, File: "leasing/audit/replay.go", Right: p.right, Wrong: p.wrong}
	}
	tests, err := plant.Tests(t.Context(), root, "leasing/audit", t.TempDir(), bugs)
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string) error {
		return tests.Command(t.Context(), name, "-test.failfast", "-test.run", "Replay", "-replays", "900").Run()
	}
	if err := run(""); err != nil {
		t.Fatalf("without a fault: %v", err)
	}
	for _, p := range planted {
		if run(p.name) == nil {
			t.Errorf("NOT NOTICED: %s", p.name)
		}
	}
}
