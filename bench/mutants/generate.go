package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/bench/plant"
)

// source is what is mutated.
type source struct {
	packages map[string]*goPackage // by folder
	module   string                // its path
}

// read loads what the plan names.
func (p *plan) read() (*source, error) {
	s := &source{packages: map[string]*goPackage{}}
	for _, dir := range p.packages() {
		pkg, err := load(p.root, dir)
		if err != nil {
			return nil, err
		}
		s.packages[dir] = pkg
		s.module = strings.TrimSuffix(pkg.path, "/"+dir)
	}
	return s, nil
}

func (s *source) file(name string) *goFile {
	if pkg := s.packages[path.Dir(name)]; pkg != nil {
		return pkg.file(name)
	}
	return nil
}

// mutants are all faults of the plan's files, and those made by hand, each with
// its number. What is wrong with a fault made by hand that the source has moved
// away from is in misfits: the others are run all the same.
func (s *source) mutants(files []string, byHands []byHand) (all []*mutant, misfits []string, err error) {
	for _, name := range files {
		f := s.file(name)
		if f == nil {
			return nil, nil, fmt.Errorf("%s is no file of its package on this system", name)
		}
		all = append(all, s.packages[path.Dir(name)].faults(f)...)
	}
	all = distinct(all)
	for _, b := range byHands {
		f := s.file(b.File)
		if f == nil {
			misfits = append(misfits, fmt.Sprintf("%q is to change %s, which is not among the files to mutate", b.Name, b.File))
			continue
		}
		e, err := plant.Replace(b.File, f.Text, b.Right, b.Wrong)
		if err == nil && f.FunctionAt(e.Start, e.End) == nil {
			err = fmt.Errorf("the text in %s is in no function", b.File)
		}
		if err != nil {
			misfits = append(misfits, fmt.Sprintf("%q: %v", b.Name, err))
			continue
		}
		all = append(all, newMutant(f.Text, b.Name, "by hand", e))
	}
	for i, m := range all {
		m.id = i + 1
	}
	return all, misfits, nil
}

// distinct leaves out what changes nothing, and what another changes alike; what reads alike in one function gets an
// ordinal.
func distinct(all []*mutant) (kept []*mutant) {
	seen, alike := map[edit]bool{}, map[string]int{}
	for _, m := range all {
		if m.old == m.new || seen[m.edit] {
			continue
		}
		seen[m.edit] = true
		k := m.key()
		alike[k]++
		m.nth = alike[k]
		kept = append(kept, m)
	}
	return kept
}

// reached says which units run into each mutant.
func (s *source) reached(all []*mutant, r *reach) map[*mutant][]bool {
	sets := map[*mutant][]bool{}
	for _, m := range all {
		f := s.file(m.edit.File)
		fn := f.FunctionAt(m.edit.Start, m.edit.End)
		col := m.edit.Start - strings.LastIndexByte(f.Text[:m.edit.Start], '\n')
		sets[m] = r.at(f.Name, lineOf(f.Text, m.edit.Start), col, lineOf(f.Text, f.At.Offset(fn.Pos())), lineOf(f.Text, f.At.Offset(fn.End())))
	}
	return sets
}

// thinned keeps so many percent of a file's mutants, always the same ones: the
// choice hangs on what each changes and not on where it is.
func thinned(all []*mutant, percent map[string]int) []*mutant {
	return slices.DeleteFunc(all, func(m *mutant) bool {
		keep, some := percent[m.edit.File]
		return some && m.op != "by hand" && xxhash.Sum64String(m.key())%100 >= uint64(keep)
	})
}
