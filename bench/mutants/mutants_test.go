package mutants

import (
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/bench/plant"
)

const root = "../.."

var (
	hunt      = flag.String("hunt", "", "run the tests of the core with each bug by hand whose name matches: . for all")
	survivors = flag.String("survivors", "", "JSON of go-gremlins, by its package's folder: approx=FILE")
)

// suites are packages whose tests find bugs. A bug meets those of its own package first.
var suites = []string{
	"leasing/account", "leasing/internal/lease", "leasing/lane", "leasing/local", "leasing", "approx", "routing", "bench/sim",
}

// Each bug by hand is in the sources as they are, in a function.
func TestBugsByHandFitTheSources(t *testing.T) {
	for _, bug := range allByHand {
		if _, err := plant.Texts(root, []plant.Bug{plant.Bug(bug)}); err != nil {
			t.Error(err)
		}
	}
}

// With each bug by hand, a test fails twice. Without a bug, none does.
func TestBugsByHandAreFound(t *testing.T) {
	if *hunt == "" {
		t.Skip("-hunt . runs the tests of the core for each bug: make mutants")
	}
	var bugs []plant.Bug
	for _, bug := range allByHand {
		if regexp.MustCompile(*hunt).MatchString(bug.Name) {
			bugs = append(bugs, plant.Bug(bug))
		}
	}
	programs := map[string]*plant.Binary{}
	fails := func(suite, bug string) bool {
		if programs[suite] == nil {
			program, err := plant.Tests(t.Context(), root, suite, t.TempDir(), bugs)
			if err != nil {
				t.Fatal(err)
			}
			programs[suite] = program
			if out, err := run(t, program, ""); err != nil {
				t.Fatalf("%s fails without a bug: %v\n%s", suite, err, out)
			}
		}
		for range 2 {
			if _, err := run(t, programs[suite], bug); err == nil {
				return false
			}
		}
		return true
	}
	for _, bug := range bugs {
		own := path.Dir(bug.File)
		order := append([]string{own}, slices.DeleteFunc(slices.Clone(suites), func(s string) bool { return s == own })...)
		at := slices.IndexFunc(order, func(suite string) bool { return fails(suite, bug.Name) })
		if at < 0 {
			t.Errorf("NOT FOUND: %s (%s)", bug.Name, bug.File)
			continue
		}
		t.Logf("found by %s: %s", order[at], bug.Name)
	}
}

func run(t *testing.T, program *plant.Binary, bug string) ([]byte, error) {
	return program.Command(t.Context(), bug, "-test.short", "-test.failfast", "-test.timeout", "5m").CombinedOutput()
}

// equivalents reads equivalent.txt: entries with an empty line between. Each has the file and function of a line, then
// the line (-), one that does the same (+), and the reason (=).
func equivalents(t *testing.T) (all [][]string) {
	t.Helper()
	text, err := os.ReadFile("equivalent.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, entries, _ := strings.Cut(string(text), "\n\n") // after the remarks
	seen := map[string]bool{}
	for entry := range strings.SplitSeq(strings.TrimSpace(entries), "\n\n") {
		lines := strings.Split(entry, "\n")
		if len(lines) != 4 || lines[1][:2] != "- " || lines[2][:2] != "+ " || lines[3][:2] != "= " || seen[strings.Join(lines[:3], "\n")] {
			t.Fatalf("equivalent.txt has an entry twice, or without its line, the other line or a reason:\n%s", entry)
		}
		seen[strings.Join(lines[:3], "\n")] = true
		all = append(all, lines)
	}
	return all
}

// Each equivalent fault is of a line that is still in its function.
func TestEquivalentsFitTheSources(t *testing.T) {
	for _, e := range equivalents(t) {
		file, function, _ := strings.Cut(e[0], " ")
		function, _, _ = strings.Cut(function, " #")
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(tree.Decls, func(d ast.Decl) bool {
			fn, ok := d.(*ast.FuncDecl)
			return ok && nameOf(fn) == function
		})
		if at < 0 || !strings.Contains(string(text[tree.Decls[at].Pos()-1:tree.Decls[at].End()-1]), e[1][2:]+"\n") {
			t.Errorf("no such line is in %s any more: write what is there now\n%s", e[0], e[1])
		}
	}
}

func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	return "(" + types.ExprString(fn.Recv.List[0].Type) + ")." + fn.Name.Name
}

// enough is the percentage of small faults that tests of a package must find.
const enough = 95

// The tests of a package find most of what go-gremlins plants, without the lines of equivalent.txt. The log has the rest.
func TestSmallFaultsAreFound(t *testing.T) {
	dir, file, ok := strings.Cut(*survivors, "=")
	if !ok {
		t.Skip("-survivors names what go-gremlins has written: make mutants")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Files []struct {
			Name      string `json:"file_name"`
			Mutations []struct {
				Type, Status string
				Line         int
			}
		}
	}
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	found, lived := 0, 0
	for _, f := range report.Files {
		name := path.Join(dir, f.Name)
		source, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(source), "\n")
		for _, m := range f.Mutations {
			line := strings.TrimSpace(lines[m.Line-1])
			known := slices.ContainsFunc(equivalents(t), func(e []string) bool { return strings.HasPrefix(e[0], name+" ") && e[1] == "- "+line })
			switch {
			case m.Status == "KILLED" || m.Status == "TIMED OUT":
				found++
			case m.Status == "LIVED" && !known:
				lived++
				t.Logf("%s:%d: NOT FOUND: %s\n\t%s", name, m.Line, m.Type, line)
			}
		}
	}
	if share := 100 * found / max(1, found+lived); share < enough {
		t.Errorf("%d %% of small faults in %s are found, and %d %% must be", share, dir, enough)
	}
}
