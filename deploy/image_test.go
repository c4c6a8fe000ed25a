package deploy

import (
	"bufio"
	"context"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The image's binary needs nothing of a system, and serves when it is started as
// the one of envoyproxy/ratelimit's image, with nothing but an environment.
func TestImage(t *testing.T) {
	dockerfile := read(t, "deploy/docker/Dockerfile")
	for _, line := range []string{"FROM scratch", "USER 65532:65532", "ARG TAGS=server", `CGO_ENABLED=0 go build -tags "$TAGS"`, "ln -s sluice /out/bin/ratelimit", `ENTRYPOINT ["/bin/sluice"]`} {
		if !strings.Contains(dockerfile, line) {
			t.Errorf("deploy/docker/Dockerfile has no %s", line)
		}
	}
	dir := t.TempDir()
	binary, called := filepath.Join(dir, "sluice"), filepath.Join(dir, "ratelimit")
	build := exec.Command("go", "build", "-tags", "server", "-trimpath", "-ldflags", "-s -w", "-o", binary, "../cmd/sluice")
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
	const most = 42 << 20
	if info, err := os.Stat(binary); err != nil || info.Size() > most {
		t.Errorf("the server's binary has %d bytes, more than %d: what does it have that only measuring needs? (%v)", info.Size(), most, err)
	}
	if out, err := exec.Command(binary, "bench", "cost").CombinedOutput(); err == nil {
		t.Errorf("the server's binary measures: %s", out)
	}
	if err := os.Symlink("sluice", called); err != nil {
		t.Fatal(err)
	}
	rules := "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: year, requests_per_unit: 3}\n"
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "config"), 0o755), os.WriteFile(filepath.Join(dir, "config", "rules.yaml"), []byte(rules), 0o600)); err != nil {
		t.Fatal(err)
	}
	answer := ask(t, serve(t, called, "RUNTIME_ROOT="+dir))
	if answer.OverallCode != rlsv3.RateLimitResponse_OK || len(answer.Statuses) != 1 ||
		answer.Statuses[0].LimitRemaining != 2 || answer.Statuses[0].CurrentLimit.GetRequestsPerUnit() != 3 {
		t.Error(answer)
	}
}

// serve runs the binary with nothing but an environment, and returns where it
// answers gRPC.
func serve(t *testing.T, binary string, env ...string) (address string) {
	t.Helper()
	cmd := exec.Command(binary)
	cmd.Env = slices.Concat(env, []string{
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "DRAIN_TIME=0s",
	})
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }) // it may never say where it is
	t.Cleanup(func() {
		timer.Stop()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	m := regexp.MustCompile(`gRPC on (\S+),`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("it announced %q: %v", line, err)
	}
	return m[1]
}

// ask sends one hit on k=x.
func ask(t *testing.T, address string) *rlsv3.RateLimitResponse {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	answer, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
		Domain:      "d",
		Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "k", Value: "x"}}}},
	}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return answer
}
