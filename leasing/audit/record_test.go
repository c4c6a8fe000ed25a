package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
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

// recorded is a limiter of one node whose decisions are recorded, and its replay.
type recorded struct {
	*Decisions
	*testing.T
	name string
	rule *ratelimit.Rule
	now  ratelimit.Instant
}

func newRecorded(t *testing.T, l ratelimit.Limit) *recorded {
	r := &recorded{T: t, name: filepath.Join(t.TempDir(), "audit"), now: ratelimit.Instant(time.Second)}
	file, err := OpenRecord(r.name, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	wall := time.Unix(1_800_000_000, 0)
	r.rule = &ratelimit.Rule{Domain: "d", Path: "k", Limit: l, Coordination: ratelimit.DefaultCoordination()}
	r.rule.Coordination.Audit = true
	local := local.New(100, r.now, wall)
	r.Decisions = NewDecisions(local, file, 7, local.LedgerNow)
	return r
}

func (r *recorded) asks(kind ratelimit.Kind, cost ratelimit.Tokens) ([]ratelimit.Ask, []ratelimit.Verdict) {
	a, v := []ratelimit.Ask{{Rule: r.rule, Key: []byte("key"), Kind: kind, Cost: cost}}, make([]ratelimit.Verdict, 1)
	r.Decide(context.Background(), r.now, a, v)
	return a, v
}

// windows are what the replay has.
func (r *recorded) windows() []*Window {
	r.Write()
	all, _, err := ReadFile(r.name)
	if err != nil {
		r.Fatal(err)
	}
	return Replay(all)
}

// Requests that are refused do not count as admitted, and those that were charged all the same are shown. What is given
// back, charged later, or refused by another limit of the request is subtracted.
func TestDecisionsAreRecorded(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		for _, deny := range []ratelimit.OnDeny{ratelimit.DenyCharges, ratelimit.DenyRefunds} {
			r := newRecorded(t, ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Year, Requests: 90, Burst: 90})
			r.rule.Coordination.OnDeny = deny
			for range 98 {
				r.asks(ratelimit.Spend, 3)
			}
			charged := map[ratelimit.OnDeny]ratelimit.Tokens{ratelimit.DenyCharges: 204}[deny]
			want := Decided{Admitted: 90, Refused: 204, RefusedCharged: charged}
			if all := r.windows(); len(all) != 1 || all[0].Decided != want || all[0].Limit != 90 || !all[0].Held() {
				t.Fatalf("%v, deny %v: %+v", r.rule.Limit, deny, all[0])
			}
			r.asks(ratelimit.Refund, 10)
			r.asks(ratelimit.Peek, 0)
			r.asks(ratelimit.Charge, 4)
			want.Admitted -= 6
			if deny == ratelimit.DenyRefunds { // another limit refuses the request
				a, v := r.asks(ratelimit.Spend, 2)
				r.Undo(r.now, a, v)
				want.Refused += 2
			}
			if all := r.windows(); all[0].Decided != want {
				t.Errorf("%v, deny %v: %+v, must be %+v", r.rule.Limit, deny, all[0].Decided, want)
			}
		}
	}
}

// However many tokens callers give back, they admit none by that.
func TestDecisionsDoNotOverflow(t *testing.T) {
	r := newRecorded(t, ratelimit.Limit{Unit: ratelimit.Year, Requests: 90})
	for range 2 {
		for range 2 {
			r.asks(ratelimit.Refund, ratelimit.MaxTokens)
		}
		if all := r.windows(); len(all) != 1 || all[0].Admitted != -ratelimit.MaxTokens {
			t.Errorf("%+v", all[0].Decided)
		}
	}
}

// Each window has its own line, and a rule without an audit has none.
func TestDecisionsOfWindows(t *testing.T) {
	r := newRecorded(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 5})
	for range 3 {
		for range 7 {
			r.asks(ratelimit.Spend, 1)
		}
		r.now = r.now.Add(time.Minute)
	}
	r.rule.Coordination.Audit = false
	r.asks(ratelimit.Spend, 1)
	all := r.windows()
	if len(all) != 3 {
		t.Fatalf("%d windows", len(all))
	}
	for _, w := range all {
		if w.Decided != (Decided{Admitted: 5, Refused: 2, RefusedCharged: 2}) || w.Ends.Second() != 0 {
			t.Errorf("%+v", w)
		}
	}
}

// Any number of keys is recorded, in bounded memory.
func TestDecisionsAreBounded(t *testing.T) {
	r := newRecorded(t, ratelimit.Limit{Unit: ratelimit.Year, Requests: 5})
	for i := range mostOpen + 5 {
		a := []ratelimit.Ask{{Rule: r.rule, Key: fmt.Append(nil, "key", i), Cost: 1}}
		r.Decide(context.Background(), r.now, a, make([]ratelimit.Verdict, 1))
		if len(r.open) >= mostOpen {
			t.Fatalf("%d are open", len(r.open))
		}
	}
	if all := r.windows(); len(all) != mostOpen+5 {
		t.Errorf("%d windows are recorded of %d", len(all), mostOpen+5)
	}
}
