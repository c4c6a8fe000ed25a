package record

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gate/sluice/cmd/sluice/cli/clitest"
	"github.com/sluice-gate/sluice/leasing/audit"
)

// granted is a line of AUDIT_FILE: a holder is granted more of a limit of 100 until the year 2100.
func granted(t *testing.T, holder string, more, sum int64) string {
	t.Helper()
	line, err := json.Marshal(map[string]any{
		"kind": audit.WasGrant, "rule": "d.k", "key": "year|d|k=x", "holder": holder, "at_us": sum, "window": 1, "ends_us": int64(4e15),
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
	if code, _, errs := clitest.Run(new(Command), []string{"--rule=none", one}); code != 1 || !strings.Contains(errs, `--rule "none" and --key "" leave out its 1 events`) {
		t.Errorf("of a rule that is not on record: %d %s", code, errs)
	}
	if code, _, errs := clitest.Run(new(Command), []string{bad}); code != 1 || !strings.Contains(errs, bad+":1 is not an event of AUDIT_FILE") {
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

// The record goes on where it cannot be moved aside: in a pipe to a collector, and over a mount.
func TestAuditFileThatStays(t *testing.T) {
	pipe, mount := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "mount")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.MkdirAll(mount+".1/full", 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, mount} {
		f, err := openCapped(name, 10)
		if err != nil {
			t.Fatal(err)
		}
		reader, _ := os.OpenFile(name, os.O_RDWR, 0)
		for _, line := range []string{"first 6\n", "second\n", "third\n"} {
			if n, err := f.Write([]byte(line)); n != len(line) || err != nil && name == pipe {
				t.Errorf("%s: %v", name, err)
			}
		}
		got := make([]byte, 100)
		if n, _ := reader.Read(got); string(got[:n]) != "first 6\nsecond\nthird\n" {
			t.Errorf("%s has %q", name, got[:n])
		}
	}
}

// A line that a full disk or a crash has cut off costs an audit that event, and the audit says so.
func TestAuditReadsOnAfterACutLine(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit")
	one, two := granted(t, "a", 1, 1), granted(t, "b", 1, 2)
	if err := os.WriteFile(name, []byte(one+two[:20]+strings.Repeat("\x00", 1<<17)), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := openCapped(name, auditBytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, holder := range []string{"c", "d"} {
		if _, err := f.Write([]byte(granted(t, holder, 1, 3))); err != nil {
			t.Fatal(err)
		}
	}
	code, out, errs := clitest.Run(new(Command), []string{"--json", name})
	if code != 0 || !strings.Contains(out, `"holders":3`) || !strings.Contains(errs, name+":2 is not an event") {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
}
