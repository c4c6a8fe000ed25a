package sim

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/bench/plant"
)

// planted are bugs, each with the seed of a history that finds it, to save time.
var planted = []struct {
	seed int
	plant.Bug
}{
	{16, plant.Bug{
		Name: "a closed lease's fence is accepted", File: "leasing/ledger/account.go",
		Right: "r.closed && c.Fence == r.fence ||",
		Wrong: "false ||",
	}},
	{450, plant.Bug{
		Name: "a holder does not look at its lease's expiry", File: "leasing/internal/lease/lease.go",
		Right: "if now >= l.Deadline {\n\t\treturn 0",
		Wrong: "if now < 0 {\n\t\treturn 0",
	}},
	{8, plant.Bug{
		Name: "a holder spends what a lost reply may have granted", File: "leasing/internal/lease/answer.go",
		Right: "h.windowOver(now, fl, g)\n",
		Wrong: "h.Lease.Granted += fl.Claim.Want\n",
	}},
	{8, plant.Bug{
		Name: "a grant is counted from its answer", File: "leasing/internal/lease/plan.go",
		Right: "return there.NotBefore(now, l.WindowEnd(g.Window))",
		Wrong: "return now.Add(g.ResetAfter + 20*time.Millisecond)",
	}},
	{12, plant.Bug{
		Name: "a drift share is doubled", File: "approx/keeper.go",
		Right: "return share, heir",
		Wrong: "return 2 * share, heir",
	}},
	{87, plant.Bug{
		Name: "a reserve is granted by the ledger too", File: "ratelimit/reserve.go",
		Right: "at.Limit.Requests -= n\n",
		Wrong: "at.Limit.Requests -= 0 * n\n",
	}},
	{132, plant.Bug{
		Name: "a seat is given twice", File: "approx/seats.go",
		Right: "s.free(now); ok && ",
		Wrong: "s.free(now); (ok || true) && ",
	}},
	{80774, plant.Bug{
		Name: "a seat is used before it is proven", File: "approx/keeper.go",
		Right: "on: k.Epoch != nil",
		Wrong: "on: false",
	}},
	{4, plant.Bug{
		Name: "the ledger forgets what is granted and not spent", File: "leasing/ledger/records.go",
		Right: "return max(r.paid(), r.spent)",
		Wrong: "return r.spent",
	}},
	{2, plant.Bug{
		Name: "the ledger grants more than there is", File: "leasing/ledger/grant.go",
		Right: "lease := min(room, max(c.Want, c.Waiting), tapered)",
		Wrong: "lease := min(max(c.Want, c.Waiting), tapered)",
	}},
	{6868, plant.Bug{
		Name: "a claim that arrives twice is settled twice", File: "leasing/ledger/account.go",
		Right: "c.Seq <= r.seq {",
		Wrong: "c.Seq < r.seq {",
	}},
	{5, plant.Bug{
		Name: "a ledger that forgot does not learn", File: "leasing/ledger/account.go",
		Right: "if here {\n\t\tr.granted, r.spent",
		Wrong: "if here && known {\n\t\tr.granted, r.spent",
	}},
	{4, plant.Bug{
		Name: "the window before does not count", File: "leasing/ledger/grant.go",
		Right: "|| a.prev == 0 {\n\t\treturn 0",
		Wrong: "|| a.prev >= 0 {\n\t\treturn 0",
	}},
	{255, plant.Bug{
		Name: "spending is not reported before it is reclaimed", File: "leasing/internal/lease/plan.go",
		Right: "&& h.Lease.Spent != h.Reported",
		Wrong: "&& h.Lease.Spent < 0",
	}},
	{35, plant.Bug{
		Name: "the next window's lease is spent early", File: "leasing/internal/lease/next.go",
		Right: "now < n.Start {\n\t\treturn false",
		Wrong: "now < n.Start.Add(-50*time.Millisecond) {\n\t\treturn false",
	}},
	{115, plant.Bug{
		Name: "a node alone takes the whole limit", File: "leasing/failure.go",
		Right: "own.Rule = a.Rule.LocalShare()",
		Wrong: "own.Rule = a.Rule",
	}},
	{3, plant.Bug{
		Name: "a bucket refills beside what is leased of it", File: "leasing/ledger/bucket.go",
		Right: "int64(l.Burst)-int64(a.liveOutstanding())",
		Wrong: "int64(l.Burst)-0*int64(a.liveOutstanding())",
	}},
	{9, plant.Bug{
		Name: "a draw does not look at what is charged", File: "leasing/ledger/till.go",
		Right: "left := units*unit - max(0, charged) - all*unit",
		Wrong: "left := units*unit - 0*max(0, charged) - all*unit",
	}},
	{9, plant.Bug{
		Name: "what was drawn is not booked", File: "leasing/ledger/account.go",
		Right: "		a.place(a.target(c), c)",
		Wrong: "		_ = a.place",
	}},
	{2, plant.Bug{
		Name: "a fence goes back", File: "leasing/ledger/account.go",
		Right: "max(a.fence+1, ratelimit.Fence(a.now), min(c.Fence, MostFence)+1)",
		Wrong: "ratelimit.Fence(a.now) / 1_000_000",
	}},
	{214, plant.Bug{
		Name: "what an owner leases is not charged", File: "leasing/lent.go",
		Right: "	c.sum += x.Granted\n",
		Wrong: "	c.sum += 0 * x.Granted\n",
	}},
	{55, plant.Bug{
		Name: "an account moves without its sum", File: "leasing/handover.go",
		Right: "	c := counter{sum: x.Sum,",
		Wrong: "	c := counter{sum: 0 * x.Sum,",
	}},
}

// A checker that cannot fail proves nothing. Each of these bugs is put into the product's own
// source, and the histories must find it; without one, the same histories hold.
func TestHistoriesFindBugs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the product with bugs")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bugs := make([]plant.Bug, len(planted))
	for i, p := range planted {
		bugs[i] = p.Bug
	}
	tests, err := plant.Tests(t.Context(), root, "bench/sim", t.TempDir(), bugs)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range planted {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			if text, failed := playBroken(t, tests, "", p.seed, 1); failed {
				t.Fatalf("seed %d fails without the bug: %s", p.seed, text)
			}
			text, failed := playBroken(t, tests, p.Name, p.seed, 1)
			if !failed { // histories are made up otherwise now
				text, failed = playBroken(t, tests, p.Name, 1, 6000)
			}
			if !failed {
				t.Fatalf("6000 histories do not find it: %s", text)
			}
			_, found, _ := strings.Cut(text, "seed ")
			found, _, _ = strings.Cut(found, ":")
			t.Logf("found by seed %s", found)
			if found != strconv.Itoa(p.seed) {
				t.Logf("seed %d does not find it any more: write %s in planted, and this test is fast again", p.seed, found)
			}
		})
	}
}

// playBroken plays histories with a bug, and tells what it found.
func playBroken(t *testing.T, tests *plant.Binary, bug string, seed, histories int) (text string, found bool) {
	play := tests.Command(t.Context(), bug,
		"-test.run", "^TestHistories$", "-test.timeout", "3m", "-seed", strconv.Itoa(seed), "-histories", strconv.Itoa(histories))
	out, err := play.CombinedOutput()
	return string(out), err != nil && strings.Contains(string(out), "replay: ")
}
