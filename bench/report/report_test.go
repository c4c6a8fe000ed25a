package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func sample() *Page {
	return &Page{
		Title: "a <b> & c", Lead: []string{"Use leasing."},
		Tables: []Table{{Title: "modes", Head: []string{"mode", "over"}, Rows: []Row{{Cells: []string{"leasing", "0"}}, {Cells: []string{"<script>", "9"}, Bad: true}}, Notes: []string{"a note"}}},
		Charts: []Chart{
			{File: "admitted", Title: "admitted <i>", X: "s", Y: "tokens", Lines: []Line{{Name: "a<", X: []float64{0, 1, 2}, Y: []float64{1, 3, 2}}, {Name: "b", X: []float64{0, 2}, Y: []float64{2, 2}}}, Bound: 4},
			{Title: "operations", Y: "claims", Bars: []Bar{{"strict", 1000}, {"leasing", 1}}},
		},
		Facts: []Fact{{"command", "sluice sim"}},
	}
}

// A page needs nothing from elsewhere, and nothing in it runs.
func TestPageIsSelfContained(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, bad := range []string{"<script", "src=", "href=\"http", "@import", "url("} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	for _, want := range []string{"&lt;script&gt;", "class=\"bad\"", "Use leasing.", "<svg", "a note", "sluice sim"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %s", want)
		}
	}
}

func TestChartsAreSVG(t *testing.T) {
	dir := t.TempDir()
	if err := sample().WriteCharts(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"admitted.svg", "chart-2.svg"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(bytes.NewReader(text))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	bad := Chart{Title: "x", Lines: []Line{{Name: "nowhere", X: []float64{math.NaN()}, Y: []float64{1}}}}
	if _, err := bad.SVG(); err == nil {
		t.Error("a point nowhere was drawn")
	}
}

func TestTableText(t *testing.T) {
	var b bytes.Buffer
	if err := sample().Tables[0].WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := "modes\n      mode  over\n   leasing     0\n  <script>     9  <- beyond its bound\na note\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
