//go:build unix

package process

import "syscall"

// Pause stops the process where it is, or has it go on.
func (p *Process) Pause(on bool) error {
	if on {
		return p.Signal(syscall.SIGSTOP)
	}
	return p.Signal(syscall.SIGCONT)
}
