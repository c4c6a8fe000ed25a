package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// spoiler stands between a client and a Redis, has each command executed, and answers those of one name with the
// same bytes always. Without a Redis it answers all but a client's first commands so.
type spoiler struct {
	Addr, target, command, garbage string

	mu      sync.Mutex
	spoiled int // guarded by mu: replies
}

func newSpoiler(t *testing.T, target, command, garbage string) *spoiler {
	t.Helper()
	s := &spoiler{target: target, command: command, garbage: garbage}
	s.Addr = listening(t, s.serve)
	return s
}

func (s *spoiler) serve(c net.Conn) {
	defer c.Close()
	var upstream net.Conn
	if s.target != "" {
		var err error
		if upstream, err = net.Dial("tcp", s.target); err != nil {
			return
		}
		defer upstream.Close()
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	var sent strings.Builder
	asks, answers := bufio.NewReader(io.TeeReader(c, &sent)), bufio.NewReader(upstream)
	for {
		sent.Reset()
		command, err := readCommand(asks)
		if err != nil {
			return
		}
		if upstream == nil {
			reply := s.garbage
			if command == "hello" || command == "client" {
				reply = "-ERR unknown command\r\n"
			}
			if _, err := io.WriteString(c, reply); err != nil {
				return
			}
			continue
		}
		// What was read ahead belongs to the commands behind this one.
		whole := sent.String()
		ahead := asks.Buffered()
		if _, err := io.WriteString(upstream, whole[:len(whole)-ahead]); err != nil {
			return
		}
		rest := whole[len(whole)-ahead:]
		asks = bufio.NewReader(io.TeeReader(io.MultiReader(strings.NewReader(rest), c), &sent))
		reply, err := readReply(answers)
		if err != nil {
			return
		}
		if command == s.command {
			reply = s.garbage
			s.mu.Lock()
			s.spoiled++
			s.mu.Unlock()
		}
		if _, err := io.WriteString(c, reply); err != nil {
			return
		}
	}
}

// readReply reads one reply, of RESP 2 or 3, as bytes.
func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '$', '=', '!':
		if n < 0 {
			return line, nil
		}
		text := make([]byte, n+2)
		_, err = io.ReadFull(r, text)
		return line + string(text), err
	case '%', '|':
		n *= 2
	case '*', '~', '>':
	default:
		return line, nil
	}
	for range max(0, n) {
		one, err := readReply(r)
		if err != nil {
			return "", err
		}
		line += one
	}
	return line, nil
}

// Garbage of every type as the reply to each command: no more is admitted than the limit, and what was not taken in
// is counted.
func TestGarbageInEveryReply(t *testing.T) {
	const limit = 10
	garbage := []string{
		":0\r\n", ":1\r\n", ":30\r\n", ":-30\r\n", ":9223372036854775807\r\n", "$1\r\n0\r\n", "$2\r\n30\r\n", "$0\r\n\r\n",
		"$-1\r\n", "*-1\r\n", "*0\r\n", "*2\r\n:1\r\n:1\r\n", "+OK\r\n", "-ERR no\r\n", ",1.5\r\n", "#t\r\n", "_\r\n",
		"%1\r\n:1\r\n:2\r\n", "(3492890328409238509324850943850943825024385\r\n",
	}
	for _, command := range []string{"hincrby", "exec", "multi", "pexpireat", "time", "evalsha", "eval", "get"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			store := redistest.Start(t)
			spoiled := 0
			for i, bytes := range garbage {
				s := newSpoiler(t, store.Addr, command, bytes)
				var refused atomic.Uint64
				f, _ := hostileFleet(t, s.Addr, &refused)
				admitted := spend(f, hostileRule(limit), fmt.Sprint("k", i), 3*limit)
				counted := f.Stats()
				s.mu.Lock()
				n := s.spoiled
				s.mu.Unlock()
				spoiled += n
				if admitted > limit {
					t.Errorf("%q: %d of %d were admitted", bytes, admitted, limit)
				}
				noted := refused.Load() + counted.Failed + counted.Missing + counted.Recoveries
				for _, r := range append(counted.Fallbacks[:], counted.Rejected) {
					noted += r
				}
				if n > 0 && noted == 0 && admitted != limit {
					t.Errorf("%q: %d of %d were admitted, and nothing is counted", bytes, admitted, limit)
				}
			}
			if spoiled == 0 && command != "eval" && command != "get" {
				t.Error("no reply was spoiled")
			}
		})
	}
}
