package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/bench/plant"
)

// A constant is not a variable that could be changed while it runs. So for each
// other value that it might have, it is declared again under another name, as
// are those that are made of it, and the functions that use any of them are
// copied to use the others. What is in a variable before main keeps its value.

// placeholder stands for the number of the mutant in the names of constants,
// until it has one.
const placeholder = "__m\x00"

// constants are faults of a file's own constants.
func (w *goWalker) constants() {
	for _, d := range w.Tree.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			for i, name := range spec.Names {
				if i < len(spec.Values) && !usesIota(spec.Values[i]) {
					w.constantFaults(name, spec.Values[i])
				}
			}
		}
	}
}

func usesIota(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && id.Name == "iota"
		return true
	})
	return found
}

func (w *goWalker) constantFaults(name *ast.Ident, value ast.Expr) {
	obj, ok := w.info.Defs[name].(*types.Const)
	if !ok || obj.Val().Kind() != constant.Int {
		return
	}
	v, _ := constant.Int64Val(obj.Val())
	src := "(" + w.Source(value) + ")"
	wrong := []string{src + " / 2", src + " * 2"}
	if v < 10 {
		wrong = []string{src + " - 1", src + " + 1"}
	}
	for _, text := range wrong {
		if m := w.constantFault(obj, name, value, text); m != nil {
			w.found = append(w.found, m)
		}
	}
}

// constantFault gives a constant another value; nil when no function uses it.
func (w *goWalker) constantFault(obj *types.Const, name *ast.Ident, value ast.Expr, text string) *mutant {
	e := edit{File: w.Name, Start: w.At.Offset(value.Pos()), End: w.At.Offset(value.End()), Text: text}
	m := &mutant{file: w.Name, line: lineOf(w.Text, e.Start), fn: "const " + name.Name, op: "constant"}
	m.old, m.new = shown(w.Text, e)
	changed := map[types.Object]bool{obj: true}
	m.consts = []redeclared{{w.Name, w.redeclare(obj, text)}}
	for grown := true; grown; { // those that are made of it
		grown = false
		for _, f := range w.files {
			ast.Inspect(f.Tree, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if !ok {
					return true
				}
				for i, id := range spec.Names {
					made, ok := w.info.Defs[id].(*types.Const)
					if !ok || changed[made] || i >= len(spec.Values) {
						continue
					}
					if uses := w.uses(f, spec.Values[i], changed); len(uses) > 0 {
						changed[made], grown = true, true
						from := f.At.Offset(spec.Values[i].Pos())
						for j := range uses {
							uses[j].Start -= from
							uses[j].End -= from
						}
						m.consts = append(m.consts, redeclared{f.Name, w.redeclare(made, plant.Applied(f.Source(spec.Values[i]), uses))})
					}
				}
				return true
			})
		}
	}
	for _, f := range w.files {
		for _, fn := range f.Functions() {
			m.edits = append(m.edits, w.uses(f, fn.Body, changed)...)
		}
	}
	if len(m.edits) == 0 {
		return nil
	}
	return m
}

// redeclare declares a constant with another value, under another name.
func (w *goWalker) redeclare(obj *types.Const, value string) string {
	kind := ""
	if b, ok := obj.Type().(*types.Basic); !ok || b.Info()&types.IsUntyped == 0 {
		kind = types.TypeString(obj.Type(), func(p *types.Package) string {
			if p == obj.Pkg() {
				return ""
			}
			return p.Name()
		})
	}
	return fmt.Sprintf("const %s%s %s = %s", obj.Name(), placeholder, kind, value)
}

// uses are the edits that have a node use the other constants.
func (w *goWalker) uses(f *goFile, root ast.Node, changed map[types.Object]bool) []edit {
	var edits []edit
	ast.Inspect(root, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && changed[w.info.Uses[id]] {
			edits = append(edits, edit{File: f.Name, Start: f.At.Offset(id.Pos()), End: f.At.Offset(id.End()), Text: id.Name + placeholder})
		}
		return true
	})
	slices.SortFunc(edits, func(a, b edit) int { return a.Start - b.Start })
	return edits
}

func withNumber(text string, id int) string {
	return strings.ReplaceAll(text, placeholder, fmt.Sprintf("__m%d", id))
}
