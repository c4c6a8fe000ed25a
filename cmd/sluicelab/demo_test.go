package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/program"
)

// built is a binary of sluice.
func built(t *testing.T) string {
	t.Helper()
	path, err := program.Build("sluice", "cmd/sluice")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// demo runs the demo with the nodes of a binary.
func demo(binary string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{"demo", "--sluice=" + binary}, args...)...)
	cmd.Env = append(os.Environ(), "SLUICELAB_RUN_MAIN=1")
	return cmd
}

// The demo shows a fleet under load, of which every console answers, and ends by itself.
func TestDemo(t *testing.T) {
	t.Parallel()
	if code, _, errs := runLine("demo", "--rate=1e-9"); code != 1 || !strings.Contains(errs, "0.001 to 100000") {
		t.Errorf("of a rate for which no timer is long enough: %d %s", code, errs)
	}
	cmd := demo(built(t), "--for=15s", "--rate=300", "--nodes=2")
	var out bytes.Buffer
	r, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	more := make([]byte, 4096)
	for err == nil && !strings.Contains(out.String(), " explain --debug") {
		var n int
		n, err = r.Read(more)
		out.Write(more[:n])
	}
	for _, m := range regexp.MustCompile(`http://(\S+)/console`).FindAllStringSubmatch(out.String(), -1) {
		metricsBecome(t, m[1], `sluice_decisions_total\{domain="edge",rule="api_key",mode="approx",source="(lease|drift)",reason=""\} [1-9]`)
		metricsBecome(t, m[1], `sluice_holds_settled_total\{domain="edge",rule="team",mode="leasing",result="settled"\} [1-9]`)
	}
	_, _ = io.Copy(&out, r)
	err = cmd.Wait()
	text := out.String()
	if err != nil || strings.Count(text, "/console") != 2 || !strings.Contains(text, "6 tokens for 2 nodes") || !regexp.MustCompile(`[1-9]\d* requests, [1-9]\d* passed, \d+ without an answer`).MatchString(text) {
		t.Errorf("%v\n%s", err, text)
	}
	// What it is about: each rule's own bound, and that no key went beyond it.
	if !strings.Contains(text, "KEYS THAT BROKE THE BOUND") || !regexp.MustCompile(`(?m)^  api_key \(approx\) +100 per second +[0-6] of 6 allowed +0 +[1-9]\d* +\d+ *$`).MatchString(text) {
		t.Errorf("it does not show what becomes of its limits, or they do not hold:\n%s", text)
	}
}

// metricsBecome waits until a node shows a line, for as long as the demo lasts.
func metricsBecome(t *testing.T, node, line string) {
	t.Helper()
	is := regexp.MustCompile(line)
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		r, err := http.Get("http://" + node + "/metrics")
		if err != nil {
			continue
		}
		text, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if is.Match(text) {
			return
		}
	}
	t.Errorf("%s never shows %s", node, line)
}

func TestDemoLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	out, err := demo(built(t), "--for=2s", "--nodes=1", "--no-envoy", "--redis="+store.Addr).CombinedOutput()
	others := slices.DeleteFunc(store.Do("KEYS", "*").([]any), func(name any) bool { return strings.Contains(name.(string), "demo:") })
	if err != nil || len(others) != 1 { // sluice:life is of redistest
		t.Errorf("%v, beyond its own names there are %v\n%s", err, others, out)
	}
}
