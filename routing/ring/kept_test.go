package ring

import (
	"fmt"
	"testing"
)

// A ring is built once for the same nodes, and not kept for ever: there
// are at most 64.
func TestRingsAreKept(t *testing.T) {
	nodes := func(name string) []string { return []string{name, "z:1"} }
	if first := Of(nodes("a:1")); first != Of(nodes("a:1")) {
		t.Error("the same ring was built twice")
	}
	most := 0
	for i := range 2*64 + 1 {
		Of([]string{fmt.Sprint("few:", i)})
		most = max(most, len(kept.of))
	}
	if most != 64 {
		t.Errorf("%d rings were kept", most)
	}
}
