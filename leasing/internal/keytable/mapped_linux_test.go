package keytable

import (
	"fmt"
	"os"
	"testing"
)

// mapped is how many bytes of address space this process has.
func mapped(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var pages int
	if _, err := fmt.Sscan(string(b), &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
