package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// parseRequest reads "[domain=D] [hits=N] | descriptor; descriptor", where the part before | may be missing (domain
// parity) and a descriptor is "key=value,key=value [hits=N] [refund] [limit=N/UNIT]".
func parseRequest(t testing.TB, text string) *rls.RateLimitRequest {
	t.Helper()
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return n
	}
	q := &rls.RateLimitRequest{Domain: "parity"}
	head, rest, cut := strings.Cut(text, "|")
	if !cut {
		head, rest = "", text
	}
	for word := range strings.FieldsSeq(head) {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "domain":
			q.Domain = value
		case "hits":
			q.HitsAddend = uint32(number(value))
		}
	}
	for one := range strings.SplitSeq(rest, ";") {
		words := strings.Fields(one)
		if len(words) == 0 {
			continue
		}
		d := &common.RateLimitDescriptor{}
		for entry := range strings.SplitSeq(words[0], ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		for _, word := range words[1:] {
			switch name, value, _ := strings.Cut(word, "="); name {
			case "hits":
				d.HitsAddend = wrapperspb.UInt64(number(value))
			case "refund":
				d.IsNegativeHits = true
			case "limit":
				n, unit, _ := strings.Cut(value, "/")
				d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(number(n)), Unit: typev3.RateLimitUnit(typev3.RateLimitUnit_value[unit])}
			}
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	return q
}

// windows are the lengths of the units, in seconds.
var windows = map[rls.RateLimitResponse_RateLimit_Unit]int64{1: 1, 2: 60, 3: 3600, 4: 86400, 5: 2592000, 6: 31536000, 7: 604800}

// describeAnswer writes an answer as exchanges do. Where the time until the reset is that of no window, it says so.
func describeAnswer(a *rls.RateLimitResponse, now time.Time) string {
	var b strings.Builder
	b.WriteString(a.OverallCode.String())
	for _, s := range a.Statuses {
		b.WriteString(" [" + s.Code.String())
		if l := s.CurrentLimit; l != nil {
			unit := l.Unit.String()
			if got := s.DurationUntilReset.GetSeconds(); !about(got, windows[l.Unit]-now.Unix()%windows[l.Unit], windows[l.Unit]) {
				next := time.Date(now.UTC().Year(), now.UTC().Month()+1, 1, 0, 0, 0, 0, time.UTC)
				if unit = fmt.Sprintf("%s(reset in %d)", unit, got); about(got, int64(next.Sub(now)/time.Second), windows[l.Unit]) {
					unit = "CALENDAR"
				}
			}
			fmt.Fprintf(&b, " %d/%s", l.RequestsPerUnit, unit)
			if l.Name != "" {
				b.WriteString(" " + l.Name)
			}
		}
		if s.CurrentLimit != nil || s.LimitRemaining > 0 {
			fmt.Fprintf(&b, " left %d", s.LimitRemaining)
		}
		b.WriteString("]")
	}
	var headers []string
	for i, h := range slices.Concat(a.ResponseHeadersToAdd, a.RequestHeadersToAdd) {
		value := h.Value
		if n, err := strconv.Atoi(value); strings.HasSuffix(h.Key, "Res") || strings.HasSuffix(h.Key, "Reset") {
			if value = "+"; err != nil || n < 1 {
				value = h.Value
			}
		}
		value = secondsLeft.ReplaceAllString(value, ";t=+")
		if i >= len(a.ResponseHeadersToAdd) {
			value += " in the request"
		}
		headers = append(headers, h.Key+": "+value)
	}
	if headers != nil {
		b.WriteString(" {" + strings.Join(headers, ", ") + "}")
	}
	if a.DynamicMetadata != nil {
		text, _ := json.Marshal(a.DynamicMetadata.AsMap())
		b.WriteString(" " + string(text))
	}
	return b.String()
}

// secondsLeft is the time until the reset in the field RateLimit.
var secondsLeft = regexp.MustCompile(`;t=[1-9][0-9]*$`)

// about reports whether a time until a window's end is what it should be, give or take two seconds, also across the
// end.
func about(got, want, window int64) bool {
	d := (got - want%window + window) % window
	return got >= 1 && got <= max(window, 31*86400) && (d <= 2 || d >= window-2)
}

// overGRPC and overJSON ask, and describe the answer.
func (s *sluice) overGRPC() func(*rls.RateLimitRequest) string {
	client := rls.NewRateLimitServiceClient(s.dial())
	return func(q *rls.RateLimitRequest) string {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		a, err := client.ShouldRateLimit(ctx, q)
		if err != nil {
			return "error: " + grpcstatus.Convert(err).Message()
		}
		return describeAnswer(a, time.Now())
	}
}

func (s *sluice) overJSON() func(*rls.RateLimitRequest) string {
	return func(q *rls.RateLimitRequest) string {
		text, err := protojson.Marshal(q)
		if err != nil {
			return err.Error()
		}
		r, body := s.do(http.MethodPost, s.http+"/json", string(text), "Content-Type", "application/json")
		if r.StatusCode == http.StatusBadRequest {
			return "error: " + body
		}
		var a rls.RateLimitResponse
		if err := protojson.Unmarshal([]byte(body), &a); err != nil {
			return fmt.Sprintf("status %d, %q: %v", r.StatusCode, body, err)
		}
		if over := a.OverallCode == rls.RateLimitResponse_OVER_LIMIT; over != (r.StatusCode == http.StatusTooManyRequests) || !over && r.StatusCode != http.StatusOK {
			return fmt.Sprintf("status %d, %q", r.StatusCode, body)
		}
		return describeAnswer(&a, time.Now())
	}
}

// parityRuns makes accounts new ones in each run.
var parityRuns atomic.Int64

// parityRun is one server that is started with environment only, as a container is, and what it must answer.
type parityRun struct {
	env       []string
	routing   bool
	exchanges []exchange
	json      bool
	nodes     int                           // of a fleet, which are asked in turn; 0: one
	store     *redistest.Server             // where nothing is to be learned, of those that env names; nil: somewhere
	after     func(t *testing.T, s *sluice) // if the exchanges went well
}

// answer starts the server and compares the exchanges with it. Decisions wait for the store as long as they
// may, also in mode approx, which drifts after 2 ms otherwise. A late one is no part of parity (there it would
// be an error), and fails the test.
func (p parityRun) answer(t *testing.T) {
	t.Helper()
	prefix := fmt.Sprintf("run %d:", parityRuns.Add(1))
	if p.store != nil {
		p.store.Begin(prefix)
	}
	with := setup{env: append([]string{"CACHE_KEY_PREFIX=" + prefix}, p.env...), runtime: true}
	if p.routing {
		with.ring = max(1, p.nodes)
	}
	all := newFleet(t, max(1, p.nodes), with).nodes
	var asks []func(*rls.RateLimitRequest) string
	for _, s := range all {
		if asks = append(asks, s.overGRPC()); p.json {
			asks[0] = s.overJSON()
		}
	}
	for i, x := range p.exchanges {
		got, want := asks[i%len(asks)](parseRequest(t, x.request)), x.want
		if p.nodes > 0 { // the rest is from the node's last answer
			got, want = codesOf(got), codesOf(want)
		}
		if got != want && (!strings.HasPrefix(x.want, "error: ") || !strings.Contains(got, x.want[len("error: "):])) {
			t.Errorf("%s\n got  %s\n want %s", x.request, got, x.want)
		}
	}
	for _, s := range all {
		if n := s.late(); n != 0 {
			t.Errorf("%d decisions were made without the store", n)
		}
	}
	if p.after != nil {
		p.after(t, all[0])
	}
	for _, s := range all {
		_ = s.cmd.Process.Kill()
	}
}

// codesOf is an answer without what is left.
func codesOf(answer string) string {
	return regexp.MustCompile(` left \d+`).ReplaceAllString(answer, "")
}

// What is asked of three nodes in turn is answered as one node answers it: requests, charges after the fact, refunds
// and peeks, each at whichever node it arrives.
func TestParityOfFleets(t *testing.T) {
	files, store, script := runtimeDirectory(t), redistest.Start(t), parityScript(t)
	for _, mode := range []string{"leasing", "approx", "routing", "routing without a store"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			name, storeless := strings.CutSuffix(mode, " without a store")
			p := parityRun{nodes: 3, routing: name == "routing", exchanges: slices.Concat(script[0].exchanges, script[1].exchanges, script[2].exchanges)}
			if p.env = append([]string{"COORDINATION_MODE=" + name}, files...); !storeless {
				p.env, p.store = append(p.env, "REDIS_URL="+store.Addr), store
			}
			p.answer(t)
		})
	}
}

// late counts decisions without the store, and those that drifted.
func (s *sluice) late() int {
	return s.metric(`sluice_decision_sources_total{source="fallback"}`) + s.metric(`sluice_decision_sources_total{source="drift"}`)
}

// patient is a file whose rules wait for the store as long as they may, in mode approx, too.
func patient(rules string) string {
	const patience = "store_deadline: 1s, check_timeout: 900ms"
	if before, after, has := strings.Cut(rules, "\ncoordination: {"); has {
		return before + "\ncoordination: {" + patience + ", " + after
	}
	return strings.Replace(rules, "\ndescriptors:", "\ncoordination: {"+patience+"}\ndescriptors:", 1)
}

// runtimeDirectory is a RUNTIME_ROOT as in their image, with files of any extension, and other files next to it.
func runtimeDirectory(t *testing.T) []string {
	root := t.TempDir()
	writeFile(t, filepath.Join(root, "ratelimit", "config", "parity.conf"), patient(read(t, "cmd/sluice/testdata/parity/rules.yaml")))
	writeFile(t, filepath.Join(root, "ratelimit", "config", "more", "files.yaml"), patient(read(t, "cmd/sluice/testdata/parity/files.yaml")))
	writeFile(t, filepath.Join(root, "ratelimit", "config", ".hidden"), "no: rules")
	writeFile(t, filepath.Join(root, "ratelimit", "other", "not-rules"), "{")
	return []string{"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true"}
}

// parityStore is a Redis that the suite runs on.
type parityStore struct {
	env   []string
	store *redistest.Server // as parityRun has it
}

func parityStores(t *testing.T) map[string]parityStore {
	single := redistest.Start(t)
	master := redistest.Start(t)
	sentinel := redistest.Sentinel(t, "main", master)
	var cluster []string
	for _, s := range redistest.Cluster(t, 3) {
		cluster = append(cluster, s.Addr)
	}
	i := redistest.NewAuthority(t)
	i.Leaf("redis", time.Hour, "localhost")
	i.Leaf("node", time.Hour)
	port := freePort(t)
	secure := redistest.Start(t, "--tls-port", port, "--tls-cert-file", i.File("redis.crt"), "--tls-key-file", i.File("redis.key"),
		"--tls-ca-cert-file", i.File("ca.crt"), "--tls-auth-clients", "yes")
	secure.Do("ACL", "SETUSER", "node", "on", ">secret", "~*", "&*", "+@all")
	secure.Do("ACL", "SETUSER", "default", "resetkeys", "~*sluice:life", "-@all", "+set", "+info", "+hello", "+client") // Begin
	return map[string]parityStore{
		"memory":   {},
		"single":   {[]string{"REDIS_URL=" + single.Addr}, single},
		"sentinel": {[]string{"REDIS_TYPE=SENTINEL", "REDIS_URL=main," + sentinel.Addr}, master},
		"cluster":  {[]string{"REDIS_TYPE=CLUSTER", "REDIS_URL=" + strings.Join(cluster, ",")}, nil},
		"tls": {[]string{
			"REDIS_URL=localhost:" + port, "REDIS_TLS=true", "REDIS_TLS_CACERT=" + i.File("ca.crt"), "REDIS_TLS_CLIENT_CERT=" + i.File("node.crt"),
			"REDIS_TLS_CLIENT_KEY=" + i.File("node.key"), "REDIS_AUTH=node:secret",
		}, secure},
	}
}

// Every row, on every kind of store, in every mode, over gRPC and /json.
func TestParity(t *testing.T) {
	files, script := runtimeDirectory(t), parityScript(t)
	exchanges := slices.Concat(script[0].exchanges, script[1].exchanges)
	for store, of := range parityStores(t) {
		for _, mode := range []string{"leasing", "routing", "approx"} {
			t.Run(store+"/"+mode, func(t *testing.T) {
				t.Parallel() // a node on a store that has something to learn is not healthy for two seconds
				sink := newLineSink(t)
				env := append(append([]string{"COORDINATION_MODE=" + mode}, files...), of.env...)
				p := parityRun{env: append(sink.env(), env...), routing: mode == "routing", store: of.store, exchanges: exchanges}
				p.after = func(t *testing.T, s *sluice) {
					checkShown(t, s)
					if open := s.stat("ratelimit.redis_pool.cx_active"); (open > 0) != (store != "memory") {
						t.Errorf("%d connections to Redis are open", open)
					}
					checkStatistics(t, s, sink, script[0].statistics, map[string]int{"ratelimit_server.ShouldRateLimit.total_requests": len(exchanges)}, poolStatistics(store))
				}
				p.answer(t)
				json := parityRun{env: env, routing: p.routing, store: of.store, exchanges: p.exchanges, json: true}
				json.answer(t)
				for _, g := range script[3:] {
					if store != "single" && g.statistics == nil { // no store has a part in these
						continue
					}
					t.Run(g.title, func(t *testing.T) {
						t.Parallel()
						sink := newLineSink(t)
						run := parityRun{env: append(append(sink.env(), strings.Fields(g.title)...), env...), routing: p.routing, store: of.store, exchanges: g.exchanges}
						run.after = func(t *testing.T, s *sluice) { checkStatistics(t, s, sink, g.statistics) }
						run.answer(t)
					})
				}
			})
		}
	}
}

// poolStatistics are those of connections to a Redis, where there is one.
func poolStatistics(store string) map[string]int {
	if store == "memory" {
		return nil
	}
	return map[string]int{"ratelimit.redis_pool.cx_total": -4, "ratelimit.redis_pool.cx_local_close": -1}
}

// stat is one of the lines of /stats; 0 if it is not there.
func (s *sluice) stat(name string) int {
	s.Helper()
	_, text := s.get(s.debug + "/stats")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				s.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// checkShown compares what the debug port shows.
func checkShown(t *testing.T, s *sluice) {
	t.Helper()
	_, shown := s.get(s.debug + "/metrics")
	for _, line := range parityPrometheus {
		if !strings.Contains(shown, "\n"+line+"\n") {
			t.Errorf("/metrics has no line %s", line)
		}
	}
	_, stats := s.get(s.debug + "/stats")
	if want := "ratelimit.service.rate_limit.parity.near.total_hits: 74\n"; !strings.Contains(stats, want) {
		t.Errorf("/stats has no line %s", want)
	}
	_, rlconfig := s.get(s.debug + "/rlconfig")
	if want := "parity.user_v*p: unit=DAY requests_per_unit=4"; !strings.Contains(rlconfig, want) {
		t.Errorf("/rlconfig has no line %s:\n%s", want, rlconfig)
	}
}

// checkStatistics ends the server and compares what it has sent; of what is wanted negative, at least so much.
func checkStatistics(t *testing.T, s *sluice, sink *lineSink, wanted ...map[string]int) {
	t.Helper()
	s.ends(syscall.SIGTERM)
	sums := sink.sums(t)
	for _, all := range wanted {
		for name, want := range all {
			if got := sums[name+".__az=a.__team=edge"]; want < 0 && got < -want || want >= 0 && got != want {
				t.Errorf("statsd: %s is %d, want %d", name, got, want)
			}
		}
	}
}

// MERGE_DOMAIN_CONFIG joins files; LOG_FORMAT and LOG_LEVEL shape the log; the endpoints are where theirs are.
func TestParityEndpoints(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "config", "a"), "domain: parity\ndescriptors: [{key: plain, rate_limit: {unit: day, requests_per_unit: 3, name: the-limit}}]")
	writeFile(t, filepath.Join(dir, "config", "b"), "domain: parity\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 6}}]")
	prometheus := "127.0.0.1:" + freePort(t)
	s := serve(t, []string{
		"RUNTIME_ROOT=" + dir, "MERGE_DOMAIN_CONFIG=true", "LOG_FORMAT=json", "LOG_LEVEL=DEBUG", "DRAIN_TIME=0s", "USE_PROMETHEUS=true",
		"PROMETHEUS_ADDR=" + prometheus, "PROMETHEUS_PATH=/prom", "TRACING_ENABLED=false", "LOCAL_CACHE_SIZE_IN_BYTES=1000", "EXPIRATION_JITTER_MAX_SECONDS=300", "REDIS_CLUSTER_PIPELINE_PARALLELISM=4",
		"USE_DOG_STATSD_MOGRIFIERS=TAG", "STATSD_HOST=x", "REQUEST_TIMEOUT=1s", "GRPC_MAX_CONCURRENT_STREAMS=16", "BACKEND_TYPE=memcache", "COORDINATION_MAX_NODES=1", "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true",
	})
	s.eventually("healthy", s.healthy)
	if got := s.overGRPC()(parseRequest(t, "plain=x; user=x")); got != "OK [OK 3/DAY the-limit left 2] [OK 6/DAY left 5]" {
		t.Error(got)
	}
	for url, want := range map[string]string{
		s.http + "/healthcheck":   "OK",
		s.debug + "/rlconfig":     "parity.plain",
		s.debug + "/stats":        "ratelimit.service.config_load_success: 1",
		s.debug + "/debug/pprof/": "goroutine",
		prometheus + "/prom":      "ratelimit_service_rate_limit_total_hits",
		s.debug + "/metrics":      `ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="1000"}`,
	} {
		if code, body := s.get(url); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, no %q in %.300s", url, code, want, body)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn := s.dial()
	for _, name := range []string{"", "ratelimit"} {
		if r, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: name}); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v %v", name, r, err)
		}
	}
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || !strings.Contains(r.String(), "envoy.service.ratelimit.v3.RateLimitService") {
		t.Errorf("reflection: %v %v", r, err)
	}
	for line := range strings.Lines(s.log()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("a line of the log is no JSON: %s", line)
		}
	}
	for name, want := range map[string]int{
		"EXPIRATION_JITTER_MAX_SECONDS": 1, "REDIS_CLUSTER_PIPELINE_PARALLELISM": 1, "USE_DOG_STATSD_MOGRIFIERS": 1, "STATSD_HOST": 1, "GRPC_MAX_CONCURRENT_STREAMS": 1, "BACKEND_TYPE": 1, "REQUEST_TIMEOUT": 1,
		"LOCAL_CACHE_SIZE_IN_BYTES": 0, // which has a meaning
	} {
		if n := strings.Count(s.log(), name); n != want {
			t.Errorf("the log names %s %d times, want %d", name, n, want)
		}
	}
}

// The rows of envoyproxy/ratelimit's behaviour are exchanges with the binary, in testdata/parity.

// exchange is a request and what must be answered: see parseRequest and describeAnswer.
type exchange struct{ request, want string }

// paritySection is a section of testdata/parity/exchanges.txt: default, files, fleet, and then one for each setting,
// which is its title.
type paritySection struct {
	title      string
	exchanges  []exchange
	statistics map[string]int // nil: none are looked at
}

// parityScript reads the sections.
func parityScript(t *testing.T) (all []paritySection) {
	t.Helper()
	for line := range strings.Lines(read(t, "cmd/sluice/testdata/parity/exchanges.txt")) {
		line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "  # ")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if title, ok := strings.CutPrefix(line, "== "); ok {
			all = append(all, paritySection{title: title})
			continue
		}
		x := &all[len(all)-1]
		if request, want, ok := strings.Cut(line, " => "); ok {
			x.exchanges = append(x.exchanges, exchange{request, want})
			continue
		}
		name, value, ok := strings.Cut(line, " = ")
		n, err := strconv.Atoi(value)
		if !ok || err != nil {
			t.Fatalf("what is %q?", line)
		}
		if x.statistics == nil {
			x.statistics = map[string]int{}
		}
		x.statistics[name] = n
	}
	if len(all) < 12 || len(all[0].exchanges) < 60 || len(all[0].statistics) < 40 {
		t.Fatalf("%d sections, %d exchanges", len(all), len(all[0].exchanges))
	}
	return all
}

// parityPrometheus are lines of /metrics after the exchanges.
var parityPrometheus = []string{
	`ratelimit_service_rate_limit_total_hits{domain="parity",key1="deep",key2="er"} 1`,
	`ratelimit_service_rate_limit_near_limit{domain="parity",key1="near",key2=""} 8`,
	`ratelimit_service_rate_limit_over_limit{domain="parity",key1="near",key2=""} 34`,
	`ratelimit_service_rate_limit_within_limit{domain="files",key1="named_x",key2=""} 1`,
	`ratelimit_service_rate_limit_shadow_mode{domain="parity",key1="shadow",key2=""} 1`,
	`ratelimit_service_should_rate_limit_error{err_type="service_error"} 4`,
	`ratelimit_service_config_load_success 1`,
	`ratelimit_service_config_load_error 0`,
}

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
