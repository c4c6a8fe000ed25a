package main

import (
	"bufio"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// lineSink is a statsd server for one client.
type lineSink struct {
	port  string
	ended chan map[string]int
}

func newLineSink(t *testing.T) *lineSink {
	l := listens(t)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	k := &lineSink{port, make(chan map[string]int, 10)}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			sums := map[string]int{}
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				name, rest, _ := strings.Cut(lines.Text(), ":")
				value, kind, _ := strings.Cut(rest, "|")
				n, _ := strconv.Atoi(value)
				if kind == "ms" {
					n = 1
				}
				sums[name] += n
			}
			conn.Close()
			k.ended <- sums
		}
	}()
	return k
}

// env has a server send all at its end.
func (k *lineSink) env() []string {
	return []string{"USE_STATSD=1", "STATSD_HOST=127.0.0.1", "STATSD_PORT=" + k.port, "STATS_FLUSH_INTERVAL=1h", "EXTRA_TAGS=team:edge,az:a"}
}

// sums waits until a server has closed its connection, and returns the sum of each name; of times, how many there were.
func (k *lineSink) sums(t *testing.T) map[string]int {
	select {
	case sums := <-k.ended:
		return sums
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was sent, or the connection stays open")
		return nil
	}
}
