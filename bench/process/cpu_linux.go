package process

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the processor time the process has used since it started, by the
// kernel's clock of that process (clock_getcpuclockid).
func (p *Process) CPU() (time.Duration, error) {
	const schedClock = 2
	var ts unix.Timespec
	id := int32(^p.cmd.Process.Pid)<<3 | schedClock
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", p.cmd.Process.Pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// AllCPU is the processor time that all processes and the kernel have used since the machine
// started, as the first line of /proc/stat says it: in hundredths of a second.
func AllCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("processor time of all processes: %w", err)
	}
	var user, nice, system, idle, wait, irq, soft int64
	if _, err := fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &irq, &soft); err != nil {
		return 0, fmt.Errorf("processor time of all processes: /proc/stat begins otherwise: %w", err)
	}
	return time.Duration(user+nice+system+irq+soft) * 10 * time.Millisecond, nil
}

// OwnCPU is the processor time that this process has used.
func OwnCPU() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		return 0, fmt.Errorf("processor time of this process: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
