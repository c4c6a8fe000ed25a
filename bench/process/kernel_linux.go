package process

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
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

// Share is how the machine's processors are divided between a server and this
// process, which drives it.
type Share struct {
	Server, Own int  // processors
	Apart       bool // each has its own
	server, own unix.CPUSet
}

// Divide gives half of the processors that this process may use to a server. This process uses only the
// others until rejoin is called. A single processor is not divided.
func Divide() (s *Share, rejoin func(), err error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, nil, fmt.Errorf("processors of this process: %w", err)
	}
	s = &Share{Server: all.Count(), Own: all.Count(), server: all, own: all}
	if all.Count() < 2 {
		return s, func() {}, nil
	}
	s.server.Zero()
	s.own.Zero()
	for cpu, n := 0, 0; n < all.Count(); cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		if n < all.Count()/2 {
			s.server.Set(cpu)
		} else {
			s.own.Set(cpu)
		}
		n++
	}
	s.Server, s.Own, s.Apart = s.server.Count(), s.own.Count(), true
	procs := runtime.GOMAXPROCS(s.Own)
	rejoin = func() {
		runtime.GOMAXPROCS(procs)
		_ = bind(&all) // as it was
	}
	if err := bind(&s.own); err != nil {
		rejoin()
		return nil, nil, err
	}
	return s, rejoin, nil
}

// bind has all threads of this process run on these processors, and those that they
// start.
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

// Start starts a server, which begins with the processors of the thread that starts
// it.
func (s *Share) Start(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedSetaffinity(0, &s.server); err != nil {
		return fmt.Errorf("binding the server to its processors: %w", err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &s.own) }() // as it was
	return start()
}
