//go:build unix

package hostile

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpu is the processor time that this process has used, the kernel's for it included.
func cpu() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
