package sim

import (
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
	{93, plant.Bug{
		Name: "a claim that arrives twice is settled twice", File: "leasing/account/account.go",
		Right: "r != nil && c.Seq <= r.seq",
		Wrong: "r != nil && c.Seq < r.seq",
	}},
	{1, plant.Bug{
		Name: "the ledger grants more than there is", File: "leasing/account/account.go",
		Right: "max(0, min(free, want,",
		Wrong: "max(0, min(free+1, want,",
	}},
	{2, plant.Bug{
		Name: "a draw is in the record only", File: "leasing/account/account.go",
		Right: "a.sum += c.Want",
		Wrong: "a.sum += 0*c.Want",
	}},
	{1, plant.Bug{
		Name: "what was charged is not booked", File: "leasing/account/account.go",
		Right: "total := max(clamped(c.Taken), clamped(c.Spent))",
		Wrong: "total := clamped(c.Taken)",
	}},
	{237, plant.Bug{
		Name: "a registration counts as over before it is", File: "leasing/account/registrations.go",
		Right: "if err == nil && instant(end) <= s.Now {",
		Wrong: "if err == nil && instant(end) <= s.Now.Add(ratelimit.RegisteredFor/2) {",
	}},
	{1, plant.Bug{
		Name: "a refund below nothing is credited", File: "leasing/account/account.go",
		Right: "cut := max(0, had-total-a.sum+hand)",
		Wrong: "cut := min(0, max(0, had-total-a.sum+hand))",
	}},
	{4, plant.Bug{
		Name: "the window before is not counted", File: "leasing/account/span.go",
		Right: "if l.Algorithm != ratelimit.SlidingWindow || now >= s.ends {",
		Wrong: "if l.Algorithm != ratelimit.SlidingWindow || now >= s.begins {",
	}},
	{3, plant.Bug{
		Name: "a bucket fills beside what is leased", File: "leasing/account/bucket.go",
		Right: "return int64(burst-b.hand-b.old) * Micro }",
		Wrong: "return int64(burst) * Micro }",
	}},
	{4, plant.Bug{
		Name: "a draw keeps what lies beyond the limit", File: "leasing/internal/lease/part.go",
		Right: "p.Taken += g.Owned(n, &m.Claim.Limit)",
		Wrong: "p.Taken += n",
	}},
	{28, plant.Bug{
		Name: "restating of drift confirms it", File: "leasing/internal/lease/part.go",
		Right: "p.Taken += max(0, m.Drift()-over)",
		Wrong: "p.Taken += m.Drift() + 0*over",
	}},
	{28, plant.Bug{
		Name: "a claim does not say what was spent", File: "leasing/internal/lease/part.go",
		Right: "p.unclaimed = 0\n\tc.Window = p.Window\n\tc.Taken = p.Taken\n\tc.Spent = p.Spent",
		Wrong: "p.unclaimed = 0\n\tc.Window = p.Window\n\tc.Taken = p.Taken\n\tc.Spent = min(p.Taken, p.Spent)",
	}},
	{632, plant.Bug{
		Name: "a window is entered that may not have begun", File: "leasing/internal/lease/key.go",
		Right: "return w, there.At != 0 && w == limit.WindowAt(late)",
		Wrong: "return limit.WindowAt(late), there.At != 0",
	}},
	{439, plant.Bug{
		Name: "a window is spent of when it may be over", File: "leasing/internal/lease/key.go",
		Right: "e.Till = there.NotBefore(now,",
		Wrong: "e.Till = (&LedgerClock{Lo: there.Lo, Hi: there.Lo, At: there.At}).NotBefore(now,",
	}},
	{1698, plant.Bug{
		Name: "what drifted in the window before does not count", File: "leasing/internal/lease/key.go",
		Right: "carried = e.Drift()",
		Wrong: "carried = 0 * e.Drift()",
	}},
	{4, plant.Bug{
		Name: "a refusal charges only what is left", File: "leasing/internal/lease/take.go",
		Right: "e.charge(a.Cost, &e.Charged)\n\tif known",
		Wrong: "e.charge(v.Charged, &e.Charged)\n\tif known",
	}},
	{9, plant.Bug{
		Name: "a node spends what it has where there is debt", File: "leasing/internal/lease/take.go",
		Right: "e.Sum <= a.Rule.Limit.Capacity() && e.spendInHand",
		Wrong: "e.spendInHand",
	}},
	{14, plant.Bug{
		Name: "a share is spent again and again", File: "leasing/internal/lease/drift.go",
		Right: "if a.Cost > share-e.carried-e.Drift() {",
		Wrong: "if a.Cost > share {",
	}},
	{219, plant.Bug{
		Name: "a key that was forgotten comes back under its old name", File: "leasing/late.go",
		Right: "return f.name + ratelimit.Holder(k.cell.Val.alias)",
		Wrong: "return f.name",
	}},
	{2641, plant.Bug{
		Name: "a ledger that lost its data is not told", File: "leasing/sweep.go",
		Right: "case c.Val.reportedLife != life && is.epoch.ID != 0:",
		Wrong: "case c.Val.reportedLife != life && is.epoch.ID == 1<<63:",
	}},
	{35, plant.Bug{
		Name: "a node that ends keeps what it has", File: "leasing/sweep.go",
		Right: "k.Resign(lease.Never)",
		Wrong: "",
	}},
	{89, plant.Bug{
		Name: "all messages go to one part of the ledger", File: "leasing/fleet.go",
		Right: "return &f.lanes[f.ledger.(account.Partitioned).Partition(name)]",
		Wrong: "return &f.lanes[0*f.ledger.(account.Partitioned).Partition(name)]",
	}},
	{49, plant.Bug{
		Name: "a node alone takes the whole limit", File: "leasing/local/limiter.go",
		Right: "own.Rule = a.Rule.LocalShare(nodes)\n\tl.Decide",
		Wrong: "own.Rule = a.Rule\n\tl.Decide",
	}},
	{34, plant.Bug{
		Name: "what a node admitted alone is not told", File: "leasing/failure.go",
		Right: "k.Admitted(now, v.Charged)",
		Wrong: "k.Admitted(now, 0)",
	}},
	{14, plant.Bug{
		Name: "a drift share is doubled", File: "approx/keeper.go",
		Right: "return share\n",
		Wrong: "return 2 * share\n",
	}},
	{48, plant.Bug{
		Name: "a seat is given twice", File: "approx/seats.go",
		Right: "t := s.ended(); now >= s.Expires && (best",
		Wrong: "t := s.NotBefore; (best",
	}},
	{67, plant.Bug{
		Name: "an account moves without its sum", File: "leasing/local/handover.go",
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
	bugs := make([]plant.Bug, len(planted))
	for i, p := range planted {
		bugs[i] = p.Bug
	}
	tests, err := plant.Tests(t.Context(), "../..", "bench/sim", t.TempDir(), bugs)
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

// playBroken plays histories with a bug, or without one those that find it, and tells what it found.
func playBroken(t *testing.T, tests *plant.Binary, bug string, seed, histories int) (text string, found bool) {
	play := tests.Command(t.Context(), bug,
		"-test.run", "^TestHistories$", "-test.timeout", "3m", "-seed", strconv.Itoa(seed), "-histories", strconv.Itoa(histories))
	out, err := play.CombinedOutput()
	return string(out), err != nil && strings.Contains(string(out), "replay: ")
}
