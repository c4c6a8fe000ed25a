package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/sluice-gate/sluice/bench/plant"
)

// goPackage is a package to mutate, parsed and type-checked.
type goPackage struct {
	root, dir, path string
	files           []*goFile
	fset            *token.FileSet
	info            *types.Info
	importer        types.Importer
}

// goFile is one of its files.
type goFile = plant.File

// listed is go list's output for a package.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// goList asks the go command for a package and all its imports.
func goList(root, dir string) ([]listed, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Export,GoFiles", "-export", "-deps", "./"+dir)
	cmd.Dir = root
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w: %s", dir, err, complaint.String())
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var l listed
		if err := d.Decode(&l); err != nil {
			return nil, fmt.Errorf("reading what go list says: %w", err)
		}
		all = append(all, l)
	}
	return all, nil
}

// load parses and checks a package.
func load(root, dir string) (*goPackage, error) {
	all, err := goList(root, dir)
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	for _, l := range all {
		exports[l.ImportPath] = l.Export
	}
	own := all[len(all)-1] // -deps lists a package after its imports
	p := &goPackage{root: root, dir: dir, path: own.ImportPath, fset: token.NewFileSet()}
	p.importer = importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	var trees []*ast.File
	for _, name := range own.GoFiles {
		text, err := os.ReadFile(filepath.Join(root, dir, name))
		if err != nil {
			return nil, err
		}
		f, err := plant.Parse(p.fset, path.Join(dir, name), string(text))
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, f)
		trees = append(trees, f.Tree)
	}
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: p.importer}
	if _, err := conf.Check(p.path, p.fset, trees, p.info); err != nil {
		return nil, fmt.Errorf("%s does not compile: %w", dir, err)
	}
	return p, nil
}

func (p *goPackage) file(name string) *goFile {
	for _, f := range p.files {
		if f.Name == name {
			return f
		}
	}
	return nil
}

func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	return "(" + types.ExprString(fn.Recv.List[0].Type) + ")." + fn.Name.Name
}
