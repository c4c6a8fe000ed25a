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
)

// What the environment says of faults.
const (
	numberVariable = "SLUICE_MUTANT"     // the mutant that is active, 0 for none
	scriptVariable = "SLUICE_MUTANT_LUA" // a script's name in the tree = the file to read instead
)

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

// extra is the file that every mutated package gets.
const extra = "zz_mutants.go"

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
			s.texts[p.dir+"/"+extra] = p.extra()
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
			if e.file != f.name {
				continue
			}
			if fn := f.functionAt(e.start, e.end); fn != nil && !slices.Contains(byFunction[fn], m) {
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
	for _, fn := range f.functions() {
		all := byFunction[fn]
		if len(all) == 0 {
			continue
		}
		own := f.dispatch(fn, all)
		edits = append(edits, own...)
		for _, m := range all {
			write(m, f.copied(fn, m))
		}
	}
	for _, m := range mutants {
		for _, c := range m.consts {
			if c.file == f.name {
				write(m, withNumber(c.text, m.id))
			}
		}
	}
	text := applied(f.text, edits) + "\n"
	for _, pl := range places {
		s.copies[f.name] = append(s.copies[f.name], span{len(text) + pl.start, len(text) + pl.end, pl.m})
	}
	s.texts[f.name] = text + tail.String()
}

// copied is a function with one mutant's edits, under another name.
func (f *goFile) copied(fn *ast.FuncDecl, m *mutant) string {
	from := f.at.Offset(fn.Pos())
	if fn.Doc != nil {
		from = f.at.Offset(fn.Type.Func)
	}
	edits := []edit{{f.name, f.at.Offset(fn.Name.End()) - from, f.at.Offset(fn.Name.End()) - from, fmt.Sprintf("__m%d", m.id)}}
	for _, e := range m.edits {
		if e.file == f.name && f.functionAt(e.start, e.end) == fn {
			edits = append(edits, edit{e.file, e.start - from, e.end - from, withNumber(e.text, m.id)})
		}
	}
	slices.SortStableFunc(edits, func(a, b edit) int { return a.start - b.start })
	return applied(f.text[from:f.at.Offset(fn.End())], edits)
}

// dispatch has a function call the copy of the active mutant. Parameters
// without a name get one.
func (f *goFile) dispatch(fn *ast.FuncDecl, all []*mutant) []edit {
	var edits []edit
	var arguments []string
	named := func(list *ast.FieldList) (names []string) {
		if list == nil {
			return nil
		}
		for _, field := range list.List {
			if len(field.Names) == 0 {
				name := fmt.Sprintf("mutant__%d", f.at.Offset(field.Pos()))
				at := f.at.Offset(field.Type.Pos())
				edits = append(edits, edit{f.name, at, at, name + " "})
				names = append(names, name)
			}
			for _, id := range field.Names {
				name := id.Name
				if name == "_" {
					name = fmt.Sprintf("mutant__%d", f.at.Offset(id.Pos()))
					edits = append(edits, edit{f.name, f.at.Offset(id.Pos()), f.at.Offset(id.End()), name})
				}
				if _, variadic := field.Type.(*ast.Ellipsis); variadic {
					name += "..."
				}
				names = append(names, name)
			}
		}
		return names
	}
	receiver := ""
	if r := named(fn.Recv); len(r) > 0 {
		receiver = r[0] + "."
	}
	arguments = named(fn.Type.Params)
	var b strings.Builder
	b.WriteString(" switch mutant__active { ")
	for _, m := range all {
		call := fmt.Sprintf("%s%s__m%d(%s)", receiver, fn.Name.Name, m.id, strings.Join(arguments, ", "))
		if fn.Type.Results == nil {
			fmt.Fprintf(&b, "case %d: %s; return; ", m.id, call)
		} else {
			fmt.Fprintf(&b, "case %d: return %s; ", m.id, call)
		}
	}
	b.WriteString("}; ")
	at := f.at.Offset(fn.Body.Lbrace) + 1
	return append(edits, edit{f.name, at, at, b.String()})
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
	variable, err := parser.ParseFile(fset, extra, "package "+trees[0].Name.Name+"\nvar mutant__active int", 0)
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
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n\nimport (\n\t\"os\"\n\t\"strconv\"\n", p.files[0].tree.Name.Name)
	scripts := p.scripts()
	if len(scripts) > 0 {
		fmt.Fprint(&b, "\t\"strings\"\n\n\t\"github.com/redis/go-redis/v9\"\n")
	}
	fmt.Fprintf(&b, ")\n\nvar mutant__active = func() int { n, _ := strconv.Atoi(os.Getenv(%q)); return n }()\n", numberVariable)
	if len(scripts) == 0 {
		return b.String()
	}
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
		for _, d := range f.tree.Decls {
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
		ast.Inspect(f.tree, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || !strings.HasPrefix(f.source(spec.Values[0]), "redis.NewScript(") {
				return true
			}
			for i := range all {
				if f.source(spec.Values[0]) == "redis.NewScript("+all[i].text+")" {
					all[i].script = spec.Names[0].Name
				}
			}
			return true
		})
	}
	return all
}
