//go:build !linux

package process

import (
	"errors"
	"fmt"
	"runtime"
	"time"
)

// CPUOf would be the processor time that a process has used. Only Linux says it of one that runs.
func CPUOf(pid int) (time.Duration, error) {
	return 0, fmt.Errorf("the processor time of process %d is not known: %s does not say it, measure on Linux",
		pid, runtime.GOOS)
}

// Pause stops no process here: Windows has no signal for it.
func (p *Process) Pause(bool) error {
	return errors.New("a process is stopped, and goes on, only under Linux: measure there")
}

// Divide only starts the server: processes are not bound to processors here.
func Divide(start func() error) (s Share, rejoin func(), err error) {
	return Share{Server: runtime.NumCPU(), Own: runtime.NumCPU()}, func() {}, start()
}
