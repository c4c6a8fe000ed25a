package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Redis is the store of a run, in a process of its own.
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

// Start starts it at its address: again, and empty, after Kill.
func (s *Redis) Start() error {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return ErrNoRedis
	}
	s.Process, err = Start(binary, s.Addr, "--port", s.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
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
	CPU     time.Duration // processor time
	Scripts int64         // EVAL and EVALSHA: each settles the claims of one key
	In, Out int64         // bytes that it has received and sent
	// Commands are how often it has run each.
	Commands map[string]int64
}

var uses = regexp.MustCompile(`cmdstat_([a-z|]+):calls=(\d+)|total_net_(in|out)put_bytes:(\d+)`)

// Used reads its work. Without an answer within a second, only the processor time is set.
func (s *Redis) Used() (u RedisUse) {
	u.CPU, _ = s.CPU()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	text, err := s.client.Info(ctx, "all").Result() // several sections at once: from Redis 7 on only
	if err != nil {
		return u
	}
	u.Commands = map[string]int64{}
	for _, m := range uses.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseInt(cmp.Or(m[2], m[4]), 10, 64)
		switch m[3] {
		case "in":
			u.In += n
		case "out":
			u.Out += n
		default:
			u.Commands[m[1]] = n
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
		Commands: map[string]int64{},
	}
	for name, n := range u.Commands {
		if n > before.Commands[name] {
			d.Commands[name] = n - before.Commands[name]
		}
	}
	return d
}
