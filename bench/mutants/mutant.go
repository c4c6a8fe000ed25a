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
	id   int // its number in the environment
	line int
	fn   string // the function that contains it, as (*account).settle; of a hand-made one, the idea
	op   string // kind of fault
	old  string // the changed lines, as one
	new  string
	nth  int // number among those with the same text in this function, from 1
	edit edit
}

// newMutant makes one fault of a file.
func newMutant(text, fn, op string, e edit) *mutant {
	m := &mutant{line: lineOf(text, e.Start), fn: fn, op: op, edit: e}
	m.old, m.new = shown(text, e)
	return m
}

// key names a mutant by its text, and not by its place, because lines move.
func (m *mutant) key() string {
	name := m.edit.File + " " + m.fn
	if m.nth > 1 {
		name += fmt.Sprintf(" #%d", m.nth)
	}
	return name + "\n- " + m.old + "\n+ " + m.new
}

// shown is the text of an edit's lines, before and after, each as one line.
func shown(text string, e edit) (before, after string) {
	from := strings.LastIndexByte(text[:e.Start], '\n') + 1
	to := len(text)
	if i := strings.IndexByte(text[e.End:], '\n'); i >= 0 {
		to = e.End + i
	}
	return oneLine(text[from:to]), oneLine(text[from:e.Start] + e.Text + text[e.End:to])
}

// longest is how much of a line is shown and part of a mutant's key.
const longest = 220

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > longest {
		s = s[:longest-23] + " ... " + s[len(s)-18:]
	}
	return s
}

func lineOf(text string, offset int) int { return 1 + strings.Count(text[:offset], "\n") }
