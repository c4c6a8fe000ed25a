package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// Code reads the traits of a mode. Code that compares modes would need a list of all of them.
func TestModesAreATable(t *testing.T) {
	compares := regexp.MustCompile(`\bMode (==|!=)|(==|!=) ratelimit\.(Leasing|Routing|Approx)\b|case ratelimit\.(Leasing|Routing|Approx)\b`)
	var files []string
	eachGoFile(t, func(path string, test bool) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if name := strings.TrimPrefix(path, top); !test && compares.Match(text) {
			files = append(files, name)
		}
	})
	if len(files) > 3 {
		t.Errorf("%d files compare modes, and at most 3 may: ask Mode.Spec(): %q", len(files), files)
	}
}

// inCore reports whether a file is of the core.
func inCore(name string) bool {
	folder, rest, _ := strings.Cut(name, "/")
	return folder == "leasing" || folder == "routing" || folder == "approx" || folder == "ratelimit" && !strings.Contains(rest, "/")
}

// flatOnPurpose are structs of the core with more than 12 fields of their own.
var flatOnPurpose = map[string]string{
	"Event":        "a line of JSON, whose names are published",
	"LeaseLook":    "an object of JSON, whose names are published",
	"LimiterStats": "counts, each of which is a metric",
	"RoutingStats": "counts, each of which is a metric",
	"RuleCounters": "counts, each of which is a metric",
	"Rule":         "what a configuration says of a rule",
}

// A struct of the core has at most 12 fields; others are put together under a name.
func TestStructsHaveParts(t *testing.T) {
	const most = 12
	used := map[string]bool{}
	eachOfTheCore(t, func(name string, n ast.Node) {
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
		if flatOnPurpose[spec.Name.Name] != "" {
			used[spec.Name.Name] = fields > most
		} else if fields > most {
			t.Errorf("%s: %s has %d fields, the most is %d: give those a name that belong together", name, spec.Name.Name, fields, most)
		}
	})
	for name := range flatOnPurpose {
		if !used[name] {
			t.Errorf("%s is listed as flat on purpose, and is not", name)
		}
	}
}

// A call in the core says what true means: by a name, a constant or an expression. Calls of
// functions that are not ours, and tests, may say true.
func TestNoCallSaysTrue(t *testing.T) {
	takesBool := map[string]bool{}
	eachOfTheCore(t, func(_ string, n ast.Node) {
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
	eachOfTheCore(t, func(name string, n ast.Node) {
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
				t.Errorf("%s: a call of %s says %s: say what that is", name, called, id.Name)
			}
		}
	})
}

// A line of the product has one thought. An assignment sets at most two things, unless they are a call's results or
// change places. A statement before the condition of an if sets a name that the condition uses.
func TestOneThoughtInALine(t *testing.T) {
	uses := func(n ast.Node, names map[string]bool) (found bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			found = found || ok && names[id.Name]
			return true
		})
		return found
	}
	eachGoFile(t, func(path string, test bool) {
		name := strings.TrimPrefix(path, top)
		if test || strings.HasPrefix(name, "bench/") || strings.HasSuffix(name, ".pb.go") {
			return
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			set := map[string]bool{}
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, x := range n.Lhs {
					if id, ok := x.(*ast.Ident); ok {
						set[id.Name] = true
					}
				}
				rotates := slices.ContainsFunc(n.Rhs, func(x ast.Expr) bool { return uses(x, set) })
				if n.Tok == token.ASSIGN && len(n.Rhs) > 2 && !rotates {
					t.Errorf("%s sets %d things: give each a line", files.Position(n.Pos()), len(n.Rhs))
				}
			case *ast.IfStmt:
				if n.Init == nil {
					break
				}
				if a, ok := n.Init.(*ast.AssignStmt); ok {
					for _, x := range a.Lhs {
						if id, ok := x.(*ast.Ident); ok {
							set[id.Name] = true
						}
					}
				}
				if !uses(n.Cond, set) {
					t.Errorf("%s: the condition does not use what is before it: give that a line", files.Position(n.Pos()))
				}
			}
			return true
		})
	})
}

// eachOfTheCore shows the syntax of the core's code, without that for tests.
func eachOfTheCore(t *testing.T, see func(name string, n ast.Node)) {
	t.Helper()
	eachGoFile(t, func(path string, test bool) {
		name := strings.TrimPrefix(path, top)
		if test || !inCore(name) || strings.HasSuffix(name, ".pb.go") || strings.HasPrefix(name, "leasing/redistest/") || strings.HasPrefix(name, "leasing/ledgertest/") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if n != nil {
				see(name, n)
			}
			return true
		})
	})
}

func eachGoFile(t *testing.T, f func(path string, test bool)) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != top {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			f(path, strings.HasSuffix(path, "_test.go"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
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
	for i, block := range slices.Concat(fenced(readme, "yaml"), fenced(read(t, "docs/explain/approx.md"), "yaml"), []string{exampleConfig}) {
		if !strings.Contains(block, "domain:") {
			continue
		}
		_, warnings, problems := config.Parse([]config.Text{{Name: "README", Data: []byte(block)}}, config.Options{Coordination: ratelimit.DefaultCoordination()})
		if problems != nil || warnings != nil {
			t.Errorf("block %d: %v %v", i, problems, warnings)
		}
	}
}

// fenced returns the code blocks of a language.
func fenced(markdown, language string) (blocks []string) {
	for _, part := range strings.Split(markdown, "```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		blocks = append(blocks, block)
	}
	return blocks
}
