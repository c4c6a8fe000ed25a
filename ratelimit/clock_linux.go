package ratelimit

import (
	"time"

	"golang.org/x/sys/unix"
)

// leastSleep is the shortest suspension that is taken for one: the two clocks of
// the kernel differ by nothing else.
const leastSleep = time.Millisecond

// sinceBoot counts on while the machine is suspended. Where the kernel has no such
// clock it returns 0 always, and a suspension is not seen.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
