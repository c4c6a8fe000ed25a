package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
)

// toy is a mode in its own package, like one of a contributor: every second request passes, at any limit.
type toy struct{ asked atomic.Int64 }

var toySpec = ratelimit.ModeSpec{
	Name: "toy", Promise: "lets every second request pass", Fields: []string{"drift_budget"},
	Declare: func(_ *ratelimit.Rule, _ int, _ ratelimit.Storage, b ratelimit.Bounds) ratelimit.Bounds {
		b.Over = ratelimit.Over{Tokens: 777}
		return b
	},
	Doubts: func(*ratelimit.Rule) []string { return []string{"mode toy limits nobody"} },
}

func newToy(ratelimit.Limiter, *routing.Router) ratelimit.Limiter { return new(toy) }

func (m *toy) Decide(_ context.Context, _ ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		verdicts[i].OverLimit = m.asked.Add(1)%2 == 0
	}
}

func (m *toy) Undo(ratelimit.Instant, []ratelimit.Ask, []ratelimit.Verdict) {}

// The line of the table, in processes that have it enabled.
func init() {
	if os.Getenv("SLUICE_TOY_MODE") != "" {
		modeTable = append(modeTable, modeLine{ratelimit.AddMode(toySpec), newToy})
	}
}

const toyRules = `domain: d
descriptors:
  - key: t
    rate_limit: {unit: hour, requests_per_unit: 1}
    coordination: {mode: toy}
  - key: l
    rate_limit: {unit: year, requests_per_unit: 3}
`

// A mode is a package and a line in the table: rules may have it, and all that shows rules shows it.
func TestToyMode(t *testing.T) {
	t.Parallel()
	file, with := filepath.Join(t.TempDir(), "rules.yaml"), []string{"SLUICE_TOY_MODE=1"}
	writeFile(t, file, toyRules)
	for _, x := range []struct {
		args []string
		says []string
	}{
		{[]string{"check", file}, []string{"toy", "778", "mode toy limits nobody"}},
		{[]string{"check", "--schema"}, []string{`"toy"`, "toy lets every second request pass"}},
	} {
		said, err := command(with, x.args...).CombinedOutput()
		for _, want := range x.says {
			if !strings.Contains(string(said), want) {
				t.Errorf("%q (%v) does not say %q:\n%s", x.args, err, want, said)
			}
		}
	}
	if said, err := command(nil, "check", file).CombinedOutput(); err == nil {
		t.Errorf("without its line there is such a mode:\n%s", said)
	}

	s := serve(t, with, "--config", file)
	var got []int
	both := `{"domain":"d","descriptors":[{"entries":[{"key":"t","value":"a"}]},{"entries":[{"key":"l","value":"a"}]}]}`
	for range 4 {
		got = append(got, s.post("t", "a"))
	}
	for range 3 {
		got = append(got, s.postBody(both)) // of two modes; the limit of the second is 3
	}
	got = append(got, s.post("l", "a"))
	for i, want := range []int{200, 429, 200, 429, 200, 429, 200, 429} {
		if got[i] != want {
			t.Fatalf("the answers are %v", got)
		}
	}
	const metric = `sluice_declared_over_admission_tokens{domain="d",rule="t",mode="toy"} 777`
	if _, body := s.get(s.debug + "/metrics"); !strings.Contains(body, metric) {
		t.Errorf("no %s in the metrics", metric)
	}
}

// counting is a limiter that counts its calls, and fails those of a key.
type counting struct {
	calls, asks, undone atomic.Int64
	fails               string
}

func (c *counting) Decide(_ context.Context, _ ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	c.calls.Add(1)
	for i := range asks {
		if c.fails != "" && string(asks[i].Key) == c.fails {
			panic("it fails")
		}
		verdicts[i].Remaining = asks[i].Cost
	}
	c.asks.Add(int64(len(asks)))
}

func (c *counting) Undo(_ ratelimit.Instant, asks []ratelimit.Ask, _ []ratelimit.Verdict) {
	c.undone.Add(int64(len(asks)))
}

// Each limiter of several sees its own asks only, in one call, and their verdicts are in the order of the asks.
func TestSplit(t *testing.T) {
	all := []*counting{{}, {}}
	s := &split{
		of:  func(a *ratelimit.Ask) int { return int(a.Cost % 2) },
		all: []ratelimit.Limiter{all[0], all[1]},
	}
	asks := []ratelimit.Ask{{Cost: 1}, {Cost: 2}, {Cost: 3}, {Cost: 4}, {Cost: 7}}
	verdicts := make([]ratelimit.Verdict, len(asks))
	s.Decide(t.Context(), 0, asks, verdicts)
	for i := range asks {
		if verdicts[i].Remaining != asks[i].Cost {
			t.Errorf("verdict %d is %+v", i, verdicts[i])
		}
	}
	s.Decide(t.Context(), 0, asks[:1], verdicts)
	s.Decide(t.Context(), 0, nil, nil)
	s.Undo(0, asks, verdicts)
	for i, want := range [][3]int64{{1, 2, 2}, {2, 4, 3}} {
		c := all[i]
		if got := [3]int64{c.calls.Load(), c.asks.Load(), c.undone.Load()}; got != want {
			t.Errorf("limiter %d has %v calls, asks and undone, want %v", i, got, want)
		}
	}
	all[1].fails = "bad"
	asks[2].Key = []byte("bad")
	defer func() {
		if recover() == nil {
			t.Error("what fails in one limiter does not fail the request")
		}
	}()
	s.Decide(t.Context(), 0, asks, verdicts)
}

// Without a ring all modes are decided by the ledger's limiter itself.
func TestModesWithoutARing(t *testing.T) {
	local := leasing.NewLocal(10, 0, time.Unix(1_800_000_000, 0))
	if got := newByMode(local, nil, nil); got != limiter(local) {
		t.Errorf("a request is split by %T", got)
	}
}
