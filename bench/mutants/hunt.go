package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/bench/plant"
)

// fate is what became of a mutant.
type fate string

const (
	killed     fate = "killed"
	survived   fate = "survived"
	notReached fate = "not reached"
	equivalent fate = "equivalent"
	notRun     fate = "not run" // the budget was spent
)

// result is one mutant's.
type result struct {
	Key     string        `json:"mutant"`
	File    string        `json:"file"`
	Line    int           `json:"line"`
	Func    string        `json:"function"`
	Kind    string        `json:"kind"`
	Old     string        `json:"old"`
	New     string        `json:"new"`
	Fate    fate          `json:"fate"`
	Test    string        `json:"test,omitempty"` // that killed it
	Suite   string        `json:"suite,omitempty"`
	How     string        `json:"how,omitempty"` // failed, panicked or hung
	Reason  string        `json:"reason,omitempty"`
	Left    int           `json:"units_not_run,omitempty"` // for the time that each may take
	Took    time.Duration `json:"took_ns"`
	Doubted int           `json:"doubted,omitempty"` // failures that a second run did not confirm
	m       *mutant
}

// Tests that cost no more than this besides the start of their program are run
// together: those that take next to nothing first, for most faults they find.
const (
	instantly = 30 * time.Millisecond
	quick     = 300 * time.Millisecond
)

// hunt runs mutants against the units that reach them.
type hunt struct {
	units   []*unit
	reached map[*mutant][]bool // by unit
	scripts map[*mutant]string // the file of a fault in Lua, with its name: see scriptVariable
	temp    string
	each    time.Duration // what one mutant may cost at most
	say     func(string, ...any)
	lenient bool
	kept    cache

	killers  map[string]string // the units that killed in the runs before, by mutant: they are run first
	cleaning sync.Mutex
	passes   map[string]bool // units in the instrumented build, by name

	mu     sync.Mutex
	record map[string]*tally // of units, and of units with a function
}

// tally is how often a unit was tried, and killed.
type tally struct{ tried, kills float64 }

// one runs one mutant until something kills it.
func (h *hunt) one(ctx context.Context, m *mutant) (result, error) {
	r := newResult(m)
	start := time.Now()
	defer func() { r.Took = time.Since(start) }()
	todo := h.toRun(m)
	if len(todo) == 0 {
		r.Fate = notReached
		return r, nil
	}
	if u := h.killer(m); u != nil {
		todo = append(todo, u)
	}
	r.Fate = survived
	spent := time.Duration(0)
	for len(todo) > 0 {
		i := h.next(m, todo)
		u := todo[i]
		todo = slices.Delete(todo, i, i+1)
		if spent > 0 && spent+u.cost > h.each {
			r.Left++
			continue
		}
		spent += u.cost
		o, err := u.run(ctx, u.limit(), h.temp, h.environment(m), nil)
		if err != nil {
			return r, err
		}
		if o.failed {
			if o.failed, err = h.proof(ctx, m, u, o); err != nil {
				return r, err
			} else if !o.failed {
				r.Doubted++
				h.say("line %d, %s: %s failed, and did not when it was asked again\n", m.line, m.op, cmp.Or(o.test, u.test))
				if rest := u.without(o.test); rest != nil { // which did not run after it
					todo = append(todo, rest)
				}
			}
		}
		h.learn(m, u, o.failed)
		if o.failed {
			r.Fate, r.Test, r.How = killed, cmp.Or(o.test, u.test), "failed"
			r.Suite = u.label(r.Test)
			h.remember(m, u, r.Test)
			if o.hung {
				r.How = "hung"
			} else if strings.Contains(o.output, "panic: ") {
				r.How = "panicked"
			}
			r.Took = time.Since(start)
			return r, nil
		}
	}
	r.Took = time.Since(start)
	return r, nil
}

func newResult(m *mutant) result {
	return result{Key: m.key(), File: m.file, Line: m.line, Func: m.fn, Kind: m.op, Old: m.old, New: m.new, Reason: m.why, m: m}
}

func (h *hunt) environment(m *mutant) []string {
	all := []string{fmt.Sprintf("%s=%d", plant.Variable, m.id)}
	if s := h.scripts[m]; s != "" {
		all = append(all, scriptVariable+"="+s)
	}
	return all
}

// toRun are the units that reach a mutant, quick ones of a program as one.
func (h *hunt) toRun(m *mutant) []*unit {
	var all []*unit
	type kind struct {
		*program
		waits bool
		tier  time.Duration
	}
	groups := map[kind]*unit{}
	for i, u := range h.units {
		if !h.reached[m][i] || u.flaky {
			continue
		}
		own := u.cost - u.start
		if own > quick || len(u.args) > 0 {
			all = append(all, u)
			continue
		}
		k := kind{u.program, u.waits, quick}
		if own <= instantly {
			k.tier = instantly
		}
		g := groups[k]
		if g == nil {
			g = &unit{program: u.program, group: k.tier, waits: u.waits, cost: u.start}
			groups[k] = g
			all = append(all, g)
		} else {
			g.test += "|"
		}
		g.test += u.test
		g.cost += own
	}
	return all
}

// without is a group less one of its tests; nil if there are no others.
func (u *unit) without(test string) *unit {
	tests := strings.Split(u.test, "|")
	others := slices.DeleteFunc(slices.Clone(tests), func(t string) bool { return t == test })
	if u.group == 0 || len(others) == 0 || len(others) == len(tests) {
		return nil
	}
	rest := *u
	rest.test = strings.Join(others, "|")
	return &rest
}

func (h *hunt) names(m *mutant, u *unit) (of, here string) {
	of = u.String()
	if u.group > 0 {
		of = fmt.Sprint(u.suite.dir, u.waits, u.group)
	}
	return of, of + " " + m.file + " " + m.fn
}

// killer is what has killed this mutant in a run before, if it is there still.
func (h *hunt) killer(m *mutant) *unit {
	h.mu.Lock()
	name := h.killers[m.key()]
	h.mu.Unlock()
	for i, u := range h.units {
		if h.reached[m][i] && !u.flaky && u.String() == name {
			first := *u
			first.known = true
			return &first
		}
	}
	return nil
}

func (h *hunt) remember(m *mutant, u *unit, test string) {
	name := u.String()
	if u.group > 0 {
		name = u.suite.dir + " " + test
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.killers[m.key()] = name
}

// next is the unit that is most likely to kill for its cost, by what was learnt.
func (h *hunt) next(m *mutant, todo []*unit) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	best, worth := 0, -1.0
	for i, u := range todo {
		if u.known {
			return i
		}
		of, here := h.names(m, u)
		chance := 0.2
		if m.alone() && u.label(u.test) == "comparison" { // that is what it is for
			chance = 0.9
		}
		if u.group > 0 { // one of many tests, each of which is about something else
			chance = 0.5
		}
		for _, name := range []string{of, here} {
			if t := h.record[name]; t != nil {
				chance = (t.kills + chance*2) / (t.tried + 2)
			}
		}
		if w := (chance + 0.01) / (u.cost.Seconds() + 0.05); w > worth {
			best, worth = i, w
		}
	}
	return best
}

func (h *hunt) learn(m *mutant, u *unit, killed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of, here := h.names(m, u)
	for _, name := range []string{of, here} {
		t := h.record[name]
		if t == nil {
			t = &tally{}
			h.record[name] = t
		}
		t.tried++
		if killed {
			t.kills++
		}
	}
}

// clean tells whether the unit passes in the instrumented build with no fault
// active. That is asked of a unit when it has found a fault, for before that it
// does not matter; and once.
func (h *hunt) clean(ctx context.Context, u *unit) (bool, error) {
	h.cleaning.Lock()
	defer h.cleaning.Unlock()
	name := fmt.Sprintf("passes-%s-%x", u.checksum, u.String())
	passes, known := h.passes[name]
	if known || h.kept.load(name, &passes) {
		h.passes[name] = passes
		return passes, nil
	}
	for range 2 { // it may not stand the load
		run, err := u.run(ctx, measureTime, h.temp, []string{plant.Variable + "=0"}, nil)
		if err != nil {
			return false, err
		}
		if passes = !run.failed; passes {
			break
		}
		if h.say("%s fails in the instrumented build with no fault active\n", u); !h.lenient {
			return false, fmt.Errorf("%s fails in the instrumented build with no fault active: leave it out (suite.skip) if that is for its speed or its allocations, or mend it\n%s", u, run.output)
		}
	}
	h.passes[name] = passes
	return passes, h.kept.store(name, passes)
}

// proof tells whether a failure says that the fault was found: the test passes
// without it, and, if it keeps real time, fails with it once more.
func (h *hunt) proof(ctx context.Context, m *mutant, u *unit, o outcome) (bool, error) {
	if u.group > 0 {
		i := slices.IndexFunc(h.units, func(of *unit) bool { return of.program == u.program && of.test == o.test })
		if i < 0 {
			return true, nil // the program itself ended: no test is named
		}
		u = h.units[i]
	}
	if u.waits || o.hung { // it may be the load: once more
		again, err := u.run(ctx, u.limit(), h.temp, h.environment(m), nil)
		if err != nil || !again.failed {
			return false, err
		}
	}
	return h.clean(ctx, u)
}

// writeScripts writes the text of each fault in Lua, and returns what the
// environment is to say.
func writeScripts(mutants []*mutant, texts map[string]string, into string) (map[*mutant]string, error) {
	files := map[*mutant]string{}
	for _, m := range mutants {
		name, text := m.scriptText(texts)
		if name == "" {
			continue
		}
		file := filepath.Join(into, fmt.Sprintf("%d.lua", m.id))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		files[m] = name + "=" + file
	}
	return files, nil
}

// scriptText is a script with the mutant's edits; "" if it has none.
func (m *mutant) scriptText(texts map[string]string) (name, text string) {
	var edits []edit
	for _, e := range m.edits {
		if strings.HasSuffix(e.File, ".lua") {
			name, edits = e.File, append(edits, e)
		}
	}
	if name == "" {
		return "", ""
	}
	slices.SortFunc(edits, func(a, b edit) int { return a.Start - b.Start })
	return name, plant.Applied(texts[name], edits)
}
