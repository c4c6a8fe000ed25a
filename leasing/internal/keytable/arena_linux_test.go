package keytable

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"
)

// Memory goes back to the system when the table is unreachable.
func TestArenaIsGivenBack(t *testing.T) {
	mapped := func() (pages int) { // address space of this process
		b, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(string(b), &pages); err != nil {
			t.Fatal(err)
		}
		return pages * os.Getpagesize()
	}
	before := mapped()
	func() {
		table := New[value](NewArena(), 1<<20)
		for n := range uint64(200_000) {
			table.Add(idOf(n), nil, never)
		}
	}()
	for range 100 {
		runtime.GC()
		if mapped() < before+(8<<20) {
			return
		}
	}
	t.Errorf("%d bytes are still mapped", mapped()-before)
}

// A huge page is cleared or copied as a whole while a request waits, so that no block is of any.
func TestPagesAreSmall(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("this system makes no huge pages")
	}
	a := NewArena()
	for len(a.blocks.all) < 12 {
		a.take(firstBlock)
	}
	for i, b := range a.blocks.all {
		flags := flagsOf(t, uintptr(unsafe.Pointer(unsafe.SliceData(b))))
		if !strings.Contains(flags, " nh") {
			t.Errorf("block %d of %d bytes has the flags %q: the system may make huge pages of it", i, len(b), flags)
		}
	}
	if most := len(a.blocks.all[len(a.blocks.all)-1]); most < 4<<20 {
		t.Errorf("the last block is of %d bytes: none was large enough for huge pages", most)
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
