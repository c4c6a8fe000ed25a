package bench

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is a server in a process of its own.
type process struct {
	cmd     *exec.Cmd
	address string // of gRPC
	debug   string // of the debug port, if it has one
}

// start runs a binary and waits for its gRPC port to open.
func start(binary, address string, args ...string) (*process, error) {
	cmd := exec.Command(binary, args...)
	cmd.Stderr = os.Stderr
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

// startSluice runs a node with these rules on free ports.
func startSluice(binary, rules string, more ...string) (*process, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	args := append([]string{
		"serve", "--config", rules, "--log-level", "warn", "--grpc-host", "127.0.0.1", "--grpc-port", ports[0],
		"--host", "127.0.0.1", "--port", ports[1], "--debug-host", "127.0.0.1", "--debug-port", ports[2],
	}, more...)
	p, err := start(binary, "127.0.0.1:"+ports[0], args...)
	if err != nil {
		return nil, err
	}
	p.debug = "127.0.0.1:" + ports[2]
	return p, nil
}

func startEmpty(binary string) (*process, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	address := "127.0.0.1:" + ports[0]
	return start(binary, address, "bench", "empty", "--address", address)
}

// peakMemory is the most resident memory that the process has had, in bytes.
func (p *process) peakMemory() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", p.cmd.Process.Pid, err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("memory of process %d: /proc says nothing of it", p.cmd.Process.Pid)
}

// freePorts finds ports that nobody listens on now.
func freePorts(n int) ([]string, error) {
	ports := make([]string, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer l.Close() // all are held until all are found
		ports[i] = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
