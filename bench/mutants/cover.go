package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reach tells which units run which parts of the source.
type reach struct {
	blocks map[string][]block // by file
	by     map[block][]bool   // by unit
	units  []*unit
}

// block is a part of a file that runs as a whole, from one line and column to another.
type block struct {
	file                   string
	line0, col0, line1, c1 int
}

func (b *block) contains(line, col int) bool {
	return (b.line0 < line || b.line0 == line && b.col0 <= col) && (line < b.line1 || line == b.line1 && col <= b.c1)
}

func (b *block) size() int { return (b.line1-b.line0)*1000 + b.c1 - b.col0 }

var profileLine = regexp.MustCompile(`^(.+):(\d+)\.(\d+),(\d+)\.(\d+) \d+ (\d+)$`)

// measure is the result of a unit's run without a fault.
type measure struct {
	Cost    time.Duration
	Covered map[string]bool // by the lines of its profile, without the count
}

// measureTime bounds such a run.
const measureTime = 5 * time.Minute

// measureReach runs each unit once, in binaries that measure coverage.
func (p *plan) measureReach(ctx context.Context, temp string, kept cache, modulePath string) (*reach, error) {
	into := filepath.Join(temp, "cover")
	if err := os.MkdirAll(into, 0o755); err != nil {
		return nil, err
	}
	var patterns []string
	for _, d := range p.packages() {
		patterns = append(patterns, "./"+d)
	}
	units, err := p.units(ctx, into, "-cover", "-covermode=set", "-coverpkg="+strings.Join(patterns, ","))
	if err != nil {
		return nil, err
	}
	r := &reach{blocks: map[string][]block{}, by: map[block][]bool{}, units: units}
	measures := make([]measure, len(r.units))
	err = each(ctx, len(r.units), func(i int) error {
		u := r.units[i]
		name := fmt.Sprintf("reach-%s-%x", u.checksum, u.String())
		if kept.load(name, &measures[i]) {
			return nil
		}
		file := filepath.Join(into, fmt.Sprintf("%d.cover", i))
		run, err := u.run(ctx, measureTime, temp, 0, []string{"-test.coverprofile", file})
		if err != nil {
			return err
		}
		if run.failed { // once more: the failure may come from load
			if run, err = u.run(ctx, measureTime, temp, 0, []string{"-test.coverprofile", file}); err != nil {
				return err
			}
		}
		if run.failed {
			return fmt.Errorf("%s fails without any fault: mend it first\n%s", u, run.output)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		measures[i] = measure{run.took, map[string]bool{}}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			at := strings.LastIndexByte(line, ' ')
			if at > 0 && profileLine.MatchString(line) {
				measures[i].Covered[line[:at]] = line[at+1:] != "0"
			}
		}
		return kept.store(name, measures[i])
	})
	if err != nil {
		return nil, err
	}
	for i, m := range measures {
		r.units[i].cost = m.Cost
		r.add(i, m.Covered, modulePath)
	}
	for _, all := range r.blocks {
		slices.SortFunc(all, func(a, b block) int { return cmp.Compare(a.size(), b.size()) })
	}
	return r, nil
}

// add adds the coverage of one unit.
func (r *reach) add(i int, profile map[string]bool, modulePath string) {
	for line, covered := range profile {
		m := profileLine.FindStringSubmatch(line + " 0")
		b := block{file: strings.TrimPrefix(m[1], modulePath+"/")}
		for j, n := range []*int{&b.line0, &b.col0, &b.line1, &b.c1} {
			*n, _ = strconv.Atoi(m[j+2])
		}
		if r.by[b] == nil {
			r.by[b] = make([]bool, len(r.units))
			r.blocks[b.file] = append(r.blocks[b.file], b)
		}
		r.by[b][i] = r.by[b][i] || covered
	}
}

// at returns the units that run the smallest block at a place. If there is none, it returns the units that run
// anything between two lines.
func (r *reach) at(file string, line, col, from, to int) []bool {
	set := make([]bool, len(r.units))
	merge := func(more []bool) {
		for i := range more {
			set[i] = set[i] || more[i]
		}
	}
	for _, b := range r.blocks[file] { // the smallest first
		if b.contains(line, col) {
			merge(r.by[b])
			return set
		}
	}
	for _, b := range r.blocks[file] {
		if from <= b.line0 && b.line1 <= to {
			merge(r.by[b])
		}
	}
	return set
}
