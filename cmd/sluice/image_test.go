package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The image's binary needs nothing of a system, and serves when it is started as
// the one of envoyproxy/ratelimit's image, with nothing but an environment.
func TestImage(t *testing.T) {
	dockerfile := read(t, "deploy/docker/Dockerfile")
	for _, line := range []string{"FROM scratch", "USER 65532:65532", "CGO_ENABLED=0 go build -tags server", "ln -s sluice /out/bin/ratelimit", `ENTRYPOINT ["/bin/sluice"]`} {
		if !strings.Contains(dockerfile, line) {
			t.Errorf("deploy/docker/Dockerfile has no %s", line)
		}
	}
	dir := t.TempDir()
	binary, called := filepath.Join(dir, "sluice"), filepath.Join(dir, "ratelimit")
	build := exec.Command("go", "build", "-tags", "server", "-trimpath", "-ldflags", "-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Error("the binary is not static")
		}
	}
	const most = 40 << 20
	if info, err := os.Stat(binary); err != nil || info.Size() > most {
		t.Errorf("the server's binary has %d bytes, more than %d: what does it have that only measuring needs? (%v)", info.Size(), most, err)
	}
	if out, err := exec.Command(binary, "bench", "cost").CombinedOutput(); err == nil {
		t.Errorf("the server's binary measures: %s", out)
	}
	if err := os.Symlink("sluice", called); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "config", "rules.yaml"), rules(3))
	cmd := exec.Command(called)
	cmd.Env = []string{
		"RUNTIME_ROOT=" + dir, "HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "DRAIN_TIME=0s",
	}
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	s := start(t, cmd)
	if got := s.overGRPC()(parseRequest(t, "domain=d | k=x")); got != "OK [OK 3/YEAR left 2]" {
		t.Error(got)
	}
}
