package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/bench/plant"
)

// outcome is the result of a run of a test binary.
type outcome struct {
	failed bool
	hung   bool
	test   string // the first that failed
	output string
	took   time.Duration
}

// mostMemory bounds the memory of a run: a fault that makes a loop endless may also allocate without end.
const mostMemory = 3 << 30

// run runs a unit's test, or several that match its pattern. All its processes end with it, at the limit, or when
// ctx is done.
func (u *unit) run(ctx context.Context, limit time.Duration, temp string, mutant int, args []string) (outcome, error) {
	dir, err := os.MkdirTemp(temp, "run")
	if err != nil {
		return outcome{}, err
	}
	defer os.RemoveAll(dir)
	bounded, cancel := context.WithTimeout(ctx, limit+2*time.Second) // it ends itself first, and reports where it hung
	defer cancel()
	flags := []string{"-test.run", "^(" + u.test + ")$", "-test.failfast", "-test.timeout", limit.String()}
	if u.skip != "" {
		flags = append(flags, "-test.skip", u.skip)
	}
	cmd := exec.CommandContext(bounded, u.binary, append(append(flags, args...), u.args...)...)
	cmd.Dir = u.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, plant.Variable+"="+strconv.Itoa(mutant))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out limited
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return outcome{}, fmt.Errorf("running %s: %w", u, err)
	}
	stop := make(chan struct{})
	go guard(cmd.Process.Pid, stop)
	err = cmd.Wait()
	close(stop)
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // servers that it left behind
	if ctx.Err() != nil {
		return outcome{}, ctx.Err()
	}
	o := outcome{failed: err != nil, took: time.Since(start), output: string(out.kept)}
	if o.failed {
		o.hung = bounded.Err() != nil || strings.Contains(o.output, "panic: test timed out")
		o.test = failedTest(o.output)
	}
	return o, nil
}

// guard kills a process group that uses too much memory.
func guard(pid int, stop <-chan struct{}) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
		if err != nil {
			continue // no such file system, or it has just ended
		}
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			if pages, err := strconv.Atoi(fields[1]); err == nil && pages*os.Getpagesize() > mostMemory {
				_ = syscall.Kill(-pid, syscall.SIGKILL)
				return
			}
		}
	}
}

var (
	failLine    = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	runningLine = regexp.MustCompile(`(?m)^\s+(Test\S+) \(`)
	stackLine   = regexp.MustCompile(`(?m)\.(Test[A-Z]\w+)[.(]`)
)

func failedTest(output string) string {
	for _, r := range []*regexp.Regexp{failLine, runningLine, stackLine} {
		if m := r.FindStringSubmatch(output); m != nil {
			name, _, _ := strings.Cut(m[1], "/")
			return name
		}
	}
	return ""
}

// limited keeps the end of its input.
type limited struct{ kept []byte }

const keptOutput = 64 << 10

// Write implements [io.Writer]. It never fails.
func (l *limited) Write(p []byte) (int, error) {
	l.kept = append(l.kept, p...)
	if len(l.kept) > 2*keptOutput {
		l.kept = append(l.kept[:0], l.kept[len(l.kept)-keptOutput:]...)
	}
	return len(p), nil
}

// limit is the time after which a unit with a fault counts as hung.
func (u *unit) limit() time.Duration {
	return min(10*u.cost, 3*u.cost+8*time.Second) + 4*time.Second
}
