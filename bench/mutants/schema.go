package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"

	"github.com/sluice-gate/sluice/bench/plant"
)

// schema is the text of a package with all its mutants: the new content of its files.
type schema struct {
	*goPackage
	texts  map[string]string
	copies map[string][]plant.Copy // by file
}

// instrument adds the texts of a package with mutants, and one file more. It drops mutants that do not compile, and
// adds them to invalid.
func (p *goPackage) instrument(mutants []*mutant, invalid map[*mutant]string, texts map[string]string) error {
	byNumber := map[int]*mutant{}
	for _, m := range mutants {
		byNumber[m.id] = m
	}
	for {
		s := &schema{goPackage: p, texts: map[string]string{}, copies: map[string][]plant.Copy{}}
		for _, f := range p.files {
			g := plant.Graft(f)
			for _, m := range mutants {
				if m.edit.File == f.Name && invalid[m] == "" {
					g.Add(m.id, m.edit)
				}
			}
			s.texts[f.Name], s.copies[f.Name] = g.Instrumented()
		}
		before := len(invalid)
		if err := s.check(byNumber, invalid); err != nil {
			return err
		}
		if len(invalid) == before {
			maps.Copy(texts, s.texts)
			texts[p.dir+"/"+plant.Extra] = plant.Reader(p.files[0].Tree.Name.Name)
			return nil
		}
	}
}

// check type-checks the package, and notes the mutants with errors.
func (s *schema) check(byNumber map[int]*mutant, invalid map[*mutant]string) error {
	fset := token.NewFileSet()
	var trees []*ast.File
	var broken error
	blame := func(at token.Position, text string) {
		for _, c := range s.copies[at.Filename] {
			if c.Start <= at.Offset && at.Offset < c.End {
				invalid[byNumber[c.Number]] = text
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
