package metrics

import (
	"bufio"
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// sink is a statsd server: it adds up what it is sent.
type sink struct {
	*testing.T
	addr  string
	l     net.Listener
	mu    sync.Mutex
	sums  map[string]int // guarded by mu
	conns []net.Conn     // guarded by mu
}

func newSink(t *testing.T, addr string) *sink {
	t.Helper()
	c := &sink{T: t, sums: map[string]int{}}
	c.listen(addr)
	return c
}

func (c *sink) listen(addr string) {
	c.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		c.Fatal(err)
	}
	c.l, c.addr = l, l.Addr().String()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.mu.Lock()
			c.conns = append(c.conns, conn)
			c.mu.Unlock()
			go func() {
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					name, value, _ := strings.Cut(lines.Text(), ":")
					value, kind, _ := strings.Cut(value, "|")
					n, err := strconv.Atoi(value)
					if kind == "c" && err != nil {
						c.Errorf("line %q", lines.Text())
					}
					c.mu.Lock()
					c.sums[name] += n
					c.mu.Unlock()
				}
			}()
		}
	}()
}

func (c *sink) end() {
	c.l.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

func (c *sink) sum(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sums[name]
}

// until waits until a sum is reached.
func (c *sink) until(name string, want int) {
	c.Helper()
	for end := time.Now().Add(10 * time.Second); c.sum(name) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("%s is %d, want %d", name, c.sum(name), want)
		}
	}
}

// A server gets each increment once, also those of the time in which it was away.
func TestStatsdMissesNothing(t *testing.T) {
	c := newSink(t, "127.0.0.1:0")
	defer func() { c.end() }()
	var mu sync.Mutex
	count := map[string]uint64{"a": 3, "b": 0, "always": 0}
	set := func(name string, n uint64) {
		mu.Lock()
		defer mu.Unlock()
		count[name] = n
	}
	failed := make(chan error, 1000)
	s := &Statsd{
		Addr: c.addr, Interval: 5 * time.Millisecond, Tags: map[string]string{"zone": "eu:1.2", "env": "prod"},
		Counters: func(each func(string, uint64)) {
			mu.Lock()
			defer mu.Unlock()
			count["always"]++ // each time there is something to send
			for name, n := range count {
				each(name, n)
			}
		},
		Gauges: func(func(string, uint64)) {}, Latency: NewLatency(InSeconds),
		OnError: func(err error) { failed <- err },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	const tags = ".__env=prod.__zone=eu_1_2"
	c.until("a"+tags, 3)
	set("a", 5)
	c.until("a"+tags, 5)
	c.end()
	// What is under way while the connection breaks may be lost. From the first error on, nothing is.
	if err := <-failed; !strings.Contains(err.Error(), c.addr) {
		t.Errorf("an error that does not say where: %v", err)
	}
	set("a", 9)
	set("b", 2)
	c.listen(c.addr)
	c.until("a"+tags, 9)
	c.until("b"+tags, 2)
	set("b", 7)
	cancel()
	<-done
	c.until("b"+tags, 7) // the last is sent at the end
}
