package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/bench/plant"
)

// options are what a run may be told.
type options struct {
	files   string        // patterns of files, of the plan's; all if empty
	only    string        // a pattern of keys
	tests   string        // a pattern of what is run, as a folder and a test
	suites  string        // folders of what is run, with commas between; all if empty
	budget  time.Duration // after which no more mutants are begun
	each    time.Duration
	workers int
	seed    uint64
	sample  int
	list    bool
	whole   bool // run also what the plan leaves out
	verify  bool // run those that are listed as equivalent, too
	lenient bool // leave tests out that fail without any fault, instead of refusing to start
	again   bool // run only those that the last report does not say to be killed
	json    string
	known   string // the list of equivalents
	cache   string
	out     io.Writer
	say     func(string, ...any) // of progress
}

func main() {
	var o options
	flag.StringVar(&o.files, "files", "", "mutate only these `files`, with commas between; the default is all")
	flag.StringVar(&o.only, "only", "", "run only mutants whose kind, file, function, old or new line match this `pattern`")
	flag.StringVar(&o.suites, "suites", "", "run only the tests of these `folders`, with commas between: for a first look, as others may kill what survives")
	flag.StringVar(&o.tests, "tests", "", "run only tests that match this `pattern` of a folder and a name, as 'leasing TestNode': for a first look")
	flag.DurationVar(&o.budget, "budget", time.Hour, "begin no mutant after this time")
	flag.DurationVar(&o.each, "each", 40*time.Second, "what the tests of one mutant may take in all")
	flag.IntVar(&o.workers, "workers", 2, "how many test binaries run at a time")
	flag.Uint64Var(&o.seed, "seed", 1, "of the order in which mutants are run, and of the sample")
	flag.IntVar(&o.sample, "sample", 0, "run only so many of the mutants; 0: all")
	flag.BoolVar(&o.list, "list", false, "list the mutants, and run nothing")
	flag.BoolVar(&o.whole, "whole", false, "run all mutants, also of files of which the plan takes only a part")
	flag.BoolVar(&o.verify, "verify", false, "run mutants that are listed as equivalent, too: none may be killed")
	flag.BoolVar(&o.lenient, "lenient", false, "leave tests out that fail without any fault, instead of refusing to start")
	flag.BoolVar(&o.again, "again", false, "take those that the last report (-json) says were killed as killed: for when only tests were added since")
	flag.StringVar(&o.json, "json", ".cache/mutants/report.json", "where the report goes")
	flag.StringVar(&o.known, "equivalent", "bench/mutants/equivalent.txt", "the list of equivalent mutants")
	flag.StringVar(&o.cache, "cache", ".cache/mutants", "where measurements are kept")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o.out = os.Stdout
	o.say = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format, args...) }
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

// run does what the options say, and returns an error when the report is not
// good enough.
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
	r := report{Seed: o.seed, Stale: append(known.stale(all), misfits...)}
	if !o.whole {
		all = thinned(all, p.percent)
	}
	wanted, err := p.wanted(o)
	if err != nil {
		return err
	}
	if o.list {
		for _, m := range all {
			if !wanted(m) {
				continue
			}
			fmt.Fprintf(o.out, "# line %d, %s\n%s\n\n", m.line, m.op, m.key())
		}
		return nil
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
	if err := h.kept.store("killers", h.killers); err != nil {
		return err
	}
	r.write(o.out) // also when it was interrupted
	if err := r.save(o.json); err != nil {
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

// runs tells whether the options ask for a suite.
func (o *options) runs(s *suite) bool {
	return o.suites == "" || slices.Contains(strings.Split(o.suites, ","), s.dir)
}

// wanted reports whether the options select a mutant. All are built in any case, so that measurements with
// the build stay valid.
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
		in := slices.Contains(files, m.file) || slices.ContainsFunc(m.edits, func(e edit) bool { return slices.Contains(files, e.File) })
		return in && pattern.MatchString(m.op+"\n"+m.key())
	}, nil
}

// before is what the last report says, by key, if that is to count.
func (o *options) before() (map[string]result, error) {
	before := map[string]result{}
	if !o.again {
		return before, nil
	}
	text, err := os.ReadFile(o.json)
	if err != nil {
		return nil, fmt.Errorf("-again needs the report of a run before: %w", err)
	}
	var last report
	if err := json.Unmarshal(text, &last); err != nil {
		return nil, fmt.Errorf("%s is no report: %w", o.json, err)
	}
	for _, r := range last.Results {
		before[r.Key] = r
	}
	return before, nil
}

// chosen are the plan's files that the option names.
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

// prepare builds all that is needed, and leaves out what does not compile.
func (p *plan) prepare(ctx context.Context, o *options, src *source, all []*mutant, temp string) (*hunt, []*mutant, error) {
	invalid := map[*mutant]bool{}
	instrumented, lua := filepath.Join(temp, "instrumented"), filepath.Join(temp, "lua")
	if err := errors.Join(os.MkdirAll(instrumented, 0o755), os.MkdirAll(lua, 0o755)); err != nil {
		return nil, nil, err
	}
	// A mutant that is in two packages must compile in both.
	var schemas []*schema
	for range 2 {
		schemas = nil
		valid := slices.DeleteFunc(slices.Clone(all), func(m *mutant) bool { return invalid[m] })
		for _, dir := range p.packages() {
			s, bad, err := src.packages[dir].instrument(valid)
			if err != nil {
				return nil, nil, err
			}
			for m, why := range bad {
				if m.op == "by hand" {
					return nil, nil, fmt.Errorf("%q does not compile: %s", m.why, why)
				}
				invalid[m] = true
			}
			schemas = append(schemas, s)
		}
	}
	scripts, err := writeScripts(all, src.texts, lua)
	if err != nil {
		return nil, nil, err
	}
	bad, err := loadable(ctx, temp, scripts, src.texts)
	if err != nil {
		return nil, nil, err
	}
	for m, why := range bad {
		if m.op == "by hand" {
			return nil, nil, fmt.Errorf("%q is no Lua: %w", m.why, why)
		}
		invalid[m] = true
	}
	total := len(all)
	all = slices.DeleteFunc(all, func(m *mutant) bool { return invalid[m] })
	o.say("%d mutants, and %d that do not compile; building and measuring the tests\n", len(all), total-len(all))
	kept := cache{filepath.Join(p.root, o.cache)}
	if filepath.IsAbs(o.cache) {
		kept.dir = o.cache
	}
	texts := map[string]string{}
	for _, s := range schemas {
		maps.Copy(texts, s.texts)
	}
	replace, err := plant.Overlay(p.root, instrumented, texts)
	if err != nil {
		return nil, nil, err
	}
	h := &hunt{
		temp: temp, each: o.each, say: o.say, lenient: o.lenient, kept: kept, passes: map[string]bool{}, killers: map[string]string{},
		record: map[string]*tally{}, scripts: scripts,
	}
	for i := range p.suites {
		if !o.runs(&p.suites[i]) {
			continue
		}
		prog, err := p.build(ctx, &p.suites[i], instrumented, "-overlay", replace)
		if err != nil {
			return nil, nil, err
		}
		units, err := prog.units(ctx, o.tests)
		if err != nil {
			return nil, nil, err
		}
		h.units = append(h.units, units...)
	}
	reach, err := p.measureReach(ctx, o, temp, kept, src.module)
	if err != nil {
		return nil, nil, err
	}
	if len(h.units) != len(reach.units) {
		return nil, nil, fmt.Errorf("the instrumented build has %d tests, and the other %d", len(h.units), len(reach.units))
	}
	for i, u := range reach.units {
		h.units[i].cost, h.units[i].flaky = u.cost, u.flaky
		if p := h.units[i].program; p.start == 0 || u.cost < p.start {
			p.start = u.cost
		}
	}
	h.reached = src.reached(all, reach)
	kept.load("killers", &h.killers)
	return h, all, nil
}

// all runs the mutants in an order that a seed says, while the budget lasts.
func (h *hunt) all(ctx context.Context, o *options, all []*mutant, known equivalents, before map[string]result, start time.Time) ([]result, error) {
	results := make([]result, len(all))
	var order []int
	for i, m := range all {
		results[i] = newResult(m)
		if why := known.reason(m); why != "" && !o.verify {
			results[i].Fate, results[i].Reason = equivalent, why
			continue
		}
		if r := before[m.key()]; r.Fate == killed {
			r.m = m
			results[i] = r
			continue
		}
		results[i].Fate = notRun
		order = append(order, i)
	}
	rand.New(rand.NewPCG(o.seed, 0)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	slices.SortStableFunc(order, func(i, j int) int { // first those that survived before
		return urgency(before[all[i].key()].Fate) - urgency(before[all[j].key()].Fate)
	})
	if o.sample > 0 {
		order = order[:min(o.sample, len(order))]
	}
	o.say("%.0f s to prepare; %d mutants to run\n", time.Since(start).Seconds(), len(order))
	var mu sync.Mutex
	done, alive, said := 0, 0, time.Now()
	err := each(ctx, o.workers, len(order), func(i int) error {
		if time.Since(start) > o.budget {
			return nil
		}
		m := all[order[i]]
		r, err := h.one(ctx, m)
		if err != nil {
			return err
		}
		if why := known.reason(m); why != "" {
			if r.Fate == killed {
				o.say("%s is listed as equivalent, and %s kills it\n", r.Key, r.Test)
			} else {
				r.Fate, r.Reason = equivalent, why
			}
		}
		mu.Lock()
		defer mu.Unlock()
		results[order[i]] = r
		done++
		if r.Fate == survived || r.Fate == notReached {
			alive++
			o.say("%s after %.1f s: line %d, %s\n", r.Fate, r.Took.Seconds(), r.Line, strings.ReplaceAll(r.Key, "\n", "\n    "))
		}
		if time.Since(said) > 30*time.Second {
			said = time.Now()
			o.say("%d of %d, %d alive, %.0f minutes\n", done, len(order), alive, time.Since(start).Minutes())
		}
		return nil
	})
	return results, err
}

// urgency orders mutants by what became of them before.
func urgency(f fate) int {
	if f == survived || f == notReached {
		return 0
	}
	return 1
}
