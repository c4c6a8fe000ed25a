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

	"github.com/sluice-gate/sluice/bench/plant"
)

// fate is what has become of a mutant.
type fate string

const (
	killed     fate = "killed"
	survived   fate = "survived"
	notReached fate = "not reached"
	equivalent fate = "equivalent"
	notRun     fate = "not run" // the budget was spent
)

// result is a mutant with its fate.
type result struct {
	*mutant
	fate fate
	test string // that killed it, after its folder
	left int    // units left when its time was over
}

// quick bounds the cost of tests that run together, without the start of their program.
const quick = 300 * time.Millisecond

// mostEach bounds the time of all tests of one mutant.
const mostEach = 40 * time.Second

// hunt runs mutants against the units that reach them.
type hunt struct {
	units []*unit
	temp  string
	say   func(string, ...any)
}

// all runs the mutants, two at a time, until an instant.
func (h *hunt) all(ctx context.Context, all []*mutant, until time.Time) ([]result, error) {
	results := make([]result, len(all))
	for i, m := range all {
		results[i] = result{mutant: m, fate: notRun}
	}
	var mu sync.Mutex
	done, alive, said := 0, 0, time.Now()
	err := each(ctx, len(all), func(i int) error {
		if time.Now().After(until) {
			return nil
		}
		r := result{mutant: all[i]}
		if err := h.one(ctx, &r); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		results[i] = r
		done++
		if r.fate != killed {
			alive++
			h.say("%s: line %d, %s\n", r.fate, r.line, strings.ReplaceAll(r.key(), "\n", "\n    "))
		}
		if time.Since(said) > 30*time.Second {
			said = time.Now()
			h.say("%d of %d, %d alive\n", done, len(all), alive)
		}
		return nil
	})
	return results, err
}

// one runs units against a mutant until one kills it: its test fails twice.
func (h *hunt) one(ctx context.Context, r *result) error {
	todo := h.toRun(r.mutant)
	r.fate = survived
	if len(todo) == 0 {
		r.fate = notReached
	}
	active := fmt.Sprintf("%s=%d", plant.Variable, r.id)
	for spent := time.Duration(0); len(todo) > 0; {
		u := todo[0]
		todo = todo[1:]
		if spent > 0 && spent+u.cost > mostEach {
			r.left++
			continue
		}
		spent += u.cost
		o, err := u.run(ctx, u.limit(), h.temp, active)
		if err != nil {
			return err
		}
		if !o.failed {
			continue
		}
		again, rest := *u, *u
		if slices.Contains(u.tests, o.test) {
			again.tests = []string{o.test}
			rest.tests = slices.DeleteFunc(slices.Clone(u.tests), func(t string) bool { return t == o.test })
		}
		second, err := again.run(ctx, u.limit(), h.temp, active)
		if err != nil {
			return err
		}
		if second.failed {
			r.fate, r.test = killed, u.suite.dir+" "+cmp.Or(o.test, u.tests[0])
			return nil
		}
		h.say("line %d, %s: %s failed, and did not when it ran again\n", r.line, r.op, cmp.Or(o.test, u.tests[0]))
		if len(rest.tests) > 0 && len(rest.tests) < len(u.tests) { // tests that did not run after it
			todo = append(todo, &rest)
		}
	}
	return nil
}

// toRun are the units that reach a mutant, the cheapest first, quick ones of a program as one.
func (h *hunt) toRun(m *mutant) (all []*unit) {
	groups := map[*program]*unit{}
	for _, u := range h.units {
		own := u.cost - u.start
		switch g := groups[u.program]; {
		case !u.reached[m.first]:
		case own > quick || len(u.args) > 0:
			all = append(all, u)
		case g == nil:
			g = &unit{program: u.program, tests: slices.Clone(u.tests), cost: u.cost}
			groups[u.program] = g
			all = append(all, g)
		default:
			g.tests, g.cost = append(g.tests, u.tests...), g.cost+own
		}
	}
	slices.SortStableFunc(all, func(a, b *unit) int { return cmp.Compare(a.cost, b.cost) })
	return all
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
