package ring

import (
	"fmt"
	"testing"
)

// A ring is built once for the same nodes and weights, and not kept for ever: there
// are at most 64, with a bounded number of points in all.
func TestRingsAreKept(t *testing.T) {
	nodes := func(name string, weight uint32) []Member {
		return []Member{{Addr: name, Weight: weight}, {Addr: "z:1", Weight: 1}}
	}
	for _, weight := range []uint32{0, 1, 256} {
		for range 2 {
			if got := Of(nodes("weighs:1", weight)).Members()[0].Weight; got != weight {
				t.Errorf("a node of weight %d has %d", weight, got)
			}
		}
	}
	if first := Of(nodes("a:1", 1)); first != Of(nodes("a:1", 1)) {
		t.Error("the same ring was built twice")
	}
	most := 0
	there := func() int {
		kept.mu.Lock()
		defer kept.mu.Unlock()
		return len(kept.of)
	}
	for i := range 2*64 + 1 {
		Of([]Member{{Addr: fmt.Sprint("few:", i), Weight: 1}})
		most = max(most, there())
	}
	if most != 64 {
		t.Errorf("%d rings were kept", most)
	}
	light := []Member{{Addr: "light:1", Weight: 1}}
	points := New(light).Size()
	for _, c := range []struct{ had, kept int }{{MostPoints - points, 2}, {MostPoints - points + 1, 1}} {
		kept.mu.Lock()
		kept.of, kept.points = map[string]*Ring{"as if it had many": nil}, c.had
		kept.mu.Unlock()
		Of(light)
		if n := there(); n != c.kept {
			t.Errorf("%d points and %d more: %d rings are kept", c.had, points, n)
		}
		if c.kept == 1 && kept.points != points {
			t.Errorf("%d points are kept, counted as %d", points, kept.points)
		}
	}
}
