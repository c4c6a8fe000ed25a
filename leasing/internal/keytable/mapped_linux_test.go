package keytable

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
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

// The first use of a huge page has the system clear all of it, while a request waits: memory that
// is not used yet is of small pages, and huge ones are made of it when a block is used up.
func TestHugePagesAreOfUsedMemory(t *testing.T) {
	a := NewArena()
	var block []byte
	for len(a.blocks.all) < 12 {
		a.take(firstBlock)
	}
	for i, b := range a.blocks.all {
		flags := flagsOf(t, uintptr(unsafe.Pointer(unsafe.SliceData(b))))
		if huge := strings.Contains(flags, " hg"); huge != (len(b) >= 2*hugePage && i < len(a.blocks.all)-1) {
			t.Errorf("block %d of %d bytes has the flags %q", i, len(b), flags)
		}
		block = b
	}
	if len(block) < 2*hugePage {
		t.Errorf("the last block is of %d bytes: none was large enough", len(block))
	}
}

// flagsOf are what the system says of the memory at an address.
func flagsOf(t *testing.T, at uintptr) string {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= at && at < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return flags
		}
	}
	t.Fatalf("nothing is mapped at %x", at)
	return ""
}
