package process

import "errors"

// Pause cannot stop a process: Windows has no signal for it.
func (p *Process) Pause(bool) error {
	return errors.New("a process cannot be stopped and go on under Windows: measure on Linux")
}
