//go:build unix

package keytable

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// fromSystem maps n zero bytes. Pages take memory at their first use.
func fromSystem(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(fmt.Sprintf("keytable: the system gives no %d bytes: %v", n, err))
	}
	return b
}

func giveBack(b []byte) { _ = unix.Munmap(b) } // fails only for memory that is not mapped
