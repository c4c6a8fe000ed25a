package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/bench/plant"
)

// options are the settings of a run.
type options struct {
	files   string // patterns of files, of the plan's; all if empty
	only    string // a pattern of keys
	percent uint64 // of the mutants
	budget  time.Duration
	list    bool
	known   string
	out     io.Writer
	say     func(string, ...any) // of progress
}

func main() {
	o := options{known: "equivalent.txt", out: os.Stdout}
	o.say = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format, args...) }
	flag.StringVar(&o.files, "files", "", "mutate only these `files`, with commas between; the default is all")
	flag.StringVar(&o.only, "only", "", "run only mutants whose kind, file, function, old or new line match this `pattern`")
	flag.Uint64Var(&o.percent, "percent", 30, "run this part of the mutants, always the same ones: as many as fit into an hour")
	flag.DurationVar(&o.budget, "budget", time.Hour, "begin no mutant after this time")
	flag.BoolVar(&o.list, "list", false, "list the mutants, and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := filepath.Abs("../..") // of the product's module
	if err == nil {
		thePlan.root = root
		_, err = thePlan.run(ctx, &o, allByHand)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

// load loads the packages of the plan's files, by folder.
func (p *plan) load() (map[string]*goPackage, error) {
	packages := map[string]*goPackage{}
	for _, f := range p.files {
		dir := path.Dir(f)
		if packages[dir] != nil {
			continue
		}
		pkg, err := load(p.root, dir)
		if err != nil {
			return nil, err
		}
		packages[dir] = pkg
	}
	return packages, nil
}

// run does the work of the options. It returns an error if the report is not good enough.
func (p *plan) run(ctx context.Context, o *options, byHands []byHand) (*report, error) {
	known, err := readEquivalents(o.known)
	if err != nil {
		return nil, err
	}
	packages, err := p.load()
	if err != nil {
		return nil, err
	}
	all, misfits, err := p.mutants(packages, byHands)
	if err != nil {
		return nil, err
	}
	r := &report{stale: append(known.stale(all), misfits...)}
	all, err = p.wanted(o, all)
	if err != nil {
		return nil, err
	}
	if o.list {
		for _, m := range all {
			fmt.Fprintf(o.out, "# line %d, %s\n%s\n\n", m.line, m.op, m.key())
		}
		return r, nil
	}
	all = slices.DeleteFunc(all, func(m *mutant) bool {
		if !known[m.key()] {
			return false
		}
		r.results = append(r.results, result{mutant: m, fate: equivalent})
		return true
	})
	temp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	h := &hunt{temp: temp, say: o.say}
	all, err = p.prepare(ctx, h, packages, all)
	if err != nil {
		return nil, err
	}
	results, err := h.all(ctx, all, time.Now().Add(o.budget))
	if err != nil && ctx.Err() == nil {
		return nil, err
	}
	r.results = append(r.results, results...)
	r.write(o.out) // also when it was interrupted
	if ctx.Err() != nil {
		return r, errors.New("interrupted")
	}
	if wrong := r.verdict(); wrong != "" {
		return r, errors.New(wrong)
	}
	return r, nil
}

// wanted are the mutants that the options select, in an order by chance, which is always the same: those by hand
// first. The choice depends on their text, and not on their place.
func (p *plan) wanted(o *options, all []*mutant) ([]*mutant, error) {
	files, err := p.chosen(o.files)
	if err != nil {
		return nil, err
	}
	pattern, err := regexp.Compile(o.only)
	if err != nil {
		return nil, fmt.Errorf("-only %q: %w", o.only, err)
	}
	chance := func(m *mutant) uint64 {
		if m.op == byHandKind {
			return 0
		}
		return xxhash.Sum64String(m.key())
	}
	all = slices.DeleteFunc(all, func(m *mutant) bool {
		return chance(m)%100 >= o.percent || !slices.Contains(files, m.edit.File) || !pattern.MatchString(m.op+"\n"+m.key())
	})
	slices.SortStableFunc(all, func(a, b *mutant) int { return cmp.Compare(chance(a), chance(b)) })
	return all, nil
}

// prepare writes the sources with all mutants, and drops mutants that do not compile.
func (p *plan) prepare(ctx context.Context, h *hunt, packages map[string]*goPackage, all []*mutant) ([]*mutant, error) {
	if len(all) == 0 {
		return nil, errors.New("no mutant is selected: -list shows what -files, -only and -percent leave")
	}
	for i, m := range all {
		m.id = i + 1
	}
	texts, invalid := map[string]string{}, map[*mutant]string{}
	for _, pkg := range packages {
		more, bad, err := pkg.instrument(all)
		if err != nil {
			return nil, err
		}
		maps.Copy(texts, more)
		maps.Copy(invalid, bad)
	}
	for m, why := range invalid {
		if m.op == byHandKind {
			return nil, fmt.Errorf("%q does not compile: %s", m.fn, why)
		}
	}
	all = slices.DeleteFunc(all, func(m *mutant) bool { return invalid[m] != "" })
	h.say("%d mutants, and %d that do not compile\n", len(all), len(invalid))
	overlay, err := plant.Overlay(p.root, h.temp, texts)
	if err != nil {
		return nil, err
	}
	h.programs = p.programs(ctx, overlay, h.temp)
	return all, nil
}
