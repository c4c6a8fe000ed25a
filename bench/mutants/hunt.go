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
	programs []*program
	temp     string
	say      func(string, ...any)
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

// one runs the tests that reach a mutant.
func (h *hunt) one(ctx context.Context, r *result) error {
	todo, err := h.toRun(r.mutant)
	if err != nil {
		return err
	}
	r.fate = notReached
	for spent := time.Duration(0); len(todo) > 0 && r.fate != killed; {
		u := todo[0]
		todo, r.fate = todo[1:], survived
		if spent > 0 && spent+u.cost > mostEach {
			r.left++
			continue
		}
		spent += u.cost
		rest, err := h.try(ctx, u, r)
		if err != nil {
			return err
		}
		todo = append(todo, rest...)
	}
	return nil
}

// toRun are the units that reach a mutant: quick ones, then those that play much, then the cheapest.
func (h *hunt) toRun(m *mutant) (all []*unit, err error) {
	for _, p := range h.programs {
		if err := p.ready(); err != nil {
			return nil, err
		}
		all = append(all, p.toRun(m)...)
	}
	slices.SortStableFunc(all, func(a, b *unit) int { return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.cost, b.cost)) })
	return all, nil
}

// try runs a unit against a mutant. A test that fails twice kills it. If one fails once, rest are the tests of the
// unit that have not run after it.
func (h *hunt) try(ctx context.Context, u *unit, r *result) (rest []*unit, err error) {
	active := fmt.Sprintf("%s=%d", plant.Variable, r.id)
	o, err := u.run(ctx, u.limit(), h.temp, active)
	if err != nil || !o.failed {
		return nil, err
	}
	again, others := *u, *u
	if slices.Contains(u.tests, o.test) {
		again.tests = []string{o.test}
		others.tests = slices.DeleteFunc(slices.Clone(u.tests), func(t string) bool { return t == o.test })
	}
	second, err := again.run(ctx, u.limit(), h.temp, active)
	if err != nil {
		return nil, err
	}
	if second.failed {
		r.fate, r.test = killed, u.suite.dir+" "+cmp.Or(o.test, u.tests[0])
		return nil, nil
	}
	h.say("line %d, %s: %s failed, and did not when it ran again\n", r.line, r.op, cmp.Or(o.test, u.tests[0]))
	if len(others.tests) == 0 || len(others.tests) == len(u.tests) {
		return nil, nil
	}
	return []*unit{&others}, nil
}

// toRun are the program's units that reach a mutant, quick ones as one.
func (p *program) toRun(m *mutant) (all []*unit) {
	group := &unit{program: p, cost: p.start}
	for _, u := range p.units {
		own := u.cost - p.start
		switch {
		case !u.reached[m.first]:
		case own > quick || len(u.args) > 0:
			all = append(all, u)
		default:
			group.tests, group.cost = append(group.tests, u.tests...), group.cost+own
		}
	}
	if len(group.tests) > 0 {
		all = append(all, group)
	}
	return all
}

// rank orders units by how much they find for their time.
func (u *unit) rank() int {
	switch {
	case len(u.tests) > 1:
		return 0
	case len(u.args) > 0:
		return 1
	}
	return 2
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
