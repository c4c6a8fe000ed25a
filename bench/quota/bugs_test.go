package quota

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A checker that cannot fail proves nothing. Each of these bugs is put into the product's own
// source, by the Go tool's -overlay, and the histories must find it.
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
		{1, "what is replaced is credited before that is acknowledged", "sublease/holding.go", "!l.settled && l.acked != 0 && now >= l.acked.Add(applies)", "!l.settled"},
		{1, "an answer counts as acknowledged when it is sent", "sublease/holding.go", "sent: now, ttl: ttl", "acked: now, sent: now, ttl: ttl"},
		{1, "any acknowledgement is of the last answer", "sublease/holding.go", "l.message <= message && l.acked == 0", "l.acked == 0"},
		{1, "what was spent is not counted", "sublease/holding.go", "h.spend(u.Allowed)", "h.spend(0)"},
		{1, "a lease that is replaced counts as dead at once", "sublease/holding.go", "h.before += h.last.live", "h.before += 0"},
		{1, "a denial by another assignment proves a lease used up", "sublease/holding.go", "l.settled && u.Denied > 0", "u.Denied > 0"},
		{1, "a lease outlives its window", "sublease/holding.go", "min(ends.Sub(now)-Slack, LongestTTL)", "LongestTTL"},
		{1, "what may arrive late is not carried", "sublease/holding.go", "case l.acked == 0:\n\t\treturn h.Live()", "case l.acked == 0:\n\t\treturn 0"},
		{1, "a turn charges nothing to the next window", "rlqs/assign.go", "carried = append(carried, demand{b, carry})", "carried = append(carried, demand{b, 0})"},
		{1, "a window never turns", "rlqs/assign.go", "ends != 0 && budgets", "ends < 0 && budgets"},
		{1, "one more is granted than was charged", "rlqs/assign.go", "oneShot(b.id, got, ttl)", "oneShot(b.id, got+1, ttl)"},
		{1, "a bucket refills", "rlqs/answer.go", "const never = 31_536_000 * time.Second", "const never = time.Second"},
		{1, "silence credits", "rlqs/session.go", "\t\tb.quit(s.node)\n\t\ts.node.stats.Buckets", "\t\ts.credit(now, b, b.holding.Live())\n\t\tb.quit(s.node)\n\t\ts.node.stats.Buckets"},
		{1, "a lease may be of any size", "sublease/use.go", "most, b.Left, b.Largest)", "most, b.Left)"},
		{1, "Envoys are let pass all where nothing is left", "rlqs/assign.go", "blanket(b.id, false, denial(now, ends))", "blanket(b.id, true, denial(now, ends))"},
		{1, "what waited for a second try is granted without a charge", "rlqs/assign.go", "got[i] = v.Charged\n", "got[i] = of[i].tokens\n"},
	} {
		t.Run(bug.name, func(t *testing.T) {
			file := filepath.Join(root, "ratelimit", bug.file)
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), bug.right); n != 1 {
				t.Fatalf("%s has %q %d times: where would the bug go?", bug.file, bug.right, n)
			}
			binary := buildBroken(t, file, strings.Replace(string(source), bug.right, bug.wrong, 1))
			text, failed := playBroken(binary, bug.seed, 1)
			if !failed {
				text, failed = playBroken(binary, 1, 1500)
			}
			if !failed {
				t.Fatalf("1500 histories do not find it: %s", text)
			}
			_, found, _ := strings.Cut(text, "seed ")
			found, _, _ = strings.Cut(found, ":")
			t.Log("found by seed", found)
		})
	}
}

// buildBroken builds these tests with another text in place of a file's.
func buildBroken(t *testing.T, file, text string) (binary string) {
	t.Helper()
	dir := t.TempDir()
	broken, overlay := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json")
	binary = filepath.Join(dir, "histories")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: broken}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{broken: text, overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("the bug does not compile: %v\n%s", err, out)
	}
	return binary
}

// playBroken plays histories with a bug, and tells what it found.
func playBroken(binary string, seed, histories int) (text string, found bool) {
	play := exec.Command(binary, "-test.run", "^TestHistories$", "-test.timeout", "10m", "-seed", strconv.Itoa(seed),
		"-histories", strconv.Itoa(histories))
	out, err := play.CombinedOutput()
	return string(out), err != nil && strings.Contains(string(out), "replay: ")
}
