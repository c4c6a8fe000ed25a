package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The server has just the modules of docs/reference/dependencies.md, in those versions, and nothing of what measures.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}| {{.Path}} | {{.Version}} |{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	doc := read(t, "docs/reference/dependencies.md")
	listed := strings.Count(doc, "\n| ") - strings.Count(doc, "\n| module ") // the heads of the tables
	for _, module := range slices.Compact(lines) {
		switch {
		case module == "" || strings.HasPrefix(module, "| github.com/sluice-gate/sluice "):
			continue
		case strings.Contains(module, "gonum.org") || strings.Contains(module, "image"):
			t.Errorf("%s is in the server: only what measures needs it", module)
		case !strings.Contains(doc, "\n"+module):
			t.Errorf("docs/reference/dependencies.md has no %s: review it, and add it with who can choose what it parses", module)
		default:
			listed--
		}
	}
	if listed > 0 {
		t.Errorf("docs/reference/dependencies.md lists %d modules that the server does not have", listed)
	}
}

// A machine without a database of time zones has that of the binary.
func TestZonesAreInTheBinary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil || !slices.Contains(strings.Fields(string(out)), "time/tzdata") {
		t.Errorf("the server does not have package time/tzdata (%v)", err)
	}
}
