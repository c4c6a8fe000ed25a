package record

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/cmd/sluice/cli/clitest"
	"github.com/sluice-gate/sluice/leasing/account"
)

// granted is a line of AUDIT_FILE: a holder is granted more of a limit of 100 until the year 2100.
func granted(t *testing.T, holder string, more, sum int64) string {
	t.Helper()
	line, err := json.Marshal(map[string]any{
		"kind": account.WasGrant, "rule": "d.k", "key": "year|d|k=x", "holder": holder, "at_us": sum, "window": 1, "ends_us": int64(4e15),
		"fence": sum, "total": more, "granted": more, "need": more, "limit": 100, "sum": sum,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(line) + "\n"
}

// A window whose grants exceed the limit fails the audit of the files of all nodes, and is shown as broken.
func TestAuditFindsABrokenLimit(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two, bad := file("one", granted(t, "a", 100, 100)), file("two", granted(t, "b", 7, 107)), file("bad", "{}\n")
	if code, out, errs := clitest.Run(new(Command), []string{one}); code != 0 || !strings.Contains(out, "held") {
		t.Errorf("of one file: %d %s\n%s", code, errs, out)
	}
	if code, out, errs := clitest.Run(new(Command), []string{one, two}); code != 1 || !strings.Contains(out, "BROKEN") || !strings.Contains(errs, "1 of 1 windows") {
		t.Errorf("of both files: %d %s\n%s", code, errs, out)
	}
	if code, _, errs := clitest.Run(new(Command), []string{bad}); code != 1 || !strings.Contains(errs, bad+":1 is not an event of AUDIT_FILE: it has no kind") {
		t.Errorf("of another file: %d %s", code, errs)
	}
}

// A full file of audits moves aside, and the file before goes.
func TestAuditFileIsBounded(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit")
	f, err := openCapped(name, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"first 6\n", "second\n", "third\n"} {
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	now, _ := os.ReadFile(name)
	before, _ := os.ReadFile(name + ".1")
	if string(now) != "third\n" || string(before) != "second\n" {
		t.Errorf("the file has %q, and the one before %q", now, before)
	}
	// An operator moves it: the record continues in a new file, and the last lines of the old one stay where it is.
	if err := os.Rename(name, name+".moved"); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"fourth\n", "fifth\n"} {
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatalf("after the file was moved: %v", err)
		}
	}
	if now, _ = os.ReadFile(name); string(now) != "fifth\n" {
		t.Errorf("after the file was moved, its place has %q", now)
	}
}
