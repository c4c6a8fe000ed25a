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

// quick is the cost up to which tests are run together.
const quick = 300 * time.Millisecond

// hunt runs mutants against the units that reach them.
type hunt struct {
	units   []*unit
	reached map[*mutant][]bool // by unit
	scripts map[*mutant]string // the file of a fault in Lua, with its name: see scriptVariable
	temp    string
	each    time.Duration // what one mutant may cost at most

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
		if o.failed && u.waits { // it may be the load: once more
			again, err := u.run(ctx, u.limit(), h.temp, h.environment(m), nil)
			if err != nil {
				return r, err
			}
			if !again.failed {
				r.Doubted++
				o.failed = false
			}
		}
		h.learn(m, u, o.failed)
		if o.failed {
			r.Fate, r.Test, r.How = killed, cmp.Or(o.test, u.test), "failed"
			r.Suite = u.label(r.Test)
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
	all := []string{fmt.Sprintf("%s=%d", numberVariable, m.id)}
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
	}
	groups := map[kind]*unit{}
	for i, u := range h.units {
		if !h.reached[m][i] || u.flaky {
			continue
		}
		if u.cost > quick || len(u.args) > 0 {
			all = append(all, u)
			continue
		}
		k := kind{u.program, u.waits}
		g := groups[k]
		if g == nil {
			g = &unit{program: u.program, group: true, waits: u.waits}
			groups[k] = g
			all = append(all, g)
		} else {
			g.test += "|"
		}
		g.test += u.test
		g.cost += u.cost
	}
	return all
}

func (h *hunt) names(m *mutant, u *unit) (of, here string) {
	of = u.String()
	if u.group {
		of = fmt.Sprint(u.suite.dir, u.waits)
	}
	return of, of + " " + m.file + " " + m.fn
}

// next is the unit that is most likely to kill for its cost, by what was learnt.
func (h *hunt) next(m *mutant, todo []*unit) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	best, worth := 0, -1.0
	for i, u := range todo {
		of, here := h.names(m, u)
		chance := 0.2
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

// clean runs every unit with no fault, which says what it costs, and that the
// instrumented build is as good as the product.
func (h *hunt) clean(ctx context.Context, o *options, kept cache) error {
	type measured struct {
		Cost  time.Duration
		Flaky bool
	}
	return each(ctx, o.workers, len(h.units), func(i int) error {
		u := h.units[i]
		name := fmt.Sprintf("clean-%s-%x", u.checksum, u.String())
		var m measured
		if kept.load(name, &m) {
			u.cost, u.flaky = m.Cost, m.Flaky
			return nil
		}
		run, err := u.run(ctx, measureTime, h.temp, []string{numberVariable + "=0"}, nil)
		if err != nil {
			return err
		}
		if run.failed {
			again, err := u.run(ctx, measureTime, h.temp, []string{numberVariable + "=0"}, nil)
			if err != nil {
				return err
			}
			if again.failed && !o.lenient {
				return fmt.Errorf("%s fails in the instrumented build with no fault active: leave it out (suite.skip) if that is for its speed or its allocations, or mend it\n%s", u, again.output)
			}
			o.say("%s failed without any fault: it is left out of this run\n", u)
			u.flaky = true
		}
		u.cost = run.took
		return kept.store(name, measured{u.cost, u.flaky})
	})
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
		if strings.HasSuffix(e.file, ".lua") {
			name, edits = e.file, append(edits, e)
		}
	}
	if name == "" {
		return "", ""
	}
	slices.SortFunc(edits, func(a, b edit) int { return a.start - b.start })
	return name, applied(texts[name], edits)
}
