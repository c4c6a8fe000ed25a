package ring

import (
	"fmt"
	"testing"
)

// A ring is built once for the same nodes, and not kept for ever: there
// are at most 64, with a bounded number of points in all.
func TestRingsAreKept(t *testing.T) {
	nodes := func(name string) []string { return []string{name, "z:1"} }
	if first := Of(nodes("a:1")); first != Of(nodes("a:1")) {
		t.Error("the same ring was built twice")
	}
	most := 0
	there := func() int {
		kept.mu.Lock()
		defer kept.mu.Unlock()
		return len(kept.of)
	}
	for i := range 2*64 + 1 {
		Of([]string{fmt.Sprint("few:", i)})
		most = max(most, there())
	}
	if most != 64 {
		t.Errorf("%d rings were kept", most)
	}
	light := []string{"light:1"}
	points := len(New(light).points)
	for _, c := range []struct{ had, kept int }{{mostPoints - points, 2}, {mostPoints - points + 1, 1}} {
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
