package rlqs

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Largest is the head of all, sorted.
func TestLargest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := NewNode(Source{}, DefaultOptions())
		var all []Holder
		for i := range rapid.IntRange(0, 60).Draw(t, "holders") {
			b := &bucket{of: &Session{Name: fmt.Sprint(i)}}
			key := []byte{byte(rapid.IntRange(0, 9).Draw(t, "key"))}
			is := Holder{
				Key: key, Name: b.of.Name, Charged: tokens(rapid.IntRange(0, 9).Draw(t, "charged")),
				PerSecond: float64(rapid.IntRange(0, 3).Draw(t, "rate")),
			}
			n.join(b, key).set(b, published{perSecond: is.PerSecond, charged: is.Charged})
			all = append(all, is)
		}
		most := rapid.IntRange(1, 30).Draw(t, "most")
		held, count := n.Largest(most)
		if count != len(all) || len(held) != min(most, len(all)) {
			t.Fatalf("%d of %d are shown, of %d the %d largest", len(held), count, len(all), most)
		}
		slices.SortFunc(all, func(a, b Holder) int {
			return cmp.Or(int(b.Charged-a.Charged), int(b.PerSecond-a.PerSecond))
		})
		for i, h := range held {
			if h.Charged != all[i].Charged || h.PerSecond != all[i].PerSecond {
				t.Fatalf("in place %d is %+v, want %+v", i, h, all[i])
			}
		}
	})
}
