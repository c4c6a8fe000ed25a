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

// Share is how the machine's processors are divided between a server and this
// process, which drives it. Here they are not.
type Share struct {
	Server, Own int  // processors
	Apart       bool // each has its own
}

// Divide divides nothing: this system does not bind processes to processors.
func Divide() (s *Share, rejoin func(), err error) {
	return &Share{Server: runtime.NumCPU(), Own: runtime.NumCPU()}, func() {}, nil
}

// Start starts a server.
func (s *Share) Start(start func() error) error { return start() }
