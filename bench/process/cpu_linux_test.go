package process

import (
	"testing"
	"time"
)

// What all processes use is no less than what one of them uses, also if that runs for less than a
// hundredth of a second at a time.
func TestAllCPUHasOwn(t *testing.T) {
	used := func() (all, own time.Duration) {
		all, err := AllCPU()
		if err != nil {
			t.Fatal(err)
		}
		if own, err = OwnCPU(); err != nil {
			t.Fatal(err)
		}
		return all, own
	}
	// Of the two bounds, that of all is read outside.
	allBefore, ownBefore := used()
	for range 500 {
		for end := time.Now().Add(500 * time.Microsecond); time.Now().Before(end); {
			continue
		}
		time.Sleep(500 * time.Microsecond)
	}
	_, own := used()
	all, _ := used()
	// The idle time is in hundredths of a second, for each of a few processors.
	if all, own := all-allBefore, own-ownBefore; all < own-50*time.Millisecond {
		t.Errorf("this process used %v, and all of them %v", own, all)
	}
}
