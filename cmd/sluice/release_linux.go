package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// release gives the pages of a slice back to the machine, which then has no more of them than that they are zeros:
// they are there again when they are touched. Pages at its ends that others may share stay. It is a hint, and
// an error changes nothing.
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
