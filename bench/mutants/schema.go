package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/bench/plant"
)

// scriptVariable is in the environment where a script has a fault: its name in the tree = the
// file to read instead. plant.Variable is the number of the mutant, 0 for none.
const scriptVariable = plant.Variable + "_LUA"

// schema is the text of a package with all its mutants: what is to stand for
// each of its files, and one file more.
type schema struct {
	*goPackage
	texts  map[string]string
	copies map[string][]span // by file: what was added, as places in texts
}

// span is the place of one mutant's copy of a function, or of a constant.
type span struct {
	start, end int
	m          *mutant
}

// instrument writes a package with mutants. Those that do not compile are left
// out, and returned.
func (p *goPackage) instrument(mutants []*mutant) (s *schema, invalid map[*mutant]string, err error) {
	invalid = map[*mutant]string{}
	for {
		s = &schema{goPackage: p, texts: map[string]string{}, copies: map[string][]span{}}
		valid := slices.DeleteFunc(slices.Clone(mutants), func(m *mutant) bool { return invalid[m] != "" })
		for _, f := range p.files {
			s.write(f, valid)
		}
		before := len(invalid)
		if err := s.check(invalid); err != nil {
			return nil, nil, err
		}
		if len(invalid) == before {
			s.texts[p.dir+"/"+plant.Extra] = p.extra()
			return s, invalid, err
		}
	}
}

// write makes a file's text: functions that have mutants ask which is active,
// and their copies follow at the end, so that lines stay where they were.
func (s *schema) write(f *goFile, mutants []*mutant) {
	byFunction := map[*ast.FuncDecl][]*mutant{}
	for _, m := range mutants {
		for _, e := range m.edits {
			if e.File != f.Name {
				continue
			}
			if fn := f.FunctionAt(e.Start, e.End); fn != nil && !slices.Contains(byFunction[fn], m) {
				byFunction[fn] = append(byFunction[fn], m)
			}
		}
	}
	var edits []edit
	var tail strings.Builder
	var places []span // in the tail
	write := func(m *mutant, text string) {
		from := tail.Len()
		tail.WriteString("\n" + text + "\n")
		places = append(places, span{from, tail.Len(), m})
	}
	for _, fn := range f.Functions() {
		all := byFunction[fn]
		if len(all) == 0 {
			continue
		}
		numbers := make([]int, len(all))
		for i, m := range all {
			write(m, f.Copied(fn, m.id, m.in(f, fn)))
			numbers[i] = m.id
		}
		edits = append(edits, f.Dispatch(fn, numbers)...)
	}
	for _, m := range mutants {
		for _, c := range m.consts {
			if c.file == f.Name {
				write(m, withNumber(c.text, m.id))
			}
		}
	}
	text := plant.Applied(f.Text, edits) + "\n"
	for _, pl := range places {
		s.copies[f.Name] = append(s.copies[f.Name], span{len(text) + pl.start, len(text) + pl.end, pl.m})
	}
	s.texts[f.Name] = text + tail.String()
}

// in are a mutant's edits in a function.
func (m *mutant) in(f *goFile, fn *ast.FuncDecl) []edit {
	var edits []edit
	for _, e := range m.edits {
		if e.File == f.Name && f.FunctionAt(e.Start, e.End) == fn {
			e.Text = withNumber(e.Text, m.id)
			edits = append(edits, e)
		}
	}
	return edits
}

// check compiles the package as far as types go, and notes the mutants that
// have errors.
func (s *schema) check(invalid map[*mutant]string) error {
	fset := token.NewFileSet()
	var trees []*ast.File
	var broken error
	blame := func(at token.Position, text string) {
		for _, c := range s.copies[at.Filename] {
			if c.start <= at.Offset && at.Offset < c.end {
				invalid[c.m] = text
				return
			}
		}
		broken = errors.Join(broken, fmt.Errorf("%v: %s (in the instrumented text)", at, text))
	}
	for name, text := range s.texts {
		tree, err := parser.ParseFile(fset, name, text, 0)
		if err != nil {
			return fmt.Errorf("the instrumented text of %s is no Go: %w", name, err)
		}
		trees = append(trees, tree)
	}
	variable, err := parser.ParseFile(fset, plant.Extra, plant.Asked(trees[0].Name.Name), 0)
	if err != nil {
		return err
	}
	conf := types.Config{Importer: s.importer, Error: func(err error) {
		var bad types.Error
		if errors.As(err, &bad) {
			blame(fset.Position(bad.Pos), bad.Msg)
		} else {
			broken = errors.Join(broken, err)
		}
	}}
	before := len(invalid)
	_, err = conf.Check(s.path, fset, append(trees, variable), nil)
	switch {
	case broken != nil && len(invalid) == before:
		return broken
	case err != nil && len(invalid) == before:
		return err
	}
	return nil
}

// extra is the file that reads the environment.
func (p *goPackage) extra() string {
	name, scripts := p.files[0].Tree.Name.Name, p.scripts()
	if len(scripts) == 0 {
		return plant.Reader(name)
	}
	var b strings.Builder
	b.WriteString(plant.Reader(name, "\t\"strings\"\n", "\n\t\"github.com/redis/go-redis/v9\"\n"))
	fmt.Fprintf(&b, "\nfunc init() {\n\tname, file, ok := strings.Cut(os.Getenv(%q), \"=\")\n\tif !ok {\n\t\treturn\n\t}\n\ttext, err := os.ReadFile(file)\n\tif err != nil {\n\t\tpanic(err)\n\t}\n\tswitch name {\n", scriptVariable)
	for _, s := range scripts {
		fmt.Fprintf(&b, "\tcase %q:\n\t\t%s = string(text)\n", s.file, s.text)
		if s.script != "" {
			fmt.Fprintf(&b, "\t\t%s = redis.NewScript(%s)\n", s.script, s.text)
		}
	}
	fmt.Fprint(&b, "\t}\n}\n")
	return b.String()
}

// embedded is a Lua file that the package embeds: as the text variable, and
// the script made of it.
type embedded struct {
	file, text, script string
}

// scripts finds what `//go:embed x.lua` says, and redis.NewScript of it.
func (p *goPackage) scripts() []embedded {
	var all []embedded
	for _, f := range p.files {
		for _, d := range f.Tree.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.VAR || decl.Doc == nil {
				continue
			}
			for _, c := range decl.Doc.List {
				if name, ok := strings.CutPrefix(c.Text, "//go:embed "); ok && strings.HasSuffix(name, ".lua") {
					all = append(all, embedded{file: p.dir + "/" + name, text: decl.Specs[0].(*ast.ValueSpec).Names[0].Name})
				}
			}
		}
	}
	for _, f := range p.files {
		ast.Inspect(f.Tree, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || !strings.HasPrefix(f.Source(spec.Values[0]), "redis.NewScript(") {
				return true
			}
			for i := range all {
				if f.Source(spec.Values[0]) == "redis.NewScript("+all[i].text+")" {
					all[i].script = spec.Names[0].Name
				}
			}
			return true
		})
	}
	return all
}
