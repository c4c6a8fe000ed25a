package audit

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// granted is a line of AUDIT_FILE: a holder is granted more of a limit of 100 until the year 2100.
func granted(t *testing.T, holder string, more, sum int64) string {
	t.Helper()
	line, err := json.Marshal(map[string]any{
		"kind": WasGrant, "rule": "d.k", "key": "year|d|k=x", "holder": holder, "at_us": sum, "window": 1, "ends_us": int64(4e15),
		"fence": sum, "total": more, "granted": more, "need": more, "limit": 100, "sum": sum,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(line) + "\n"
}

// A full file of audits moves aside, and the file before goes.
func TestAuditFileIsBounded(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit")
	f, err := openRecord(name, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"first 6\n", "second\n", "third\n"} {
		if _, err := f.write([]byte(line)); err != nil {
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
		if _, err := f.write([]byte(line)); err != nil {
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
		f, err := openRecord(name, 10)
		if err != nil {
			t.Fatal(err)
		}
		reader, _ := os.OpenFile(name, os.O_RDWR, 0)
		for _, line := range []string{"first 6\n", "second\n", "third\n"} {
			if n, err := f.write([]byte(line)); n != len(line) || err != nil && name == pipe {
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
	f, err := openRecord(name, mostBytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, holder := range []string{"c", "d"} {
		if _, err := f.write([]byte(granted(t, holder, 1, 3))); err != nil {
			t.Fatal(err)
		}
	}
	all, missing, err := ReadFile(name)
	if err != nil || len(missing) != 1 || !strings.HasPrefix(missing[0], name+":2 is not an event") {
		t.Errorf("%q %v", missing, err)
	}
	if windows := Replay(all); len(windows) != 1 || windows[0].Holders != 3 {
		t.Errorf("%+v", windows)
	}
}
