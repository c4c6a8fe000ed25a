package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is a command in a directory with the layer of an image and nothing else, as the image's user. Who is not root
// has a namespace of users for it.
func (c *container) process(root string, args ...string) *exec.Cmd {
	const user = 65532
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = "/", slices.Concat(c.Config.Env, []string{
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "DRAIN_TIME=0s",
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user, NoSetGroups: true}}
	if uid := os.Getuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// startImage starts the image like a container runtime: its layer is the root directory, and its entry point
// decides requests. Commands of the runbooks run in it, too.
func startImage(t *testing.T, c *container) {
	t.Helper()
	root := t.TempDir()
	unpack := exec.Command("tar", "-xf", "-", "-C", root)
	unpack.Stdin = bytes.NewReader(c.layer)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rules := filepath.Join(root, "etc", "sluice", "rules") // where the chart mounts them
	if err := os.MkdirAll(rules, 0o755); err != nil {
		t.Fatal(err)
	}
	text := "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: 3}}\n"
	if err := os.WriteFile(filepath.Join(rules, "rules.yaml"), []byte(text), 0o644); err != nil { //nolint:gosec // the image's user reads it
		t.Fatal(err)
	}
	var log bytes.Buffer
	node := c.process(root, slices.Concat(c.Config.Entrypoint, c.Config.Cmd, []string{"--config", "/etc/sluice/rules"})...)
	node.Stderr = &log
	out, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatalf("starting the image: %v", err)
	}
	timer := time.AfterFunc(time.Minute, func() { _ = node.Process.Kill() })
	line, _ := bufio.NewReader(out).ReadString('\n')
	defer func() {
		_ = node.Process.Kill()
		_ = node.Wait()
		timer.Stop()
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	ports := regexp.MustCompile(`HTTP on (\S+), gRPC on \S+, debug on (\S+)`).FindStringSubmatch(line)
	if ports == nil {
		t.Fatalf("it announced %q: %s", line, log.String())
	}
	passed := 0
	for range 5 {
		body := `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"x"}]}]}`
		r, err := http.Post("http://"+ports[1]+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if r.StatusCode == http.StatusOK {
			passed++
		}
	}
	if passed != 3 {
		t.Errorf("%d of 5 requests passed, the limit is 3", passed)
	}
	for _, typed := range []struct{ args, says string }{
		{"/bin/ratelimit check --details /etc/sluice/rules", "d.k"},
		{"/bin/sluice top --all --times 1 " + ports[2], "d.k"},
		{"/bin/sluice explain --debug " + ports[2] + " d k=x", "OVER_LIMIT"},
	} {
		if out, err := c.process(root, strings.Fields(typed.args)...).CombinedOutput(); err != nil || !strings.Contains(string(out), typed.says) {
			t.Errorf("%s: %v, no %q in\n%s", typed.args, err, typed.says, out)
		}
	}
	if out, err := c.process(root, "/bin/sluice", "bench", "cost").CombinedOutput(); err == nil {
		t.Errorf("the server's binary measures: %s", out)
	}
	if uid := owner(t, node.Process.Pid); os.Getuid() == 0 && uid != "65532" {
		t.Errorf("it runs as user %s", uid)
	}
}

// owner is the user of a process.
func owner(t *testing.T, pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`Uid:\s+(\d+)`).FindSubmatch(text)
	return string(m[1])
}
