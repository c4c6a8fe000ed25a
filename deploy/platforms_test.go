package deploy

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// The binary is built for the machines that people work on, too: what only Linux can
// is in files of its own. It takes minutes where nothing is cached.
func TestOtherSystems(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles everything for two other systems")
	}
	for _, system := range []string{"windows", "darwin"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(t.TempDir(), "sluice"), "./cmd/sluice")
		cmd.Dir = ".."
		cmd.Env = append(cmd.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", system, err, out)
		}
	}
}
