package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/bench/sim"
	"github.com/sluice-gate/sluice/bench/sluicetest"
)

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
