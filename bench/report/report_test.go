package report

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

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
