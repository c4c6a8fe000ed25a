package bench

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// process is a server in a process of its own.
type process struct {
	cmd     *exec.Cmd
	address string
}

// start runs this binary with args and waits for the gRPC port to answer.
func start(binary, address string, stderr io.Writer, env []string, args ...string) (*process, error) {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", binary, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", binary, err)
	}
	p := &process{cmd: cmd, address: address}
	ready := make(chan struct{})
	go func() { // a server prints a line when its ports are open
		_, _ = bufio.NewReader(out).ReadString('\n')
		close(ready)
		_, _ = io.Copy(io.Discard, out)
	}()
	select {
	case <-ready:
	case <-time.After(20 * time.Second):
	}
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("%s %v did not open %s: %w", binary, args, address, err)
	}
	conn.Close()
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	done := make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-done
	}
}

// cpu is the processor time the process has used since it started, by the
// kernel's clock of that process (clock_getcpuclockid).
func (p *process) cpu() (time.Duration, error) {
	const schedClock = 2
	var ts unix.Timespec
	id := int32(^p.cmd.Process.Pid)<<3 | schedClock
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", p.cmd.Process.Pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// freePort finds a port nobody listens on now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
