package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// byHand is a fault that an author wrote.
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
		if err := m.place(packages, edit{File: e.file, Start: at, End: at + len(e.right), Text: e.wrong}); err != nil {
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
	if strings.HasSuffix(e.File, ".lua") {
		m.edits = append(m.edits, e)
		return nil
	}
	for _, p := range packages {
		f := p.file(e.File)
		if f == nil {
			continue
		}
		if f.FunctionAt(e.Start, e.End) != nil {
			m.edits = append(m.edits, e)
			return nil
		}
		if c := p.constantAt(f, e); c != nil {
			m.edits, m.consts = append(m.edits, c.edits...), append(m.consts, c.consts...)
			return nil
		}
	}
	return fmt.Errorf("the text in %s is in no function and no constant's value", e.File)
}

// constantAt is the mutant that an edit of a constant's declaration makes.
func (p *goPackage) constantAt(f *goFile, e edit) (m *mutant) {
	w := &goWalker{goPackage: p, goFile: f}
	ast.Inspect(f.Tree, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Names) != 1 || len(spec.Values) != 1 {
			return true
		}
		obj, ok := p.info.Defs[spec.Names[0]].(*types.Const)
		from, to := f.At.Offset(spec.Pos()), f.At.Offset(spec.End())
		if !ok || e.Start < from || to < e.End {
			return true
		}
		whole := f.Text[from:e.Start] + e.Text + f.Text[e.End:to]
		if _, value, ok := strings.Cut(whole, token.ASSIGN.String()); ok {
			m = w.constantFault(obj, spec.Names[0], spec.Values[0], strings.TrimSpace(value))
		}
		return true
	})
	return m
}
