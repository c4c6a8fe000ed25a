package server

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sharePort lets several processes of one user listen on one port, and the kernel spreads the connections among
// them (SO_REUSEPORT), as in envoyproxy/ratelimit. A new process can take over while the old one drains.
func sharePort(network, _ string, c syscall.RawConn) error {
	// A socket in the file system has one owner.
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	if err != nil {
		return err
	}
	return failed
}
