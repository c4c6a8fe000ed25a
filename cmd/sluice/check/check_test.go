package check

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluice-gate/sluice/bench/sluicetest"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// printed runs the command.
func printed(in string, args ...string) (code int, out, errs string) {
	c := &Command{in: strings.NewReader(in)}
	return sluicetest.Run(c, args, kong.Vars{"modes": ""}, kong.Bind(Version("v1.2.3")))
}

// TestCheck plays testdata/scripts. "check CODE ARGS..." runs the command, which must end with that code. Of what it
// prints, errors come first, and runs of spaces are one; with "flat", it is one line, because lines are wrapped. The
// file stdin is the standard input.
func TestCheck(t *testing.T) {
	runs := func(spaces *regexp.Regexp) func(*testscript.TestScript, bool, []string) {
		return func(s *testscript.TestScript, _ bool, args []string) {
			in := ""
			if args[len(args)-1] == "-" {
				in = s.ReadFile("stdin")
			}
			code, out, errs := printed(in, args[1:]...)
			if _, err := fmt.Fprint(s.Stdout(), spaces.ReplaceAllString(errs+out, " ")); err != nil || fmt.Sprint(code) != args[0] {
				s.Fatalf("it ends with %d: %s%s", code, errs, out)
			}
			if strings.HasPrefix(out, "{") && !json.Valid([]byte(out)) {
				s.Fatalf("it is no JSON: %s", out)
			}
		}
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/scripts", Cmds: map[string]func(*testscript.TestScript, bool, []string){
		"check": runs(regexp.MustCompile(" +")), "flat": runs(regexp.MustCompile(`\s+`)),
	}})
}

func writeFile(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A screen of 120 columns shows all but the messages, however long names are.
func TestCheckIsNarrow(t *testing.T) {
	file := writeFile(t, `domain: d
descriptors:
- {key: k, rate_limit: {unit: year, requests_per_unit: 100}}
- key: `+strings.Repeat("long", 20)+`
  algorithm: token_bucket
  coordination: {on_store_failure: closed}
  rate_limit: {unit: day, requests_per_unit: 4000000000}
- key: a
  coordination: {mode: approx, drift_budget: 3%, reclaim: eager, on_store_failure: open}
  rate_limit: {unit: day, requests_per_unit: 200}
- {key: u, rate_limit: {unlimited: true}}
`)
	if code, out, _ := printed("", file); code != 0 || widest(out) > screen {
		t.Errorf("%d, %d columns:\n%s", code, widest(out), out)
	}
}

// Check says when the next billing months begin, on the clocks of their zones.
func TestCheckSaysWhenMonthsBegin(t *testing.T) {
	file := writeFile(t, `domain: d
descriptors:
  - key: billed
    rate_limit: {unit: month, requests_per_unit: 5, billing: {day: 31, time_zone: America/Havana}}
  - {key: other, rate_limit: {unit: month, requests_per_unit: 5}}
`)
	r, err := (&Command{}).checked(file, config.Options{})
	if err != nil || r.problems != nil {
		t.Fatal(err, r.problems)
	}
	var out strings.Builder
	d := declaration{Command: &Command{Nodes: 3, NoStore: true}, rules: r.rules.All(), now: time.Date(2028, 2, 28, 0, 0, 0, 0, time.UTC)}
	if err := d.write(&out); err != nil {
		t.Fatal(err)
	}
	want := "\nthe next billing months begin:\n" +
		"  d.billed: 2028-02-29T00:00:00-05:00, 2028-03-31T00:00:00-04:00, 2028-04-30T00:00:00-04:00\n"
	if !strings.Contains(out.String(), want) || strings.Count(out.String(), "begin") != 1 {
		t.Errorf("no %q in\n%s", want, out.String())
	}
	var v checkReport
	if _, out, errs := printed("", "--json", file); json.Unmarshal([]byte(out), &v) != nil || len(v.Rules) != 2 || len(v.Rules[0].NextMonths) != 3 || v.Rules[1].NextMonths != nil {
		t.Errorf("as JSON: %s%s", errs, out)
	}
	for _, text := range v.Rules[0].NextMonths {
		if at, err := time.Parse(time.RFC3339, text); err != nil || at.Before(time.Now()) || at.Day() < 28 {
			t.Errorf("a month begins at %s (%v)", text, err)
		}
	}
}

// The worked example of docs/explain/rlqs.md is what check prints.
func TestDocsOfRLQS(t *testing.T) {
	text, err := os.ReadFile("../../../docs/explain/rlqs.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	_, example, _ := strings.Cut(page, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	code, out, errs := printed("", "--rlqs", writeFile(t, example), "--envoys=50")
	_, block, _ := strings.Cut(page, "<!-- check -->\n```text\n")
	block, _, _ = strings.Cut(block, "```")
	if code != 0 || len(block) < 100 || !strings.Contains(out, block) {
		t.Errorf("check says\n%s%s\nand docs/explain/rlqs.md\n%s", errs, out, block)
	}
}
