package process

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPUOf is the processor time that a process of this user has used since it started, by the kernel's clock of that
// process (clock_getcpuclockid).
func CPUOf(pid int) (time.Duration, error) {
	const schedClock = 2
	var ts unix.Timespec
	id := int32(^pid)<<3 | schedClock
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}
