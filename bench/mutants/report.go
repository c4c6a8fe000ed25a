package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is the result of a run.
type report struct {
	Took    time.Duration `json:"took_ns"`
	Results []result      `json:"results"`
	Stale   []string      `json:"stale,omitempty"` // entries, and hand-made faults, that fit no source
}

// count is a row of the table.
type count struct {
	all int
	by  map[fate]int
}

func (c *count) add(r *result) {
	if c.by == nil {
		c.by = map[fate]int{}
	}
	c.all++
	c.by[r.Fate]++
}

// share is the percentage of killed mutants, without the equivalent ones.
func (c *count) share() float64 {
	could := c.by[killed] + c.by[survived] + c.by[notReached]
	if could == 0 {
		return 100
	}
	return 100 * float64(c.by[killed]) / float64(could)
}

// enough is the share of killed mutants below which a run fails.
const enough = 95

// verdict is the fault of the result, "" if there is none.
func (r *report) verdict() string {
	var total count
	hand := 0
	for i := range r.Results {
		total.add(&r.Results[i])
		if f := r.Results[i].Fate; r.Results[i].Kind == "by hand" && (f == survived || f == notReached) {
			hand++
		}
	}
	var wrong []string
	if s := total.share(); s < enough {
		wrong = append(wrong, fmt.Sprintf("%.1f %% of the mutants that are not equivalent were killed, and %d %% must be", s, enough))
	}
	if hand > 0 {
		wrong = append(wrong, fmt.Sprintf("%d faults made by hand survived, and none may", hand))
	}
	if len(r.Stale) > 0 {
		wrong = append(wrong, fmt.Sprintf("%d entries of the list of equivalent mutants, or faults made by hand, name none that there is: take them out, or write what is there now", len(r.Stale)))
	}
	return strings.Join(wrong, "; ")
}

// write prints the report as a table.
func (r *report) write(out io.Writer) {
	rows := map[string]*count{}
	var total count
	for i := range r.Results {
		x := &r.Results[i]
		name := x.File
		if x.Kind == "by hand" {
			name = "by hand"
		}
		if rows[name] == nil {
			rows[name] = &count{}
		}
		rows[name].add(x)
		total.add(x)
	}
	for _, x := range r.Results {
		if x.Fate == survived || x.Fate == notReached {
			note := ""
			if x.Left > 0 {
				note = fmt.Sprintf("; %d units not run, for its time", x.Left)
			}
			fmt.Fprintf(out, "# %s, line %d, %s%s\n%s\n\n", x.Fate, x.Line, x.Kind, note, x.Key)
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "mutants\tkilled\tsurvived\tnot reached\tequivalent\tnot run\tkilled of those that could be\t file\n")
	print := func(name string, c *count) {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%.1f %%\t %s\n", c.all, c.by[killed], c.by[survived], c.by[notReached], c.by[equivalent], c.by[notRun], c.share(), name)
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		print(name, rows[name])
	}
	print("all", &total)
	_ = w.Flush()
	for _, key := range r.Stale {
		fmt.Fprintf(out, "\nno such mutant:\n%s\n", key)
	}
	fmt.Fprintf(out, "\n%.0f minutes\n", r.Took.Minutes())
}

// save writes the report as JSON.
func (r *report) save(file string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}
