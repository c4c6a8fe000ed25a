package process

import (
	"fmt"
	"os"
	"strings"
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

// AllCPU is the processor time of all processes and the kernel since the machine started. It is all the time
// there was, less the idle time of /proc/stat, in hundredths of a second. The busy time there counts ticks,
// and misses most processes that run for less than one: a server and its callers were busier than all
// together.
func AllCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("processor time of all processes: %w", err)
	}
	var user, nice, system, idle, wait int64
	if _, err := fmt.Sscanf(string(text), "cpu %d %d %d %d %d", &user, &nice, &system, &idle, &wait); err != nil {
		return 0, fmt.Errorf("processor time of all processes: /proc/stat begins otherwise: %w", err)
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &up); err != nil {
		return 0, fmt.Errorf("time since the machine started: %w", err)
	}
	processors := strings.Count(string(text), "\ncpu")
	return time.Duration(processors)*time.Duration(up.Nano()) - time.Duration(idle+wait)*10*time.Millisecond, nil
}

// OwnCPU is the processor time that this process has used.
func OwnCPU() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		return 0, fmt.Errorf("processor time of this process: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
