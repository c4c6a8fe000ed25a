package main

import (
	goflag "flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// source is a file of code that is neither a test nor generated.
type source struct{ name, text string }

// inCore reports whether a file is of the core, and not for tests of it.
func (s source) inCore() bool {
	folder, rest, _ := strings.Cut(s.name, "/")
	core := folder == "leasing" || folder == "routing" || folder == "approx" || folder == "ratelimit" && !strings.Contains(rest, "/")
	return core && !strings.HasPrefix(s.name, "leasing/redistest/") && !strings.HasPrefix(s.name, "leasing/ledgertest/")
}

// sources are the files of the repository, of Go and Lua.
func sources(t *testing.T) (all []source) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != top {
			return filepath.SkipDir
		}
		code := strings.HasSuffix(path, ".lua") || strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".pb.go")
		if code && !strings.HasSuffix(path, "_test.go") {
			name := strings.TrimPrefix(path, top)
			all = append(all, source{name, read(t, name)})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// inspect shows the syntax of files that are chosen.
func inspect(t *testing.T, chosen func(source) bool, see func(place token.Position, n ast.Node)) {
	t.Helper()
	for _, s := range sources(t) {
		if !chosen(s) || !strings.HasSuffix(s.name, ".go") {
			continue
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, s.name, s.text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if n != nil {
				see(files.Position(n.Pos()), n)
			}
			return true
		})
	}
}

// Code reads the traits of a mode. Code that compares modes would need a list of all of them.
func TestModesAreATable(t *testing.T) {
	compares := regexp.MustCompile(`\bMode (==|!=)|(==|!=) ratelimit\.(Leasing|Routing|Approx)\b|case ratelimit\.(Leasing|Routing|Approx)\b`)
	all := slices.DeleteFunc(sources(t), func(s source) bool { return !compares.MatchString(s.text) })
	if len(all) > 3 {
		for _, s := range all {
			t.Errorf("%s compares modes, and at most 3 files may: ask Mode.Spec()", s.name)
		}
	}
}

// A struct of the core has at most 12 fields; others are put together under a name.
func TestStructsHaveParts(t *testing.T) {
	const most = 12
	flatOnPurpose := map[string]string{
		"Event":        "a line of JSON, whose names are published",
		"LeaseLook":    "an object of JSON, whose names are published",
		"LimiterStats": "counts, each of which is a metric",
		"RoutingStats": "counts, each of which is a metric",
		"RuleCounters": "counts, each of which is a metric",
		"Rule":         "what a configuration says of a rule",
	}
	inspect(t, source.inCore, func(place token.Position, n ast.Node) {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return
		}
		fields := 0
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				fields += max(1, len(f.Names))
			}
		}
		if fields > most && flatOnPurpose[spec.Name.Name] == "" {
			t.Errorf("%s: %s has %d fields, the most is %d: give those a name that belong together", place, spec.Name.Name, fields, most)
		}
		if fields > most {
			delete(flatOnPurpose, spec.Name.Name)
		}
	})
	for name := range flatOnPurpose {
		t.Errorf("%s is listed as flat on purpose, and is not", name)
	}
}

// A call in the core says what true means: by a name, a constant or an expression. Calls of
// functions that are not ours, and tests, may say true.
func TestNoCallSaysTrue(t *testing.T) {
	takesBool := map[string]bool{}
	inspect(t, source.inCore, func(_ token.Position, n ast.Node) {
		f, ok := n.(*ast.FuncDecl)
		if !ok {
			return
		}
		for _, p := range f.Type.Params.List {
			if id, ok := p.Type.(*ast.Ident); ok && id.Name == "bool" {
				takesBool[f.Name.Name] = true
			}
		}
	})
	inspect(t, source.inCore, func(place token.Position, n ast.Node) {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		called := ""
		switch f := c.Fun.(type) {
		case *ast.Ident:
			called = f.Name
		case *ast.SelectorExpr:
			called = f.Sel.Name
		}
		for _, a := range c.Args {
			if id, ok := a.(*ast.Ident); ok && takesBool[called] && (id.Name == "true" || id.Name == "false") {
				t.Errorf("%s: a call of %s says %s: say what that is", place, called, id.Name)
			}
		}
	})
}

// A line of the product has one thought. An assignment sets at most two things, unless they are a call's results or
// change places. A statement before the condition of an if sets a name that the condition uses.
func TestOneThoughtInALine(t *testing.T) {
	// uses reports whether a node has a name that an assignment sets.
	uses := func(n ast.Node, a *ast.AssignStmt) (found bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			for _, x := range a.Lhs {
				set, isName := x.(*ast.Ident)
				id, ok := n.(*ast.Ident)
				found = found || isName && ok && id.Name == set.Name
			}
			return true
		})
		return found
	}
	product := func(s source) bool { return !strings.HasPrefix(s.name, "bench/") }
	inspect(t, product, func(place token.Position, n ast.Node) {
		switch n := n.(type) {
		case *ast.AssignStmt:
			rotates := slices.ContainsFunc(n.Rhs, func(x ast.Expr) bool { return uses(x, n) })
			if n.Tok == token.ASSIGN && len(n.Rhs) > 2 && !rotates {
				t.Errorf("%s sets %d things: give each a line", place, len(n.Rhs))
			}
		case *ast.IfStmt:
			a, ok := n.Init.(*ast.AssignStmt)
			if n.Init != nil && (!ok || !uses(n.Cond, a)) {
				t.Errorf("%s: the condition does not use what is before it: give that a line", place)
			}
		}
	})
}

var writeBudgets = goflag.Bool("write-budgets", false, "write testdata/budgets.txt anew")

// A package has the lines and decisions that testdata/budgets.txt gives it. A change that needs more says so there:
//
//	go test ./cmd/sluice -run TestBudgets -write-budgets
func TestBudgets(t *testing.T) {
	const budgetFile = "cmd/sluice/testdata/budgets.txt" // its lines have a package's name, its lines, and its decisions
	literals := regexp.MustCompile("\"(?:\\\\.|[^\"\\\\\n])*\"|`[^`]*`")
	decisions := map[string]*regexp.Regexp{
		".go": regexp.MustCompile(`\b(?:if|case|for)\b|&&|\|\|`), ".lua": regexp.MustCompile(`\b(?:if|elseif|for|while|and|or)\b`),
	}
	comments := map[string]*regexp.Regexp{".go": regexp.MustCompile(`//.*`), ".lua": regexp.MustCompile(`--.*`)}
	type weight struct{ lines, decisions int }
	is, has := map[string]weight{}, map[string]weight{}
	for _, s := range sources(t) {
		w, kind := is[filepath.Dir(s.name)], filepath.Ext(s.name)
		w.lines += strings.Count(s.text, "\n")
		text := comments[kind].ReplaceAllString(literals.ReplaceAllString(s.text, `""`), "")
		w.decisions += len(decisions[kind].FindAllString(text, -1))
		is[filepath.Dir(s.name)] = w
	}
	for line := range strings.Lines(read(t, budgetFile)) {
		var name string
		var w weight
		if _, err := fmt.Sscan(line, &name, &w.lines, &w.decisions); err != nil {
			t.Fatalf("%s: %q: %v", budgetFile, line, err)
		}
		has[name] = w
		if _, there := is[name]; !there && !*writeBudgets {
			t.Errorf("budgets.txt has a budget for %s, where no package is", name)
		}
	}
	table := ""
	for _, name := range slices.Sorted(maps.Keys(is)) {
		w := is[name]
		table += fmt.Sprintf("%s %d %d\n", name, (w.lines/50+1)*50, (w.decisions/10+1)*10) // with room for small changes
		if !*writeBudgets && (w.lines > has[name].lines || w.decisions > has[name].decisions) {
			t.Errorf("%s has %d lines and %d decisions, and budgets.txt gives it %d and %d: cut it, or say so there (-write-budgets)",
				name, w.lines, w.decisions, has[name].lines, has[name].decisions)
		}
	}
	if *writeBudgets {
		if err := os.WriteFile(top+budgetFile, []byte(table), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// What the README and the built-in example show is what there is.
func TestREADME(t *testing.T) {
	readme := read(t, "README.md")
	makefile := read(t, "Makefile")
	for _, want := range []string{"go run ./cmd/sluice serve", "make test", exampleRequest} {
		if !strings.Contains(readme, want) {
			t.Errorf("the README does not say %s", want)
		}
	}
	if !strings.Contains(makefile, "\ntest:") || !strings.Contains(read(t, ".ci/run"), "\nmake test\n") {
		t.Error("make test is not what CI runs")
	}
	for i, block := range strings.Split(readme+read(t, "docs/explain/approx.md")+"```yaml\n"+exampleConfig, "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if !strings.Contains(block, "domain:") {
			continue
		}
		_, warnings, problems := config.Parse([]config.Text{{Name: "README", Data: []byte(block)}}, config.Options{Coordination: ratelimit.DefaultCoordination()})
		if problems != nil || warnings != nil {
			t.Errorf("block %d: %v %v", i, problems, warnings)
		}
	}
}
