package config

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Place is a position in a file. Lines and columns start at 1. The zero Place is the file as a
// whole.
type Place struct {
	File         string
	Line, Column int
}

// String is file:line:column, as in editors and compilers, or the file if there is no line.
func (p Place) String() string {
	if p.Line == 0 || p.Line == lastLine {
		return p.File
	}
	if p.Column == 0 { // the parser reports only the line
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// after is the place after some words, such as "; the first is at a.yaml:3:5", for messages; "" without a line, as in
// pushed rules.
func (p Place) after(words string) string {
	if p.Line == 0 {
		return ""
	}
	return words + p.String()
}

// Problem is an error or a warning with its place.
type Problem struct {
	Place   Place
	Message string
	Kind    Kind
}

// Kind is the type of a problem, for counts and filters.
type Kind string

// The kinds. Of these only Invalid keeps rules from being loaded.
const (
	Invalid     Kind = "invalid"     // the rules are refused
	NoEffect    Kind = "no-effect"   // a setting without effect
	ZeroLimit   Kind = "zero-limit"  // a limit without requests_per_unit
	NoLimit     Kind = "no-limit"    // a descriptor without a limit
	Hidden      Kind = "hidden"      // a rule whose requests all match an earlier rule
	Misread     Kind = "misread"     // a value that probably matches other requests than intended
	Ineffective Kind = "cannot-work" // settings that do not fit together
	SameName    Kind = "same-name"   // two rules with one name in statistics
	NoRules     Kind = "no-rules"    // rules without any limit
	NewName     Kind = "renamed"     // rules that seem renamed, whose usage starts from 0
	Range       Kind = "range"       // an address range as a value, which no address matches
)

// Fatal reports whether sluice check fails for the problem although a server loads the rules: they do
// the opposite of a limit.
func (k Kind) Fatal() bool { return k == Invalid || k == ZeroLimit || k == NoRules || k == Range }

// Kinds has all of them, with their meaning.
var Kinds = []struct {
	Kind    Kind
	Meaning string
}{
	{Invalid, "The rules are refused. The previous rules stay in force."},
	{NoEffect, "A setting without effect."},
	{ZeroLimit, "A limit without requests_per_unit. It is 0 and refuses every request."},
	{NoLimit, "A descriptor without a limit, which can keep another rule from applying."},
	{Hidden, "A rule that never applies, because another one matches its requests first."},
	{Misread, "A value that probably matches other requests than intended."},
	{Ineffective, "A valid setting that cannot do its task."},
	{SameName, "Two rules with the same name in metrics."},
	{NoRules, "Rules without any limit."},
	{NewName, "Rules that seem renamed. Their usage starts from 0."},
	{Range, "A value that is an address range. No address matches it."},
}

// Error is the place and the message.
func (p *Problem) Error() string { return p.Place.String() + ": " + p.Message }

// Bounds of reports.
const (
	maxProblems = 100 // reported at once
	maxMessage  = 500 // bytes of a problem, so that no error echoes a file
	maxName     = 200 // bytes of a file's name in messages
)

// Problems has all problems; as an error, one a line. Warnings are Problems, too.
type Problems []*Problem

// Error is all problems, one a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// sorted orders them by their place in the files. Joined lists can have more than maxProblems: the
// others are dropped.
func (ps Problems) sorted() Problems {
	slices.SortStableFunc(ps, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(a.Place.File, b.Place.File), cmp.Compare(a.Place.Line, b.Place.Line),
			cmp.Compare(a.Place.Column, b.Place.Column))
	})
	return ps[:min(len(ps), maxProblems+1)]
}

// add reports a problem, up to maxProblems: after these are corrected, the next check shows the
// others. A message has at most maxMessage bytes, so that logs and answers do not copy the content
// of files.
func (ps *Problems) add(at Place, format string, args ...any) {
	ps.addKind(Invalid, at, format, args...)
}

// addKind is add of a kind. After maxProblems it adds one more, which says that there are others.
func (ps *Problems) addKind(kind Kind, at Place, format string, args ...any) {
	switch {
	case len(*ps) > maxProblems:
		return
	case len(*ps) == maxProblems:
		at.Line, at.Column = lastLine, 0
		format, args = "there are more problems: correct these first", nil
	}
	at.File = cut(at.File, maxName)
	*ps = append(*ps, &Problem{at, cut(fmt.Sprintf(format, args...), maxMessage), kind})
}

// about reports a warning about the descriptor of that name: DOMAIN.KEY_VALUE.
func (ps *Problems) about(name string, kind Kind, at Place, format string, args ...any) {
	ps.addKind(kind, at, "%s: %s", cut(name, maxName), fmt.Sprintf(format, args...))
}

// lastLine sorts after every line: the message that there are more problems is the last of its file. String leaves it
// out.
const lastLine = math.MaxInt32

// cut bounds a text in bytes. Bytes of a character that was cut are left out.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-3], "") + "..."
}

// shorten bounds a value that a message repeats: it may be anything, and long.
func shorten(s string) string { return cut(s, 60) }
