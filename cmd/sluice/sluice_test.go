package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// The tests run the real binary: this one, called as sluice.
func TestMain(m *testing.M) {
	if os.Getenv("SLUICE_RUN_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// sluice is a running process. Its ports are free ones.
type sluice struct {
	*testing.T
	cmd              *exec.Cmd
	http, rpc, debug string
	mu               sync.Mutex
	output           bytes.Buffer // guarded by mu
	exited           chan error
}

// command never runs for longer than a test may take.
func command(env []string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	context.AfterFunc(ctx, cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), "SLUICE_RUN_MAIN=1")
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

var announced = regexp.MustCompile(`HTTP on (\S+), gRPC on (\S+), debug on (\S+)`)

func serve(t *testing.T, env []string, args ...string) *sluice {
	t.Helper()
	return serveWith(t, env, append([]string{"serve", "--host=127.0.0.1", "--port=0", "--grpc-host=127.0.0.1", "--grpc-port=0", "--debug-host=127.0.0.1", "--debug-port=0"}, args...)...)
}

// serveWith runs a command line that announces its ports.
func serveWith(t *testing.T, env []string, args ...string) *sluice {
	t.Helper()
	return start(t, command(env, args...))
}

func start(t *testing.T, cmd *exec.Cmd) *sluice {
	t.Helper()
	s := &sluice{T: t, cmd: cmd, exited: make(chan error, 1)}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = s
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	go func() {
		_, _ = io.Copy(s, lines)
		s.exited <- s.cmd.Wait()
	}()
	m := announced.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("it announced %q (%v) and logged:\n%s", line, err, s.log())
	}
	s.http, s.rpc, s.debug = m[1], m[2], m[3]
	return s
}

func (s *sluice) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(p)
}

func (s *sluice) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.String()
}

func (s *sluice) get(url string) (int, string) {
	s.Helper()
	r, err := http.Get("http://" + url)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(body)
}

// post asks for one hit on key=value, over /json.
func (s *sluice) post(key, value string) int {
	s.Helper()
	body := fmt.Sprintf(`{"domain":"d","descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, key, value)
	return s.postBody(body)
}

func (s *sluice) postBody(body string) int {
	s.Helper()
	r, err := http.Post("http://"+s.http+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	r.Body.Close()
	return r.StatusCode
}

func (s *sluice) dial() *grpc.ClientConn {
	s.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.rpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	return conn
}

// eventually waits for what the process does in its own time; it fails after
// far longer than that takes.
func (s *sluice) eventually(what string, ok func() bool) {
	s.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("%s: not within 20s; the log:\n%s", what, s.log())
		}
	}
}

// untilHealthy waits until the node says that it can answer as its store would.
func (s *sluice) untilHealthy() {
	s.Helper()
	s.eventually("the node is healthy", s.healthy)
}

func rules(limit int) string {
	return fmt.Sprintf("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: year, requests_per_unit: %d}\n", limit)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

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
	s.eventually("healthy", func() bool { code, body := s.get(s.http + "/healthcheck"); return code == 200 && body == "OK" })
	conn := s.dial()
	for _, name := range []string{"", "ratelimit"} {
		r, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v %v", name, r, err)
		}
	}
	answer, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(context.Background(), &rls.RateLimitRequest{
		Domain: "example", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: "alice"}}}},
	})
	if err != nil || answer.Statuses[0].LimitRemaining != 4 {
		t.Errorf("%v %v", answer, err)
	}
	for path, want := range map[string]string{
		"/":                    "/rlconfig",
		"/rlconfig":            "example.user_alice: unit=HOUR requests_per_unit=5",
		"/stats":               "ratelimit.service.rate_limit.example.user.over_limit: 1",
		"/metrics":             `ratelimit_service_rate_limit_over_limit{domain="example",key1="user",key2=""} 1`,
		"/debug/pprof/cmdline": "serve",
	} {
		if code, body := s.get(s.debug + path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d without %q:\n%s", path, code, want, body)
		}
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

func TestDrain(t *testing.T) {
	s := serve(t, []string{"DRAIN_TIME=1h"})
	s.eventually("healthy", func() bool { code, _ := s.get(s.http + "/healthcheck"); return code == 200 })
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
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	if r, err := watch.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("after SIGTERM: %v %v", r, err)
	}
	if code, _ := s.get(s.http + "/healthcheck"); code != 500 {
		t.Errorf("/healthcheck: %d", code)
	}
	if got := s.postBody(exampleRequest); got != 200 {
		t.Errorf("a call while draining: %d", got)
	}
	conn.Close()                              // the watch is a call under way
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // a second one ends the wait
	if err := <-s.exited; err != nil {
		t.Errorf("exit: %v", err)
	}
}

// A first config that is bad: no start, unless told so; then unhealthy until
// there are rules.
func TestBadFirstConfig(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	writeFile(t, file, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: eon, requests_per_unit: 1}}]\n")
	out, err := command(nil, "serve", "--config", dir, "--port=0", "--grpc-port=0", "--debug-port=0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a.yaml:2:43: invalid rate limit unit 'eon'") {
		t.Errorf("%v:\n%s", err, out)
	}
	s := serve(t, []string{"FORCE_START_WITHOUT_INITIAL_CONFIG=true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true"}, "--config", dir)
	if code, _ := s.get(s.http + "/healthcheck"); code != 500 {
		t.Errorf("healthy without rules: %d", code)
	}
	if got := s.post("k", "x"); got != 503 {
		t.Errorf("a request without rules: %d", got)
	}
	writeFile(t, file, rules(1))
	s.eventually("healthy", func() bool { code, _ := s.get(s.http + "/healthcheck"); return code == 200 })
}

func TestBadSettings(t *testing.T) {
	busy := serve(t, nil)
	_, port, _ := strings.Cut(busy.http, ":")
	for name, c := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"port in use":  {nil, []string{"--host=127.0.0.1", "--port=" + port}, "cannot open the HTTP (HOST, PORT) port: listen tcp 127.0.0.1:" + port},
		"no such path": {nil, []string{"--config=/no/such"}, "/no/such: no such file"},
		"a bad port":   {[]string{"PORT=http"}, nil, "PORT"},
		"a bad mode":   {[]string{"COORDINATION_MODE=gossip"}, nil, `COORDINATION_MODE: mode: "gossip" is not one of leasing, routing, approx`},
		"a bad ttl":    {[]string{"COORDINATION_LEASE_TTL=1ms"}, nil, "lease.ttl is 1ms, must be between 100ms and 1h0m0s"},
		"a bad ratio":  {[]string{"NEAR_LIMIT_RATIO=7"}, nil, "NEAR_LIMIT_RATIO is 7, must be between 0 and 1"},
		"persecond":    {[]string{"REDIS_PERSECOND=true"}, nil, "REDIS_PERSECOND is set, and REDIS_PERSECOND_URL"},
		"redis type":   {[]string{"REDIS_URL=localhost:1", "REDIS_TYPE=RING"}, nil, `REDIS_TYPE is "RING", must be SINGLE, SENTINEL or CLUSTER`},
		"redis url":    {[]string{"REDIS_URL=nowhere"}, nil, `REDIS_URL has the address "nowhere", must be host:port`},
		"redis secret": {[]string{"REDIS_URL=redis://:hunter2@x:99999999"}, nil, "REDIS_URL"},
		"redis cert":   {[]string{"REDIS_URL=localhost:1", "REDIS_TLS=true", "REDIS_TLS_CACERT=/no/such"}, nil, "REDIS_TLS_CACERT: open /no/such"},
		"config type":  {[]string{"CONFIG_TYPE=ETCD"}, nil, `CONFIG_TYPE is "ETCD", must be FILE or GRPC_XDS_SOTW`},
		"xds":          {[]string{"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/no/such"}, nil, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT: open /no/such"},
		"tls":          {[]string{"GRPC_SERVER_USE_TLS=true"}, nil, "GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY must name"},
		"tags":         {[]string{"EXTRA_TAGS=prod"}, nil, `EXTRA_TAGS is "prod", must be like env:prod`},
		"log level":    {[]string{"LOG_LEVEL=loud"}, nil, `LOG_LEVEL is "loud", must be debug, info, warn or error`},
		"max keys":     {nil, []string{"--max-keys=0"}, "MAX_KEYS is 0, must be between 1"},
		"max wait":     {[]string{"MAX_WAIT=1us"}, nil, "MAX_WAIT is 1µs, must be 0 (never shed) or between 1ms and 1m"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"serve", "--port=0", "--grpc-port=0", "--debug-port=0"}, c.args...)
			out, err := command(c.env, args...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) || strings.Contains(string(out), "hunter2") {
				t.Errorf("%v, want %q:\n%s", err, c.want, out)
			}
		})
	}
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

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	check := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := run(append([]string{"check"}, args...), streams{&out, &out})
		return code, regexp.MustCompile(" +").ReplaceAllString(out.String(), " ")
	}
	writeFile(t, file, rules(100)+"- key: a\n  coordination: {mode: approx, drift_budget: 3%, reclaim: eager, on_store_failure: open}\n  rate_limit: {unit: day, requests_per_unit: 200}\n- key: u\n  rate_limit: {unlimited: true}\n")
	code, out := check(dir)
	if code != 0 || !strings.Contains(out, "all rate limit configs ok\n") ||
		!strings.Contains(out, "warning: d.a: drift_budget 3% of 200 is 6 tokens, less than one for each of max_nodes 10") {
		t.Fatalf("%d\n%s", code, out)
	}
	code, out = check("--nodes=3", dir)
	for _, want := range []string{
		"d.k 100 per year leasing 200 (200%): each node counts alone",
		"d.k 100 per year leasing 0 ",
		"30 (10 a node)",
		"approx 306 (153%): 100, or one larger request, for each node that goes silent",
		"all demand",
		"d.u unlimited",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d, no %q in\n%s", code, want, out)
		}
	}
	writeFile(t, filepath.Join(dir, "b.yaml"), "domain: d\nfoo: 1\n")
	code, out = check(dir)
	if want := "b.yaml:1:9: duplicate domain 'd' in config file\nb.yaml:2:1: config error, unknown key 'foo'"; code != 1 || !strings.Contains(out, want) {
		t.Errorf("%d, want %q in\n%s", code, want, out)
	}
	if code, out = check("--nodes=0", dir); code != 1 || !strings.Contains(out, "--nodes is 0") {
		t.Errorf("%d\n%s", code, out)
	}
}

func TestHelpNamesEverySetting(t *testing.T) {
	var out bytes.Buffer
	if code := run([]string{"serve", "--help"}, streams{&out, &out}); code != 0 {
		t.Fatal(code)
	}
	for _, name := range []string{"RUNTIME_ROOT", "GRPC_PORT", "COORDINATION_ON_DENY", "LIMIT_RESET_HEADER", "MAX_KEYS", "LOG_FORMAT"} {
		if !strings.Contains(out.String(), "$"+name) {
			t.Errorf("no %s in the help", name)
		}
	}
}

// The table of docs/migrating.md says of each name what the binary does with it,
// and of no name that the binary lacks.
func TestMigratingNamesEverySetting(t *testing.T) {
	var help bytes.Buffer
	if code := run([]string{"serve", "--help"}, streams{&help, &help}); code != 0 {
		t.Fatal(code)
	}
	ours := map[string]bool{}
	for _, m := range regexp.MustCompile(`\$([A-Z0-9_]+)`).FindAllStringSubmatch(help.String(), -1) {
		ours[m[1]] = true
	}
	names := 0
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z0-9_ ]+)` \\| (same|different|ignored)").FindAllStringSubmatch(read(t, "docs/migrating.md"), -1) {
		for name := range strings.FieldsSeq(row[1]) {
			names++
			if ignored := slices.Contains(withoutEffect, name); ours[name] == ignored || ignored != (row[2] == "ignored") {
				t.Errorf("%s is said to be %s; a flag: %t, logged as without effect: %t", name, row[2], ours[name], ignored)
			}
		}
	}
	if names != 114 {
		t.Errorf("the table has %d names, want 114", names)
	}
}
