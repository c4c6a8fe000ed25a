package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Measurement is options, whose fields are flags, and what is measured with them.
type Measurement interface {
	Given() *Setup
	Examples() string // command lines
	Measure(ctx context.Context) (Result, error)
}

// Result is what was measured. It is printed as JSON, or as its page.
type Result interface {
	Page() *Page
	Problems() error // what must not be
}

// Setup is what a measurement is given. Options embed it.
type Setup struct {
	Binary   string                          `kong:"-"` // sluice
	Lab      string                          `kong:"-"` // sluicelab, which runs what sluice is compared with
	Progress func(done, of int, what string) `kong:"-"` // nil: none
	told     int
}

// Given implements [Measurement].
func (s *Setup) Given() *Setup { return s }

// Tell says what is measured next.
func (s *Setup) Tell(of int, what string) {
	if s.Progress != nil {
		s.Progress(s.told, of, what)
	}
	s.told++
}

// Bounds are all problems with options, each with its value and its bound.
type Bounds []error

// Check notes each field of options whose value, or one of whose values, is outside of its tag `in:"least..most"`.
func (b *Bounds) Check(options any) {
	v := reflect.ValueOf(options).Elem()
	for i := range v.NumField() {
		field, f := v.Type().Field(i), v.Field(i)
		bounds := field.Tag.Get("in")
		if bounds == "" {
			continue
		}
		all := []reflect.Value{f}
		if f.Kind() == reflect.Slice {
			all = nil
			for j := range f.Len() {
				all = append(all, f.Index(j))
			}
		}
		for _, one := range all {
			if !within(one, bounds) {
				b.Refuse(flag(field.Name), one.Interface(), strings.Replace(bounds, "..", " to ", 1))
			}
		}
	}
}

// within reports whether a number or a duration is within bounds; NaN is not.
func within(v reflect.Value, bounds string) bool {
	least, most, _ := strings.Cut(bounds, "..")
	number := func(text string) float64 {
		if d, err := time.ParseDuration(text); err == nil {
			return float64(d)
		}
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			panic(err) // tags are ours
		}
		return n
	}
	is := v.Convert(reflect.TypeFor[float64]()).Float()
	return is >= number(least) && is <= number(most)
}

// flag is the name that kong gives to a field: --max-keys, of MaxKeys.
func flag(field string) string {
	return "-" + regexp.MustCompile("[A-Z]").ReplaceAllStringFunc(field, func(c string) string { return "-" + strings.ToLower(c) })
}

// Refuse notes a flag.
func (b *Bounds) Refuse(flag string, value any, must string) {
	*b = append(*b, fmt.Errorf("%s is %v, must be %s", flag, value, must))
}

// Choose returns what a flag names of all, or all if it names nothing. It notes other names.
func Choose[T any](b *Bounds, flag string, named []string, all []T, name func(*T) string) (chosen []T) {
	names := make([]string, len(all))
	for i := range all {
		names[i] = name(&all[i])
		if len(named) == 0 || slices.Contains(named, names[i]) {
			chosen = append(chosen, all[i])
		}
	}
	for _, n := range named {
		if !slices.Contains(names, n) {
			b.Refuse(flag, n, "one of "+strings.Join(names, ", "))
		}
	}
	return chosen
}

// Err is all of it.
func (b Bounds) Err() error { return errors.Join(b...) }

// Check checks the fields of options, and nothing else.
func Check(options any) error {
	var b Bounds
	b.Check(options)
	return b.Err()
}

// Rows is a table with a column for each field that has a tag `col:"head"` or `col:"head|format"`. Durations are in
// milliseconds, and a format with %% makes a part a percentage. A struct's columns begin with the head of its field.
// A column of zeros is left out if its field is `json:",omitempty"`. Rows whose field Problem has a text are beyond
// their bound.
func Rows[T any](title string, rows []T, notes ...string) Table {
	t := Table{Title: title, Notes: notes, Rows: make([]Row, len(rows))}
	all := make([][]cell, len(rows))
	for i := range rows {
		v := reflect.ValueOf(&rows[i]).Elem()
		all[i] = cells(v, "", nil)
		if problem := problemOf(v); problem != "" {
			t.Rows[i].Bad = true
			t.Notes = append(t.Notes, "PROBLEM: "+labelled(v, problem).Error())
		}
	}
	for c, of := range cells(reflect.ValueOf(new(T)).Elem(), "", nil) {
		if of.optional && !slices.ContainsFunc(all, func(row []cell) bool { return !row[c].zero }) {
			continue
		}
		t.Head = append(t.Head, of.head)
		for i := range all {
			t.Rows[i].Cells = append(t.Rows[i].Cells, all[i][c].text)
		}
	}
	return t
}

// Problems are those of rows, with their first two texts.
func Problems[T any](rows []T) error {
	var all []error
	for i := range rows {
		if v := reflect.ValueOf(&rows[i]).Elem(); problemOf(v) != "" {
			all = append(all, labelled(v, problemOf(v)))
		}
	}
	return errors.Join(all...)
}

func problemOf(v reflect.Value) string {
	if p := v.FieldByName("Problem"); p.IsValid() {
		return p.String()
	}
	return ""
}

func labelled(v reflect.Value, problem string) error {
	var label []string
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.String && len(label) < 2 && v.Type().Field(i).Name != "Problem" {
			label = append(label, f.String())
		}
	}
	return fmt.Errorf("%s: %s", strings.Join(label, ", "), problem)
}

// cell is a value of a row, under the head of its column.
type cell struct {
	head, text     string
	zero, optional bool
}

// cells adds those of a struct, whose heads begin with a prefix.
func cells(v reflect.Value, prefix string, all []cell) []cell {
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		head, format, _ := strings.Cut(tag.Get("col"), "|")
		if head == "" {
			continue
		}
		f := v.Field(i)
		if f.Kind() == reflect.Struct {
			all = cells(f, prefix+head+" ", all)
			continue
		}
		all = append(all, cell{prefix + head, shown(f, format), f.IsZero(), strings.HasSuffix(tag.Get("json"), ",omitempty")})
	}
	return all
}

func shown(f reflect.Value, format string) string {
	switch {
	case f.Kind() == reflect.String:
		return f.String()
	case f.Type() == reflect.TypeFor[time.Duration]() && format == "":
		return fmt.Sprintf("%.1f ms", time.Duration(f.Int()).Seconds()*1000)
	case f.Type() == reflect.TypeFor[time.Duration]():
		return fmt.Sprintf(format, time.Duration(f.Int()))
	case f.CanInt():
		return fmt.Sprintf(cmp.Or(format, "%d"), f.Int())
	case strings.Contains(format, "%%"):
		return fmt.Sprintf(format, 100*f.Float())
	}
	return fmt.Sprintf(cmp.Or(format, "%.2f"), f.Float())
}
