package report

import (
	"bytes"
	"encoding/xml"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot"
)

// A page needs nothing from elsewhere, and nothing in it runs. Its charts are SVG.
func TestPageIsSelfContained(t *testing.T) {
	page := &Page{
		Title: "a <b> & c", Lead: []string{"Use leasing."},
		Tables: []Table{{
			Title: "modes", Head: []string{"mode", "over"}, Notes: []string{"a note"},
			Rows: []Row{{Cells: []string{"leasing", "0"}}, {Cells: []string{"<script>", "9"}, Bad: true}},
		}},
		Charts: []Chart{
			{Title: "admitted <i>", X: "s", Y: "tokens", Lines: []Line{{Name: "a<", X: []float64{0, 1, 2}, Y: []float64{1, 3, 2}}, {Name: "b", X: []float64{0, 2}, Y: []float64{2, 2}}}, Bound: 4},
			{Title: "operations", Y: "claims", Bars: []Bar{{"strict", 1000}, {"leasing", 1}}},
		},
		Facts: []Fact{{"command", "sluicelab sim"}},
	}
	var b bytes.Buffer
	if err := page.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, bad := range []string{"<script", "src=", "href=\"http", "@import", "url("} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	for _, want := range []string{"&lt;script&gt;", "class=\"bad\"", "Use leasing.", "<svg", "a note", "sluicelab sim"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	for _, c := range page.Charts {
		svg, err := c.SVG()
		if err != nil || xml.Unmarshal([]byte(svg), new(struct{})) != nil {
			t.Errorf("%s: %v, %.300s", c.Title, err, svg)
		}
	}
	bad := Chart{Title: "x", Lines: []Line{{Name: "nowhere", X: []float64{math.NaN()}, Y: []float64{1}}}}
	if _, err := bad.SVG(); err == nil {
		t.Error("a point nowhere was drawn")
	}
}

// Letters get smaller where a title, or the names of many bars, would be clipped.
func TestChartsFitTheirLabels(t *testing.T) {
	style := plot.New().Title.TextStyle
	long := strings.Repeat("a long title ", 12)
	fit(&style, "short", 100)
	if before := plot.New().Title.TextStyle.Font.Size; style.Font.Size != before {
		t.Errorf("a short title has letters of %v, not %v", style.Font.Size, before)
	}
	fit(&style, long, 100)
	if w := style.Width(long); w > 100.5 || w < 90 {
		t.Errorf("a long one is %v wide", w)
	}
	c := Chart{Title: long, Bars: make([]Bar, 9)}
	for i := range c.Bars {
		c.Bars[i] = Bar{Name: "a mode with a long name", Value: 1}
	}
	svg, err := c.SVG()
	if err != nil || !strings.Contains(svg, "a mode with a long name") {
		t.Errorf("%v %.300s", err, svg)
	}
	sizes := regexp.MustCompile(`font-size:([0-9.]+)px`).FindAllStringSubmatch(svg, -1)
	smallest := 99.0
	for _, m := range sizes {
		if size, err := strconv.ParseFloat(m[1], 64); err == nil {
			smallest = min(smallest, size)
		}
	}
	if len(sizes) == 0 || smallest > 6 {
		t.Errorf("the smallest of %d texts has letters of %v", len(sizes), smallest)
	}
}

// Fields with a head are columns, and a row with a problem is marked.
func TestRowsAreColumns(t *testing.T) {
	table := Rows("rows", []struct {
		Mode    string  `col:"mode"`
		Share   float64 `col:"share|%.0f%%"`
		hidden  int
		None    int           `json:"none,omitempty" col:"none"`
		Some    int           `json:"some,omitempty" col:"some"`
		P50     time.Duration `col:"p50"`
		P99     time.Duration `col:"p99|%v"`
		Problem string
	}{{"leasing", 0.5, 1, 0, 1, time.Millisecond, time.Second, ""}, {"approx", 2, 1, 0, 0, 0, 0, "2 over"}}, "a note")
	page := Page{Lead: []string{"a lead"}, Tables: []Table{table}}
	var b strings.Builder
	if err := page.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := `a lead

rows
     mode  share  some     p50  p99
  leasing    50%     1  1.0 ms   1s
   approx   200%     0  0.0 ms   0s  <- beyond its bound
a note
PROBLEM: approx: 2 over
`
	if b.String() != want {
		t.Errorf("%s, want\n%s", b.String(), want)
	}
	if err := page.Problems(); err == nil || err.Error() != "approx: 2 over" {
		t.Errorf("the problems are %v", err)
	}
}

// Each problem with a flag is reported, with its value and its bound, and each name of nothing.
func TestBoundsTellAll(t *testing.T) {
	var b Bounds
	b.Check(&struct {
		Nodes   int           `in:"1..3"`
		Rate    float64       `in:"0..1"`
		MaxKeys []int         `in:"1..9"`
		Length  time.Duration `in:"1s..1m"`
		Any     string
	}{3, math.NaN(), []int{1, 0, 10}, time.Hour, ""})
	all := []string{"a", "b"}
	chosen := Choose(&b, "--row", []string{"b", "c"}, all, func(s *string) string { return *s })
	want := "--rate is NaN, must be 0 to 1\n--max-keys is 0, must be 1 to 9\n--max-keys is 10, must be 1 to 9\n--length is 1h0m0s, must be 1s to 1m\n" +
		"--row is c, must be one of a, b"
	if err := b.Err(); err == nil || err.Error() != want || !slices.Equal(chosen, all[1:]) {
		t.Errorf("it tells %v, and chooses %v", err, chosen)
	}
}
