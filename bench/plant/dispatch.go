package plant

import (
	"fmt"
	"go/ast"
	"strings"
)

// Variable is in the environment of a run that has a bug: its number, from 1. With Reach instead, a run notes which
// functions with bugs it enters.
const Variable = "SLUICE_MUTANT"

// Reach names the file of such a run: a line for each function that was entered, with the number of its first bug.
const Reach = "SLUICE_MUTANT_REACH"

// Extra is the file that every package with bugs gets; Reader is its text, for a package of
// this name.
const Extra = "zz_mutants.go"

// Reader declares what functions with bugs ask: the bug of a run. bugs is the number of the last one.
func Reader(name string, bugs int) string {
	return fmt.Sprintf(reader, name, Variable, Reach, bugs+1)
}

const reader = `package %s

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
)

var (
	mutant__active = func() int { n, _ := strconv.Atoi(os.Getenv(%q)); return n }()
	mutant__reach  = os.Getenv(%q)
	mutant__seen   [%d]atomic.Bool
)

// mutant__bug is the bug of the run, asked by the function whose first bug has this number.
func mutant__bug(first int) int {
	if mutant__reach != "" {
		mutant__enter(first)
	}
	return mutant__active
}

func mutant__enter(first int) {
	if mutant__seen[first].Swap(true) {
		return
	}
	if f, err := os.OpenFile(mutant__reach, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		fmt.Fprintln(f, first)
		f.Close()
	}
}
`

// Asked declares the same as Reader, to test only whether a package compiles.
func Asked(name string) string { return "package " + name + "\nfunc mutant__bug(int) int { return 0 }" }

// Copied is a function with a bug, whose edit lies in its body, under the name that Dispatch calls
// for the bug's number.
func (f *File) Copied(fn *ast.FuncDecl, number int, bug Edit) string {
	from := f.At.Offset(fn.Pos())
	name := f.At.Offset(fn.Name.End()) - from
	edits := []Edit{{f.Name, name, name, fmt.Sprintf("__m%d", number)}, {f.Name, bug.Start - from, bug.End - from, bug.Text}}
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
	fmt.Fprintf(&b, " switch mutant__bug(%d) { ", numbers[0])
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
