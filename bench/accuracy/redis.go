package accuracy

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/bench/process"
)

// store is the Redis of a run: a process of its own, or one that is there.
type store struct {
	addr   string
	own    *process.Process // nil: it is somebody else's
	client *redis.Client
}

var errNoRedis = errors.New("redis-server is not on the PATH: install Redis 6.2 or later, or name one that runs with --redis HOST:PORT")

// openStore starts a Redis, or uses the one at addr.
func openStore(addr string) (*store, error) {
	s := &store{addr: addr}
	if addr == "" {
		ports, err := process.FreePorts(1)
		if err != nil {
			return nil, err
		}
		s.addr = "127.0.0.1:" + ports[0]
		if err := s.start(); err != nil {
			return nil, err
		}
	}
	s.client = redis.NewClient(&redis.Options{Addr: s.addr})
	if err := s.client.Ping(context.Background()).Err(); err != nil {
		s.close()
		return nil, fmt.Errorf("redis at %s: %w", s.addr, err)
	}
	return s, nil
}

func (s *store) start() error {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return errNoRedis
	}
	_, port, _ := cutLast(s.addr)
	s.own, err = process.Start(binary, s.addr, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	return err
}

func cutLast(addr string) (host, port string, ok bool) {
	for i := len(addr) - 1; i >= 0; i-- {
		if addr[i] == ':' {
			return addr[:i], addr[i+1:], true
		}
	}
	return addr, "", false
}

// kill ends it without a word; restart has it there again, and empty.
func (s *store) kill() error {
	if err := s.own.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return s.own.Wait(5 * time.Second)
}

func (s *store) hang(on bool) error {
	if on {
		return s.own.Signal(syscall.SIGSTOP)
	}
	return s.own.Signal(syscall.SIGCONT)
}

func (s *store) forget() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.client.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("emptying redis: %w", err)
	}
	return nil
}

func (s *store) close() {
	if s.client != nil {
		_ = s.client.Close()
	}
	if s.own != nil {
		s.own.Stop()
	}
}

var evals = regexp.MustCompile(`cmdstat_evalsha?:calls=(\d+)`)

// operations is how many scripts it has run: each settles the claims of one key.
// It is 0 if it does not answer.
func (s *store) operations() (n int64) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	text, err := s.client.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0
	}
	for _, m := range evals.FindAllStringSubmatch(text, -1) {
		calls, _ := strconv.ParseInt(m[1], 10, 64)
		n += calls
	}
	return n
}
