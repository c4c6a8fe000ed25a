package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/bench/plant"
)

// program is a suite's test binary, with all mutants.
type program struct {
	*suite
	dir    string // its working directory
	binary string
	start  time.Duration // cost without any test
}

// unit is tests that run together: one, a slice of one, or several quick ones.
type unit struct {
	*program
	tests   []string
	args    []string
	cost    time.Duration // of a run without a fault
	reached map[int]bool  // functions that it enters, by their first mutants
}

// String names the unit.
func (u *unit) String() string {
	return strings.Join(append([]string{u.suite.dir, strings.Join(u.tests, "|")}, u.args...), " ")
}

// units builds the test binaries of all suites, and lists their tests.
func (p *plan) units(ctx context.Context, overlay, into string) (all []*unit, err error) {
	for i := range p.suites {
		s := &p.suites[i]
		prog := &program{suite: s, dir: filepath.Join(p.root, s.dir), binary: filepath.Join(into, strings.ReplaceAll(s.dir, "/", "_")+".test")}
		build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", prog.binary, "./"+s.dir)
		build.Dir = p.root
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building the tests of %s: %w\n%s", s.dir, err, out)
		}
		list := exec.CommandContext(ctx, prog.binary, "-test.list", "^Test")
		list.Dir = prog.dir
		out, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("listing the tests of %s: %w", s.dir, err)
		}
		for name := range strings.FieldsSeq(string(out)) {
			if s.skip != "" && regexp.MustCompile(s.skip).MatchString(name) {
				continue
			}
			parts := []unit{{program: prog, tests: []string{name}}}
			for j, sl := range s.slices {
				if sl.test == name && j > 0 {
					parts = append(parts, parts[0])
				}
				if sl.test == name {
					parts[len(parts)-1].args = sl.args
				}
			}
			for j := range parts {
				all = append(all, &parts[j])
			}
		}
	}
	return all, nil
}

// measureTime bounds a run without a fault.
const measureTime = 5 * time.Minute

// measure runs a unit without a fault: what it costs, and which functions it enters.
func (u *unit) measure(ctx context.Context, temp string) error {
	dir, err := os.MkdirTemp(temp, "reach")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "entered")
	o, err := u.run(ctx, measureTime, temp, plant.Reach+"="+file)
	if err == nil && o.failed { // once more: the failure may come from load
		o, err = u.run(ctx, measureTime, temp, plant.Reach+"="+file)
	}
	if err != nil {
		return err
	}
	if o.failed {
		return fmt.Errorf("%s fails in the instrumented build with no fault active: leave it out (suite.skip) if that is for its speed or its allocations, or mend it\n%s", u, o.output)
	}
	u.cost, u.reached = o.took, map[int]bool{}
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for line := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(line); err == nil {
			u.reached[n] = true
		}
	}
	return nil
}

// outcome is the result of a run of a test binary.
type outcome struct {
	failed bool
	test   string // the first that failed
	output string
	took   time.Duration
}

// mostMemory bounds the address space of a run, in KiB: a fault that makes a loop endless may also allocate without
// end.
const mostMemory = 8 << 20

// run runs a unit's tests, with an entry more in the environment. All its processes end with it, at the limit, or when
// ctx is done.
func (u *unit) run(ctx context.Context, limit time.Duration, temp, env string) (outcome, error) {
	dir, err := os.MkdirTemp(temp, "run")
	if err == nil {
		err = errors.Join(os.Chmod(temp, 0o755), os.Chmod(dir, 0o755)) // PostgreSQL runs as another user
	}
	if err != nil {
		return outcome{}, err
	}
	defer os.RemoveAll(dir)
	bounded, cancel := context.WithTimeout(ctx, limit+2*time.Second) // it ends itself first, and reports where it hung
	defer cancel()
	args := []string{
		"-c", fmt.Sprintf(`ulimit -v %d; exec "$0" "$@"`, mostMemory), u.binary,
		"-test.run", "^(" + strings.Join(u.tests, "|") + ")$", "-test.failfast", "-test.timeout", limit.String(),
	}
	cmd := exec.CommandContext(bounded, "sh", append(args, u.args...)...)
	cmd.Dir = u.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out limited
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return outcome{}, fmt.Errorf("running %s: %w", u, err)
	}
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // servers that it left behind
	o := outcome{failed: err != nil, took: time.Since(start), output: string(out.kept)}
	if m := failedTest.FindStringSubmatch(o.output); o.failed && m != nil {
		o.test = m[1] + m[2]
	}
	return o, ctx.Err()
}

// failedTest is the test that failed, or that ran when its program ended.
var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: ([^\s/]+)|\.(Test[A-Z]\w+)[.(]`)

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
