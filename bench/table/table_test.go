package table

import (
	"strings"
	"testing"
)

// A small run of each kind: every decision is made by the table that is measured, and
// what was measured is there.
func TestRun(t *testing.T) {
	for _, kind := range []Kind{Local, Fleet} {
		r, err := run(kind, 5_000)
		if err != nil {
			t.Fatal(err)
		}
		if r.Bytes <= 0 || r.Add.P50 <= 0 || r.Turn.Worst < r.Turn.P50 {
			t.Errorf("%+v", r)
		}
		var out strings.Builder
		if err := (Results{r}).Page().WriteText(&out); err != nil || strings.Count(out.String(), "\n") != 2 {
			t.Errorf("%v: %s", err, &out)
		}
	}
	if _, err := run(Local, 999); err == nil {
		t.Error("999 keys were measured")
	}
}

// Each number below n is there once.
func TestShuffled(t *testing.T) {
	for _, n := range []uint64{1000, 4096, 9973, 10_000} {
		seen := make([]bool, n)
		for i := range n {
			at := shuffled(i, n)
			if seen[at] {
				t.Fatalf("%d of %d is there twice", at, n)
			}
			seen[at] = true
		}
	}
}
