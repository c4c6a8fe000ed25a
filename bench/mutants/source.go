package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/sluice-gate/sluice/bench/plant"
)

// goPackage is a package to mutate, parsed and type-checked.
type goPackage struct {
	dir, path string
	files     map[string]*plant.File // by name from the root
	info      *types.Info
	importer  types.Importer
}

// load parses and checks a package.
func load(root, dir string) (*goPackage, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Export,GoFiles", "-export", "-deps", "./"+dir)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", dir, err)
	}
	exports := map[string]string{}
	var own struct { // -deps lists a package after its imports
		ImportPath, Export string
		GoFiles            []string
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		own.Export, own.GoFiles = "", nil
		if err := d.Decode(&own); err != nil {
			return nil, fmt.Errorf("reading what go list says: %w", err)
		}
		exports[own.ImportPath] = own.Export
	}
	fset := token.NewFileSet()
	p := &goPackage{dir: dir, path: own.ImportPath, files: map[string]*plant.File{}}
	p.importer = importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var trees []*ast.File
	for _, name := range own.GoFiles {
		name = path.Join(dir, name)
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		f, err := plant.Parse(fset, name, string(text))
		if err != nil {
			return nil, err
		}
		p.files[name] = f
		trees = append(trees, f.Tree)
	}
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: p.importer}
	if _, err := conf.Check(p.path, fset, trees, p.info); err != nil {
		return nil, fmt.Errorf("%s does not compile: %w", dir, err)
	}
	return p, nil
}

// instrument makes the texts of a package with mutants, and of one file more. It returns those that do not compile,
// which are left out, with the reasons.
func (p *goPackage) instrument(mutants []*mutant) (texts map[string]string, invalid map[*mutant]string, err error) {
	invalid = map[*mutant]string{}
	for {
		texts = map[string]string{}
		copies := map[string][]plant.Copy{}
		pkg := ""
		for name, f := range p.files {
			pkg = f.Tree.Name.Name
			g := plant.Graft(f)
			for _, m := range mutants {
				if m.edit.File == name && invalid[m] == "" {
					g.Add(m.id, m.edit)
					m.first = g.First(m.edit)
				}
			}
			texts[name], copies[name] = g.Instrumented()
		}
		errs, err := p.check(texts, pkg)
		if err != nil {
			return nil, nil, err
		}
		if len(errs) == 0 {
			texts[p.dir+"/"+plant.Extra] = plant.Reader(pkg, mutants[len(mutants)-1].id)
			return texts, invalid, nil
		}
		more := map[*mutant]string{}
		for at, text := range errs {
			for _, c := range copies[at.Filename] {
				if c.Start <= at.Offset && at.Offset < c.End {
					more[mutants[c.Number-1]] = text
				}
			}
		}
		if len(more) == 0 { // some errors follow from others
			return nil, nil, fmt.Errorf("the instrumented text of %s does not compile: %v", p.dir, errs)
		}
		maps.Copy(invalid, more)
	}
}

// check type-checks texts of the package.
func (p *goPackage) check(texts map[string]string, pkg string) (errs map[token.Position]string, err error) {
	fset := token.NewFileSet()
	errs = map[token.Position]string{}
	trees := make([]*ast.File, 0, len(texts)+1)
	for name, text := range texts {
		tree, err := parser.ParseFile(fset, name, text, 0)
		if err != nil {
			return nil, fmt.Errorf("the instrumented text of %s is no Go: %w", name, err)
		}
		trees = append(trees, tree)
	}
	asked, err := parser.ParseFile(fset, plant.Extra, plant.Asked(pkg), 0)
	if err != nil {
		return nil, err
	}
	conf := types.Config{Importer: p.importer, Error: func(err error) {
		if bad := (types.Error{}); errors.As(err, &bad) {
			errs[fset.Position(bad.Pos)] = bad.Msg
		}
	}}
	_, err = conf.Check(p.path, fset, append(trees, asked), nil)
	if len(errs) > 0 {
		err = nil
	}
	return errs, err
}

func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	return "(" + types.ExprString(fn.Recv.List[0].Type) + ")." + fn.Name.Name
}

// mutant is one fault.
type mutant struct {
	id    int // its number in the environment
	first int // of the mutants of its function
	line  int
	fn    string // the function that contains it, as (*account).settle; of a hand-made one, the idea
	op    string // kind of fault
	old   string // the changed lines, as one
	new   string
	nth   int // number among those with the same text in this function, from 1
	edit  plant.Edit
}

// newMutant makes one fault of a file.
func newMutant(text, fn, op string, e plant.Edit) *mutant {
	m := &mutant{line: 1 + strings.Count(text[:e.Start], "\n"), fn: fn, op: op, edit: e}
	from, to := strings.LastIndexByte(text[:e.Start], '\n')+1, len(text)
	if i := strings.IndexByte(text[e.End:], '\n'); i >= 0 {
		to = e.End + i
	}
	m.old, m.new = oneLine(text[from:to]), oneLine(text[from:e.Start]+e.Text+text[e.End:to])
	return m
}

// key names a mutant by its text, and not by its place, because lines move.
func (m *mutant) key() string {
	name := m.edit.File + " " + m.fn
	if m.nth > 1 {
		name += fmt.Sprintf(" #%d", m.nth)
	}
	return name + "\n- " + m.old + "\n+ " + m.new
}

// longest is how much of a line is shown and part of a mutant's key.
const longest = 220

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > longest {
		s = s[:longest-23] + " ... " + s[len(s)-18:]
	}
	return s
}
