package plant

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// Variable is in the environment of a run that has a bug: its number, from 1.
const Variable = "SLUICE_MUTANT"

// Extra is the file that every package with bugs gets; Reader is its text, for a package of
// this name, with what else it imports.
const Extra = "zz_mutants.go"

// Reader declares the variable that Dispatch reads: the bug of a run. imports are lines of an import
// declaration, in addition to those of os and strconv.
func Reader(name string, imports ...string) string {
	return fmt.Sprintf("package %s\n\nimport (\n\t\"os\"\n\t\"strconv\"\n%s)\n\n"+
		"var mutant__active = func() int { n, _ := strconv.Atoi(os.Getenv(%q)); return n }()\n", name, strings.Join(imports, ""), Variable)
}

// Asked declares the same as Reader, to test only whether a package compiles.
func Asked(name string) string { return "package " + name + "\nvar mutant__active int" }

// Copied is a function with a bug's edits, which lie in it, under the name that Dispatch calls
// for the bug's number.
func (f *File) Copied(fn *ast.FuncDecl, number int, bug []Edit) string {
	from := f.At.Offset(fn.Pos())
	if fn.Doc != nil {
		from = f.At.Offset(fn.Type.Func)
	}
	name := f.At.Offset(fn.Name.End()) - from
	edits := []Edit{{f.Name, name, name, fmt.Sprintf("__m%d", number)}}
	for _, e := range bug {
		edits = append(edits, Edit{e.File, e.Start - from, e.End - from, e.Text})
	}
	slices.SortStableFunc(edits, func(a, b Edit) int { return a.Start - b.Start })
	return Applied(f.Text[from:f.At.Offset(fn.End())], edits)
}

// Dispatch has a function call the copy of the active bug. Parameters without a name get one.
func (f *File) Dispatch(fn *ast.FuncDecl, numbers []int) []Edit {
	edits, receivers := f.named(nil, fn.Recv)
	receiver := ""
	if len(receivers) > 0 {
		receiver = receivers[0] + "."
	}
	edits, arguments := f.named(edits, fn.Type.Params)
	var b strings.Builder
	b.WriteString(" switch mutant__active { ")
	for _, n := range numbers {
		call := fmt.Sprintf("%s%s__m%d(%s)", receiver, fn.Name.Name, n, strings.Join(arguments, ", "))
		if fn.Type.Results == nil {
			fmt.Fprintf(&b, "case %d: %s; return; ", n, call)
		} else {
			fmt.Fprintf(&b, "case %d: return %s; ", n, call)
		}
	}
	b.WriteString("}; ")
	at := f.At.Offset(fn.Body.Lbrace) + 1
	return append(edits, Edit{f.Name, at, at, b.String()})
}

// named are the names of parameters, as arguments, with the edits that give names to those
// that have none.
func (f *File) named(edits []Edit, list *ast.FieldList) (_ []Edit, names []string) {
	if list == nil {
		return edits, nil
	}
	for _, field := range list.List {
		if len(field.Names) == 0 {
			at := f.At.Offset(field.Type.Pos())
			name := fmt.Sprintf("mutant__%d", at)
			edits = append(edits, Edit{f.Name, at, at, name + " "})
			names = append(names, name)
		}
		for _, id := range field.Names {
			name := id.Name
			if from := f.At.Offset(id.Pos()); name == "_" {
				name = fmt.Sprintf("mutant__%d", from)
				edits = append(edits, Edit{f.Name, from, f.At.Offset(id.End()), name})
			}
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				name += "..."
			}
			names = append(names, name)
		}
	}
	return edits, names
}
