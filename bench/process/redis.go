package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Redis is the store of a run: a process of its own, or one that is there.
type Redis struct {
	Addr   string   // HOST:PORT
	own    *Process // nil: another owner runs it
	client *redis.Client
}

// ErrNoRedis says that there is none to start.
var ErrNoRedis = errors.New("redis-server is not on the PATH: install Redis 6.2 or later, or name one that runs with --redis HOST:PORT")

// OpenRedis starts a Redis that keeps nothing on disk, or uses the one at addr.
func OpenRedis(addr string) (*Redis, error) {
	s := &Redis{Addr: addr}
	if addr == "" {
		ports, err := freeport.Find(1)
		if err != nil {
			return nil, err
		}
		s.Addr = "127.0.0.1:" + ports[0]
		if err := s.Start(); err != nil {
			return nil, err
		}
	}
	s.client = redis.NewClient(&redis.Options{Addr: s.Addr})
	if err := s.client.Ping(context.Background()).Err(); err != nil {
		s.Close()
		return nil, fmt.Errorf("redis at %s: %w", s.Addr, err)
	}
	return s, nil
}

// Start starts it at its address: again, after Kill.
func (s *Redis) Start() error {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return ErrNoRedis
	}
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return fmt.Errorf("the address of redis: %w", err)
	}
	s.own, err = Start(binary, s.Addr, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	return err
}

// Kill ends it without a word. Start has it there again, and empty.
func (s *Redis) Kill() error {
	if err := s.own.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return s.own.Wait(5 * time.Second)
}

// Hang stops it, or has it go on.
func (s *Redis) Hang(on bool) error { return s.own.Pause(on) }

// Forget removes all its data.
func (s *Redis) Forget() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.client.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("emptying redis: %w", err)
	}
	return nil
}

// Close ends it, if it is of this run.
func (s *Redis) Close() {
	if s.client != nil {
		_ = s.client.Close()
	}
	if s.own != nil {
		s.own.Stop()
	}
}

// RedisUse is the work of a Redis so far.
type RedisUse struct {
	CPU     time.Duration // processor time; 0 of one that is not of this run
	Scripts int64         // EVAL and EVALSHA: each settles the claims of one key
	In, Out int64         // bytes that it has received and sent
	// Commands are how often it has run each, and for how long in all.
	Commands map[string]RedisCommand
}

// RedisCommand is one kind of command.
type RedisCommand struct {
	Calls int64         `json:"calls"`
	Time  time.Duration `json:"time"` // in the command itself, without reading, parsing and answering
}

var uses = regexp.MustCompile(`cmdstat_([a-z|]+):calls=(\d+),usec=(\d+)|total_net_(in|out)put_bytes:(\d+)`)

// Used reads its work. Without an answer within a second, only the processor time is set.
func (s *Redis) Used() (u RedisUse) {
	if s.own != nil {
		u.CPU, _ = s.own.CPU()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	text, err := s.client.Info(ctx, "all").Result() // several sections at once: from Redis 7 on only
	if err != nil {
		return u
	}
	u.Commands = map[string]RedisCommand{}
	for _, m := range uses.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseInt(cmp.Or(m[2], m[5]), 10, 64)
		us, _ := strconv.ParseInt(m[3], 10, 64)
		switch m[4] {
		case "in":
			u.In += n
		case "out":
			u.Out += n
		default:
			u.Commands[m[1]] = RedisCommand{n, time.Duration(us) * time.Microsecond}
			if m[1] == "eval" || m[1] == "evalsha" {
				u.Scripts += n
			}
		}
	}
	return u
}

// Since is its work since an earlier reading.
func (u RedisUse) Since(before RedisUse) RedisUse {
	d := RedisUse{
		CPU: u.CPU - before.CPU, Scripts: max(0, u.Scripts-before.Scripts), In: max(0, u.In-before.In), Out: max(0, u.Out-before.Out),
		Commands: map[string]RedisCommand{},
	}
	for name, c := range u.Commands {
		was := before.Commands[name]
		if c.Calls -= was.Calls; c.Calls > 0 {
			c.Time -= was.Time
			d.Commands[name] = c
		}
	}
	return d
}
