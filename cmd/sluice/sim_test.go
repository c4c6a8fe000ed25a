package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/bench/sim"
	"github.com/sluice-gate/sluice/ratelimit"
)

func runLine(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(args, streams{&o, &e})
	return code, o.String(), e.String()
}

func TestSimHistories(t *testing.T) {
	t.Parallel()
	code, out, errs := runLine("sim", "histories", "--count", "20", "--json")
	var sum sim.Summary
	if err := json.Unmarshal([]byte(out), &sum); err != nil || code != 0 || sum.Histories != 20 || sum.Decisions == 0 {
		t.Errorf("%d %v %s %s", code, err, out, errs)
	}
	code, out, _ = runLine("sim", "histories", "--seed", "3", "--trace")
	_, again, _ := runLine("sim", "histories", "--seed", "3", "--trace")
	if code != 0 || out != again || !strings.Contains(out, "the ledger grants") {
		t.Errorf("%d: a replay is not the same twice, or says nothing: %.200s", code, out)
	}
	if code, _, errs := runLine("sim", "histories", "--count", "0"); code != 1 || !strings.Contains(errs, "--count is 0") {
		t.Errorf("%d %s", code, errs)
	}
}

// Histories of some kind only are played with the seeds that they have among all.
func TestSimHistoriesOfAKind(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		flags []string
		has   func(o *sim.Options) bool
	}{
		{[]string{"--mode", "approx"}, func(o *sim.Options) bool { return o.Rule.Coordination.Mode == ratelimit.Approx }},
		{[]string{"--no-store"}, func(o *sim.Options) bool { return o.Storeless }},
		{[]string{"--tills"}, func(o *sim.Options) bool { return o.Seed%20 == 19 }},
		{[]string{"--mode", "routing", "--no-store"}, func(o *sim.Options) bool { return o.Storeless }},
	} {
		code, out, errs := runLine(append([]string{"sim", "histories", "--count", "5", "--json"}, x.flags...)...)
		var sum sim.Summary
		if err := json.Unmarshal([]byte(out), &sum); err != nil || code != 0 {
			t.Fatalf("%v: %d %v %s", x.flags, code, err, errs)
		}
		played, decisions := int64(0), int64(0)
		for seed := uint64(1); played < 5; seed++ {
			if o := sim.History(seed); x.has(&o) {
				r, err := sim.Run(o)
				if err != nil {
					t.Fatal(err)
				}
				played, decisions = played+1, decisions+r.Requests
			}
		}
		if sum.Histories != played || sum.Decisions != decisions {
			t.Errorf("%v: %d histories with %d decisions, want the first %d with %d", x.flags, sum.Histories, sum.Decisions, played, decisions)
		}
	}
	for want, flags := range map[string][]string{
		"the mode is \"strict\", must be one of leasing": {"--mode", "strict"},
		"only mode routing is played without a store":    {"--mode", "approx", "--no-store"},
		"are of modes leasing and approx":                {"--mode", "routing", "--tills"},
	} {
		if code, _, errs := runLine(append([]string{"sim", "histories"}, flags...)...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d %s, want %q", flags, code, errs, want)
		}
	}
}

func TestSimWhatIf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page, charts, trace := filepath.Join(dir, "page.html"), filepath.Join(dir, "charts"), filepath.Join(dir, "trace.csv")
	code, out, errs := runLine("sim", "what-if", "100/second", "--rate", "300", "--keys", "2", "--length", "5s", "--html", page, "--charts", charts)
	if code != 0 || !strings.Contains(out, "Use ") || !strings.Contains(out, "strict, per request") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "<svg") {
		t.Errorf("no page: %v", err)
	}
	if files, err := filepath.Glob(charts + "/*.svg"); err != nil || len(files) < 6 {
		t.Errorf("charts: %v %v", files, err)
	}
	writeFile(t, trace, "1,a\n2,b,x\n")
	for want, args := range map[string][]string{
		"trace.csv: trace line 2: hits is \"x\"": {"10/second", "--trace", trace},
		"must be like 6000/minute":               {"10/fortnight"},
		"the rate is -1":                         {"10/second", "--rate=-1"},
		"--max-over":                             {"10/second", "--max-over", "much"},
		"\"square\" is not a shape":              {"10/second", "--shape", "square"},
		"--burst is -1":                          {"10/second", "--burst=-1"},
	} {
		if code, _, errs := runLine(append([]string{"sim", "what-if"}, args...)...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d %s, want %q", args, code, errs, want)
		}
	}
	writeFile(t, trace, `{"time":1,"key":"a"}`+"\n"+`{"time":2,"key":"b"}`)
	code, out, errs = runLine("sim", "what-if", "10/second", "--trace", trace, "--json")
	var a sim.Answer
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != 0 || len(a.Choices) == 0 || a.Choices[0].Plain.Requests != 2 {
		t.Errorf("%d %v %s %s", code, err, out, errs)
	}
}

func TestBenchAccuracyRefusesNonsense(t *testing.T) {
	if code, _, errs := runLine("bench", "accuracy", "--scenario", "storm", "--nodes", "1"); code != 1 || !strings.Contains(errs, "storm") || !strings.Contains(errs, "--nodes is 1") {
		t.Errorf("%d %s", code, errs)
	}
}
