package process

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CPUOf is the processor time that a process of this user has used since it started, by the kernel's clock of that
// process (clock_getcpuclockid). The clock has nanoseconds, where /proc/PID/stat counts in hundredths of a second. Its
// number is the inverted process id, shifted by three bits for the kind of clock (CPUCLOCK_SCHED).
func CPUOf(pid int) (time.Duration, error) {
	const schedClock = 2
	var ts unix.Timespec
	id := int32(^pid)<<3 | schedClock
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// Pause stops the process where it is, or has it go on.
func (p *Process) Pause(on bool) error {
	if on {
		return p.Signal(syscall.SIGSTOP)
	}
	return p.Signal(syscall.SIGCONT)
}

// Divide starts a server with half of the processors that this process may use, and has this process use the others
// until rejoin is called. A single processor is shared. A child inherits the set of its parent: this process binds
// itself to the server's half, starts it, and then binds itself to the other half. GOMAXPROCS follows, or the Go
// scheduler would run more threads than it has processors.
func Divide(start func() error) (s Share, rejoin func(), err error) {
	var all, server, own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return s, nil, fmt.Errorf("processors of this process: %w", err)
	}
	if all.Count() < 2 {
		return Share{Server: 1, Own: 1}, func() {}, start()
	}
	for cpu, n := 0, 0; n < all.Count(); cpu++ {
		switch {
		case !all.IsSet(cpu):
			continue
		case n < all.Count()/2:
			server.Set(cpu)
		default:
			own.Set(cpu)
		}
		n++
	}
	s = Share{Server: server.Count(), Own: own.Count(), Apart: true}
	err = bind(&server) // which the server inherits
	if err == nil {
		err = start()
	}
	if err == nil {
		err = bind(&own)
	}
	procs := runtime.GOMAXPROCS(s.Own)
	return s, func() { runtime.GOMAXPROCS(procs); _ = bind(&all) }, err
}

// bind has all threads of this process run on these processors, and what they start. The call sets one thread only, so
// it is made for each that /proc lists. A thread that has ended meanwhile (ESRCH) is no error.
func bind(set *unix.CPUSet) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("threads of this process: %w", err)
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(id, set); err != nil && err != unix.ESRCH {
			return fmt.Errorf("binding thread %d to its processors: %w", id, err)
		}
	}
	return nil
}
