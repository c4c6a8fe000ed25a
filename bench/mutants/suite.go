package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// plan names the mutated code, and its tests.
type plan struct {
	root    string
	files   []string       // relative to the root
	percent map[string]int // percentage of a file's mutants to run, if not all
	suites  []suite
}

// suite is one package's tests.
type suite struct {
	dir    string
	skip   string  // a pattern of tests to skip
	slices []slice // of a test that takes arguments to play more
	waits  string  // a pattern of tests that keep real time: their failures must be confirmed
}

// slice is a test with its own arguments, which replaces the test.
type slice struct {
	test string
	args []string
}

// program is a suite's test binary.
type program struct {
	*suite
	dir      string // its working directory
	binary   string
	checksum string
	start    time.Duration // cost without any test
}

// unit is the smallest run: a test, or a slice of one.
type unit struct {
	*program
	test  string
	args  []string
	cost  time.Duration // of a run without a fault
	waits bool          // it keeps real time, so that a failure is no proof
	group bool          // it is several tests
}

// String names the unit.
func (u *unit) String() string {
	s := u.suite.dir + " " + u.test
	if len(u.args) > 0 {
		s += " " + strings.Join(u.args, " ")
	}
	return s
}

// units builds the test binaries of all suites.
func (p *plan) units(ctx context.Context, into string, args ...string) (all []*unit, err error) {
	for i := range p.suites {
		prog, err := p.build(ctx, &p.suites[i], into, args...)
		if err != nil {
			return nil, err
		}
		units, err := prog.units(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, units...)
	}
	return all, nil
}

// build builds a suite's test binary.
func (p *plan) build(ctx context.Context, s *suite, into string, args ...string) (*program, error) {
	binary := filepath.Join(into, strings.ReplaceAll(s.dir, "/", "_")+".test")
	args = append([]string{"test", "-c", "-o", binary}, args...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+s.dir)...)
	cmd.Dir = p.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the tests of %s: %w\n%s", s.dir, err, out)
	}
	text, err := os.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("the tests of %s: %w", s.dir, err)
	}
	sum := sha256.Sum256(text)
	return &program{suite: s, dir: filepath.Join(p.root, s.dir), binary: binary, checksum: hex.EncodeToString(sum[:12])}, nil
}

// units are the tests of a program, as units or slices.
func (p *program) units(ctx context.Context) ([]*unit, error) {
	cmd := exec.CommandContext(ctx, p.binary, "-test.list", ".")
	cmd.Dir = p.dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the tests of %s: %w", p.suite.dir, err)
	}
	var all []*unit
	for name := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(name, "Test") || p.skip != "" && regexp.MustCompile(p.skip).MatchString(name) {
			continue
		}
		waits := p.waits != "" && regexp.MustCompile(p.waits).MatchString(name)
		sliced := false
		for _, s := range p.slices {
			if s.test == name {
				all, sliced = append(all, &unit{program: p, test: name, args: s.args, waits: waits}), true
			}
		}
		if !sliced {
			all = append(all, &unit{program: p, test: name, waits: waits})
		}
	}
	return all, nil
}

// cache keeps measurements of a binary, by its checksum.
type cache struct{ dir string }

func (c cache) load(name string, into any) bool {
	text, err := os.ReadFile(filepath.Join(c.dir, name+".json"))
	return err == nil && json.Unmarshal(text, into) == nil
}

func (c cache) store(name string, what any) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(c.dir, 0o755), os.WriteFile(filepath.Join(c.dir, name+".json"), text, 0o600))
}

// packages are the folders of the plan's files.
func (p *plan) packages() []string {
	var all []string
	seen := map[string]bool{}
	for _, f := range p.files {
		if d := path.Dir(f); !seen[d] {
			seen[d] = true
			all = append(all, d)
		}
	}
	return all
}
