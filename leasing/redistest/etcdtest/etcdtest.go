// Package etcdtest runs real servers of etcd for tests.
//
// Guarantee: a server is a process of its own, in a directory of its own and on free loopback ports, and ends with
// the test. It keeps its data when it is killed and run again. Its program is built from the module in the folder
// server, which needs only Go and its module proxy. If the build fails, the test fails with its error.
package etcdtest

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
	"github.com/sluice-gate/sluice/leasing/redistest/program"
)

// Server is a member of a cluster, and its data. Most clusters have one.
type Server struct {
	testing.TB
	Port    string
	peers   string // its port for peers
	members string // the peers' ports of all members
	token   string
	user    []string // name and password of the server's own client, if any
	data    string
	cmd     *exec.Cmd
	client  *clientv3.Client
}

// Start creates a server's data and runs it.
func Start(tb testing.TB) *Server {
	tb.Helper()
	return StartCluster(tb, 1)[0]
}

// StartCluster creates the data of a cluster of some members and runs them.
func StartCluster(tb testing.TB, members int) []*Server {
	tb.Helper()
	ports, err := freeport.Find(2 * members)
	if err != nil {
		tb.Fatal(err)
	}
	all := make([]*Server, members)
	for i := range all {
		all[i] = &Server{
			TB: tb, Port: ports[i], peers: ports[members+i], members: strings.Join(ports[members:], ","), token: "test",
			data: filepath.Join(tb.TempDir(), "data"),
		}
		all[i].start()
	}
	for _, s := range all {
		s.untilReady()
	}
	return all
}

// URL names the server.
func (s *Server) URL() string { return "etcd://" + s.address() }

func (s *Server) address() string { return "127.0.0.1:" + s.Port }

var etcd = sync.OnceValues(func() (string, error) {
	return program.Build("etcd", "leasing/redistest/etcdtest/server")
})

func (s *Server) command(args ...string) *exec.Cmd {
	s.Helper()
	path, err := etcd()
	if err != nil {
		s.Fatalf("etcd cannot be built, and the tests need it: %v. Its modules come from the module proxy: "+
			"cd leasing/redistest/etcdtest/server && go mod download", err)
	}
	return exec.Command(path, append(args, s.data, s.Port, s.peers)...)
}

// Run runs the server, again after Kill, and waits until it answers.
func (s *Server) Run() {
	s.Helper()
	s.start()
	s.untilReady()
}

func (s *Server) start() {
	s.Helper()
	s.cmd = s.command("-token", s.token, "-members", s.members)
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(s.Kill)
}

func (s *Server) untilReady() {
	s.Helper()
	s.With(func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Get(ctx, "-")
		return err
	})
}

// Leads reports whether it is the leader of its cluster.
func (s *Server) Leads() (yes bool) {
	s.Helper()
	s.With(func(ctx context.Context, c *clientv3.Client) error {
		r, err := c.Status(ctx, s.address())
		yes = err == nil && r.Leader == r.Header.MemberId
		return err
	})
	return yes
}

// Kill ends the server at once, like a crash of the machine, except that its writes stay in the system's cache.
func (s *Server) Kill() {
	if s.client != nil {
		_ = s.client.Close()
		s.client = nil
	}
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Signal sends a signal to it.
func (s *Server) Signal(sig syscall.Signal) {
	s.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.Fatal(err)
	}
}

// PID is the number of the process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Snapshot writes a snapshot of the data into a file, and returns its path.
func (s *Server) Snapshot() string {
	s.Helper()
	path := filepath.Join(s.TempDir(), "snapshot")
	f, err := os.Create(path)
	if err != nil {
		s.Fatal(err)
	}
	s.With(func(ctx context.Context, c *clientv3.Client) error {
		r, err := c.Snapshot(ctx)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return err
	})
	if err := f.Close(); err != nil {
		s.Fatal(err)
	}
	return path
}

// Restore replaces a killed server's data by a snapshot, with the token of a cluster: "" for the previous one.
func (s *Server) Restore(snapshot, token string) {
	s.Helper()
	if token != "" {
		s.token = token
	}
	s.data = filepath.Join(s.TempDir(), "restored")
	if out, err := s.command("-token", s.token, "-restore", snapshot).CombinedOutput(); err != nil {
		s.Fatalf("restoring a snapshot: %v\n%s", err, out)
	}
}

// Protect makes the server require a password, of the user root.
func (s *Server) Protect(password string) {
	s.Helper()
	s.With(func(ctx context.Context, c *clientv3.Client) error {
		if _, err := c.UserAdd(ctx, "root", password); err != nil {
			return err
		}
		if _, err := c.RoleAdd(ctx, "root"); err != nil {
			return err
		}
		if _, err := c.UserGrantRole(ctx, "root", "root"); err != nil {
			return err
		}
		_, err := c.AuthEnable(ctx)
		return err
	})
	_ = s.client.Close()
	s.client, s.user = nil, []string{"root", password}
}

// Count is the number of keys with a prefix.
func (s *Server) Count(prefix string) (n int64) {
	s.Helper()
	s.With(func(ctx context.Context, c *clientv3.Client) error {
		r, err := c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil {
			n = r.Count
		}
		return err
	})
	return n
}

// With runs a function with a client of the server.
func (s *Server) With(do func(context.Context, *clientv3.Client) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if s.client == nil {
		config := clientv3.Config{Endpoints: []string{s.address()}, Logger: zap.NewNop()}
		if s.user != nil {
			config.Username, config.Password = s.user[0], s.user[1]
		}
		var err error
		s.client, err = clientv3.New(config)
		if err != nil {
			s.Fatal(err)
		}
	}
	if err := do(ctx, s.client); err != nil {
		s.Fatal(err)
	}
}
