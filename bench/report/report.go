// Package report shows measurements: as a table in a terminal, and as a page of its own with charts, which
// loads nothing.
package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// Page is a report.
type Page struct {
	Title  string
	Lead   []string // its summary, in sentences
	Tables []Table
	Charts []Chart
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
	return nil
}

//go:embed page.html
var pageHTML string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"svg": func(c Chart) (template.HTML, error) {
	text, err := c.SVG()
	return template.HTML(text), err //nolint:gosec // the chart escapes its input
}}).Parse(pageHTML))

// WriteHTML writes the page.
func (p *Page) WriteHTML(out io.Writer) error { return page.Execute(out, p) }

// WriteFile writes the page to a file, whole or not at all.
func (p *Page) WriteFile(name string) error {
	var b bytes.Buffer
	if err := p.WriteHTML(&b); err != nil {
		return fmt.Errorf("making %s: %w", name, err)
	}
	return writeFile(name, b.Bytes())
}

// WriteCharts writes each chart as an SVG file into a directory.
func (p *Page) WriteCharts(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making charts: %w", err)
	}
	for i := range p.Charts {
		text, err := p.Charts[i].SVG()
		if err != nil {
			return err
		}
		name := p.Charts[i].File
		if name == "" {
			name = fmt.Sprintf("chart-%d", i+1)
		}
		if err := writeFile(filepath.Join(dir, name+".svg"), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(name string, text []byte) error {
	part := name + ".part"
	if err := os.WriteFile(part, text, 0o644); err != nil { //nolint:gosec // a report is for all to read
		return fmt.Errorf("writing a report: %w", err)
	}
	if err := os.Rename(part, name); err != nil {
		return fmt.Errorf("writing a report: %w", err)
	}
	return nil
}
