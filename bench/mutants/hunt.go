package main

import (
	"cmp"
	"context"
	"fmt"
	"path"
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

// one runs the tests that reach a mutant, those of its own package first, until one kills it.
func (h *hunt) one(ctx context.Context, r *result) error {
	r.fate = notReached
	spent := time.Duration(0)
	for _, p := range h.near(path.Dir(r.edit.File)) {
		if err := p.ready(); err != nil {
			return err
		}
		for todo := p.toRun(r.mutant); len(todo) > 0 && r.fate != killed; todo = todo[1:] {
			u := todo[0]
			r.fate = survived
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
		if r.fate == killed {
			return nil
		}
	}
	return nil
}

// near are all programs, that of a folder first.
func (h *hunt) near(dir string) []*program {
	all := slices.Clone(h.programs)
	if i := slices.IndexFunc(all, func(p *program) bool { return p.suite.dir == dir }); i > 0 {
		own := all[i]
		all = slices.Insert(slices.Delete(all, i, i+1), 0, own)
	}
	return all
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

// toRun are the units that reach a mutant, the cheapest first, quick ones as one.
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
