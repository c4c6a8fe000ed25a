package sizing

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// release gives the pages of a slice back to the machine. The slice reads as zeros from then on, and takes memory
// again where it is written to. Pages at its ends, which other values may share, are kept. It is a hint: where the
// machine does not take it, nothing changes.
func release(b []byte) {
	page := os.Getpagesize()
	begin := 0
	if len(b) > 0 {
		begin = int(-uintptr(unsafe.Pointer(&b[0])) % uintptr(page))
	}
	if n := (len(b) - begin) / page * page; n > 0 {
		_ = unix.Madvise(b[begin:begin+n], unix.MADV_DONTNEED)
	}
}
