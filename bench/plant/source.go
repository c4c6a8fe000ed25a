package plant

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// Edit replaces a part of a file by other text.
type Edit struct {
	File       string // relative to the root, with slashes
	Start, End int    // bytes
	Text       string
}

// Applied is a text with edits made, which do not overlap and are in order.
func Applied(text string, edits []Edit) string {
	var b strings.Builder
	at := 0
	for _, e := range edits {
		b.WriteString(text[at:e.Start])
		b.WriteString(e.Text)
		at = e.End
	}
	b.WriteString(text[at:])
	return b.String()
}

// File is a Go file that is parsed. It is only read.
type File struct {
	Name string // relative to the root, with slashes
	Text string
	Tree *ast.File
	At   *token.File // of positions in Tree
}

// Parse parses a file.
func Parse(fset *token.FileSet, name, text string) (*File, error) {
	tree, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	return &File{name, text, tree, fset.File(tree.Pos())}, nil
}

// Plant is the edit that makes a bug, whose right text must be in the file once, in a function that can be copied.
func (f *File) Plant(b Bug) (Edit, error) {
	if n := strings.Count(f.Text, b.Right); n != 1 || b.Right == "" {
		return Edit{}, fmt.Errorf("%q is %d times in %s, and must be there once: write what is there now", b.Right, n, f.Name)
	}
	at := strings.Index(f.Text, b.Right)
	e := Edit{f.Name, at, at + len(b.Right), b.Wrong}
	if f.FunctionAt(e.Start, e.End) == nil {
		return e, fmt.Errorf("%q in %s is in no function that can be copied: plant it where it is used", b.Right, f.Name)
	}
	return e, nil
}

// Functions are a file's that have a body and can be copied: a generic one
// could not be called without its types, and an init has no callers.
func (f *File) Functions() []*ast.FuncDecl {
	var all []*ast.FuncDecl
	for _, d := range f.Tree.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && fn.Body != nil && fn.Type.TypeParams == nil && fn.Name.Name != "init" && fn.Name.Name != "main" {
			all = append(all, fn)
		}
	}
	return all
}

// FunctionAt is the function whose body has the bytes from start to end, or nil.
func (f *File) FunctionAt(start, end int) *ast.FuncDecl {
	for _, fn := range f.Functions() {
		if f.At.Offset(fn.Body.Pos()) <= start && end <= f.At.Offset(fn.End()) {
			return fn
		}
	}
	return nil
}

// Source is the text of a node.
func (f *File) Source(n ast.Node) string {
	return f.Text[f.At.Offset(n.Pos()):f.At.Offset(n.End())]
}
