package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// byHand is a fault that somebody thought of.
type byHand struct {
	name string // what goes wrong
	edit []replacement
}

// replacement is right in the product, exactly once, and wrong in the mutant.
type replacement struct{ file, right, wrong string }

// mutant finds where the fault goes.
func (b *byHand) mutant(packages map[string]*goPackage, texts map[string]string) (*mutant, error) {
	m := &mutant{op: "by hand", fn: b.name, why: b.name}
	for i, e := range b.edit {
		text, ok := texts[e.file]
		if !ok {
			return nil, fmt.Errorf("%q is to change %s, which is not among the files to mutate", b.name, e.file)
		}
		if n := strings.Count(text, e.right); n != 1 {
			return nil, fmt.Errorf("%q is to change %q, which is %d times in %s: write what is there now, once", b.name, e.right, n, e.file)
		}
		at := strings.Index(text, e.right)
		if err := m.place(packages, edit{e.file, at, at + len(e.right), e.wrong}); err != nil {
			return nil, fmt.Errorf("%q: %w", b.name, err)
		}
		if i == 0 {
			m.file, m.line = e.file, lineOf(text, at)
			m.old, m.new = oneLine(e.right), oneLine(e.wrong)
		}
	}
	return m, nil
}

// place adds an edit: in a function, a script, or the value of a constant.
func (m *mutant) place(packages map[string]*goPackage, e edit) error {
	if strings.HasSuffix(e.file, ".lua") {
		m.edits = append(m.edits, e)
		return nil
	}
	for _, p := range packages {
		f := p.file(e.file)
		if f == nil {
			continue
		}
		if f.functionAt(e.start, e.end) != nil {
			m.edits = append(m.edits, e)
			return nil
		}
		if c := p.constantAt(f, e); c != nil {
			m.edits, m.consts = append(m.edits, c.edits...), append(m.consts, c.consts...)
			return nil
		}
	}
	return fmt.Errorf("the text in %s is in no function and no constant's value", e.file)
}

// constantAt is the mutant that an edit of a constant's declaration makes.
func (p *goPackage) constantAt(f *goFile, e edit) (m *mutant) {
	w := &goWalker{goPackage: p, goFile: f}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Names) != 1 || len(spec.Values) != 1 {
			return true
		}
		obj, ok := p.info.Defs[spec.Names[0]].(*types.Const)
		from, to := f.at.Offset(spec.Pos()), f.at.Offset(spec.End())
		if !ok || e.start < from || to < e.end {
			return true
		}
		whole := f.text[from:e.start] + e.text + f.text[e.end:to]
		if _, value, ok := strings.Cut(whole, token.ASSIGN.String()); ok {
			m = w.constantFault(obj, spec.Names[0], spec.Values[0], strings.TrimSpace(value))
		}
		return true
	})
	return m
}
