package sim

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/plant"
	"github.com/sluice-gate/sluice/ratelimit"
)

var (
	histories = flag.Int64("histories", 150, "how many histories of each kind to play; make sim plays many more")
	firstSeed = flag.Uint64("seed", 1, "of the first history")
)

func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(400) // worlds are small, and make much garbage
	os.Exit(m.Run())
}

// unseen is progress without a screen.
func unseen(int64) {}

// Whatever is set, and whatever goes wrong, no key goes further over its limit than declared, nor could Envoys let it,
// and no invariant breaks. Every fault is played in some history, and does what it says.
func TestHistories(t *testing.T) {
	t.Parallel()
	for kind, which := range map[string]Kind{"fleets": "", "Envoys": "envoys"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			sum, err := Histories(t.Context(), which, *firstSeed, *histories, runtime.GOMAXPROCS(0), unseen)
			if err != nil || sum.Failure != nil {
				t.Fatalf("%v %v", err, sum.Failure)
			}
			t.Logf("%+v", sum)
			events := sum.Events
			want := []string{"a limit exceeded", "decisions by envoy", "decisions by claim", "decisions by fallback"}
			if which == "" {
				want = []string{
					"a limit exceeded", "unanswered requests", "decisions by lease", "decisions by claim", "decisions by owner",
					"decisions by drift", "decisions by fallback",
				}
			}
			for _, what := range want {
				events[what] = sum.Played[what]
			}
			for what, n := range events {
				if n == 0 && *histories >= 150 {
					t.Errorf("no history has: %s", what)
				}
			}
		})
	}
}

// Each of these once went wrong.
func TestHistoriesOfBugs(t *testing.T) {
	t.Parallel()
	for seed, was := range map[uint64]string{
		16:    "reclaim: eager credited what was spent but not yet reported",
		586:   "a bucket that was full, and relearning, was asked again without end",
		1343:  "reclaim: eager, with a lease for the next window, and after denials",
		1608:  "reclaim: eager granted more at once than its declared largest lease",
		6440:  "a lease of mode approx that was reclaimed confirmed what had drifted",
		27551: "a sliding window forgot what was spent while the claim that ended it travelled",
		28235: "mode routing reclaimed eagerly, and is declared exact",

		665:     "what was spent of an eager lease was not told before the ledger credited it",
		902:     "a small lease was renewed for nothing, again and again",
		3997:    "a claim of a billing month took seconds",
		18484:   "what had drifted in a sliding window was forgotten with its key",
		1005636: "a clock set ahead by more than a window had a node claim of the old one in a loop",

		3004536: "an eager lease was credited whose tokens had been refunded",
		7001049: "what was admitted before the window was known was in no book",
		6698:    "what was refunded before a node's first answer was booked in a later window",
		7001361: "what was refunded without the store was booked in no window",
		1045565: "a node had a second budget for outages, for hot keys whose owner did not answer",
	} {
		if r, err := Run(History(seed)); err != nil || r.Violation != nil {
			t.Errorf("seed %d: %v %v; it was: %s", seed, err, r.Violation, was)
		}
	}
}

// In these histories a third of the requests return the excess of other requests' holds, at other
// nodes. Wires lose and double messages, nodes crash and stores lose data. Admissions stay within
// their bound, and in the end the ledger equals the bookings of nodes.
func TestHistoriesThatSettle(t *testing.T) {
	t.Parallel()
	modes := map[ratelimit.Mode]ratelimit.Tokens{}
	for seed := range uint64(30) {
		o := History(seed)
		o.Mix.Settles, o.Mix.Honest = 0.3, true
		if r := played(t, o); r.Released > 0 {
			modes[o.Rule.Coordination.Mode] += r.Released
		}
	}
	if t.Logf("by mode, histories gave back: %v", modes); len(modes) != len(ratelimit.ModeNames()) {
		t.Errorf("only histories of %v gave something back", modes)
	}
}

// One seed is one run: every figure and every event of it. What is counted adds up.
func TestRunsAreTheSameTwice(t *testing.T) {
	t.Parallel()
	for i := range uint64(10) {
		var o Options
		var r *Result
		var traces, results [2]string
		for twice := range 2 {
			var trace bytes.Buffer
			o = History(i)
			if i%5 == 0 {
				o = HistoryOfEnvoys(i)
			}
			o.Decisions, o.Points, o.Trace = true, 20, &trace
			r = played(t, o)
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			results[twice], traces[twice] = string(text), trace.String()
		}
		if results[0] != results[1] {
			t.Errorf("seed %d: two results:\n%s\n%s", i, results[0], results[1])
		}
		if traces[0] != traces[1] || traces[0] == "" {
			t.Errorf("seed %d: two traces, or none", i)
		}
		offered := ratelimit.Tokens(0)
		for _, p := range r.Timeline {
			offered += p.Offered
		}
		if late := r.Offered - offered; late < 0 || late > r.Offered/4+20 {
			t.Errorf("seed %d: %d offered, and %d in the timeline", i, r.Offered, offered)
		}
		if o.Rule.Coordination.Mode == ratelimit.Routing {
			continue // an answer may come too late, and the node have decided without
		}
		if got := r.Admitted + r.Refused + r.Unanswered; got != r.Offered {
			t.Errorf("seed %d: %d admitted, %d refused, %d unanswered: not the %d offered", i, r.Admitted, r.Refused, r.Unanswered, r.Offered)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	o := Options{Net: Net{Loss: 2, Skew: -1}, Envoys: &Envoys{Direct: 2}, Load: load.Load{Keys: -1, Skew: -1, Hot: 2, Cost: -1}}
	err := o.Validate()
	for _, want := range []string{"nodes is 0", "no rule", "loss is 2", "skew is -1", "rate is 0", "keys is -1", "hot is 2", "cost is -1", "length is 0s", "count is 0", "direct is 2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said in: %v", want, err)
		}
	}
}

// BenchmarkDecisions is how many decisions the simulator plays a second, on one
// core.
func BenchmarkDecisions(b *testing.B) {
	for _, mode := range ratelimit.ModeNames() {
		o := Options{
			Seed: 1, Nodes: 3, Rule: declaring(b, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100_000}, map[string]string{"mode": mode}),
			Load: load.Load{Rate: 100_000, Keys: 1000, Skew: 1.1, Length: 10 * time.Second}, Net: near,
		}
		b.Run(mode, func(b *testing.B) {
			decisions := int64(0)
			for b.Loop() {
				decisions += played(b, o).Requests
			}
			b.ReportMetric(float64(decisions)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

// bug is one of testdata/bugs.txt.
type bug struct {
	plant.Bug
	finder string
	seed   int
}

// readBugs reads bugs with empty lines between them.
func readBugs(t *testing.T) (all []bug) {
	t.Helper()
	text, err := os.ReadFile("testdata/bugs.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range strings.Split(strings.TrimSpace(string(text)), "\n\n")[1:] { // after the remarks
		lines := strings.Split(entry, "\n")
		var b bug
		head, name, _ := strings.Cut(lines[0], ": ")
		if _, err := fmt.Sscan(head, &b.finder, &b.seed); err != nil {
			t.Fatalf("%s: %v", lines[0], err)
		}
		b.Name, b.File = name, lines[1]
		texts := map[byte][]string{}
		for _, line := range lines[2:] {
			texts[line[0]] = append(texts[line[0]], strings.TrimPrefix(line[1:], " "))
		}
		b.Right, b.Wrong = strings.Join(texts['-'], "\n"), strings.Join(texts['+'], "\n")
		all = append(all, b)
	}
	return all
}

// A checker that cannot fail proves nothing. Each bug of testdata/bugs.txt is put into the product's own source, and must
// be found. Histories of fleets or of Envoys find most of them, each with the seed of one that finds it, to save time. The
// tests of package sublease find those in the account of one Envoy (books). Histories come too seldom to where two others
// show, and the tests of package rlqs find these (sessions). Those of package audit find bugs of its replay. Without a
// bug, none of these fails.
func TestHistoriesFindBugs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the product with bugs")
	}
	finders := map[string]struct {
		pkg  string
		args []string
	}{
		"fleets":   {"bench/sim", []string{"-test.run", "^TestHistories$/^fleets$"}},
		"Envoys":   {"bench/sim", []string{"-test.run", "^TestHistories$/^Envoys$"}},
		"books":    {"ratelimit/sublease", []string{"-rapid.checks", "5000", "-rapid.nofailfile"}},
		"sessions": {"ratelimit/rlqs", nil},
		"replays":  {"leasing/audit", []string{"-test.failfast", "-test.run", "Replay", "-replays", "900"}},
	}
	bugs := readBugs(t)
	var planted []plant.Bug
	for _, b := range bugs {
		planted = append(planted, b.Bug)
	}
	builds := map[string]func() (*plant.Binary, error){}
	for _, b := range bugs {
		by := finders[b.finder]
		if builds[by.pkg] == nil {
			into := t.TempDir()
			builds[by.pkg] = sync.OnceValues(func() (*plant.Binary, error) {
				return plant.Tests(t.Context(), "../..", by.pkg, into, planted)
			})
		}
		t.Run(b.finder+"/"+b.Name, func(t *testing.T) {
			t.Parallel()
			tests, err := builds[by.pkg]()
			if err != nil {
				t.Fatal(err)
			}
			play := func(name string, args ...string) (text string, failed bool) {
				args = append(append(args, by.args...), "-test.timeout", "30m")
				out, err := tests.Command(t.Context(), name, args...).CombinedOutput()
				return string(out), err != nil && strings.Contains(string(out), "--- FAIL")
			}
			var seed []string
			if b.seed > 0 {
				seed = []string{"-seed", strconv.Itoa(b.seed), "-histories", "1"}
			}
			if b.seed > int(*histories) { // TestHistories plays the others without a bug
				if text, failed := play("", seed...); failed {
					t.Fatalf("it fails without the bug: %s", text)
				}
			}
			text, failed := play(b.Name, seed...)
			if !failed && b.seed > 0 { // histories are made up otherwise now
				text, failed = play(b.Name, "-histories", "6000")
				t.Logf("write the seed that finds it into testdata/bugs.txt, and the test is fast again: %s", text)
			}
			if !failed {
				t.Fatalf("nothing finds it: %s", text)
			}
		})
	}
}
