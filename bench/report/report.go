// Package report is the frame of measurements: options, whose fields are flags, and results, which are tables. A
// measurement embeds Setup in its options. The command line is made of the fields' tags (kong). Check validates by the
// tag `in`, and Rows makes a table by the tag `col`: a new figure is one field. An example:
//
//	P99 time.Duration `json:"latency_p99" col:"p99"`
//	Used float64 `json:"used" col:"used|%.1f%%"`
package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Page is a report.
type Page struct {
	Lead   []string // its summary, in sentences
	Tables []Table
}

// Table is rows of cells; the first of a row is its name.
type Table struct {
	Title string
	Head  []string
	Rows  []Row
	Notes []string
	// Problems are what must not be.
	Problems []error
}

// Row is one row of a table.
type Row struct {
	Cells []string
	Bad   bool // it is beyond its bound
}

// WriteText writes a table for a terminal.
func (t *Table) WriteText(out io.Writer) error {
	if t.Title != "" {
		fmt.Fprintln(out, t.Title)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, strings.Join(t.Head, "\t")+"\t")
	for _, r := range t.Rows {
		mark := ""
		if r.Bad {
			mark = "  <- beyond its bound"
		}
		fmt.Fprintln(w, strings.Join(r.Cells, "\t")+"\t"+mark)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range t.Notes {
		fmt.Fprintln(out, n)
	}
	for _, p := range t.Problems {
		fmt.Fprintln(out, "PROBLEM:", p)
	}
	return nil
}

// Problems are those of all tables.
func (p *Page) Problems() error {
	var all []error
	for i := range p.Tables {
		all = append(all, p.Tables[i].Problems...)
	}
	return errors.Join(all...)
}

// WriteText writes the lead and the tables for a terminal.
func (p *Page) WriteText(out io.Writer) error {
	for _, line := range p.Lead {
		fmt.Fprintln(out, line)
	}
	for i := range p.Tables {
		if i > 0 || len(p.Lead) > 0 {
			fmt.Fprintln(out)
		}
		if err := p.Tables[i].WriteText(out); err != nil {
			return err
		}
	}
	return nil
}

// Progress returns a function that shows how far a long run is, if there is a terminal. It writes five times a second
// at most. A carriage return lets each line replace the one before. The function is not safe for concurrent use.
func Progress(terminal io.Writer, of int64, unit string) func(int64) {
	var last time.Time
	return func(n int64) {
		if now := time.Now(); terminal != nil && (n == of || now.Sub(last) > 200*time.Millisecond) {
			last = now
			fmt.Fprintf(terminal, "\r%d of %d %s", n, of, unit)
			if n == of {
				fmt.Fprintln(terminal)
			}
		}
	}
}

// Measurement is options, whose fields are flags, and what is measured with them. Their Setup has a tag with command
// lines, `examples:"one|another"`.
type Measurement interface {
	Given() *Setup
	Measure(ctx context.Context) (Result, error)
}

// Result is what was measured. It is printed as JSON, or as its page, whose problems fail the command.
type Result interface{ Page() *Page }

// Setup is what a measurement is given. Options embed it.
type Setup struct {
	Binary   string                          `kong:"-"` // sluice
	Lab      string                          `kong:"-"` // sluicelab, which runs what sluice is compared with
	Progress func(done, of int, what string) `kong:"-"` // nil: none
	told     int
}

// Given implements [Measurement].
func (s *Setup) Given() *Setup { return s }

// Tell says what is measured next. It is called before each measurement: told counts those that are done.
func (s *Setup) Tell(of int, what string) {
	if s.Progress != nil {
		s.Progress(s.told, of, what)
	}
	s.told++
}

// Bounds are all problems with options, each with its value and its bound. All are collected, so that a user can mend a
// command line at once.
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
		if f.Kind() != reflect.Slice {
			b.within(field.Name, f, bounds)
			continue
		}
		for j := range f.Len() {
			b.within(field.Name, f.Index(j), bounds)
		}
	}
}

// within notes a number or a duration outside of its bounds, as NaN is. Comparisons with NaN are false, so the
// condition is for the good case and then negated.
func (b *Bounds) within(field string, v reflect.Value, bounds string) {
	least, most, _ := strings.Cut(bounds, "..")
	is := v.Convert(reflect.TypeFor[float64]()).Float()
	if !(is >= number(least) && is <= number(most)) {
		b.Refuse(flag(field), v.Interface(), least+" to "+most)
	}
}

// number reads a bound of a tag. A bound is a duration, such as 500ms, or a number. A bare 0 is both.
func number(text string) float64 {
	if d, err := time.ParseDuration(text); err == nil {
		return float64(d)
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err) // tags are ours
	}
	return n
}

// flag is the name that kong gives to a field: --max-keys, of MaxKeys.
func flag(field string) string {
	return "-" + regexp.MustCompile("[A-Z]").ReplaceAllStringFunc(field, func(c string) string { return "-" + strings.ToLower(c) })
}

// Refuse notes a flag.
func (b *Bounds) Refuse(flag string, value any, must string) {
	*b = append(*b, fmt.Errorf("%s is %v, must be %s", flag, value, must))
}

// Choose returns what a flag names of all, or all if it names nothing. It notes other names. The result has the order
// of all, and not that of the flags.
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
// milliseconds, and a format with %% makes a part a percentage. A column of zeros is left out if its field is
// `json:",omitempty"`. A row whose field Problem has a text is beyond its bound; its first two texts name it.
func Rows[T any](title string, rows []T, notes ...string) Table {
	t := Table{Title: title, Notes: notes, Rows: make([]Row, len(rows))}
	all := reflect.ValueOf(rows)
	for _, field := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		head, format, _ := strings.Cut(field.Tag.Get("col"), "|")
		if head == "" {
			continue
		}
		empty := strings.HasSuffix(field.Tag.Get("json"), ",omitempty")
		for i := range rows {
			empty = empty && all.Index(i).FieldByIndex(field.Index).IsZero()
		}
		if empty {
			continue
		}
		t.Head = append(t.Head, head)
		for i := range rows {
			t.Rows[i].Cells = append(t.Rows[i].Cells, shown(all.Index(i).FieldByIndex(field.Index), format))
		}
	}
	for i := range rows {
		if problem := problemOf(all.Index(i)); problem != nil {
			t.Rows[i].Bad = true
			t.Problems = append(t.Problems, problem)
		}
	}
	return t
}

// problemOf is the problem of a row, or nil. Rows without a field Problem have none. Its names say which row it is
// about, because errors are printed apart from the table.
func problemOf(row reflect.Value) error {
	p := row.FieldByName("Problem")
	if !p.IsValid() || p.String() == "" {
		return nil
	}
	var names []string
	for i := range row.NumField() {
		if f := row.Field(i); f.Kind() == reflect.String && len(names) < 2 && row.Type().Field(i).Name != "Problem" {
			names = append(names, f.String())
		}
	}
	return fmt.Errorf("%s: %s", strings.Join(names, ", "), p)
}

// shown is the text of a cell. The type decides: a duration before its kind, which is an integer.
func shown(f reflect.Value, format string) string {
	if d, ok := reflect.TypeAssert[time.Duration](f); ok {
		if format == "" {
			return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
		}
		return fmt.Sprintf(format, d)
	}
	switch {
	case f.Kind() == reflect.String:
		return f.String()
	case f.CanInt():
		return fmt.Sprintf(cmp.Or(format, "%d"), f.Int())
	case strings.Contains(format, "%%"):
		return fmt.Sprintf(format, 100*f.Float())
	}
	return fmt.Sprintf(cmp.Or(format, "%.2f"), f.Float())
}
