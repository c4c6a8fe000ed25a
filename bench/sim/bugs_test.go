package sim

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A checker that cannot fail proves nothing. Each of these bugs is put into the
// product's own source, by the Go tool's -overlay, and the histories must find
// it.
func TestHistoriesFindBugs(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the product once for each bug")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, bug := range []struct {
		seed                     int // of a history that finds it, to save time
		name, file, right, wrong string
	}{
		{16, "a closed lease's fence is accepted", "leasing/account.go", "r.closed && c.Fence == r.fence\n", "false\n"},
		{535, "a holder does not look at its lease's expiry", "leasing/lease.go", "if now >= l.deadline {\n\t\treturn 0", "if now < 0 {\n\t\treturn 0"},
		{27, "a holder spends what a lost reply may have granted", "leasing/batch.go", "h.windowOver(now, fl, g)\n", "h.lease.granted += fl.claim.Want\n"},
		{12, "a grant is counted from its answer", "leasing/plan.go", "return there.notBefore(now, l.WindowEnd(g.Window))", "return now.Add(g.ResetAfter + 20*time.Millisecond)"},
		{9, "a drift share is doubled", "approx/keeper.go", "return share, heir", "return 2 * share, heir"},
		{132, "a seat is given twice", "approx/seats.go", "s.free(now); ok && ", "s.free(now); (ok || true) && "},
		{416425, "a seat is used before it is proven", "approx/keeper.go", "on: k.Epoch != nil", "on: false"},
		{8, "the ledger forgets what is granted and not spent", "leasing/account.go", "return max(r.paid(), r.spent)", "return r.spent"},
		{1, "the ledger grants more than there is", "leasing/account.go", "lease := min(room, max(c.Want, c.Waiting), tapered)", "lease := min(max(c.Want, c.Waiting), tapered)"},
		{255, "a claim that arrives twice is settled twice", "leasing/account.go", "c.Seq <= r.seq {", "c.Seq < r.seq {"},
		{9, "a ledger that forgot does not learn", "leasing/account.go", "if here {\n\t\tr.granted, r.spent", "if here && known {\n\t\tr.granted, r.spent"},
		{1, "the window before does not count", "leasing/account.go", "|| a.prev == 0 {\n\t\treturn 0", "|| a.prev >= 0 {\n\t\treturn 0"},
		{209, "spending is not reported before it is reclaimed", "leasing/plan.go", "&& h.lease.spent != h.reported", "&& h.lease.spent < 0"},
		{35, "the next window's lease is spent early", "leasing/next.go", "now < n.start {\n\t\treturn false", "now < n.start.Add(-50*time.Millisecond) {\n\t\treturn false"},
		{51, "a node alone takes the whole limit", "leasing/failure.go", "own.Rule = a.Rule.LocalShare()", "own.Rule = a.Rule"},
		{3, "a bucket refills beside what is leased of it", "leasing/bucket.go", "int64(l.Burst)-int64(a.liveOutstanding())", "int64(l.Burst)-0*int64(a.liveOutstanding())"},
		{2, "a fence goes back", "leasing/account.go", "max(a.fence+1, ratelimit.Fence(a.now), min(c.Fence, mostFence)+1)", "ratelimit.Fence(a.now) / 1_000_000"},
	} {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(root, bug.file)
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), bug.right); n != 1 {
				t.Fatalf("%s has %q %d times: where would the bug go?", bug.file, bug.right, n)
			}
			dir := t.TempDir()
			broken, overlay, binary := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "histories")
			replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: broken}})
			if err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{broken: strings.Replace(string(source), bug.right, bug.wrong, 1), overlay: string(replace)} {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			build := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, ".")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("the bug does not compile: %v\n%s", err, out)
			}
			text, failed := playBroken(binary, bug.seed, 1)
			if !failed {
				text, failed = playBroken(binary, 1, 6000)
			}
			if !failed {
				t.Fatalf("6000 histories do not find it: %s", text)
			}
			_, found, _ := strings.Cut(text, "seed ")
			found, _, _ = strings.Cut(found, "\n")
			t.Log("found by seed ", found)
		})
	}
}

// playBroken plays histories with a bug, and tells what it found.
func playBroken(binary string, seed, histories int) (text string, found bool) {
	play := exec.Command(binary, "-test.run", "^TestHistories$", "-test.timeout", "3m", "-seed", strconv.Itoa(seed), "-histories", strconv.Itoa(histories))
	out, err := play.CombinedOutput()
	return string(out), err != nil && strings.Contains(string(out), "replay: ")
}
