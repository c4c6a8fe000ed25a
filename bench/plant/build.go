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
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	texts, err := instrumented(root, bugs)
	if err != nil {
		return nil, err
	}
	overlay, err := Overlay(root, into, texts)
	if err != nil {
		return nil, err
	}
	b := &Binary{dir: filepath.Join(root, pkg), bugs: bugs}
	b.path, err = Build(ctx, b.dir, overlay, into)
	if err != nil {
		return nil, fmt.Errorf("with bugs, of which that of __mN is number N of %d: %w", len(bugs), err)
	}
	return b, nil
}

// Build builds the tests of the package in a folder with an overlay, into another folder.
func Build(ctx context.Context, dir, overlay, into string) (binary string, err error) {
	binary = filepath.Join(into, strings.ReplaceAll(strings.Trim(dir, "/"), "/", "_")+".test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the tests of %s: %w\n%s", dir, err, out)
	}
	return binary, nil
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
	files := map[string]*Grafted{}
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
			g = Graft(f)
			files[bug.File] = g
			texts[path.Join(path.Dir(bug.File), Extra)] = Reader(f.Tree.Name.Name, len(bugs))
		}
		e, err := g.Plant(bug)
		if err != nil {
			return nil, fmt.Errorf("bug %q: %w", bug.Name, err)
		}
		g.Add(1+i, e)
	}
	for name, g := range files {
		texts[name], _ = g.Instrumented()
	}
	return texts, nil
}

// Grafted is a file, and where bugs go in it.
type Grafted struct {
	*File
	bugs   map[*ast.FuncDecl][]int
	tail   strings.Builder // copies of functions, each with a bug
	copies []Copy          // as places in tail
}

// Copy is the place of the copy with a bug of this number.
type Copy struct{ Start, End, Number int }

// Graft is a file without bugs.
func Graft(f *File) *Grafted { return &Grafted{File: f, bugs: map[*ast.FuncDecl][]int{}} }

// Add adds a bug, which is in a function of [File.FunctionAt].
func (g *Grafted) Add(number int, bug Edit) {
	fn := g.FunctionAt(bug.Start, bug.End)
	g.bugs[fn] = append(g.bugs[fn], number)
	from := g.tail.Len()
	g.tail.WriteString("\n" + g.Copied(fn, number, bug) + "\n")
	g.copies = append(g.copies, Copy{from, g.tail.Len(), number})
}

// First is the number of the first bug of the function that has these bytes.
func (g *Grafted) First(bug Edit) int { return g.bugs[g.FunctionAt(bug.Start, bug.End)][0] }

// Instrumented asks in functions with bugs which is active. The copies follow at the end, so that lines
// stay where they were.
func (g *Grafted) Instrumented() (text string, copies []Copy) {
	var edits []Edit
	for _, fn := range slices.SortedFunc(maps.Keys(g.bugs), func(a, b *ast.FuncDecl) int { return int(a.Pos() - b.Pos()) }) {
		edits = append(edits, g.Dispatch(fn, g.bugs[fn])...)
	}
	text = Applied(g.Text, edits) + "\n"
	for _, c := range g.copies {
		copies = append(copies, Copy{len(text) + c.Start, len(text) + c.End, c.Number})
	}
	return text + g.tail.String(), copies
}
