//go:build !linux

package process

import (
	"fmt"
	"runtime"
	"time"
)

// CPU would be the processor time the process has used. Only Linux says it of a
// process that runs.
func (p *Process) CPU() (time.Duration, error) { return CPUOf(p.cmd.Process.Pid) }

// CPUOf would be the same of any process.
func CPUOf(pid int) (time.Duration, error) {
	return 0, fmt.Errorf("the processor time of process %d is not known: %s does not say it, measure on Linux",
		pid, runtime.GOOS)
}
