// Package pgtest runs real PostgreSQL servers for tests.
//
// Guarantee: a server runs in a directory of its own on a free loopback port, and ends with the test. It keeps its
// data when it is killed and run again. Without PostgreSQL, the test fails with an instruction to install it.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Server is a PostgreSQL server, and its data.
type Server struct {
	testing.TB
	Port string
	data string
	cmd  *exec.Cmd
	args []string
}

// Start creates a server's data and runs it, with more settings, such as "max_connections=5".
func Start(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s := newServer(tb, settings)
	s.do("initdb", "-D", s.data, "-U", "sluice", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync",
		"--no-instructions")
	s.Run()
	return s
}

func newServer(tb testing.TB, settings []string) *Server {
	tb.Helper()
	ports, err := freeport.Find(1)
	if err != nil {
		tb.Fatal(err)
	}
	// PostgreSQL does not run as root, and its user must reach its data.
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{TB: tb, Port: ports[0], data: filepath.Join(dir, "data"), args: settings}
	if id := s.credential(); id != nil {
		if err := os.Chown(dir, int(id.Uid), int(id.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

// URL names the server's database.
func (s *Server) URL() string { return "postgres://sluice@127.0.0.1:" + s.Port + "/postgres" }

// Run runs the server, again after Kill, and waits until it answers.
func (s *Server) Run() {
	s.Helper()
	args := []string{"-D", s.data, "-p", s.Port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="}
	for _, setting := range s.args {
		args = append(args, "-c", setting)
	}
	s.cmd = s.command("postgres", args...)
	if err := s.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(s.Kill)
	s.with(func(context.Context, *pgx.Conn) error { return nil })
}

// Kill ends the server and all of its processes at once, like a crash of the machine, except that its writes stay in
// the system's cache.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	// Stopped first, so that none starts another in the meantime.
	_ = s.cmd.Process.Signal(syscall.SIGSTOP)
	children := s.children()
	_ = s.cmd.Process.Kill()
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = s.cmd.Wait()
	for _, pid := range children {
		for syscall.Kill(pid, 0) == nil {
			time.Sleep(time.Millisecond)
		}
	}
	s.cmd = nil
	_ = os.Remove(filepath.Join(s.data, "postmaster.pid")) // its number may be another process's by now
}

// children are the server's processes except the first: each leads a session of its own.
func (s *Server) children() (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state parent ...
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 1 && fields[1] == strconv.Itoa(s.cmd.Process.Pid) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// Signal sends a signal to all of its processes.
func (s *Server) Signal(sig syscall.Signal) {
	s.Helper()
	for _, pid := range append([]int{s.cmd.Process.Pid}, s.children()...) {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) { // one has ended
			s.Fatal(err)
		}
	}
}

// Standby makes a standby of this server, with a name for its synchronous_standby_names.
func (s *Server) Standby(name string) *Server {
	s.Helper()
	settings := slices.DeleteFunc(slices.Clone(s.args), func(setting string) bool {
		return strings.HasPrefix(setting, "synchronous_standby_names=") // the standby has none of its own
	})
	other := newServer(s.TB, settings)
	other.do("pg_basebackup", "-h", "127.0.0.1", "-p", s.Port, "-U", "sluice", "-D", other.data, "-X", "stream", "-R",
		"--no-sync", "-c", "fast")
	conninfo := fmt.Sprintf("primary_conninfo=host=127.0.0.1 port=%s user=sluice application_name=%s", s.Port, name)
	other.args = slices.Concat(settings, []string{conninfo})
	other.Run()
	return other
}

// Snapshot copies the server's volume, for which it restarts, and returns a function that restores it in its place.
func (s *Server) Snapshot() (restore func()) {
	s.Helper()
	kept := s.data + ".kept"
	s.Kill()
	s.do("cp", "-a", s.data, kept)
	s.Run()
	return func() {
		s.Helper()
		s.Kill()
		if err := os.RemoveAll(s.data); err != nil {
			s.Fatal(err)
		}
		s.do("cp", "-a", kept, s.data)
		s.Run()
	}
}

// Promote makes a standby a primary.
func (s *Server) Promote() {
	s.Helper()
	s.Exec("SELECT pg_promote(true, 30)")
}

// Exec runs statements.
func (s *Server) Exec(sql string, args ...any) {
	s.Helper()
	s.with(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	})
}

// Int is the only number that a query returns.
func (s *Server) Int(sql string, args ...any) (n int64) {
	s.Helper()
	s.with(func(ctx context.Context, c *pgx.Conn) error { return c.QueryRow(ctx, sql, args...).Scan(&n) })
	return n
}

// with connects, with retries: other connections may be ending.
func (s *Server) with(do func(context.Context, *pgx.Conn) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, s.URL())
	for ; err != nil && ctx.Err() == nil; c, err = pgx.Connect(ctx, s.URL()) {
		time.Sleep(10 * time.Millisecond)
	}
	if err == nil {
		defer func() { _ = c.Close(ctx) }()
		err = do(ctx, c)
	}
	if err != nil {
		s.Fatal(err)
	}
}

func (s *Server) do(name string, args ...string) {
	s.Helper()
	if out, err := s.command(name, args...).CombinedOutput(); err != nil {
		s.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// command is a program of PostgreSQL.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	s.Helper()
	cmd := exec.CommandContext(context.Background(), s.find(name), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential()}
	cmd.Dir = filepath.Dir(s.data)
	return cmd
}

// find also looks at Debian's place, which is not on the PATH.
func (s *Server) find(name string) string {
	s.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		s.Fatalf("there is no %s here, and the tests need PostgreSQL: make deps, or apt-get install postgresql", name)
	}
	return found[len(found)-1]
}

// credential is the server's user, if the test runs as root.
func (s *Server) credential() *syscall.Credential {
	s.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		s.Fatal(err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		s.Fatal(err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		s.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// CPU is the CPU time of all processes of the server so far.
func (s *Server) CPU() (all time.Duration) {
	s.Helper()
	for _, pid := range append(s.children(), s.cmd.Process.Pid) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended, and is part of the first one's ended children
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		times := fields[11:13] // user, system
		if pid == s.cmd.Process.Pid {
			times = fields[11:15] // and of children that have ended
		}
		for _, ticks := range times {
			n, err := strconv.ParseInt(ticks, 10, 64)
			if err != nil {
				s.Fatal(err)
			}
			all += time.Duration(n) * time.Second / 100
		}
	}
	return all
}

// AskForPasswords makes the server require a password of all users but its own.
func (s *Server) AskForPasswords() {
	s.Helper()
	rules := "host all sluice 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
	if err := os.WriteFile(filepath.Join(s.data, "pg_hba.conf"), []byte(rules), 0o600); err != nil {
		s.Fatal(err)
	}
	s.Exec("SELECT pg_reload_conf()")
}
