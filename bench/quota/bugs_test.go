package quota

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A checker that cannot fail proves nothing. Each of these bugs is put into the product's own
// source, by the Go tool's -overlay, and must be found: those in one holder's books by the test
// that holds them against a holder (package sublease), the others by histories.
func TestBugsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the product once for each bug")
	}
	root, err := filepath.Abs("../../ratelimit")
	if err != nil {
		t.Fatal(err)
	}
	const books = "sublease/holding.go"
	for _, bug := range []struct {
		name, file, right, wrong string
	}{
		{"what is replaced is credited before that is acknowledged", books, "!l.settled && l.acked != 0 && now >= l.acked.Add(applies)", "!l.settled"},
		{"an answer counts as acknowledged when it is sent", books, "sent: now, ttl: ttl", "acked: now, sent: now, ttl: ttl"},
		{"any acknowledgement is of the last answer", books, "l.message <= message && l.acked == 0", "l.acked == 0"},
		{"what was spent is not counted", books, "h.spend(u.Allowed)", "h.spend(0)"},
		{"a lease that is replaced counts as dead at once", books, "h.before += h.last.live", "h.before += 0"},
		{"a denial by another assignment proves a lease used up", books, "l.settled && u.Denied > 0", "u.Denied > 0"},
		{"a lease outlives its window", books, "min(ends.Sub(now)-Slack, LongestTTL)", "LongestTTL"},
		{"what may arrive late is not carried", books, "case l.acked == 0:\n\t\treturn h.Live()", "case l.acked == 0:\n\t\treturn 0"},
		{"a lease that arrived late is not carried", books, "l.ends() > h.ends", "false"},
		{"what is carried is credited at the next report", books, "h.spent, h.before = ends, carry, 0, carry", "h.spent, h.before = ends, carry, 0, 0"},
		{"a window never turns", "rlqs/assign.go", "ends != 0 && budgets", "ends < 0 && budgets"},
		{"one more is granted than was charged", "rlqs/assign.go", "oneShot(b.id, got, ttl)", "oneShot(b.id, got+1, ttl)"},
		{"a bucket refills", "rlqs/answer.go", "const never = 31_536_000 * time.Second", "const never = time.Second"},
		{"silence credits", "rlqs/session.go", "\t\tb.quit(s.node)\n\t\ts.node.stats.Buckets", "\t\ts.credit(now, b, b.holding.Live())\n\t\tb.quit(s.node)\n\t\ts.node.stats.Buckets"},
		{"Envoys may let all pass where nothing is left", "rlqs/assign.go", "blanket(b.id, false, denial(now, ends))", "blanket(b.id, true, denial(now, ends))"},
	} {
		t.Run(bug.name, func(t *testing.T) {
			file := filepath.Join(root, bug.file)
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), bug.right); n != 1 {
				t.Fatalf("%s has %q %d times: where would the bug go?", bug.file, bug.right, n)
			}
			broken := strings.Replace(string(source), bug.right, bug.wrong, 1)
			dir, args := ".", []string{"-test.run", "^TestHistories$", "-histories", "1500"}
			if bug.file == books {
				dir, args = filepath.Join(root, "sublease"), []string{"-rapid.checks", "5000", "-rapid.nofailfile"}
			}
			found, out := play(t, buildBroken(t, dir, file, broken), dir, args...)
			if !found {
				t.Fatalf("nothing finds it: %s", out)
			}
		})
	}
}

// buildBroken builds a package's tests with another text in place of a file's.
func buildBroken(t *testing.T, pkg, file, text string) (binary string) {
	t.Helper()
	dir := t.TempDir()
	broken, overlay := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json")
	binary = filepath.Join(dir, "tests")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: broken}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{broken: text, overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, ".")
	build.Dir = pkg
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the bug does not compile: %v\n%s", err, out)
	}
	return binary
}

// play runs tests with a bug, and tells whether they found it.
func play(t *testing.T, binary, dir string, args ...string) (found bool, out string) {
	t.Helper()
	tests := exec.Command(binary, append(args, "-test.timeout", "5m")...)
	tests.Dir = dir
	text, err := tests.CombinedOutput()
	return err != nil && strings.Contains(string(text), "--- FAIL"), string(text)
}
