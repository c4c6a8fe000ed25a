package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

const module = "github.com/sluice-gate/sluice/"

// mayImport says which of our packages those below a folder may use. What is
// not here may use nothing of ours.
var mayImport = map[string][]string{
	"cmd":       {""},
	"bench":     {""},
	"leasing":   {"leasing", "ratelimit"},
	"approx":    {"ratelimit"},
	"routing":   {"ratelimit", "leasing", "routing"},
	"ratelimit": {"ratelimit"},
}

func TestImportsPointDownwards(t *testing.T) {
	documented := map[string]bool{}
	eachGoFile(t, func(path string, test bool) {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		if test {
			return
		}
		dir := filepath.Dir(path)
		documented[dir] = documented[dir] || f.Doc != nil
		folder, _, _ := strings.Cut(strings.TrimPrefix(path, top), "/")
		for _, spec := range f.Imports {
			name, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
			if !ours {
				continue
			}
			allowed := false
			for _, prefix := range mayImport[folder] {
				allowed = allowed || strings.HasPrefix(name, prefix)
			}
			if !allowed {
				t.Errorf("%s imports %s", path, name)
			}
		}
	})
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s has no package doc", dir)
		}
	}
}

// The words of the domain do no I/O.
func TestRatelimitIsPure(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}`, module+"ratelimit").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(out)) {
		switch name {
		case "net", "os", "net/http", "log/slog", "sync":
			t.Errorf("package ratelimit imports %s", name)
		}
	}
}

// Who reviews code sees two files side by side. A tab counts as four columns.
// Package shed has a few longer lines.
func TestLinesAreNarrow(t *testing.T) {
	const most = 120
	eachGoFile(t, func(path string, _ bool) {
		name := strings.TrimPrefix(path, top)
		if !strings.HasPrefix(name, "ratelimit/") || strings.HasPrefix(name, "ratelimit/shed/") {
			return
		}
		for i, line := range strings.Split(read(t, name), "\n") {
			if n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); n > most {
				t.Errorf("%s:%d has %d columns, the most is %d", name, i+1, n, most)
			}
		}
	})
}

func eachGoFile(t *testing.T, f func(path string, test bool)) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != top {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			f(path, strings.HasSuffix(path, "_test.go"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What the README shows is what there is.
func TestREADME(t *testing.T) {
	readme := read(t, "README.md")
	makefile := read(t, "Makefile")
	for _, want := range []string{"go run ./cmd/sluice serve", "make test", exampleRequest} {
		if !strings.Contains(readme, want) {
			t.Errorf("the README does not say %s", want)
		}
	}
	if !strings.Contains(makefile, "\ntest:") || !strings.Contains(read(t, ".ci/run"), "\nmake test\n") {
		t.Error("make test is not what CI runs")
	}
	for i, block := range append(fenced(readme, "yaml"), fenced(read(t, "docs/approx.md"), "yaml")...) {
		if !strings.HasPrefix(block, "domain:") {
			continue
		}
		_, warnings, problems := config.Parse([]config.Text{{Name: "README", Data: []byte(block)}}, config.Options{Coordination: ratelimit.DefaultCoordination()})
		if problems != nil || warnings != nil {
			t.Errorf("block %d: %v %v", i, problems, warnings)
		}
	}
}

func TestBuiltInExample(t *testing.T) {
	_, warnings, problems := config.Parse([]config.Text{{Name: "example", Data: []byte(exampleConfig)}}, config.Options{Coordination: ratelimit.DefaultCoordination()})
	if problems != nil || warnings != nil {
		t.Errorf("%v %v", problems, warnings)
	}
}

// fenced returns the code blocks of a language.
func fenced(markdown, language string) (blocks []string) {
	for _, part := range strings.Split(markdown, "```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		blocks = append(blocks, block)
	}
	return blocks
}
