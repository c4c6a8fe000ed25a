package main

import (
	"cmp"
	"context"
	goflag "flag" // flag is a function here
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
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
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/bench/sluicetest"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/etcdtest"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
)

// The tests run the real binary: this one, called as sluice. Most of them wait for processes more than they compute, so
// that three for each core are run side by side, unless -parallel says how many. Tests that compare times, or count what
// a busy machine changes, are not parallel: they run one by one, before the others.
func TestMain(m *testing.M) {
	if os.Getenv("SLUICE_RUN_MAIN") != "" {
		main()
	}
	goflag.Parse()
	chosen := false
	goflag.Visit(func(f *goflag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = goflag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0)))
	}
	os.Exit(m.Run())
}

// runLine runs one command line in this process.
func runLine(args ...string) (code int, out, errs string) {
	return sluicetest.Run(new(commands), args, programOptions()...)
}

// sluice is a running process. Its ports are free ones.
type sluice struct {
	testing.TB
	cmd              *exec.Cmd
	http, rpc, debug string
	client           rls.RateLimitServiceClient
	output           string // a file
	exited           chan error
}

// patience is far longer than what processes do in their own time takes, and commandTime longer than any test takes:
// a command that hangs fails its own test. Long runs have no such bound.
const patience, commandTime = time.Minute, 5 * time.Minute

// command is a command line of the program.
func command(env []string, args ...string) *exec.Cmd {
	ctx := context.Background()
	if *quiet == 0 && !*regionsLong && *exercise == "" {
		bounded, cancel := context.WithTimeout(ctx, commandTime)
		context.AfterFunc(bounded, cancel)
		ctx = bounded
	}
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = slices.Concat(os.Environ(), []string{"SLUICE_RUN_MAIN=1"}, env)
	return cmd
}

var announced = regexp.MustCompile(`HTTP on (\S+), gRPC on (\S+), debug on (\S+)\n`)

// freePorts has a server serve on ports of this machine that are free.
var freePorts = []string{"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0"}

func serve(t testing.TB, env []string, args ...string) *sluice {
	t.Helper()
	return start(t, command(slices.Concat(freePorts, env), append([]string{"serve"}, args...)...))
}

// start runs a command that announces its ports.
func start(t testing.TB, cmd *exec.Cmd) *sluice {
	t.Helper()
	s := &sluice{TB: t, cmd: cmd, output: filepath.Join(t.TempDir(), "log"), exited: make(chan error, 1)}
	log, err := os.Create(s.output)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, cmp.Or[io.Writer](cmd.Stderr, log)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	go func() { s.exited <- cmd.Wait() }()
	var m []string
	becomes(func() bool {
		m = announced.FindStringSubmatch(s.log())
		return m != nil || len(s.exited) > 0
	})
	if m == nil {
		t.Fatalf("it announces no ports, and logs:\n%s", s.log())
	}
	s.http, s.rpc, s.debug = m[1], m[2], m[3]
	s.client = rls.NewRateLimitServiceClient(s.dial())
	return s
}

func (s *sluice) log() string {
	text, err := os.ReadFile(s.output)
	if err != nil {
		s.Error(err)
	}
	return string(text)
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

func (s *sluice) dial() *grpc.ClientConn {
	s.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.rpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	return conn
}

func (s *sluice) get(url string) (int, string) {
	s.Helper()
	answer, text, err := try(http.MethodGet, url, "")
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, text
}

// do sends a request with headers, given as names and values in turn. It returns the answer, and its body.
func (s *sluice) do(method, url, body string, headers ...string) (answer http.Response, text string) {
	s.Helper()
	answer, text, err := try(method, url, body, headers...)
	if err != nil {
		s.Error(err)
	}
	return answer, text
}

func try(method, url, body string, headers ...string) (answer http.Response, text string, err error) {
	r, err := http.NewRequest(method, "http://"+url, strings.NewReader(body))
	if err != nil {
		return answer, "", err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	r.Host = r.Header.Get("Host")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer, "", err
	}
	defer a.Body.Close()
	read, err := io.ReadAll(a.Body)
	return *a, string(read), err
}

// becomes waits until ok says yes; if it has not after patience, it says no.
func becomes(ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// eventually waits for what the process does in its own time.
func (s *sluice) eventually(what string, ok func() bool) {
	s.Helper()
	if !becomes(ok) {
		s.Fatalf("%s: not within %v; the log:\n%s", what, patience, s.log())
	}
}

// logs waits until the log has a text.
func (s *sluice) logs(text string) {
	s.Helper()
	s.eventually("the log has "+text, func() bool { return strings.Contains(s.log(), text) })
}

func (s *sluice) healthy() bool {
	code, _ := s.get(s.http + "/healthcheck")
	return code == http.StatusOK
}

// untilHealthy waits until the node says that it can answer as its store would.
func (s *sluice) untilHealthy() {
	s.Helper()
	s.eventually("the node is healthy", s.healthy)
}

// seen is how many nodes a node has seen.
func (s *sluice) seen() int {
	_, text := s.get(s.debug + "/console/state")
	return strings.Count(text, `"seen_seconds"`)
}

// sum adds up the series of a metric, or is one series, and says how many there are that have these labels.
func (s *sluice) sum(name string, labels ...string) (sum, series int) {
	s.Helper()
	_, text := s.get(s.debug + "/metrics")
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		lacks := func(label string) bool { return !strings.Contains(rest, label) }
		if !ok || rest[0] != ' ' && rest[0] != '{' || slices.ContainsFunc(labels, lacks) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err != nil {
			s.Fatal(err)
		}
		sum += int(n)
		series++
	}
	return sum, series
}

// metric is the value of a metric that there is.
func (s *sluice) metric(name string, labels ...string) int {
	s.Helper()
	sum, series := s.sum(name, labels...)
	if series == 0 {
		s.Fatalf("no metric %s", name)
	}
	return sum
}

// decidedAlone is how many requests this node has decided by their rules' policy.
func (s *sluice) decidedAlone() int {
	s.Helper()
	return s.metric(`sluice_decision_sources_total{source="fallback"}`)
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

// send asks a node, and waits for ten seconds at most.
func (s *sluice) send(q *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return s.client.ShouldRateLimit(ctx, q)
}

// admits sends a request with hits of a key, which the node must answer; 0 is a peek, and fewer than none are a refund.
func (s *sluice) admits(hits int, key, value string) bool {
	s.Helper()
	a, err := s.send(asking(descriptor(hits, key, value)))
	if err != nil {
		s.Error(err)
	}
	return a.GetOverallCode() == rls.RateLimitResponse_OK
}

// holds has a request hold; hits is the estimate, where the rule goes by it. ok is false if it was refused, or the node
// did not answer.
func (s *sluice) holds(key, value string, hits int) (hold string, ok bool) {
	a, err := s.send(asking(descriptor(hits, key, value)))
	if err != nil || a.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
		return "", false
	}
	return a.GetDynamicMetadata().GetFields()["sluice_hold"].GetStringValue(), true
}

// settles tells a node what a request has cost.
func (s *sluice) settles(key, value, hold string, cost int) error {
	_, err := s.send(asking(descriptor(cost, key, value, "sluice_hold", hold)))
	return err
}

// setup is what a fleet has.
type setup struct {
	rules   string
	store   storeServer // nil: nodes count in their own memory
	ring    int         // so many nodes, at most, own keys together; 0: none does
	env     []string    // of each node
	program string      // of the nodes; this one, unless said
}

// fleet is a few real nodes with the same rules, and clients that count what they were admitted.
type fleet struct {
	testing.TB
	setup
	file     string            // of the rules
	redis    *redistest.Server // the store, if it is one
	addrs    []string          // of the ring
	nodes    []*sluice
	admitted atomic.Int64
	failed   atomic.Int64
	slowest  atomic.Int64 // nanoseconds
	hits     int          // of each request; 0 means 1
}

// newFleet starts so many nodes, and waits until they are healthy, and in the ring. Without rules, env says where these are.
func newFleet(t testing.TB, nodes int, with setup) *fleet {
	t.Helper()
	f := &fleet{TB: t, setup: with}
	if with.rules != "" {
		f.file = rulesFile(t, with.rules)
	}
	f.begins(nodes)
	return f
}

// begins starts nodes.
func (f *fleet) begins(nodes int) {
	f.Helper()
	f.redis, _ = f.store.(*redistest.Server)
	for range f.ring {
		f.addrs = append(f.addrs, "127.0.0.1:"+freePort(f.TB))
	}
	for range nodes {
		f.join()
	}
	f.untilWhole()
}

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
func (f *fleet) join(more ...string) *sluice {
	f.Helper()
	env := []string{"DRAIN_TIME=0s", "LOG_LEVEL=warn", "ADMIN_TOKEN=hunter2\n", "HOLD_KEYS=the-key-of-the-tests"}
	if f.store != nil {
		env = append(env, "STORE_URL="+f.store.URL())
	}
	if f.ring > 0 {
		addr := f.addrs[len(f.nodes)]
		env = append(env, "PEERS=static:"+strings.Join(f.addrs, ","), "PEER_ADDR="+addr, "PEER_SECRET=s3cret-of-the-tests")
	}
	args := []string{"serve"}
	if f.file != "" {
		args = append(args, "--config", f.file)
	}
	cmd := command(slices.Concat(freePorts, env, f.env, more), args...)
	cmd.Path = cmp.Or(f.program, cmd.Path)
	s := start(f.TB, cmd)
	f.nodes = append(f.nodes, s)
	return s
}

// ask asks one node for a request's hits.
func (f *fleet) ask(node int, key, value string) {
	begun, hits := time.Now(), max(1, f.hits)
	r, err := f.nodes[node].send(asking(descriptor(hits, key, value)))
	took := int64(time.Since(begun))
	for was := f.slowest.Load(); took > was && !f.slowest.CompareAndSwap(was, took); was = f.slowest.Load() {
	}
	switch {
	case err != nil:
		f.failed.Add(1)
	case r.OverallCode == rls.RateLimitResponse_OK:
		f.admitted.Add(int64(hits))
	}
}

// load has callers ask all nodes in turn, until each has asked n times. It returns how much they were admitted.
func (f *fleet) load(key string, callers, n int, nodes ...int) int64 {
	before := f.admitted.Load()
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for j := range n {
				f.ask(nodes[(i+j)%len(nodes)], key, "x")
			}
		})
	}
	all.Wait()
	return f.admitted.Load() - before
}

// loadUntil is load, and then calls the nodes in turn until that many tokens are admitted in all, for at most 20 s. On a
// busy machine nodes refuse by their policy, and tokens return late.
func (f *fleet) loadUntil(least int64, key string, callers, n int, nodes ...int) (admitted int64) {
	admitted = f.load(key, callers, n, nodes...)
	for end := time.Now().Add(20 * time.Second); admitted < least && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		admitted += f.load(key, 1, len(nodes), nodes...)
	}
	return admitted
}

// total is the sum of a metric over the nodes.
func (f *fleet) total(name string, labels ...string) (total int) {
	f.Helper()
	for _, n := range f.nodes {
		sum, _ := n.sum(name, labels...)
		total += sum
	}
	return total
}

// fallbacks is how many decisions the nodes made without the store so far.
func (f *fleet) fallbacks() int { return f.total(`sluice_decision_sources_total{source="fallback"}`) }

// storeServer is a real server of a store. It runs again with its data, but a Redis, which has none then.
type storeServer interface {
	URL() string
	Run()
	Kill()
	Signal(syscall.Signal)
}

// aRedis is a store.
func aRedis(t testing.TB) storeServer { return redistest.Start(t) }

// startStore starts a server of a kind.
func startStore(t testing.TB, kind string, args ...string) storeServer {
	switch kind {
	case "postgres":
		return pgtest.Start(t)
	case "etcd":
		return etcdtest.Start(t)
	default:
		return redistest.Start(t, args...)
	}
}

// eachKind runs a test for each kind of store, side by side.
func eachKind(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range []string{"redis", "postgres", "etcd"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// eachStore runs a test on each kind of store, side by side.
func eachStore(t *testing.T, test func(*testing.T, storeServer)) {
	eachKind(t, func(t *testing.T, kind string) { test(t, startStore(t, kind)) })
}

// farStore is a store behind a proxy that delays its replies.
type farStore struct {
	storeServer
	proxy *redistest.Proxy
}

func newFarStore(t testing.TB, s storeServer) farStore {
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	return farStore{s, redistest.NewProxy(t, u.Host)}
}

func (s farStore) URL() string {
	u, err := url.Parse(s.storeServer.URL())
	if err != nil {
		return err.Error()
	}
	u.Host = s.proxy.Addr
	if strings.HasPrefix(u.Scheme, "postgres") {
		q := u.Query()
		q.Set("pool_max_conns", "40") // a round trip takes one, and several are under way
		u.RawQuery = q.Encode()
	}
	return u.String()
}

// listens is a listener on a free port, until the test ends.
func listens(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func freePort(t testing.TB) string {
	t.Helper()
	ports, err := freeport.Find(1)
	if err != nil {
		t.Fatal(err)
	}
	return ports[0]
}

// patient is a file whose rules wait for the store as long as they may, in mode approx, too.
func patient(rules string) string {
	const patience = "store_deadline: 1s, check_timeout: 900ms"
	if before, after, has := strings.Cut(rules, "\ncoordination: {"); has {
		return before + "\ncoordination: {" + patience + ", " + after
	}
	return strings.Replace(rules, "\ndescriptors:", "\ncoordination: {"+patience+"}\ndescriptors:", 1)
}

func rules(limit int) string {
	return fmt.Sprintf("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: year, requests_per_unit: %d}\n", limit)
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// rulesFile is a file with these rules.
func rulesFile(t testing.TB, rules string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, path, rules)
	return path
}

// top is the repository.
const top = "../../"

func read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(top + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
