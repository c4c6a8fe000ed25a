package main

import (
	goflag "flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var writeBudgets = goflag.Bool("write-budgets", false, "write testdata/budgets.txt anew")

var (
	decisions    = regexp.MustCompile(`\b(?:if|case|for)\b|&&|\|\|`)
	luaDecisions = regexp.MustCompile(`\b(?:if|elseif|for|while|and|or)\b`)
	literals     = regexp.MustCompile("\"(?:\\\\.|[^\"\\\\\n])*\"|`[^`]*`")
	goComments   = regexp.MustCompile(`//.*`)
	luaComments  = regexp.MustCompile(`--.*`)
)

// weight is what there is to read in a package: lines with comments, and decision points. Tests and generated code are
// left out.
type weight struct{ lines, decisions int }

func (w *weight) add(path, text string) {
	w.lines += strings.Count(text, "\n")
	text = literals.ReplaceAllString(text, `""`)
	if strings.HasSuffix(path, ".lua") {
		w.decisions += len(luaDecisions.FindAllString(luaComments.ReplaceAllString(text, ""), -1))
		return
	}
	w.decisions += len(decisions.FindAllString(goComments.ReplaceAllString(text, ""), -1))
}

// budget is a weight with room for small changes: up to the next 50 lines and 10 decisions.
func (w weight) budget() weight { return weight{(w.lines/50 + 1) * 50, (w.decisions/10 + 1) * 10} }

// budgetFile has a line for each package: its name, its lines, and its decisions.
const budgetFile = "testdata/budgets.txt"

// A package has the lines and decisions that testdata/budgets.txt gives it. A change that needs more says so there:
//
//	go test ./cmd/sluice -run TestBudgets -write-budgets
func TestBudgets(t *testing.T) {
	weights := map[string]*weight{}
	eachGoFile(t, func(path string, test bool) {
		if test || strings.HasSuffix(path, ".pb.go") {
			return
		}
		paths := []string{path}
		dir := filepath.Dir(path)
		name := strings.TrimPrefix(dir, top)
		if weights[name] == nil {
			weights[name] = &weight{}
			scripts, _ := filepath.Glob(filepath.Join(dir, "*.lua"))
			paths = append(paths, scripts...)
		}
		for _, p := range paths {
			text, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			weights[name].add(p, string(text))
		}
	})
	text, err := os.ReadFile(budgetFile)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	said := map[string]weight{}
	for line := range strings.Lines(string(text)) {
		var name string
		var w weight
		if _, err := fmt.Sscan(line, &name, &w.lines, &w.decisions); err != nil {
			t.Fatalf("%s: %q: %v", budgetFile, line, err)
		}
		said[name] = w
	}
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		w, b := *weights[name], weights[name].budget()
		fmt.Fprintf(&table, "%s %d %d\n", name, b.lines, b.decisions)
		has, ok := said[name]
		if *writeBudgets {
			continue
		}
		if !ok || w.lines > has.lines || w.decisions > has.decisions {
			t.Errorf("%s has %d lines and %d decisions, and budgets.txt gives it %d and %d: cut it, or say so there (-write-budgets)",
				name, w.lines, w.decisions, has.lines, has.decisions)
		}
		delete(said, name)
	}
	if *writeBudgets {
		if err := os.WriteFile(budgetFile, []byte(table.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	for name := range said {
		t.Errorf("budgets.txt has a budget for %s, where no package is", name)
	}
}
