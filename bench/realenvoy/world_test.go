package realenvoy

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-gate/sluice/bench/process"
)

// long has the tests run that take longer than a minute together: make envoy-test.
var long = flag.Bool("envoy", false, "run all tests with a real Envoy, for 25 minutes")

// binary is sluice, built once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	file := filepath.Join(temp, "sluice")
	out, err := exec.Command("go", "build", "-o", file, "github.com/sluice-gate/sluice/cmd/sluice").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building cmd/sluice: %w\n%s", err, out)
	}
	return file, nil
})

var temp string

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if temp, err = os.MkdirTemp("", "realenvoy"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(temp)
	os.Exit(code)
}

// needsLong skips a test unless all are selected.
func needsLong(t *testing.T) {
	t.Helper()
	if !*long {
		t.Skip("not asked for: make envoy-test runs it")
	}
}

// needsEnvoy leaves a test out where there is none, and says so.
func needsEnvoy(t *testing.T) {
	t.Helper()
	if _, err := Find(); err != nil {
		t.Skipf("REPORTED MISSING: nothing was run with an Envoy: %v", err)
	}
}

// world is an Envoy with its processes, and the service behind it.
type world struct {
	*testing.T
	config  Config
	rules   string // "": they are pushed
	nodes   int
	flags   []string // of Sluice
	alone   bool     // without a Redis
	unwell  bool     // Envoy is to find no node well
	cluster string   // of the nodes; sluice, unless said
	handler http.HandlerFunc

	fleet   *process.Fleet
	backend *Backend
	envoy   *Envoy
	client  *Client
}

// shipped is a file of deploy.
func shipped(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// change replaces a text that is there: a configuration that has changed since fails here.
func change(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i+1 < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("the configuration has no %q", pairs[i])
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

// need ends the test where there was an error.
func (w *world) need(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// run starts it all. Several nodes share a Redis, unless alone.
func (w *world) run() *world {
	w.Helper()
	w.prepare()
	w.start()
	return w
}

// prepare starts what Envoy needs.
func (w *world) prepare() {
	w.Helper()
	needsEnvoy(w.T)
	sluice, err := binary()
	w.need(err)
	w.nodes = max(1, w.nodes)
	w.fleet, err = process.NewFleet(sluice, w.rules, w.nodes, w.nodes > 1 && !w.alone, w.flags...)
	w.need(err)
	w.need(w.fleet.StartFirst(w.nodes))
	w.Cleanup(w.fleet.Stop)
	w.backend, err = StartBackend(w.handler)
	w.need(err)
	w.Cleanup(w.backend.Stop)
	w.cluster = cmp.Or(w.cluster, "sluice")
	w.config.Clusters = map[string][]string{w.cluster: w.fleet.Addresses()}
	if !strings.Contains(w.config.Text, "stat_prefix: service") { // it answers by itself
		w.config.Clusters["service"] = []string{w.backend.Address}
	}
	w.config.HashKeys = w.fleet.Peers
}

// start starts Envoy, and waits until it has found all nodes well.
func (w *world) start() {
	w.Helper()
	envoy, err := Find()
	w.need(err)
	w.envoy, err = Start(envoy, &w.config)
	w.need(err)
	w.Cleanup(w.envoy.Stop)
	well := len(w.config.Clusters[w.cluster])
	if w.unwell {
		well = 0
	}
	w.need(w.envoy.UntilStat("cluster."+w.cluster+".membership_healthy", int64(well)))
	w.client = NewClient(w.envoy.URL)
	w.Cleanup(w.client.Close)
}

// serve runs a server of gRPC, which Envoys find well, until the test ends, and returns its address.
func serve(t *testing.T, register func(*grpc.Server)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, healthy := grpc.NewServer(), health.NewServer()
	healthy.SetServingStatus("ratelimit", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthy)
	register(server)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// get is the answer to one request.
func (w *world) get(path string, headers ...string) Answer {
	w.Helper()
	r, err := w.client.Get(context.Background(), path, headers...)
	w.need(err)
	return r
}

// passes is how many of so many requests pass. Others are refused by a limit, or the test fails.
func (w *world) passes(n int, path string, headers ...string) (passed int) {
	w.Helper()
	for range n {
		switch r := w.get(path, headers...); r.Status {
		case http.StatusOK:
			passed++
		case http.StatusTooManyRequests:
		default:
			w.Fatalf("%s: %d", path, r.Status)
		}
	}
	return passed
}

// undecidedStat is how often Envoy's filter got no decision.
const undecidedStat = "cluster.service.ratelimit.error"

// admits holds how many of so many requests pass against a limit. A call that Envoy gave up because
// this machine was busy lets its request pass undecided, and is charged or not.
func (w *world) admits(limit, of int, path string, headers ...string) {
	w.Helper()
	passed := w.passes(of, path, headers...)
	undecided := int(w.stat(undecidedStat))
	if passed < limit || passed > limit+undecided {
		w.Errorf("%s %v: %d of %d passed, the limit is %d; %d were undecided so far",
			path, headers, passed, of, limit, undecided)
	}
}

// stat is a counter or gauge of Envoy's.
func (w *world) stat(name string) int64 {
	w.Helper()
	all, err := w.envoy.Stats()
	w.need(err)
	return all[name]
}

// metric is a number that a node counts; 0 where it has none of this name.
func metric(t *testing.T, n *process.Process, name string) float64 {
	t.Helper()
	value, _, err := n.Metric(name + " ")
	if err != nil {
		t.Fatal(err)
	}
	return value
}
