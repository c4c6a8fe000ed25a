package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Place is where something stands in a file; lines and columns start at 1.
// The zero Place is the file as a whole.
type Place struct {
	File         string
	Line, Column int
}

func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Problem is one thing wrong at one place.
type Problem struct {
	Place   Place
	Message string
}

func (p *Problem) Error() string { return p.Place.String() + ": " + p.Message }

// Problems are all that is wrong; as an error, one a line.
type Problems []*Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// sorted orders them as a reader of the files would find them.
func (ps Problems) sorted() Problems {
	slices.SortStableFunc(ps, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(a.Place.File, b.Place.File), cmp.Compare(a.Place.Line, b.Place.Line), cmp.Compare(a.Place.Column, b.Place.Column))
	})
	return ps
}

func (ps *Problems) add(at Place, format string, args ...any) {
	*ps = append(*ps, &Problem{at, fmt.Sprintf(format, args...)})
}
