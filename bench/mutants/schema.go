package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/bench/plant"
)

// schema is the text of a package with all its mutants: what is to stand for
// each of its files.
type schema struct {
	*goPackage
	texts  map[string]string
	copies map[string][]span // by file: what was added, as places in texts
}

// span is the place of one mutant's copy of a function.
type span struct {
	start, end int
	m          *mutant
}

// instrument adds to texts those of a package with mutants, and one file more. Mutants that do not compile are left
// out, and added to invalid.
func (p *goPackage) instrument(mutants []*mutant, invalid map[*mutant]string, texts map[string]string) error {
	for {
		s := &schema{goPackage: p, texts: map[string]string{}, copies: map[string][]span{}}
		valid := slices.DeleteFunc(slices.Clone(mutants), func(m *mutant) bool { return invalid[m] != "" })
		for _, f := range p.files {
			s.write(f, valid)
		}
		before := len(invalid)
		if err := s.check(invalid); err != nil {
			return err
		}
		if len(invalid) == before {
			maps.Copy(texts, s.texts)
			texts[p.dir+"/"+plant.Extra] = plant.Reader(p.files[0].Tree.Name.Name)
			return nil
		}
	}
}

// write makes a file's text: functions that have mutants ask which is active,
// and their copies follow at the end, so that lines stay where they were.
func (s *schema) write(f *goFile, mutants []*mutant) {
	byFunction := map[*ast.FuncDecl][]*mutant{}
	for _, m := range mutants {
		if m.edit.File == f.Name {
			fn := f.FunctionAt(m.edit.Start, m.edit.End)
			byFunction[fn] = append(byFunction[fn], m)
		}
	}
	var edits []edit
	var tail strings.Builder
	var places []span // in the tail
	for _, fn := range f.Functions() {
		all := byFunction[fn]
		if len(all) == 0 {
			continue
		}
		numbers := make([]int, len(all))
		for i, m := range all {
			from := tail.Len()
			tail.WriteString("\n" + f.Copied(fn, m.id, []edit{m.edit}) + "\n")
			places = append(places, span{from, tail.Len(), m})
			numbers[i] = m.id
		}
		edits = append(edits, f.Dispatch(fn, numbers)...)
	}
	text := plant.Applied(f.Text, edits) + "\n"
	for _, pl := range places {
		s.copies[f.Name] = append(s.copies[f.Name], span{len(text) + pl.start, len(text) + pl.end, pl.m})
	}
	s.texts[f.Name] = text + tail.String()
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
