package plant

import (
	"context"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

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

// Tests builds the tests of a package with bugs, named from the root as "bench/sim". All output, including
// the binary, is in the folder into, an absolute path. It blocks for a build of all packages with bugs and of
// all that import them.
func Tests(ctx context.Context, root, pkg, into string, bugs []Bug) (*Binary, error) {
	texts, err := instrumented(root, bugs)
	if err != nil {
		return nil, err
	}
	overlay, err := Overlay(root, into, texts)
	if err != nil {
		return nil, err
	}
	b := &Binary{filepath.Join(into, strings.ReplaceAll(pkg, "/", "_")+".test"), filepath.Join(root, pkg), bugs}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", b.path, ".")
	build.Dir = b.dir
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the tests of %s with bugs, of which that of __mN is number N of %d: %w\n%s", pkg, len(bugs), err, out)
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

// instrumented is what stands for the files with bugs, by their names, and the file more that
// each of their packages gets.
func instrumented(root string, bugs []Bug) (map[string]string, error) {
	texts := map[string]string{}
	files := map[string]*grafted{}
	for i, bug := range bugs {
		g := files[bug.File]
		if g == nil {
			text, err := os.ReadFile(filepath.Join(root, bug.File))
			if err != nil {
				return nil, fmt.Errorf("bug %q: %w", bug.Name, err)
			}
			f, err := Parse(token.NewFileSet(), bug.File, string(text))
			if err != nil {
				return nil, fmt.Errorf("bug %q: %w", bug.Name, err)
			}
			g = &grafted{File: f, bugs: map[*ast.FuncDecl][]int{}}
			files[bug.File] = g
			texts[path.Join(path.Dir(bug.File), Extra)] = Reader(f.Tree.Name.Name)
		}
		if err := g.add(1+i, bug); err != nil {
			return nil, fmt.Errorf("bug %q: %w", bug.Name, err)
		}
	}
	for name, g := range files {
		texts[name] = g.text()
	}
	return texts, nil
}

// grafted is a file, and where bugs go in it.
type grafted struct {
	*File
	bugs map[*ast.FuncDecl][]int
	tail strings.Builder // copies of functions, each with a bug
}

func (g *grafted) add(number int, bug Bug) error {
	e, err := Replace(g.Name, g.Text, bug.Right, bug.Wrong)
	if err != nil {
		return err
	}
	fn := g.FunctionAt(e.Start, e.End)
	if fn == nil {
		return fmt.Errorf("%q in %s is in no function that can be copied: plant it where it is used", bug.Right, g.Name)
	}
	g.bugs[fn] = append(g.bugs[fn], number)
	g.tail.WriteString("\n" + g.Copied(fn, number, []Edit{e}) + "\n")
	return nil
}

// text asks in functions with bugs which is active. The copies follow at the end, so that lines
// stay where they were.
func (g *grafted) text() string {
	var edits []Edit
	for _, fn := range slices.SortedFunc(maps.Keys(g.bugs), func(a, b *ast.FuncDecl) int { return int(a.Pos() - b.Pos()) }) {
		edits = append(edits, g.Dispatch(fn, g.bugs[fn])...)
	}
	return Applied(g.Text, edits) + "\n" + g.tail.String()
}
