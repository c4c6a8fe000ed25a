// Package redistest runs real redis-servers for tests.
//
// Guarantee: a server runs in a directory of its own on a free loopback port, and ends with the test, or with all
// tests of a package that share it. Without redis-server, the test fails with an instruction to install it: no test
// is skipped. REDIS_SERVER names another program, such as valkey-server.
package redistest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Server is a running redis-server.
type Server struct {
	testing.TB
	Addr string
	args []string
	dir  string
	cmd  *exec.Cmd
	// config makes it a sentinel.
	config string
}

// Start runs a redis-server with more arguments.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := &Server{TB: tb, Addr: freeAddress(tb), args: args, dir: tb.TempDir()}
	s.Run()
	tb.Cleanup(s.Kill)
	s.Begin("")
	return s
}

// Begin marks an empty Redis as new for names with a prefix. Otherwise a fleet must assume a loss of data. In a
// Cluster other names are needed. Start and Shared call it without a prefix.
func (s *Server) Begin(prefix string) {
	client := s.Client()
	defer client.Close()
	ctx := context.Background()
	of := func(section, name string) string {
		for line := range strings.Lines(client.Info(ctx, section).Val()) {
			if value, ok := strings.CutPrefix(line, name+":"); ok {
				return strings.TrimSpace(value)
			}
		}
		return "-"
	}
	life := "1 1 1 " + of("server", "run_id") + " " + of("replication", "master_replid")
	_ = client.Set(ctx, prefix+"sluice:life", life, 0).Err()
}

// shared is the server that tests of a package share.
var shared *Server

// Shared returns the server that all tests of a package share, and empties it: a start takes longer than most tests.
// It fails in a parallel test. A test that changes settings of the server starts its own. The package's TestMain
// calls EndShared.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	tb.Setenv("SLUICE_REDISTEST", "shared") // makes package testing refuse parallel tests
	if shared == nil {
		dir, err := os.MkdirTemp("", "redistest")
		if err != nil {
			tb.Fatal(err)
		}
		shared = &Server{TB: tb, Addr: freeAddress(tb), dir: dir}
	}
	shared.TB = tb
	if shared.cmd == nil {
		shared.Run()
	} else {
		shared.Do("FLUSHALL")
	}
	shared.Begin("")
	return shared
}

// EndShared ends the server of Shared, if there is one.
func EndShared() {
	if shared != nil {
		shared.Kill()
		_ = os.RemoveAll(shared.dir)
		shared = nil
	}
}

// freeAddress is an address on which a server can be started, ended and started again.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	ports, err := freeport.Find(1, freeport.ClusterBus)
	if err != nil {
		tb.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", ports[0])
}

// URL names the server.
func (s *Server) URL() string { return "redis://" + s.Addr }

// program is the program to run: redis-server, or REDIS_SERVER, such as valkey-server.
func program() string { return cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server") }

// Run starts the server's process, again after Kill. It keeps no data on disk.
func (s *Server) Run() {
	s.Helper()
	_ = os.Remove(filepath.Join(s.dir, "dump.rdb")) // a replica writes what its master sends
	path, err := exec.LookPath(program())
	if err != nil {
		s.Fatalf("there is no %s here, and the tests need one: make deps, or apt-get install redis-server", program())
	}
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		s.Fatal(err)
	}
	args := append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir},
		s.args...)
	if s.config != "" {
		args = []string{s.config, "--sentinel", "--port", port, "--bind", "127.0.0.1", "--dir", s.dir}
	}
	s.cmd = exec.Command(path, args...)
	if err := s.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	client := s.Client()
	defer client.Close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // until it answers
		err = client.Ping(context.Background()).Err()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("%v does not answer: %v", s, err)
		}
	}
}

// Kill ends the process at once.
func (s *Server) Kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Signal sends a signal to the process.
func (s *Server) Signal(sig syscall.Signal) {
	s.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.Fatal(err)
	}
}

// PID is the number of the process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Client returns a client to close.
func (s *Server) Client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, ContextTimeoutEnabled: true})
}

// Do runs one command and fails the test if it fails.
func (s *Server) Do(args ...any) any {
	s.Helper()
	c := s.Client()
	defer c.Close()
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil {
		s.Fatalf("%v: %v", args, err)
	}
	return v
}

// Commands returns the number of commands of a name that the server has run.
func (s *Server) Commands(name string) int {
	s.Helper()
	var calls int
	for line := range strings.Lines(s.Info("commandstats")) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+name+":calls="); ok {
			text, _, _ := strings.Cut(rest, ",")
			n, _ := strconv.Atoi(text)
			calls += n
		}
	}
	return calls
}

// String names the server in messages.
func (s *Server) String() string { return program() + " " + s.Addr }

// Used is the number of servers that have run a command since their last CONFIG RESETSTAT, in scripts too.
func Used(servers []*Server, command string) (n int) {
	for _, s := range servers {
		if strings.Contains(fmt.Sprint(s.Do("INFO", "commandstats")), "cmdstat_"+command+":") {
			n++
		}
	}
	return n
}
