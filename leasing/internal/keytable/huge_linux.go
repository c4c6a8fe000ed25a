package keytable

import "golang.org/x/sys/unix"

// hugePage is what a huge page is on amd64 and arm64.
const hugePage = 2 << 20

// preferHuge has the system gather memory that is in use into huge pages, in its own time
// (khugepaged): a table of a million keys is then found in the processor's address cache.
// Systems that have none say so, and small pages do as well.
func preferHuge(b []byte) {
	if len(b) >= 2*hugePage {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
}
