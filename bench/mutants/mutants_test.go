package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The whole tool, on a package of which it is known what its test notices.
func TestHunt(t *testing.T) {
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/purse/purse.go"
	p := plan{root: root, files: []string{file}, suites: []suite{{dir: "testdata/purse"}}}
	var out bytes.Buffer
	o := options{budget: 1 << 40, percent: 100, known: "testdata/equivalent.txt", out: &out, say: t.Logf}
	r, err := p.run(t.Context(), &o, []byHand{{Name: "a purse may be overdrawn", File: file, Right: "n = min(n, p.coins)\n\tp.coins -= n", Wrong: "p.coins -= n"}})
	if err == nil || !strings.Contains(err.Error(), "must be") || !strings.Contains(err.Error(), "name none that there is") {
		t.Fatalf("a run with survivors and a stale entry ended with %v", err)
	}
	var got []string
	for _, x := range r.results {
		got = append(got, string(x.fate)+": "+x.op+": "+x.new)
	}
	slices.Sort(got)
	want := []string{
		"equivalent: drop: func (p *Purse) Spill() { }",
		"killed: always: if true || (p.coins < most) {",
		"killed: arithmetic: p.coins += n",
		"killed: arithmetic: p.coins--",
		"killed: boundary: if p.coins <= most {",
		"killed: by hand: p.coins -= n",
		"killed: drop: ",
		"killed: drop: ",
		"killed: drop: ",
		"killed: drop: case _ = <-coins:",
		"killed: min-max: n = (n)",
		"killed: never: if false && (p.coins < most) {",
		"not reached: number: func (p *Purse) Spill() { p.coins = 1 }",
		"survived: bool: return false",
		"survived: bool: return true",
		"survived: min-max: n = (p.coins)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nand the test notices\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// What is planned fits the sources as they are: each fault made by hand, and what is
// taken from scripts of faults in both ledgers. So do the entries of the list of equivalents, which go stale when
// their line is written anew: a hunt would tell of that, at its end.
func TestPlanFitsTheSources(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	p := thePlan
	p.root = root
	packages, err := p.load()
	if err != nil {
		t.Fatal(err)
	}
	all, misfits, err := p.mutants(packages, allByHand)
	if err != nil {
		t.Fatal(err)
	}
	known, err := readEquivalents("equivalent.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range known.stale(all) {
		t.Errorf("equivalent.txt has an entry that fits no mutant any more:\n%s", key)
	}
	for _, wrong := range misfits {
		t.Error(wrong)
	}
}

// A list that says nothing of why, or says it twice, is refused.
func TestReadEquivalents(t *testing.T) {
	for text, want := range map[string]string{
		"a.go f\n- x\n+ y\n": "the reason after =",
		"a.go f\n- x\n+ y\n= So.\n\na.go f\n- x\n+ y\n= So.\n": "listed twice",
	} {
		file := filepath.Join(t.TempDir(), "list")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readEquivalents(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, and not that %s", text, err, want)
		}
	}
}
