package main

import (
	"fmt"
	"strings"

	"github.com/sluice-gate/sluice/bench/plant"
)

// edit replaces a part of a file by other text.
type edit = plant.Edit

// mutant is one fault.
type mutant struct {
	id   int // what the environment says to have it
	line int
	fn   string // the function that it is in, as (*account).settle; of one by hand, what goes wrong
	op   string // what kind of fault it is
	old  string // the lines that it changes, in one
	new  string
	nth  int // of those that read the same in this function, from 1
	edit edit
}

// newMutant is one fault of a file.
func newMutant(text, fn, op string, e edit) *mutant {
	m := &mutant{line: lineOf(text, e.Start), fn: fn, op: op, edit: e}
	m.old, m.new = shown(text, e)
	return m
}

// key names a mutant by what it changes, and not by where: lines move.
func (m *mutant) key() string {
	name := m.edit.File + " " + m.fn
	if m.nth > 1 {
		name += fmt.Sprintf(" #%d", m.nth)
	}
	return name + "\n- " + m.old + "\n+ " + m.new
}

// shown is the lines that an edit changes, before and after, each as one line.
func shown(text string, e edit) (before, after string) {
	from := strings.LastIndexByte(text[:e.Start], '\n') + 1
	to := len(text)
	if i := strings.IndexByte(text[e.End:], '\n'); i >= 0 {
		to = e.End + i
	}
	return oneLine(text[from:to]), oneLine(text[from:e.Start] + e.Text + text[e.End:to])
}

// longest is how much of a line is shown, and is part of a mutant's key.
const longest = 220

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > longest {
		s = s[:longest-23] + " ... " + s[len(s)-18:]
	}
	return s
}

func lineOf(text string, offset int) int { return 1 + strings.Count(text[:offset], "\n") }
