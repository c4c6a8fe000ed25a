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
	binary = filepath.Join(tb.TempDir(), "sluice")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/sluice-gate/sluice/cmd/sluice").CombinedOutput(); err != nil {
		tb.Fatalf("building cmd/sluice: %v\n%s", err, out)
	}
	return binary
}
