package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// source is the mutated code: packages, and the text of each file.
type source struct {
	packages map[string]*goPackage // by folder
	texts    map[string]string     // by file
	module   string                // its path
}

// read loads what the plan names.
func (p *plan) read() (*source, error) {
	s := &source{packages: map[string]*goPackage{}, texts: map[string]string{}}
	for _, dir := range p.packages() {
		pkg, err := load(p.root, dir)
		if err != nil {
			return nil, err
		}
		s.packages[dir] = pkg
		s.module = strings.TrimSuffix(pkg.path, "/"+dir)
	}
	for _, name := range p.files {
		text, err := os.ReadFile(filepath.Join(p.root, name))
		if err != nil {
			return nil, fmt.Errorf("a file to mutate: %w", err)
		}
		s.texts[name] = string(text)
	}
	return s, nil
}

// mutants are all faults of the plan's files, and those made by hand, each with its number. misfits has the
// faults by hand whose source has changed: the others are run all the same.
func (s *source) mutants(files []string, byHands []byHand) (all []*mutant, misfits []string, err error) {
	for _, name := range files {
		if strings.HasSuffix(name, ".lua") {
			found, err := luaFaults(name, s.texts[name])
			if err != nil {
				return nil, nil, err
			}
			all = append(all, found...)
			continue
		}
		pkg := s.packages[path.Dir(name)]
		f := pkg.file(name)
		if f == nil {
			return nil, nil, fmt.Errorf("%s is no file of its package on this system", name)
		}
		all = append(all, pkg.faults(f)...)
	}
	all = distinct(all)
	number(all)
	pairs := twins(all, s.texts)
	number(pairs)
	all = append(all, pairs...)
	for i := range byHands {
		m, err := byHands[i].mutant(s.packages, s.texts)
		if err != nil {
			misfits = append(misfits, err.Error())
			continue
		}
		all = append(all, m)
	}
	for i, m := range all {
		m.id = i + 1
	}
	return all, misfits, nil
}

// distinct leaves out what changes nothing, and what another changes alike.
func distinct(all []*mutant) []*mutant {
	seen := map[string]bool{}
	var kept []*mutant
	for _, m := range all {
		text := fmt.Sprint(m.edits, m.consts)
		if m.old == m.new || seen[text] {
			continue
		}
		seen[text] = true
		kept = append(kept, m)
	}
	return kept
}

// reached says which units run into each mutant.
func (s *source) reached(all []*mutant, r *reach) map[*mutant][]bool {
	sets := map[*mutant][]bool{}
	scripts := map[string][]bool{}
	for _, pkg := range s.packages {
		for _, e := range pkg.scripts() {
			scripts[e.file] = make([]bool, len(r.units))
			pkg.reachScript(r, e, scripts[e.file])
		}
	}
	for _, m := range all {
		set := make([]bool, len(r.units))
		for _, e := range m.edits {
			if strings.HasSuffix(e.File, ".lua") {
				merge(set, scripts[e.File])
				continue
			}
			f := s.packages[path.Dir(e.File)].file(e.File)
			fn := f.FunctionAt(e.Start, e.End)
			line, col := place(f.Text, e.Start)
			r.at(set, e.File, line, col, lineOf(f.Text, f.At.Offset(fn.Pos())), lineOf(f.Text, f.At.Offset(fn.End())))
		}
		sets[m] = set
	}
	return sets
}

// place is a byte's line and column, from 1.
func place(text string, offset int) (line, col int) {
	return lineOf(text, offset), offset - strings.LastIndexByte(text[:offset], '\n')
}

// reachScript adds the units that run a function which names the script.
func (p *goPackage) reachScript(r *reach, e embedded, set []bool) {
	for _, f := range p.files {
		for _, fn := range f.Functions() {
			body := f.Source(fn.Body)
			if strings.Contains(body, e.script+".") || strings.Contains(body, e.script+",") || strings.Contains(body, e.text+",") {
				line, col := place(f.Text, f.At.Offset(fn.Body.Pos())+1)
				r.at(set, f.Name, line, col, line, lineOf(f.Text, f.At.Offset(fn.End())))
			}
		}
	}
}

// thinned keeps so many percent of a file's mutants, always the same ones: the
// choice hangs on what each changes and not on where it is.
func thinned(all []*mutant, percent map[string]int) []*mutant {
	return slices.DeleteFunc(all, func(m *mutant) bool {
		keep, some := percent[m.file]
		return some && m.op != "by hand" && xxhash.Sum64String(m.key())%100 >= uint64(keep)
	})
}
