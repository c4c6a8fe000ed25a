package main

import (
	"bufio"
	goflag "flag" // flag is a function here
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

var countFiles = goflag.Bool("files", false, "count the files that a decision runs through, in a minute")

// A decision runs through few files: ten where the node has a lease, and twenty where it must claim, besides those of
// the calls around it. It is counted in a server that is built to count: a file is one of a decision's if it runs at
// least as often as there are decisions.
func TestFilesOfADecision(t *testing.T) {
	if !*countFiles {
		t.Skip("not asked for: go test ./cmd/sluice -run TestFilesOfADecision -files")
	}
	binary := filepath.Join(t.TempDir(), "sluice")
	out, err := exec.Command("go", "build", "-cover", "-covermode=atomic", "-coverpkg=github.com/sluice-gate/sluice/...", "-o", binary, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const few, many = 50, 1050
	hits := grown(countedIn(t, binary, few, 1), countedIn(t, binary, many, 1), many-few)
	misses := grown(countedIn(t, binary, few, few), countedIn(t, binary, many, many), many-few)
	misses = slices.DeleteFunc(misses, func(file string) bool { return slices.Contains(hits, file) })
	for _, c := range []struct {
		what  string
		files []string
		most  int
	}{{"a decision from a lease", core(hits), 10}, {"a claim, in addition", core(misses), 20}} {
		t.Logf("%s runs through %d files of the core: %s", c.what, len(c.files), strings.Join(c.files, " "))
		if len(c.files) > c.most {
			t.Errorf("%s runs through %d files, must be at most %d", c.what, len(c.files), c.most)
		}
	}
	t.Logf("and of the service: %d and %d", len(hits)-len(core(hits)), len(misses)-len(core(misses)))
}

// core are those files that decide.
func core(files []string) (all []string) {
	for _, f := range files {
		if strings.HasPrefix(f, "leasing/") || strings.HasPrefix(f, "approx/") {
			all = append(all, f)
		}
	}
	return all
}

// countedIn runs a server, has it decide n requests of so many keys, and returns how often each statement ran.
func countedIn(t *testing.T, binary string, n, keys int) map[string]int {
	t.Helper()
	dir, rules := t.TempDir(), filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, rules, "domain: parity\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}\n")
	cmd := exec.Command(binary, "serve", "--config", rules, "--log-level=warn")
	cmd.Env = append(os.Environ(), "GOCOVERDIR="+dir, "REDIS_URL="+redistest.Start(t).Addr, "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "DRAIN_TIME=0s")
	s := start(t, cmd)
	s.untilHealthy()
	ask := s.overGRPC()
	for i := range n {
		if answer := ask(parseRequest(t, fmt.Sprint("k=", i%keys))); !strings.HasPrefix(answer, "OK") {
			t.Fatal(answer)
		}
	}
	s.Signal(syscall.SIGTERM)
	<-s.exited
	text := filepath.Join(dir, "text")
	if out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+dir, "-o="+text).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	counts := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimPrefix(lines.Text(), "github.com/sluice-gate/sluice/")
		last := strings.LastIndexByte(line, ' ')
		if count, err := strconv.Atoi(line[last+1:]); err == nil {
			counts[line[:last]] += count
		}
	}
	return counts
}

// grown are the files of statements that ran n times more, or a few times that: others run by the clock.
func grown(before, after map[string]int, n int) (files []string) {
	for statement, count := range after {
		if more := count - before[statement]; more >= n*9/10 && more <= 4*n {
			file, _, _ := strings.Cut(statement, ":")
			files = append(files, file)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}
