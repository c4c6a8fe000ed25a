package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/bench/plant"
)

// options are the settings of a run.
type options struct {
	files  string        // patterns of files, of the plan's; all if empty
	only   string        // a pattern of keys
	skip   string        // a pattern of tests that are left out
	budget time.Duration // no more mutants start after it
	list   bool
	verify bool // run those that are listed as equivalent, too
	again  bool // run only those that the last report does not list as killed
	known  string
	cache  string // folder of measurements and of the report
	out    io.Writer
	say    func(string, ...any) // of progress
}

func main() {
	o := options{known: "bench/mutants/equivalent.txt", cache: ".cache/mutants", out: os.Stdout}
	o.say = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format, args...) }
	flag.StringVar(&o.files, "files", "", "mutate only these `files`, with commas between; the default is all")
	flag.StringVar(&o.only, "only", "", "run only mutants whose kind, file, function, old or new line match this `pattern`")
	flag.StringVar(&o.skip, "skip", "", "leave out tests that match this `pattern`: TestTwins finds each fault of account.go and bucket.go alone, and says nothing of the others")
	flag.DurationVar(&o.budget, "budget", time.Hour, "begin no mutant after this time")
	flag.BoolVar(&o.list, "list", false, "list the mutants, and run nothing")
	flag.BoolVar(&o.verify, "verify", false, "run mutants that are listed as equivalent, too: none may be killed")
	flag.BoolVar(&o.again, "again", false, "take those that the last report says were killed as killed: for when only tests were added since")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := os.Getwd()
	if err == nil {
		thePlan.root = root
		err = thePlan.run(ctx, &o, allByHand)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

// run does the work of the options. It returns an error if the report is not good enough.
func (p *plan) run(ctx context.Context, o *options, byHands []byHand) error {
	start := time.Now()
	known, err := readEquivalents(o.known)
	if err != nil {
		return err
	}
	src, err := p.read()
	if err != nil {
		return err
	}
	all, misfits, err := src.mutants(p.files, byHands)
	if err != nil {
		return err
	}
	r := report{Stale: append(known.stale(all), misfits...)}
	all = thinned(all, p.percent)
	wanted, err := p.wanted(o)
	if err != nil {
		return err
	}
	if o.list {
		for _, m := range all {
			if wanted(m) {
				fmt.Fprintf(o.out, "# line %d, %s\n%s\n\n", m.line, m.op, m.key())
			}
		}
		return nil
	}
	for i := range p.suites {
		if s := &p.suites[i]; o.skip != "" {
			s.skip = strings.TrimPrefix(s.skip+"|"+o.skip, "|")
		}
	}
	temp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	h, all, err := p.prepare(ctx, o, src, all, temp)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m *mutant) bool { return !wanted(m) })
	before, err := o.before()
	if err != nil {
		return err
	}
	r.Results, err = h.all(ctx, o, all, known, before, start)
	if err != nil && ctx.Err() == nil {
		return err
	}
	r.Took = time.Since(start)
	r.write(o.out) // also when it was interrupted
	if err := r.save(o.report()); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if wrong := r.verdict(); wrong != "" {
		return errors.New(wrong)
	}
	return nil
}

func (o *options) report() string { return filepath.Join(o.cache, "report.json") }

// wanted tells whether the options select a mutant. All are built in any case, so that measurements of the build
// stay valid.
func (p *plan) wanted(o *options) (func(*mutant) bool, error) {
	files, err := p.chosen(o.files)
	if err != nil {
		return nil, err
	}
	pattern, err := regexp.Compile(o.only)
	if err != nil {
		return nil, fmt.Errorf("-only %q: %w", o.only, err)
	}
	return func(m *mutant) bool {
		return slices.Contains(files, m.edit.File) && pattern.MatchString(m.op+"\n"+m.key())
	}, nil
}

// before has the results of the last report, by key, with the option again.
func (o *options) before() (map[string]result, error) {
	before := map[string]result{}
	if !o.again {
		return before, nil
	}
	text, err := os.ReadFile(o.report())
	if err != nil {
		return nil, fmt.Errorf("-again needs the report of a run before: %w", err)
	}
	var last report
	if err := json.Unmarshal(text, &last); err != nil {
		return nil, fmt.Errorf("%s is no report: %w", o.report(), err)
	}
	for _, r := range last.Results {
		before[r.Key] = r
	}
	return before, nil
}

// chosen are the plan's files that match the option.
func (p *plan) chosen(names string) ([]string, error) {
	if names == "" {
		return p.files, nil
	}
	var files []string
	for pattern := range strings.FieldsFuncSeq(names, func(r rune) bool { return r == ',' || r == ' ' }) {
		before := len(files)
		for _, f := range p.files {
			if ok, _ := path.Match(pattern, f); ok && !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
		if len(files) == before {
			return nil, fmt.Errorf("no file to mutate is named %s: there are %s", pattern, strings.Join(p.files, " "))
		}
	}
	return files, nil
}

// prepare builds all binaries, and drops mutants that do not compile.
func (p *plan) prepare(ctx context.Context, o *options, src *source, all []*mutant, temp string) (*hunt, []*mutant, error) {
	instrumented := filepath.Join(temp, "instrumented")
	if err := os.MkdirAll(instrumented, 0o755); err != nil {
		return nil, nil, err
	}
	invalid := map[*mutant]string{}
	texts := map[string]string{}
	for _, dir := range p.packages() {
		if err := src.packages[dir].instrument(all, invalid, texts); err != nil {
			return nil, nil, err
		}
	}
	for m, why := range invalid {
		if m.op == "by hand" {
			return nil, nil, fmt.Errorf("%q does not compile: %s", m.fn, why)
		}
	}
	all = slices.DeleteFunc(all, func(m *mutant) bool { return invalid[m] != "" })
	o.say("%d mutants, and %d that do not compile; building and measuring the tests\n", len(all), len(invalid))
	replace, err := plant.Overlay(p.root, instrumented, texts)
	if err != nil {
		return nil, nil, err
	}
	h := &hunt{temp: temp, say: o.say, passes: map[string]bool{}}
	if h.units, err = p.units(ctx, instrumented, "-overlay", replace); err != nil {
		return nil, nil, err
	}
	reach, err := p.measureReach(ctx, temp, cache{o.cache}, src.module)
	if err != nil {
		return nil, nil, err
	}
	if len(h.units) != len(reach.units) {
		return nil, nil, fmt.Errorf("the instrumented build has %d tests, and the other %d", len(h.units), len(reach.units))
	}
	for i, u := range reach.units {
		h.units[i].cost = u.cost
		if p := h.units[i].program; p.start == 0 || u.cost < p.start {
			p.start = u.cost
		}
	}
	h.reached = src.reached(all, reach)
	return h, all, nil
}
