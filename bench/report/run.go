package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
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

// Within notes a flag whose value is below the least or above the most.
func Within[T cmp.Ordered](b *Bounds, flag string, value, least, most T) {
	if value >= least && value <= most {
		return
	}
	b.Refuse(flag, value, fmt.Sprintf("%v to %v", least, most)) // NaN, too
}

// Refuse notes a flag.
func (b *Bounds) Refuse(flag string, value any, must string) {
	*b = append(*b, fmt.Errorf("%s is %v, must be %s", flag, value, must))
}

// Err is all of it.
func (b Bounds) Err() error { return errors.Join(b...) }

// Rows is a table with a column for each field that has a tag `col:"head"` or `col:"head|format"`. Durations are in
// milliseconds, and a format with %% makes a part a percentage. A struct's columns begin with the head of its field.
// Rows whose field Problem has a text are beyond their bound.
func Rows[T any](title string, rows []T, notes ...string) Table {
	t := Table{Title: title, Notes: notes}
	columns(reflect.TypeFor[T](), "", func(head string) { t.Head = append(t.Head, head) })
	for i := range rows {
		v := reflect.ValueOf(&rows[i]).Elem()
		problem := problemOf(v)
		t.Rows = append(t.Rows, Row{Cells: cells(v, nil), Bad: problem != ""})
		if problem != "" {
			t.Notes = append(t.Notes, "PROBLEM: "+labelled(v, problem).Error())
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

func columns(t reflect.Type, prefix string, add func(head string)) {
	for i := range t.NumField() {
		f := t.Field(i)
		head, _, _ := strings.Cut(f.Tag.Get("col"), "|")
		switch {
		case head == "":
		case f.Type.Kind() == reflect.Struct:
			columns(f.Type, prefix+head+" ", add)
		default:
			add(prefix + head)
		}
	}
}

func cells(v reflect.Value, all []string) []string {
	for i := range v.NumField() {
		head, format, _ := strings.Cut(v.Type().Field(i).Tag.Get("col"), "|")
		if head == "" {
			continue
		}
		f := v.Field(i)
		switch k := f.Kind(); {
		case k == reflect.Struct:
			all = cells(f, all)
		case k == reflect.String:
			all = append(all, f.String())
		case f.Type() == reflect.TypeFor[time.Duration]() && format == "":
			all = append(all, fmt.Sprintf("%.1f ms", time.Duration(f.Int()).Seconds()*1000))
		case f.Type() == reflect.TypeFor[time.Duration]():
			all = append(all, fmt.Sprintf(format, time.Duration(f.Int())))
		case f.CanInt():
			all = append(all, fmt.Sprintf(cmp.Or(format, "%d"), f.Int()))
		case strings.Contains(format, "%%"):
			all = append(all, fmt.Sprintf(format, 100*f.Float()))
		default:
			all = append(all, fmt.Sprintf(cmp.Or(format, "%.2f"), f.Float()))
		}
	}
	return all
}
