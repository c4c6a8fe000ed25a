package transport

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// rawConn is the connection of the operating system; nil: it has none.
func rawConn(c net.Conn) syscall.RawConn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// readRaw waits until there is something to be read, and only then takes a buffer for it. If nothing is there, the
// buffer goes back.
func readRaw(raw syscall.RawConn, buffer func() []byte, back func()) (n int, err error) {
	failed := raw.Read(func(fd uintptr) bool {
		into := buffer()
		for n, err = syscall.Read(int(fd), into); errors.Is(err, syscall.EINTR); {
			n, err = syscall.Read(int(fd), into)
		}
		if n > 0 {
			return true
		}
		back()
		return !errors.Is(err, syscall.EAGAIN)
	})
	switch {
	case failed != nil:
		return 0, failed
	case n == 0 && err == nil:
		return 0, io.EOF
	}
	return max(0, n), err
}
