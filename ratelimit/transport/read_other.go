//go:build !linux

package transport

import (
	"net"
	"syscall"
)

// rawConn is nil: reads go to a buffer of the connection.
func rawConn(net.Conn) syscall.RawConn { return nil }

func readRaw(syscall.RawConn, func() []byte, func()) (int, error) {
	panic("there is no raw connection")
}
