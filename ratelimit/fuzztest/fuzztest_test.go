package fuzztest

import (
	"bytes"
	"math/bits"
	"slices"
	"testing"
)

// An input is run as it is first, and then with one bit changed, each time another, and always the same ones.
func TestEachRunIsAnother(t *testing.T) {
	for size := range 40 {
		in := bytes.Repeat([]byte{0xa5}, size)
		seen := map[string]bool{}
		runs := func() (all []string) {
			Bytes(in, func(b []byte) { all = append(all, string(b)) })
			return all
		}
		all := runs()
		for i, b := range all {
			changed := 0
			for j := range in {
				changed += bits.OnesCount8(in[j] ^ b[j])
			}
			if seen[b] || changed != min(i, 1) || len(b) != size {
				t.Errorf("of %d bytes, run %d has %d bits changed, and was seen before: %v", size, i, changed, seen[b])
			}
			seen[b] = true
		}
		if want := min(Runs, size+1); len(all) != want || !slices.Equal(all, runs()) {
			t.Errorf("%d bytes are run %d times, want %d, and the same each time", size, len(all), want)
		}
	}
}
