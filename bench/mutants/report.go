package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// report is the result of a run.
type report struct {
	results []result
	stale   []string // entries, and hand-made faults, that fit no source
}

// count is how many mutants have each fate.
type count map[fate]int

func (c count) all() (n int) {
	for _, of := range c {
		n += of
	}
	return n
}

// share is the percentage of killed mutants, without the equivalent ones.
func (c count) share() float64 {
	could := c[killed] + c[survived] + c[notReached]
	if could == 0 {
		return 100
	}
	return 100 * float64(c[killed]) / float64(could)
}

// counts are by file, and of all.
func (r *report) counts() (by map[string]count, total count) {
	by, total = map[string]count{}, count{}
	for _, x := range r.results {
		name := x.edit.File
		if x.op == byHandKind {
			name = byHandKind
		}
		if by[name] == nil {
			by[name] = count{}
		}
		by[name][x.fate]++
		total[x.fate]++
	}
	return by, total
}

// enough is the share of killed mutants below which a run fails.
const enough = 95

// verdict is the fault of the result, "" if there is none.
func (r *report) verdict() string {
	by, total := r.counts()
	var wrong []string
	if s := total.share(); s < enough {
		wrong = append(wrong, fmt.Sprintf("%.1f %% of the mutants that are not equivalent were killed, and %d %% must be", s, enough))
	}
	if hand := by[byHandKind]; hand[survived]+hand[notReached] > 0 {
		wrong = append(wrong, fmt.Sprintf("%d faults made by hand survived, and none may", hand[survived]+hand[notReached]))
	}
	if len(r.stale) > 0 {
		wrong = append(wrong, fmt.Sprintf("%d entries of the list of equivalent mutants, or faults made by hand, name none that there is: take them out, or write what is there now", len(r.stale)))
	}
	return strings.Join(wrong, "; ")
}

// write prints the report as a table.
func (r *report) write(out io.Writer) {
	for _, x := range r.results {
		if x.fate == survived || x.fate == notReached {
			note := ""
			if x.left > 0 {
				note = fmt.Sprintf("; %d units not run, for its time", x.left)
			}
			fmt.Fprintf(out, "# %s, line %d, %s%s\n%s\n\n", x.fate, x.line, x.op, note, x.key())
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fates := []fate{killed, survived, notReached, equivalent, notRun}
	fmt.Fprintf(w, "mutants\t")
	for _, f := range fates {
		fmt.Fprintf(w, "%s\t", f)
	}
	fmt.Fprintf(w, "killed of those that could be\t file\n")
	by, total := r.counts()
	print := func(name string, c count) {
		fmt.Fprintf(w, "%d\t", c.all())
		for _, f := range fates {
			fmt.Fprintf(w, "%d\t", c[f])
		}
		fmt.Fprintf(w, "%.1f %%\t %s\n", c.share(), name)
	}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		print(name, by[name])
	}
	print("all", total)
	_ = w.Flush()
	for _, key := range r.stale {
		fmt.Fprintf(out, "\nno such mutant:\n%s\n", key)
	}
}
