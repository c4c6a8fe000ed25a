package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/bench/plant"
)

// source is the code to mutate.
type source struct {
	packages map[string]*goPackage // by folder
	module   string                // its module path
}

// read loads the files of the plan.
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

// mutants are all faults of the plan's files, and the hand-made ones, each with its number. misfits lists hand-made
// faults that no longer fit the source. The others run all the same.
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

// distinct drops mutants that change nothing, or change the same as another. Mutants of a function with the same
// text get an ordinal.
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

// reached tells which units reach each mutant.
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

// thinned keeps a percentage of a file's mutants, always the same ones: the choice depends on their text, and not
// on their place.
func thinned(all []*mutant, percent map[string]int) []*mutant {
	return slices.DeleteFunc(all, func(m *mutant) bool {
		keep, some := percent[m.edit.File]
		return some && m.op != "by hand" && xxhash.Sum64String(m.key())%100 >= uint64(keep)
	})
}
