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
	"sync"
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
	units  []*unit
	ready  func() error // builds and measures it, once
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

// programs are those of all suites. None is built yet: a run of a few files may need few of them.
func (p *plan) programs(ctx context.Context, overlay, temp string) (all []*program) {
	for i := range p.suites {
		s := &p.suites[i]
		prog := &program{suite: s, dir: filepath.Join(p.root, s.dir)}
		prog.ready = sync.OnceValue(func() error { return errors.Join(prog.build(ctx, overlay, temp), prog.measure(ctx, temp)) })
		all = append(all, prog)
	}
	return all
}

// build builds the binary, and lists its tests.
func (p *program) build(ctx context.Context, overlay, temp string) (err error) {
	p.binary, err = plant.Build(ctx, p.dir, overlay, temp)
	if err != nil {
		return err
	}
	list := exec.CommandContext(ctx, p.binary, "-test.list", "^Test")
	list.Dir = p.dir
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("listing the tests of %s: %w", p.suite.dir, err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		if p.skip != "" && regexp.MustCompile(p.skip).MatchString(name) {
			continue
		}
		before := len(p.units)
		for _, s := range p.slices {
			if s.test == name {
				p.units = append(p.units, &unit{program: p, tests: []string{name}, args: s.args})
			}
		}
		if len(p.units) == before {
			p.units = append(p.units, &unit{program: p, tests: []string{name}})
		}
	}
	return nil
}

// measure runs each unit without a fault.
func (p *program) measure(ctx context.Context, temp string) error {
	err := each(ctx, len(p.units), func(i int) error { return p.units[i].measure(ctx, temp) })
	for i, u := range p.units {
		if i == 0 || u.cost < p.start {
			p.start = u.cost
		}
	}
	return err
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
