//go:build !linux

package process

import (
	"fmt"
	"runtime"
	"time"
)

// CPUOf would be the processor time that a process has used. Only Linux says it of one that runs.
func CPUOf(pid int) (time.Duration, error) {
	return 0, fmt.Errorf("the processor time of process %d is not known: %s does not say it, measure on Linux",
		pid, runtime.GOOS)
}
