package main

import (
	"bufio"
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// The binary sends what envoyproxy/ratelimit does, under its names, and the last
// of it when it ends.
func TestStatsd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var mu sync.Mutex
	sums := map[string]int{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			name, rest, _ := strings.Cut(lines.Text(), ":")
			value, kind, _ := strings.Cut(rest, "|")
			n, _ := strconv.Atoi(value)
			mu.Lock()
			sums[name] += n
			if kind == "ms" {
				sums[name]++
			}
			mu.Unlock()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s := serve(t, []string{"USE_STATSD=t", "STATSD_HOST=127.0.0.1", "STATSD_PORT=" + port, "STATS_FLUSH_INTERVAL=1h", "EXTRA_TAGS=team:edge,az:a", "DRAIN_TIME=0s"})
	client := rls.NewRateLimitServiceClient(s.dial())
	for range 5 {
		q := request("user", "bob")
		q.Domain = "example"
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if _, err := client.ShouldRateLimit(ctx, q); err != nil {
			t.Error(err)
		}
		cancel()
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was sent, or the connection stays open")
	}
	mu.Lock()
	defer mu.Unlock()
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

func TestBooleansAreGos(t *testing.T) {
	for text, want := range map[string]bool{"t": true, "T": true, "1": true, "TRUE": true, "True": true, "yes": true, "f": false, "F": false, "0": false, "False": false, "no": false} {
		if got, err := parseBool(text); err != nil || got != want {
			t.Errorf("%q is %v %v", text, got, err)
		}
	}
	if _, err := parseBool("maybe"); err == nil || !strings.Contains(err.Error(), "\"maybe\"") {
		t.Error(err)
	}
}
