package realenvoy

import (
	"cmp"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing/redistest/program"
)

// long has the tests run that take longer than a minute together: make envoy-test.
var long = flag.Bool("envoy", false, "run all tests with a real Envoy, for 25 minutes")

var temp string

// binary is sluice, built once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	return program.Build("sluice", "cmd/sluice")
})

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

// installed is the Envoy of this machine. A test is left out where there is none, and says so.
func installed(t *testing.T) string {
	t.Helper()
	envoy, err := Find()
	if err != nil {
		t.Skipf("REPORTED MISSING: nothing was run with an Envoy: %v", err)
	}
	return envoy
}

// world is an Envoy with its processes, and the service behind it.
type world struct {
	*testing.T
	config  Config
	rules   string   // "": they are pushed
	flags   []string // of Sluice
	alone   bool     // without a Redis
	handler http.HandlerFunc

	fleet   *process.Fleet
	cluster string // of the nodes
	backend *Backend
	envoy   *Envoy
	client  *Client
}

// newWorld has a configuration of deploy.
func newWorld(t *testing.T, config, rules string) *world {
	w := &world{T: t, rules: rules}
	w.config.Text = w.read("../../deploy/" + config)
	return w
}

// need ends the test where there was an error.
func (w *world) need(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) read(name string) string {
	w.Helper()
	text, err := os.ReadFile(name)
	w.need(err)
	return string(text)
}

// change replaces texts of the configuration that are there: one that has changed since fails here.
func (w *world) change(pairs ...string) *world {
	w.Helper()
	for i := 0; i+1 < len(pairs); i += 2 {
		if !strings.Contains(w.config.Text, pairs[i]) {
			w.Fatalf("the configuration has no %q", pairs[i])
		}
		w.config.Text = strings.ReplaceAll(w.config.Text, pairs[i], pairs[i+1])
	}
	return w
}

// route adds a route with limits of its own, whose action is more, or else the service.
func (w *world) route(path, limits, more string) {
	const first = "                      routes:\n"
	w.change(first, fmt.Sprintf("%s%24s- {match: {path: %s}, %s, typed_per_filter_config: {envoy.filters.http.ratelimit: "+
		"{\"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, rate_limits: %s}}}\n",
		first, "", path, cmp.Or(more, "route: {cluster: service}"), limits))
}

// start starts what Envoy needs: nodes, which share a Redis unless alone, and the service.
func (w *world) start(nodes int) {
	w.Helper()
	installed(w.T)
	sluice, err := binary()
	w.need(err)
	w.fleet, err = process.NewFleet(sluice, w.rules, nodes, nodes > 1 && !w.alone, w.flags...)
	w.need(err)
	w.need(w.fleet.StartFirst(nodes))
	w.Cleanup(w.fleet.Stop)
	w.backend, err = StartBackend(w.handler)
	w.need(err)
	w.Cleanup(w.backend.Stop)
	w.cluster = regexp.MustCompile(`cluster_name: (sluice|\w*ratelimit_cluster)\b`).FindStringSubmatch(w.config.Text)[1]
	w.config.Clusters = map[string][]string{w.cluster: w.fleet.Addresses()}
	if !strings.Contains(w.config.Text, "stat_prefix: service") { // it answers by itself
		w.config.Clusters["service"] = []string{w.backend.Address}
	}
	w.config.HashKeys = w.fleet.Peers
}

// open starts an Envoy, and waits until it has found so many nodes well.
func (w *world) open(well int) {
	w.Helper()
	var err error
	w.envoy, err = Start(installed(w.T), &w.config)
	w.need(err)
	w.Cleanup(w.envoy.Stop)
	w.need(w.well(well))
	w.client = NewClient(w.envoy.URL)
	w.Cleanup(w.client.Close)
}

// well waits until Envoy finds so many nodes well.
func (w *world) well(nodes int) error {
	return w.envoy.UntilStat("cluster."+w.cluster+".membership_healthy", int64(nodes))
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

// get is the answer to one request, with headers as Client.Get takes them.
func (w *world) get(path string, headers ...string) Answer {
	w.Helper()
	a, err := w.client.Get(w.Context(), path, headers...)
	w.need(err)
	return a
}

// passes is how many of so many requests pass. Others are refused by a limit, or it fails.
func (w *world) passes(n int, path string, headers ...string) (passed int, err error) {
	for range n {
		a, err := w.client.Get(w.Context(), path, headers...)
		switch {
		case err != nil:
			return passed, err
		case a.Status == http.StatusOK:
			passed++
		case a.Status != http.StatusTooManyRequests:
			return passed, fmt.Errorf("%s is answered %d", path, a.Status)
		}
	}
	return passed, nil
}

// Stats of Envoy: how often its filter got no decision, and how often it gave a call up.
const (
	undecidedStat = "cluster.service.ratelimit.error"
	timeoutStat   = "cluster.sluice.upstream_rq_timeout"
)

// stats are counters and gauges of Envoy's.
func (w *world) stats() map[string]int64 {
	w.Helper()
	all, err := w.envoy.Stats()
	w.need(err)
	return all
}

// sum is a metric of all nodes, whose name and labels begin so.
func (w *world) sum(begins string) (sum float64) {
	w.Helper()
	for _, n := range w.fleet.Running() {
		text, err := n.Ask("/metrics")
		w.need(err)
		for line := range strings.Lines(text) {
			var value float64
			if strings.HasPrefix(line, begins) {
				_, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &value)
				w.need(err)
			}
			sum += value
		}
	}
	return sum
}
