package main

import (
	"bufio"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lineSink is a statsd server for one client.
type lineSink struct {
	port  string
	ended chan map[string]int
}

func newLineSink(t *testing.T) *lineSink {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
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

// sums waits until a server has closed its connection, and returns the sum of
// each name; of times, how many there were.
func (k *lineSink) sums(t *testing.T) map[string]int {
	select {
	case sums := <-k.ended:
		return sums
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was sent, or the connection stays open")
		return nil
	}
}

// The binary sends what envoyproxy/ratelimit does, under its names, and the last
// of it when it ends.
func TestStatsd(t *testing.T) {
	sink := newLineSink(t)
	s := serve(t, append(sink.env(), "DRAIN_TIME=0s", "LOCAL_CACHE_SIZE_IN_BYTES=1"))
	ask := s.overGRPC()
	for range 5 {
		if got := ask(parseRequest(t, "domain=example | user=bob")); strings.HasPrefix(got, "error") {
			t.Error(got)
		}
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	sums := sink.sums(t)
	const tags = ".__az=a.__team=edge"
	for name, want := range map[string]int{
		"ratelimit.service.rate_limit.example.user.total_hits" + tags:                  5,
		"ratelimit.service.rate_limit.example.user.within_limit" + tags:                3,
		"ratelimit.service.rate_limit.example.user.over_limit" + tags:                  2,
		"ratelimit.service.rate_limit.example.user.over_limit_with_local_cache" + tags: 1,
		"ratelimit_server.ShouldRateLimit.total_requests" + tags:                       5,
		"ratelimit.service.config_load_success" + tags:                                 1,
	} {
		if sums[name] != want {
			t.Errorf("%s is %d, want %d", name, sums[name], want)
		}
	}
	if sums["ratelimit_server.ShouldRateLimit.response_time"+tags] == 0 {
		t.Errorf("no response_time in %v", sums)
	}
}
