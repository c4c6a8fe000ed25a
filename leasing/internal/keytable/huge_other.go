//go:build !linux

package keytable

// preferHuge does nothing: this system has no such request.
func preferHuge([]byte) {}
