// Package plant builds a package's tests with bugs in the product, at most one in each run, and shows whether
// the tests find it. A checker that cannot fail proves nothing.
//
// Guarantee: a bug replaces its right text, which is in its file exactly once, or nothing is built. A run has
// the one requested bug, or none. The product's files are not touched: the go command reads others in their
// stead (-overlay).
//
// All bugs are in one build. A function with bugs begins with a copy of its body for each, which runs instead of the
// rest if the environment names the bug (Variable). So a bug costs a run, and not a build. Each call of such a
// function costs a comparison more. A bug outside of functions, or in one with labels, is an error.
//
//	tests, err := plant.Tests(ctx, root, "bench/sim", dir, bugs)
//	out, err := tests.Command(ctx, bugs[3].Name, "-test.run", "^TestHistories$").CombinedOutput()
package plant

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Variable is in the environment of a run that has a bug: its number, from 1.
const Variable = "SLUICE_MUTANT"

// Bug is a text that another stands in for.
type Bug struct {
	Name         string // what goes wrong
	File         string // relative to the root, with slashes
	Right, Wrong string
}

// Binary is a package's tests with bugs. It may be run by several goroutines at once.
type Binary struct {
	path, dir string
	bugs      []Bug
}

// Tests builds the tests of a package with bugs, named from the root as "bench/sim". All output, including the binary,
// is in the folder into, an absolute path. It blocks for a build of all packages with bugs and of all that import them.
// It writes the texts with all bugs and a list of replacements into the folder. Then go test -c reads them in place of
// the product's files. Vet is off, because it would find some bugs at once.
func Tests(ctx context.Context, root, pkg, into string, bugs []Bug) (*Binary, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	texts, err := Texts(root, bugs)
	if err != nil {
		return nil, err
	}
	replace := map[string]string{}
	for name, text := range texts {
		to := filepath.Join(into, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return nil, err
		}
		replace[filepath.Join(root, name)] = to
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	overlay := filepath.Join(into, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return nil, err
	}
	b := &Binary{filepath.Join(into, strings.ReplaceAll(pkg, "/", "_")+".test"), filepath.Join(root, pkg), bugs}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", b.path, ".")
	build.Dir = b.dir
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the tests of %s with %d bugs, numbered from 1: %w\n%s", pkg, len(bugs), err, out)
	}
	return b, nil
}

// Command runs the tests with the bug of a name, or with none if the name is empty.
func (b *Binary) Command(ctx context.Context, bug string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.path, args...)
	cmd.Dir = b.dir
	number := 1 + slices.IndexFunc(b.bugs, func(x Bug) bool { return x.Name == bug })
	if number == 0 && bug != "" {
		panic(fmt.Sprintf("plant: %q is none of the %d bugs that were built", bug, len(b.bugs)))
	}
	cmd.Env = append(os.Environ(), Variable+"="+strconv.Itoa(number))
	return cmd
}

// Texts are the files with bugs, by their names from the root, and a file more of each of their packages. The further
// file is zz_planted.go, which reads the number of the run's bug once.
func Texts(root string, bugs []Bug) (map[string]string, error) {
	texts := map[string]string{}
	files := map[string]*file{}
	for i, bug := range bugs {
		f := files[bug.File]
		var err error
		if f == nil {
			f, err = parse(filepath.Join(root, bug.File))
			files[bug.File] = f
		}
		if err == nil {
			err = f.plant(i+1, bug)
		}
		if err != nil {
			return nil, fmt.Errorf("bug %q: %w", bug.Name, err)
		}
		texts[path.Join(path.Dir(bug.File), "zz_planted.go")] = fmt.Sprintf(reader, f.tree.Name.Name, Variable)
	}
	for name, f := range files {
		texts[name] = f.planted()
	}
	return texts, nil
}

// reader declares the number of the run's bug.
const reader = `package %s

import (
	"os"
	"strconv"
)

var planted__, _ = strconv.Atoi(os.Getenv(%q))
`

// file is a Go file, and the copies with bugs of bodies of its functions.
type file struct {
	name, text string
	tree       *ast.File
	at         *token.File
	copies     map[*ast.FuncDecl]string
}

func parse(name string) (*file, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &file{name, string(text), tree, set.File(tree.Pos()), map[*ast.FuncDecl]string{}}, nil
}

// plant adds a copy of the body of a bug's function with the bug, which returns in any case. The copy begins like
//
//	if planted__ == 3 { /*line bug-3:1:1*/ BODY WITH THE BUG; return };
//
// A function with results needs no such return after its last statement, but the compiler must see that the copy ends:
// hence the panic.
func (f *file) plant(number int, b Bug) error {
	if n := strings.Count(f.text, b.Right); n != 1 || b.Right == "" {
		return fmt.Errorf("%q is %d times in %s, and must be there once: write what is there now", b.Right, n, b.File)
	}
	begins := strings.Index(f.text, b.Right)
	ends := begins + len(b.Right)
	for _, d := range f.tree.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		from, to := f.at.Offset(fn.Body.Lbrace)+1, f.at.Offset(fn.Body.Rbrace)
		if begins < from || ends > to+1 {
			continue
		}
		body := strings.TrimSuffix(f.text[from:begins]+b.Wrong+f.text[ends:to+1], "}")
		last := "return"
		if fn.Type.Results != nil {
			last = "panic(\"the body with the bug ends without a return\")"
		}
		f.copies[fn] += fmt.Sprintf("if planted__ == %d { /*line bug-%d:1:1*/%s\n%s }; ", number, number, body, last)
		return nil
	}
	return fmt.Errorf("%q in %s is in no function: plant it where it is used", b.Right, b.File)
}

// planted is the file with the copies at the beginnings of functions. All else stays in its line, as the compiler
// counts them. Line directives keep the positions of the original text in panics and stack traces.
func (f *file) planted() string {
	var b strings.Builder
	done := 0
	for _, d := range f.tree.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || f.copies[fn] == "" {
			continue
		}
		at := f.at.Position(fn.Body.Lbrace + 1)
		fmt.Fprintf(&b, "%s%s/*line %s:%d:%d*/", f.text[done:at.Offset], f.copies[fn], f.name, at.Line, at.Column)
		done = at.Offset
	}
	return b.String() + f.text[done:]
}
