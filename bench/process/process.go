// Package process runs servers as processes of their own, and reads their use of resources from the kernel.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Process is a server in a process of its own. It is not safe for concurrent use. A goroutine waits for the process
// (Launch) and closes ended, so that any number of readers can see its end.
type Process struct {
	cmd     *exec.Cmd
	Address string // of gRPC
	Debug   string // of the debug port, of an Envoy the admin port; "": it has none
	ended   chan struct{}
}

// Share is how the machine's processors are divided between a server and this process, which drives it.
type Share struct {
	Server, Own int
	Apart       bool // each has its own
}

// Launch starts a command, and returns at once.
func Launch(cmd *exec.Cmd) (*Process, error) {
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Start runs a server and waits for its port to open. A program of others has more variables in its environment
// (NAME=VALUE), and its log is not shown. An open port shows that a server is there, and says nothing of its readiness:
// UntilWhole waits for that.
func Start(environment []string, binary, address string, args ...string) (*Process, error) {
	cmd := exec.Command(binary, args...)
	if environment == nil {
		cmd.Stderr = os.Stderr
	}
	cmd.Env = append(os.Environ(), environment...)
	p, err := Launch(cmd)
	if err != nil {
		return nil, err
	}
	p.Address = address
	err = p.UntilReady(func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("%s %v did not open %s: %w", binary, args, address, err)
	}
	return p, nil
}

// UntilReady waits until it is ready, for half a minute at most. Of one that is not, nothing is left. A process that
// has ended, such as by a wrong flag, ends the wait at once instead of after half a minute.
func (p *Process) UntilReady(ready func() bool) error {
	hasEnded := false
	err := Until("it is ready", func() bool {
		select {
		case <-p.ended:
			hasEnded = true
		default:
		}
		return hasEnded || ready()
	})
	if hasEnded {
		err = errors.New("it has ended")
	}
	if err != nil {
		p.Stop()
	}
	return err
}

// Stop interrupts it, and kills it if that takes long.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	if p.Wait(10*time.Second) != nil {
		_ = p.Kill()
	}
}

// Kill ends it without a word.
func (p *Process) Kill() error {
	if err := p.Signal(os.Kill); err != nil {
		return err
	}
	return p.Wait(patience)
}

// Signal sends a signal to it.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signalling process %d: %w", p.cmd.Process.Pid, err)
	}
	return nil
}

// Wait waits until it has ended, for at most a time.
func (p *Process) Wait(d time.Duration) error {
	select {
	case <-p.ended:
		return nil
	case <-time.After(d):
		return fmt.Errorf("process %d goes on after %v", p.cmd.Process.Pid, d)
	}
}

// Ask asks its debug port for a text.
func (p *Process) Ask(path string) (string, error) {
	client := http.Client{Timeout: 10 * time.Second}
	r, err := client.Get("http://" + p.Debug + path)
	if err != nil {
		return "", fmt.Errorf("asking for %s: %w", path, err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return string(text), err
}

// Metric is the number of the first of a node's metrics that begins so. A line is `NAME{LABELS} VALUE`, so a name
// without labels must end with a space, or a longer name may match.
func (p *Process) Metric(begins string) (float64, error) {
	text, err := p.Ask("/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, begins) {
			fields := strings.Fields(line)
			return strconv.ParseFloat(fields[len(fields)-1], 64)
		}
	}
	return 0, fmt.Errorf("metrics of %s: no line begins with %s", p.Debug, begins)
}

// CPU is the processor time that it has used since it started.
func (p *Process) CPU() (time.Duration, error) { return CPUOf(p.cmd.Process.Pid) }

// Spent is the processor time that processes use while do runs. Processes that end meanwhile must still count in of:
// see Fleet.CPU.
func Spent(of interface{ CPU() (time.Duration, error) }, do func() error) (time.Duration, error) {
	before, err := of.CPU()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := of.CPU()
	return after - before, err
}

// PeakMemory is the most resident memory that the process has had, in bytes. The kernel keeps the peak (VmHWM), so that
// no reading between two requests can miss it.
func (p *Process) PeakMemory() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	_, most, _ := strings.Cut(string(text), "VmHWM:")
	var kib int64
	if _, is := fmt.Sscan(most, &kib); is != nil {
		return 0, fmt.Errorf("memory of process %d: /proc does not say it: %w", p.cmd.Process.Pid, errors.Join(err, is))
	}
	return kib << 10, nil
}

// Redis is the store of a run, in a process of its own. The client reads its statistics and empties it. Nodes have
// connections of their own.
type Redis struct {
	*Process        // Kill ends it without a word, Pause stops it
	Addr     string // HOST:PORT
	port     string
	client   *redis.Client
}

// ErrNoRedis says that there is none to start.
var ErrNoRedis = errors.New("redis-server is not on the PATH: install Redis 6.2 or later")

// OpenRedis starts a Redis that keeps nothing on disk.
func OpenRedis() (*Redis, error) {
	ports, err := freeport.Find(1)
	if err != nil {
		return nil, err
	}
	s := &Redis{Addr: "127.0.0.1:" + ports[0], port: ports[0]}
	if err := s.Start(); err != nil {
		return nil, err
	}
	s.client = redis.NewClient(&redis.Options{Addr: s.Addr})
	return s, nil
}

// Start starts it at its address: again, and empty, after Kill. The new process replaces the old one in s, and the
// client connects again by itself.
func (s *Redis) Start() error {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return ErrNoRedis
	}
	s.Process, err = Start(nil, binary, s.Addr, "--port", s.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	return err
}

// Forget removes all its data.
func (s *Redis) Forget() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.client.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("emptying redis: %w", err)
	}
	return nil
}

// Close ends it.
func (s *Redis) Close() {
	_ = s.client.Close()
	s.Stop()
}

// RedisUse is the work of a Redis so far.
type RedisUse struct {
	CPU      time.Duration    // processor time
	Bytes    int64            // that it has received and sent
	Commands map[string]int64 // how often it has run each
}

// uses finds figures of a Redis. It matches lines of INFO such as
//
//	cmdstat_hincrby:calls=1204,usec=3120,usec_per_call=2.59
//	total_net_input_bytes:81234
var uses = regexp.MustCompile(`cmdstat_([a-z|]+):calls=(\d+)|total_net_(?:in|out)put_bytes:(\d+)`)

// Used reads its work. Without an answer within a second, only the processor time is set. A hung Redis must not hold up
// the measurement of its outage: hence the second.
func (s *Redis) Used() RedisUse {
	u := RedisUse{Commands: map[string]int64{}}
	u.CPU, _ = s.CPU()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	text, _ := s.client.Info(ctx, "all").Result() // several sections at once: from Redis 7 on only
	for _, m := range uses.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseInt(cmp.Or(m[2], m[3]), 10, 64)
		if m[1] == "" {
			u.Bytes += n
		} else {
			u.Commands[m[1]] = n
		}
	}
	return u
}

// Since is its work since an earlier reading. A Redis that was started again counts from 0: counters that fell are left
// out.
func (u RedisUse) Since(before RedisUse) RedisUse {
	d := RedisUse{CPU: u.CPU - before.CPU, Bytes: max(0, u.Bytes-before.Bytes), Commands: map[string]int64{}}
	for name, n := range u.Commands {
		if n > before.Commands[name] {
			d.Commands[name] = n - before.Commands[name]
		}
	}
	return d
}
