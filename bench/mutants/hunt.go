package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// fate is the result of a mutant.
type fate string

const (
	killed     fate = "killed"
	survived   fate = "survived"
	notReached fate = "not reached"
	equivalent fate = "equivalent"
	notRun     fate = "not run" // the budget was spent
)

// result is the report of one mutant.
type result struct {
	Key    string        `json:"mutant"`
	File   string        `json:"file"`
	Line   int           `json:"line"`
	Kind   string        `json:"kind"`
	New    string        `json:"new"`
	Fate   fate          `json:"fate"`
	Test   string        `json:"test,omitempty"` // test that killed it, after its folder
	Reason string        `json:"reason,omitempty"`
	Left   int           `json:"units_not_run,omitempty"` // units left when its time was over
	Took   time.Duration `json:"took_ns"`
}

// quick bounds the cost of tests that run together, without the start of their program.
const quick = 300 * time.Millisecond

// mostEach bounds the time of all tests of one mutant.
const mostEach = 40 * time.Second

// hunt runs mutants against the units that reach them.
type hunt struct {
	units   []*unit
	reached map[*mutant][]bool // by unit
	temp    string
	say     func(string, ...any)

	cleaning sync.Mutex
	passes   map[string]bool // units in the instrumented build, by name
}

// all runs the mutants, two at a time, while the budget lasts.
func (h *hunt) all(ctx context.Context, o *options, all []*mutant, known equivalents, before map[string]result, start time.Time) ([]result, error) {
	results := make([]result, len(all))
	var order []int
	for i, m := range all {
		results[i] = result{Key: m.key(), File: m.edit.File, Line: m.line, Kind: m.op, New: m.new, Fate: notRun}
		if why := known[m.key()]; why != "" && !o.verify {
			results[i].Fate, results[i].Reason = equivalent, why
		} else if r := before[m.key()]; r.Fate == killed {
			results[i].Fate, results[i].Test = killed, r.Test
		} else {
			order = append(order, i)
		}
	}
	o.say("%.0f s to prepare; %d mutants to run\n", time.Since(start).Seconds(), len(order))
	var mu sync.Mutex
	done, alive, said := 0, 0, time.Now()
	err := each(ctx, len(order), func(i int) error {
		if time.Since(start) > o.budget {
			return nil
		}
		r := results[order[i]]
		if err := h.one(ctx, all[order[i]], &r); err != nil {
			return err
		}
		if why := known[r.Key]; why != "" && r.Fate == killed {
			o.say("%s is listed as equivalent, and %s kills it\n", r.Key, r.Test)
		} else if why != "" {
			r.Fate, r.Reason = equivalent, why
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

// one runs units against a mutant until one kills it.
func (h *hunt) one(ctx context.Context, m *mutant, r *result) error {
	start := time.Now()
	defer func() { r.Took = time.Since(start) }()
	todo := h.toRun(m)
	r.Fate = survived
	if len(todo) == 0 {
		r.Fate = notReached
	}
	spent := time.Duration(0)
	for len(todo) > 0 {
		u := todo[0]
		todo = todo[1:]
		if spent > 0 && spent+u.cost > mostEach {
			r.Left++
			continue
		}
		spent += u.cost
		o, err := u.run(ctx, u.limit(), h.temp, m.id, nil)
		if err != nil {
			return err
		}
		if !o.failed {
			continue
		}
		if o.failed, err = h.proof(ctx, m, u, o); err != nil {
			return err
		} else if o.failed {
			r.Fate, r.Test = killed, u.suite.dir+" "+cmp.Or(o.test, u.test)
			return nil
		}
		h.say("line %d, %s: %s failed, and did not when it was asked again\n", m.line, m.op, cmp.Or(o.test, u.test))
		if rest := u.without(o.test); rest != nil { // tests that did not run after it
			todo = append(todo, rest)
		}
	}
	return nil
}

// toRun are the units that reach a mutant, the cheapest first, quick ones of a program as one.
func (h *hunt) toRun(m *mutant) []*unit {
	var all []*unit
	type kind struct {
		*program
		waits bool
	}
	groups := map[kind]*unit{}
	for i, u := range h.units {
		if !h.reached[m][i] {
			continue
		}
		own := u.cost - u.start
		if own > quick || len(u.args) > 0 {
			all = append(all, u)
			continue
		}
		k := kind{u.program, u.waits}
		g := groups[k]
		if g == nil {
			g = &unit{program: u.program, group: true, waits: u.waits, cost: u.start}
			groups[k] = g
			all = append(all, g)
		} else {
			g.test += "|"
		}
		g.test += u.test
		g.cost += own
	}
	slices.SortStableFunc(all, func(a, b *unit) int { return cmp.Compare(a.cost, b.cost) })
	return all
}

// without is a group without one of its tests, or nil if there are no others.
func (u *unit) without(test string) *unit {
	tests := strings.Split(u.test, "|")
	others := slices.DeleteFunc(slices.Clone(tests), func(t string) bool { return t == test })
	if !u.group || len(others) == 0 || len(others) == len(tests) {
		return nil
	}
	rest := *u
	rest.test = strings.Join(others, "|")
	return &rest
}

// clean tells whether the unit passes in the instrumented build without an active fault. It runs once, after the
// unit's first failure.
func (h *hunt) clean(ctx context.Context, u *unit) (bool, error) {
	h.cleaning.Lock()
	defer h.cleaning.Unlock()
	name := u.String()
	if h.passes[name] {
		return true, nil
	}
	var run outcome
	var err error
	for range 2 { // the failure may come from load
		if run, err = u.run(ctx, measureTime, h.temp, 0, nil); err != nil {
			return false, err
		}
		if !run.failed {
			h.passes[name] = true
			return true, nil
		}
	}
	return false, fmt.Errorf("%s fails in the instrumented build with no fault active: leave it out (suite.skip) if that is for its speed or its allocations, or mend it\n%s", u, run.output)
}

// proof tells whether a failure proves the fault: the test passes without it, and, if it keeps real time, fails
// with it once more.
func (h *hunt) proof(ctx context.Context, m *mutant, u *unit, o outcome) (bool, error) {
	if u.group {
		i := slices.IndexFunc(h.units, func(of *unit) bool { return of.program == u.program && of.test == o.test })
		if i < 0 {
			return true, nil // the program itself ended: no test is named
		}
		u = h.units[i]
	}
	if u.waits || o.hung { // it may be the load: once more
		again, err := u.run(ctx, u.limit(), h.temp, m.id, nil)
		if err != nil || !again.failed {
			return false, err
		}
	}
	return h.clean(ctx, u)
}

// each calls f with 0 to n-1, two at a time, until one fails.
func each(ctx context.Context, n int, f func(int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for i := range n {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return f(i)
		})
	}
	return g.Wait()
}
