package hold

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/bench/plant"
)

const partFile = "leasing/internal/hold/part.go"

// faults are bugs in a node's side, each of which an example must find.
var faults = []plant.Bug{
	{
		Name: "a draw keeps what lies beyond the limit", File: partFile,
		Right: "p.Taken += g.Owned(n, &m.Claim.Limit)", Wrong: "p.Taken += n",
	},
	{
		Name: "a draw is made where the record is not this node's total", File: partFile,
		Right: "!p.restate && !p.eager && p.Taken == p.booked", Wrong: "!p.eager",
	},
	{
		Name: "a draw of another total is taken", File: partFile,
		Right: "if g.Total != p.booked+n {", Wrong: "if false {",
	},
	{
		Name: "an eager rule draws", File: partFile,
		Right: "!q.Young && !q.Eager", Wrong: "!q.Young",
	},
	{
		Name: "a lease that the ledger may credit is drawn beside", File: partFile,
		Right: "!p.restate && !p.eager && p.Taken", Wrong: "!p.restate && p.Taken",
	},
	{
		Name: "a deadline is set by answers only", File: partFile,
		Right: "p.Deadline = min(p.Deadline, lasts(q.Now, q.TTL))", Wrong: "_ = lasts",
	},
	{
		Name: "an answer that comes after the deadline renews what was in hand", File: partFile,
		Right: "if a.Now >= p.Deadline {", Wrong: "if false {",
	},
	{
		Name: "a lease lasts from when its answer came", File: partFile,
		Right: "p.Deadline = lasts(m.At, c.TTL)", Wrong: "p.Deadline = lasts(a.Now, 2*c.TTL)",
	},
	{
		Name: "restating of drift confirms it", File: partFile,
		Right: "p.Taken += max(0, drift-over)", Wrong: "p.Taken += drift + 0*over",
	},
	{
		Name: "a ledger that learns confirms", File: partFile,
		Right: "; !learning {", Wrong: "; true {",
	},
	{
		Name: "an answer to an earlier message is taken", File: partFile,
		Right: "if p.inFlight != m.Number {", Wrong: "if false {",
	},
	{
		Name: "an answer of another epoch is taken", File: partFile,
		Right: "a.Epoch.ID != m.epoch && m.epoch != 0 ||", Wrong: "",
	},
	{
		Name: "a grant that did not know of a loss is taken", File: partFile,
		Right: "a.Epoch.Young(g.At) && m.Claim.Learning < a.Epoch.Learning", Wrong: "false",
	},
	{
		Name: "what was not answered is drawn on", File: partFile,
		Right: "p.inFlight, p.restate = 0, true", Wrong: "p.inFlight = 0",
	},
	{
		Name: "an overtaken claim is an answer", File: partFile,
		Right: "if g.Err != nil || a.Epoch", Wrong: "if a.Epoch",
	},
	{
		Name: "a refund stays in this node's hand", File: partFile,
		Right: "p.Taken, p.Spent = p.Taken-n, p.Spent-n", Wrong: "p.Spent -= n",
	},
	{
		Name: "a refund that was cut is not taken in", File: partFile,
		Right: "p.Taken += g.Granted + g.Cut", Wrong: "p.Taken += g.Granted",
	},
	{
		Name: "an expired lease is spent", File: partFile,
		Right: "if now >= p.Deadline {\n\t\treturn 0", Wrong: "if false {\n\t\treturn 0",
	},
	{
		Name: "an expired lease is claimed as in hand", File: partFile,
		Right: "if p.Taken > p.Spent && q.Now >= p.Deadline {", Wrong: "if false {",
	},
	{
		Name: "a claim does not say what was spent", File: partFile,
		Right: "c.Taken, c.Spent, c.Divisor = p.Taken, p.Spent, q.Divisor", Wrong: "c.Taken, c.Spent, c.Divisor = p.Taken, min(p.Taken, p.Spent), q.Divisor",
	},
}

// A checker that cannot fail proves nothing: each of these bugs is put into the product's own source, and is found.
func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the product with bugs")
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := plant.Tests(t.Context(), root, "leasing/internal/hold", t.TempDir(), faults)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			out, err := tests.Command(t.Context(), f.Name, "-test.run", "Spec").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL") {
				t.Fatal("nothing finds it")
			}
		})
	}
}
