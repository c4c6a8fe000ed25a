package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
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
			window, got := windows[l.Unit], s.DurationUntilReset.GetSeconds()
			if window > 0 && !about(got, window-now.Unix()%window, window) { // slots have no window
				next := time.Date(now.UTC().Year(), now.UTC().Month()+1, 1, 0, 0, 0, 0, time.UTC)
				if unit = fmt.Sprintf("%s(reset in %d)", unit, got); about(got, int64(next.Sub(now)/time.Second), window) {
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

// overGRPC asks, and describes the answer.
func (s *sluice) overGRPC(q *rls.RateLimitRequest) string {
	a, err := s.send(q)
	if err != nil {
		return "error: " + grpcstatus.Convert(err).Message()
	}
	return describeAnswer(a, time.Now())
}

// overJSON asks, and describes the answer, whose status must fit it.
func (s *sluice) overJSON(q *rls.RateLimitRequest) string {
	text, err := protojson.Marshal(q)
	if err != nil {
		return err.Error()
	}
	r, body := s.do(http.MethodPost, s.http+"/json", string(text), "Content-Type", "application/json")
	if r.StatusCode == http.StatusBadRequest {
		return "error: " + body
	}
	var a rls.RateLimitResponse
	status := map[bool]int{false: http.StatusOK, true: http.StatusTooManyRequests}
	if err := protojson.Unmarshal([]byte(body), &a); err != nil || r.StatusCode != status[a.OverallCode == rls.RateLimitResponse_OVER_LIMIT] {
		return fmt.Sprintf("status %d, %q: %v", r.StatusCode, body, err)
	}
	return describeAnswer(&a, time.Now())
}

// parityRun is one server that is started with environment only, as a container is, and what it must answer.
type parityRun struct {
	env        []string
	routing    bool
	exchanges  []exchange
	json       bool
	nodes      int                           // of a fleet, which are asked in turn; 0: one
	store      *redistest.Server             // where nothing is to be learned, of those that env names; nil: somewhere
	look       func(t *testing.T, s *sluice) // at the node afterwards; nil: nothing is to be seen
	statistics map[string]int                // that it sends; nil: none
}

// parityRuns makes accounts new ones in each run.
var parityRuns atomic.Int64

// answer starts the server and compares the exchanges with it. Decisions wait for the store as long as they
// may, also in mode approx, which drifts after 2 ms otherwise. A late one is no part of parity (there it would
// be an error): on a busy machine the run is repeated.
func (p parityRun) answer(t *testing.T) {
	t.Helper()
	for range 4 {
		if p.plays(t) {
			return
		}
	}
	t.Error("decisions were made without the store, or drifted, in each run")
}

// plays says false if a decision was late.
func (p parityRun) plays(t *testing.T) bool {
	t.Helper()
	prefix := fmt.Sprintf("run %d:", parityRuns.Add(1))
	if p.store != nil {
		p.store.Begin(prefix)
	}
	with := setup{env: append([]string{"CACHE_KEY_PREFIX=" + prefix}, p.env...)}
	if p.routing {
		with.ring = max(1, p.nodes)
	}
	statsd, compare := newStatsd(t)
	if p.statistics != nil {
		with.env = append(with.env, statsd...)
	}
	all := newFleet(t, max(1, p.nodes), with).nodes
	left := regexp.MustCompile(` left \d+`)
	var wrong []string
	for i, x := range p.exchanges {
		ask := all[i%len(all)].overGRPC
		if p.json {
			ask = all[0].overJSON
		}
		got, want := ask(parseRequest(t, x.request)), x.want
		if p.nodes > 0 { // the rest is from the node's last answer
			got, want = left.ReplaceAllString(got, ""), left.ReplaceAllString(want, "")
		}
		if got != want && (!strings.HasPrefix(x.want, "error: ") || !strings.Contains(got, x.want[len("error: "):])) {
			wrong = append(wrong, fmt.Sprintf("%s\n got  %s\n want %s", x.request, got, x.want))
		}
	}
	late := 0
	for _, s := range all {
		late += s.decidedAlone() + s.metric(`sluice_decision_sources_total{source="drift"}`)
		defer s.cmd.Process.Kill()
	}
	if late > 0 {
		t.Logf("%d decisions were made without the store, or drifted; %d answers differ", late, len(wrong))
		return false
	}
	for _, w := range wrong {
		t.Error(w)
	}
	if p.look != nil {
		p.look(t, all[0])
	}
	if p.statistics != nil {
		compare(t, all[0], p.statistics)
	}
	return true
}

// exchange is a request and what must be answered: see parseRequest and describeAnswer.
type exchange struct{ request, want string }

// paritySection is a section of testdata/parity/exchanges.txt: default, files, fleet, and then one for each setting,
// which is its title.
type paritySection struct {
	title      string
	exchanges  []exchange
	statistics map[string]int // nil: none are looked at; of what is negative, at least so much
}

// newStatsd is a statsd server for one client. env has a node send all at its end. compare ends the node, and compares
// the sum of each name; of times, how many there were.
func newStatsd(t *testing.T) (env []string, compare func(t *testing.T, s *sluice, wanted map[string]int)) {
	l := listens(t)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	got := make(chan map[string]int, 1)
	go func() {
		sums := map[string]int{}
		conn, err := l.Accept()
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			name, rest, _ := strings.Cut(lines.Text(), ":")
			value, kind, _ := strings.Cut(rest, "|")
			n, _ := strconv.Atoi(value)
			if kind == "ms" {
				n = 1
			}
			sums[name] += n
		}
		got <- sums
	}()
	compare = func(t *testing.T, s *sluice, wanted map[string]int) {
		t.Helper()
		s.ends(syscall.SIGTERM)
		select {
		case sums := <-got:
			for name, want := range wanted {
				if n := sums[name+".__az=a.__team=edge"]; want < 0 && n < -want || want >= 0 && n != want {
					t.Errorf("statsd: %s is %d, want %d", name, n, want)
				}
			}
		case <-time.After(patience):
			t.Error("nothing was sent, or the connection stays open")
		}
	}
	return []string{"USE_STATSD=1", "STATSD_HOST=127.0.0.1", "STATSD_PORT=" + port, "STATS_FLUSH_INTERVAL=1h", "EXTRA_TAGS=team:edge,az:a"}, compare
}

// The rows of envoyproxy/ratelimit's behaviour, in testdata/parity, are exchanges with the binary: on every kind of
// store, in every mode, over gRPC and /json. What is asked of three nodes in turn is answered as one node answers it:
// requests, charges after the fact, refunds and peeks, each at whichever node it arrives.
func TestParity(t *testing.T) {
	var script []paritySection
	for line := range strings.Lines(read(t, "cmd/sluice/testdata/parity/exchanges.txt")) {
		line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "  # ")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if title, ok := strings.CutPrefix(line, "== "); ok {
			script = append(script, paritySection{title: title})
			continue
		}
		x := &script[len(script)-1]
		if request, want, ok := strings.Cut(line, " => "); ok {
			x.exchanges = append(x.exchanges, exchange{request, want})
			continue
		}
		name, value, _ := strings.Cut(line, " = ")
		n, err := strconv.Atoi(value)
		if err != nil {
			t.Fatalf("what is %q?", line)
		}
		if x.statistics == nil {
			x.statistics = map[string]int{}
		}
		x.statistics[name] = n
	}
	if len(script) < 12 || len(script[0].exchanges) < 60 || len(script[0].statistics) < 40 {
		t.Fatalf("%d sections, %d exchanges", len(script), len(script[0].exchanges))
	}
	root := t.TempDir()
	exchanges := slices.Concat(script[0].exchanges, script[1].exchanges)
	// A RUNTIME_ROOT as in their image, with files of any extension, and other files next to it.
	writeFile(t, filepath.Join(root, "ratelimit", "config", "parity.conf"), patient(read(t, "cmd/sluice/testdata/parity/rules.yaml")))
	writeFile(t, filepath.Join(root, "ratelimit", "config", "more", "files.yaml"), patient(read(t, "cmd/sluice/testdata/parity/files.yaml")))
	writeFile(t, filepath.Join(root, "ratelimit", "config", ".hidden"), "no: rules")
	writeFile(t, filepath.Join(root, "ratelimit", "other", "not-rules"), "{")
	files := []string{"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true"}

	single, master := redistest.Start(t), redistest.Start(t)
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
	for store, of := range map[string]struct {
		env   []string
		store *redistest.Server // as parityRun has it
	}{
		"memory":   {},
		"single":   {[]string{"REDIS_URL=" + single.Addr}, single},
		"sentinel": {[]string{"REDIS_TYPE=SENTINEL", "REDIS_URL=main," + sentinel.Addr}, master},
		"cluster":  {[]string{"REDIS_TYPE=CLUSTER", "REDIS_URL=" + strings.Join(cluster, ",")}, nil},
		"tls": {[]string{
			"REDIS_URL=localhost:" + port, "REDIS_TLS=true", "REDIS_TLS_CACERT=" + i.File("ca.crt"), "REDIS_TLS_CLIENT_CERT=" + i.File("node.crt"),
			"REDIS_TLS_CLIENT_KEY=" + i.File("node.key"), "REDIS_AUTH=node:secret",
		}, secure},
	} {
		for _, mode := range []string{"leasing", "routing", "approx"} {
			env := slices.Concat(files, of.env, []string{"COORDINATION_MODE=" + mode})
			t.Run(store+"/"+mode, func(t *testing.T) {
				t.Parallel() // a node on a store that has something to learn is not healthy for two seconds
				wanted := maps.Clone(script[0].statistics)
				wanted["ratelimit_server.ShouldRateLimit.total_requests"] = len(exchanges)
				if store != "memory" {
					wanted["ratelimit.redis_pool.cx_total"], wanted["ratelimit.redis_pool.cx_local_close"] = -4, -1
				}
				p := parityRun{env: env, routing: mode == "routing", store: of.store, exchanges: exchanges, statistics: wanted}
				p.look = func(t *testing.T, s *sluice) {
					_, stats := s.get(s.debug + "/stats")
					if open := regexp.MustCompile(`redis_pool\.cx_active: [1-9]`).MatchString(stats); open != (store != "memory") {
						t.Errorf("connections to Redis are open: %t", open)
					}
					for page, lines := range map[string][]string{
						"/stats":    {"ratelimit.service.rate_limit.parity.near.total_hits: 74\n"},
						"/rlconfig": {"parity.user_v*p: unit=DAY requests_per_unit=4"},
						"/metrics": {
							`ratelimit_service_rate_limit_total_hits{domain="parity",key1="deep",key2="er"} 1`,
							`ratelimit_service_rate_limit_near_limit{domain="parity",key1="near",key2=""} 8`,
							`ratelimit_service_rate_limit_over_limit{domain="parity",key1="near",key2=""} 34`,
							`ratelimit_service_rate_limit_within_limit{domain="files",key1="named_x",key2=""} 1`,
							`ratelimit_service_rate_limit_shadow_mode{domain="parity",key1="shadow",key2=""} 1`,
							`ratelimit_service_should_rate_limit_error{err_type="service_error"} 4`,
							`ratelimit_service_config_load_success 1`,
							`ratelimit_service_config_load_error 0`,
						},
					} {
						_, text := s.get(s.debug + page)
						for _, line := range lines {
							if !strings.Contains(text, line) {
								t.Errorf("%s has no line %s", page, line)
							}
						}
					}
				}
				p.answer(t)
				p.json, p.look, p.statistics = true, nil, nil
				p.answer(t)
			})
			for _, g := range script[3:] {
				if store != "single" && g.statistics == nil { // no store has a part in these
					continue
				}
				t.Run(store+"/"+mode+"/"+g.title, func(t *testing.T) {
					t.Parallel()
					p := parityRun{env: slices.Concat(strings.Fields(g.title), env), routing: mode == "routing", store: of.store}
					p.exchanges, p.statistics = g.exchanges, g.statistics
					p.answer(t)
				})
			}
		}
	}
	for _, mode := range []string{"leasing", "approx", "routing", "routing without a store"} {
		t.Run("fleet/"+mode, func(t *testing.T) {
			t.Parallel()
			name, storeless := strings.CutSuffix(mode, " without a store")
			p := parityRun{nodes: 3, routing: name == "routing", exchanges: slices.Concat(exchanges, script[2].exchanges)}
			if p.env = append([]string{"COORDINATION_MODE=" + name}, files...); !storeless {
				p.env, p.store = append(p.env, "REDIS_URL="+single.Addr), single
			}
			p.answer(t)
		})
	}
}
