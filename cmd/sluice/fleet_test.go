package main

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// setup is what a fleet has.
type setup struct {
	rules   string      // fleetRules, unless said
	store   storeServer // nil: nodes count in their own memory
	ring    int         // so many nodes, at most, own keys together; 0: none does
	env     []string    // of each node
	program string      // of the nodes; this one, unless said
	runtime bool        // env says where the rules are
}

// fleet is a few real nodes with the same rules, and clients that count what they were admitted.
type fleet struct {
	testing.TB
	setup
	file     string            // of the rules
	redis    *redistest.Server // the store, if it is one
	addrs    []string          // of the ring
	nodes    []*sluice
	clients  []rls.RateLimitServiceClient
	admitted atomic.Int64
	failed   atomic.Int64
	slowest  atomic.Int64 // nanoseconds
	hits     uint64       // of each request; 0 means 1
}

const fleetRules = `domain: d
descriptors:
  - {key: five, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: closed, coordination: {on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 20000}}
`

// newFleet starts so many nodes, and waits until they are healthy, and in the ring.
func newFleet(t testing.TB, nodes int, with setup) *fleet {
	t.Helper()
	f := &fleet{TB: t, setup: with, file: filepath.Join(t.TempDir(), "rules.yaml")}
	f.redis, _ = with.store.(*redistest.Server)
	writeFile(t, f.file, cmp.Or(with.rules, fleetRules))
	for range with.ring {
		f.addrs = append(f.addrs, "127.0.0.1:"+freePort(t))
	}
	for range nodes {
		f.join()
	}
	f.untilWhole()
	return f
}

// aRedis is a store.
func aRedis(t testing.TB) storeServer { return redistest.Start(t) }

// untilWhole waits until all nodes are healthy, and in the ring.
func (f *fleet) untilWhole() {
	f.Helper()
	for _, n := range f.nodes {
		n.eventually("all nodes are healthy, and in the ring", func() bool {
			return n.healthy() && (f.ring == 0 || n.metric("sluice_ring_members") == len(f.nodes))
		})
	}
}

// join starts one more node, in a ring at its own address.
func (f *fleet) join() *sluice {
	f.Helper()
	env := []string{"DRAIN_TIME=0s", "LOG_LEVEL=warn", "ADMIN_TOKEN=hunter2\n", "HOLD_KEYS=the-key-of-the-tests"}
	if f.store != nil {
		env = append(env, "STORE_URL="+f.store.URL())
	}
	if f.ring > 0 {
		env = append(env, "PEERS=static:"+strings.Join(f.addrs, ","), "PEER_ADDR="+f.addrs[len(f.nodes)], "PEER_SECRET=s3cret-of-the-tests")
	}
	args := []string{"serve", "--config", f.file}
	if f.runtime {
		args = args[:1]
	}
	cmd := command(slices.Concat(freePorts, env, f.env), args...)
	cmd.Path = cmp.Or(f.program, cmd.Path)
	s := start(f.TB, cmd)
	f.add(s)
	return s
}

// add makes a running node one of the fleet's.
func (f *fleet) add(s *sluice) {
	f.nodes = append(f.nodes, s)
	f.clients = append(f.clients, rls.NewRateLimitServiceClient(s.dial()))
}

// ask asks one node for a request's hits.
func (f *fleet) ask(node int, key string) { f.askFor(node, key, "x") }

func (f *fleet) askFor(node int, key, value string) {
	start, hits := time.Now(), max(1, f.hits)
	r, err := f.send(node, descriptor(int(hits), key, value))
	took := time.Since(start)
	if int64(took) > f.slowest.Load() {
		f.slowest.Store(int64(took))
	}
	switch {
	case err != nil:
		f.failed.Add(1)
	case r.OverallCode == rls.RateLimitResponse_OK:
		f.admitted.Add(int64(hits))
	}
}

// descriptor costs so many hits; fewer than none is a refund. entries are keys and values in turn.
func descriptor(hits int, entries ...string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(uint64(max(hits, -hits))), IsNegativeHits: hits < 0}
	for i := 0; i < len(entries); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: entries[i], Value: entries[i+1]})
	}
	return d
}

// asking is a request of the domain d.
func asking(descriptors ...*common.RateLimitDescriptor) *rls.RateLimitRequest {
	return &rls.RateLimitRequest{Domain: "d", Descriptors: descriptors}
}

// request has one hit of one key.
func request(key, value string) *rls.RateLimitRequest { return asking(descriptor(1, key, value)) }

// send asks a node, and waits for ten seconds at most.
func (f *fleet) send(node int, descriptors ...*common.RateLimitDescriptor) (*rls.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return f.clients[node].ShouldRateLimit(ctx, asking(descriptors...))
}

// load has callers ask all nodes in turn, until each has asked n times.
func (f *fleet) load(key string, callers, n int, nodes ...int) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range n {
				f.ask(nodes[(i+j)%len(nodes)], key)
			}
		})
	}
	return &wg
}

// fallbacks is how many decisions the nodes made without the store so far.
func (f *fleet) fallbacks() (total int64) {
	for _, n := range f.nodes {
		total += n.decidedAlone()
	}
	return total
}

// untilAdmitted calls the nodes in turn until that many tokens are admitted in all, for at most 20 s. On a
// busy machine nodes refuse by their policy, and tokens return late.
func (f *fleet) untilAdmitted(key string, least int64, nodes ...int) {
	for end := time.Now().Add(20 * time.Second); f.admitted.Load() < least && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		f.load(key, 1, len(nodes), nodes...).Wait()
	}
}

func (s *sluice) Signal(sig syscall.Signal) {
	s.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.Fatal(err)
	}
}

// ends has a node end by a signal, and waits until it has: in good order, unless it is killed.
func (s *sluice) ends(sig syscall.Signal) {
	s.Helper()
	s.Signal(sig)
	if err := <-s.exited; err != nil && sig != syscall.SIGKILL {
		s.Errorf("%v: the node ends with %v:\n%s", sig, err, s.log())
	}
}

// metric is the value of a series that there is.
func (s *sluice) metric(name string) int {
	s.Helper()
	_, text := s.get(s.debug + "/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return s.number(value)
		}
	}
	s.Fatalf("no metric %s", name)
	return 0
}

// sum adds up the series of a metric that have these labels.
func (s *sluice) sum(name string, labels ...string) (sum int) {
	s.Helper()
	_, text := s.get(s.debug + "/metrics")
lines:
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name+"{") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(line, label) {
				continue lines
			}
		}
		sum += s.number(line[strings.LastIndexByte(line, ' ')+1:])
	}
	return sum
}

func (s *sluice) number(text string) int {
	s.Helper()
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		s.Fatal(err)
	}
	return int(n)
}
