package process

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the processor time the process has used since it started, by the
// kernel's clock of that process (clock_getcpuclockid).
func (p *Process) CPU() (time.Duration, error) { return CPUOf(p.cmd.Process.Pid) }

// CPUOf is the same of any process of this user.
func CPUOf(pid int) (time.Duration, error) {
	const schedClock = 2
	var ts unix.Timespec
	id := int32(^pid)<<3 | schedClock
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}
