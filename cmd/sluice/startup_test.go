package main

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// The first request after health succeeds is decided by the store, over TLS as well, on an existing connection:
// dialling would take longer than a decision may. The test does not measure the time, because a busy machine
// may delay any decision for more than 15 ms.
func TestFirstRequestIsNoFallback(t *testing.T) {
	const starts = 5
	i := redistest.NewAuthority(t)
	i.Leaf("redis", time.Hour, "localhost")
	port := freePort(t)
	store := redistest.Start(t, "--tls-port", port, "--tls-cert-file", i.File("redis.crt"), "--tls-key-file", i.File("redis.key"),
		"--tls-ca-cert-file", i.File("ca.crt"), "--tls-auth-clients", "no")
	rules := rulesFile(t, patient("domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n"))
	fallbacks := 0
	for n := range starts {
		s := serve(t, []string{"REDIS_URL=localhost:" + port, "REDIS_TLS=true", "REDIS_TLS_CACERT=" + i.File("ca.crt"), "DRAIN_TIME=0s"}, "--config", rules)
		ask := s.overGRPC()
		s.untilHealthy()
		before := connectionsOf(store)
		if got := ask(request("k", strconv.Itoa(n))); !strings.HasPrefix(got, "OK") {
			t.Error(got)
		}
		if s.metric(`sluice_decision_sources_total{source="claim"}`) != 1 {
			fallbacks++
		}
		if made := connectionsOf(store) - before - 1; made > 0 { // the one is to ask for this
			t.Errorf("%d connections to the store were made for the first request", made)
		}
		s.ends(syscall.SIGKILL)
	}
	if fallbacks > 0 {
		t.Errorf("%d of %d first requests after health were not decided by the store", fallbacks, starts)
	}
}

// connectionsOf is how many connections a Redis has accepted.
func connectionsOf(s *redistest.Server) (n int) {
	for line := range strings.Lines(s.Info("stats")) {
		if text, ok := strings.CutPrefix(line, "total_connections_received:"); ok {
			n, _ = strconv.Atoi(strings.TrimSpace(text))
		}
	}
	return n
}

// Where the store is not there when a node starts, the node's ports are open and its health
// fails, until the store comes: then it succeeds within a second.
func TestHealthWaitsForTheStore(t *testing.T) { eachStore(t, healthWaits) }

func healthWaits(t *testing.T, store storeServer) {
	env := []string{"STORE_URL=" + store.URL(), "DRAIN_TIME=0s"}
	args := []string{"--log-level=warn", "--config", rulesFile(t, patient(exampleConfig))}
	before := serve(t, env, args...)
	before.untilHealthy() // a database is not new then, and has nothing to learn
	before.ends(syscall.SIGTERM)
	store.Kill()
	s := serve(t, env, args...)
	s.eventually("the first attempts have failed", func() bool { return strings.Contains(s.log(), "the store does not answer") })
	if strings.Contains(s.log(), " yet") {
		t.Errorf("the log hides why the store does not answer:\n%s", s.log())
	}
	if code, _ := s.get(s.http + "/healthcheck"); code != http.StatusInternalServerError {
		t.Errorf("health is %d without the store, want 500", code)
	}
	store.Run()
	came := time.Now() // a database takes its time to start
	s.untilHealthy()
	took := time.Since(came)
	if took > 2*time.Second { // 750 ms of it are for nodes that have read more than an empty Redis has
		t.Errorf("health succeeded %v after the store had come, want two seconds at most", took)
	}
	if code := s.postBody(exampleRequest); code != http.StatusOK {
		t.Errorf("the first request: %d", code)
	}
	if n := s.metric(`sluice_decision_sources_total{source="fallback"}`); n != 0 {
		t.Errorf("%d fallbacks after health", n)
	}
}

// After REDIS_STARTUP_MAX_ELAPSED_TIME without an answer a node ends with an error.
func TestStartupEndsWithoutRedis(t *testing.T) {
	s := serve(t, []string{"REDIS_URL=127.0.0.1:1", "REDIS_STARTUP_MAX_ELAPSED_TIME=300ms"})
	if err := <-s.exited; err == nil || !strings.Contains(s.log(), "did not answer within REDIS_STARTUP_MAX_ELAPSED_TIME, which is 300ms") {
		t.Errorf("%v, and the log:\n%s", err, s.log())
	}
}

// Two processes may listen on the same ports.
func TestPortsAreShared(t *testing.T) {
	first := serve(t, []string{"DRAIN_TIME=0s"})
	port := func(address string) string { _, p, _ := net.SplitHostPort(address); return p }
	second := serve(t, []string{"DRAIN_TIME=0s"}, "--port="+port(first.http), "--grpc-port="+port(first.rpc), "--debug-port="+port(first.debug))
	second.untilHealthy()
	first.ends(syscall.SIGKILL)
	http.DefaultClient.CloseIdleConnections() // some led to the first
	for range 10 {
		if code := second.postBody(strings.ReplaceAll(exampleRequest, "bob", "ann")); code != http.StatusOK && code != http.StatusTooManyRequests {
			t.Errorf("answered %d", code)
		}
	}
}
