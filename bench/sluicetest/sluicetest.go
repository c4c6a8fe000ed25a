// Package sluicetest builds the binary that benchmarks measure, for their tests.
package sluicetest

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Build builds sluice with all its commands, as people run it, and returns where it is until the
// test ends. It blocks for as long as the go command takes: seconds, where packages are cached.
func Build(tb testing.TB) (binary string) {
	tb.Helper()
	return build(tb, "sluice")
}

// Lab builds sluicelab, which runs the servers that Sluice is compared with.
func Lab(tb testing.TB) (binary string) {
	tb.Helper()
	return build(tb, "sluicelab")
}

func build(tb testing.TB, name string) string {
	tb.Helper()
	binary := filepath.Join(tb.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/sluice-gate/sluice/cmd/"+name).CombinedOutput(); err != nil {
		tb.Fatalf("building cmd/%s: %v\n%s", name, err, out)
	}
	return binary
}
