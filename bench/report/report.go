// Package report shows measurements: as a table in a terminal, and as a page of its own, which loads nothing.
package report

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// Page is a report.
type Page struct {
	Title  string
	Lead   []string // its summary, in sentences
	Tables []Table
	Facts  []Fact // how it was measured
}

// Fact is a name and its value.
type Fact struct{ Name, Value string }

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

//go:embed page.html
var pageHTML string

var page = template.Must(template.New("page").Parse(pageHTML))

// Write writes the page to a file; "" is none.
func (p *Page) Write(file string) error {
	if file == "" {
		return nil
	}
	var b bytes.Buffer
	if err := page.Execute(&b, p); err != nil {
		return fmt.Errorf("making %s: %w", file, err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil { //nolint:gosec // a report is for all to read
		return fmt.Errorf("writing a report: %w", err)
	}
	return nil
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

// Progress returns a function that shows how far a long run is; nil without a terminal.
func Progress(terminal io.Writer, of int64, unit string) func(int64) {
	if terminal == nil {
		return nil
	}
	var last time.Time
	return func(n int64) {
		if now := time.Now(); n == of || now.Sub(last) > 200*time.Millisecond {
			last = now
			fmt.Fprintf(terminal, "\r%d of %d %s", n, of, unit)
			if n == of {
				fmt.Fprintln(terminal)
			}
		}
	}
}
