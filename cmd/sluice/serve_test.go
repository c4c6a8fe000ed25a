package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// What the README shows: 200, 200, 200, 429, with nothing configured.
func TestServeOutOfTheBox(t *testing.T) {
	s := serve(t, nil)
	var got []int
	for range 4 {
		got = append(got, s.postBody(exampleRequest))
	}
	// The hour may end between two of them; then it is four times 200.
	if fmt.Sprint(got) != "[200 200 200 429]" && time.Now().Minute() != 0 {
		t.Errorf("got %v", got)
	}
	if got := s.overGRPC()(parseRequest(t, "domain=example | user=alice")); got != "OK [OK 5/HOUR left 4]" {
		t.Error(got)
	}
	for path, want := range map[string]string{
		"/":                    "/rlconfig",
		"/rlconfig":            "example.user_alice: unit=HOUR requests_per_unit=5",
		"/stats":               "ratelimit.service.rate_limit.example.user.over_limit: 1",
		"/metrics":             `ratelimit_service_rate_limit_over_limit{domain="example",key1="user",key2=""} 1`,
		"/console/state":       `"leases":2,`, // keys tracked
		"/debug/pprof/cmdline": "serve",
	} {
		if code, body := s.get(s.debug + path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d without %q:\n%s", path, code, want, body)
		}
	}
}

// Metrics have the names of a mapping file. A file that is missing costs no start, and the log says so.
func TestMappingFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mapping.yaml")
	mapped := func(want string) *sluice {
		s := serve(t, []string{"PROMETHEUS_MAPPER_YAML=" + file})
		s.postBody(exampleRequest)
		if _, body := s.get(s.debug + "/metrics"); !strings.Contains(body, "\n"+want+"\n") {
			t.Errorf("no %s in\n%s", want, body)
		}
		return s
	}
	log := mapped(`ratelimit_service_rate_limit_total_hits{domain="example",key1="user",key2=""} 1`).log()
	if !strings.Contains(log, "PROMETHEUS_MAPPER_YAML was not read") || !strings.Contains(log, file) {
		t.Errorf("of a missing file, the log says\n%s", log)
	}
	writeFile(t, file, "mappings:\n- {match: ratelimit.service.rate_limit.*.*.total_hits, name: hits, labels: {rule: $2}}\n")
	if log := mapped(`hits{rule="user"} 1`).log(); strings.Contains(log, "PROMETHEUS_MAPPER_YAML") {
		t.Errorf("of a good file, the log says\n%s", log)
	}
}

func TestReload(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "sub", "config", "a.yaml")
	writeFile(t, file, rules(1))
	s := serve(t, []string{"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=sub", "RUNTIME_WATCH_ROOT=false"})
	if got := s.post("k", "x"); got != 200 {
		t.Fatal(got)
	}
	if got := s.post("k", "x"); got != 429 {
		t.Fatal(got)
	}
	writeFile(t, file, rules(1)+"  oops: 1\n")
	s.eventually("the bad rules are refused", func() bool { return strings.Contains(s.log(), "unknown key 'oops'") })
	if !strings.Contains(s.log(), "a.yaml:5:3") {
		t.Error("the log does not say where")
	}
	if got := s.post("k", "y"); got != 200 {
		t.Errorf("the old rules are gone: %d", got)
	}
	writeFile(t, file, rules(2))
	s.eventually("the new rules are in force", func() bool {
		_, body := s.get(s.debug + "/rlconfig")
		return strings.Contains(body, "requests_per_unit=2")
	})
	if got := s.post("k", "x"); got != 429 && got != 200 {
		t.Error(got)
	}
	_, stats := s.get(s.debug + "/stats")
	for _, want := range []string{"config_load_success: 2", "config_load_error: 1", "k.total_hits: 4"} {
		if !strings.Contains(stats, want) {
			t.Errorf("no %q in\n%s", want, stats)
		}
	}
	writeFile(t, file, rules(2)+"  coordination: {audit: true, mode: routing}\n")
	s.eventually("what has no effect here is named", func() bool {
		return strings.Contains(s.log(), "audit: true has no effect") && strings.Contains(s.log(), "PEERS is not set")
	})
}

// With RUNTIME_WATCH_ROOT, a set of files changes when the link is swapped,
// and not before.
func TestReloadBySwap(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "v1/config/a.yaml"), rules(1))
	writeFile(t, filepath.Join(dir, "v2/config/a.yaml"), rules(2))
	current := filepath.Join(dir, "current")
	if err := os.Symlink("v1", current); err != nil {
		t.Fatal(err)
	}
	s := serve(t, []string{"RUNTIME_ROOT=" + current})
	writeFile(t, filepath.Join(dir, "v1/config/a.yaml"), rules(7))
	time.Sleep(time.Second) // in which it would be loaded
	if err := os.Symlink("v2", current+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(current+".new", current); err != nil {
		t.Fatal(err)
	}
	s.eventually("the swap is seen", func() bool {
		_, body := s.get(s.debug + "/rlconfig")
		return strings.Contains(body, "requests_per_unit=2")
	})
	if _, body := s.get(s.debug + "/stats"); !strings.Contains(body, "config_load_success: 2\n") {
		t.Errorf("the change before the swap was loaded too:\n%s", body)
	}
}

// A node drains, also if the reader of its log has ended.
func TestDrain(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("started by nohup: the node ignores SIGHUP, too")
	}
	redis := redistest.Start(t)
	cmd := command(append([]string{"DRAIN_TIME=1h", "REDIS_URL=" + redis.Addr}, freePorts...), "serve")
	reader, log, _ := os.Pipe()
	cmd.Stderr = log
	s := start(t, cmd)
	reader.Close()
	log.Close()
	s.eventually("healthy", s.healthy)
	conn := s.dial()
	watch, err := healthpb.NewHealthClient(conn).Watch(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for r := new(healthpb.HealthCheckResponse); r.Status != healthpb.HealthCheckResponse_SERVING; {
		if r, err = watch.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.cmd.Process.Signal(syscall.SIGHUP)
	if r, err := watch.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("after SIGHUP: %v %v", r, err)
	}
	if code, _ := s.get(s.http + "/healthcheck"); code != 500 {
		t.Errorf("/healthcheck: %d", code)
	}
	if got := s.postBody(exampleRequest); got != 200 {
		t.Errorf("a call while draining: %d", got)
	}
	redis.Do("HSET", "sluice:nodes", "gone", "9999999999 {}") // of one that crashed before the clock was set back
	s.eventually("a node that drains counts the others", func() bool { return redis.Do("HLEN", "sluice:nodes") == int64(1) })
	conn.Close()            // the watch is a call under way
	s.ends(syscall.SIGTERM) // a second one ends the wait
}

// A first config that is bad: no start, unless told so; then healthy, unless told that
// there must be rules.
func TestBadFirstConfig(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	writeFile(t, file, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: eon, requests_per_unit: 1}}]\n")
	out, err := command(nil, "serve", "--config", dir, "--port=0", "--grpc-port=0", "--debug-port=0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a.yaml:2:43: invalid rate limit unit 'eon'") {
		t.Errorf("%v:\n%s", err, out)
	}
	s := serve(t, []string{"FORCE_START_WITHOUT_INITIAL_CONFIG=true"}, "--config", dir)
	s.untilHealthy()
	if got := s.post("k", "x"); got != 503 {
		t.Errorf("a request without rules: %d", got)
	}
	s = serve(t, []string{"FORCE_START_WITHOUT_INITIAL_CONFIG=true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true"}, "--config", dir)
	if code, _ := s.get(s.http + "/healthcheck"); code != 500 {
		t.Errorf("healthy without rules: %d", code)
	}
	writeFile(t, file, rules(1))
	s.eventually("healthy", s.healthy)
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rls.sock")
	s := serve(t, []string{"GRPC_UDS=" + path})
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatalf("%v\n%s", err, s.log())
	}
}
