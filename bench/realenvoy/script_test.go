package realenvoy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
)

// Each configuration of deploy starts without a warning of ours, and limits what its comments say.
func TestShippedConfigurations(t *testing.T) { play(t, "shipped-*") }

// What Envoy makes of Sluice's answers, rule by rule. Requests fail where Sluice fails, so that what passes was
// decided.
func TestRLS(t *testing.T) { play(t, "rls") }

// Envoy calls over TLS, and presents a certificate if a node requires one. Without alpn_protocols its calls
// arrive, but its health checks do not: it finds no healthy node, and calls all of them regardless of their state.
func TestTLS(t *testing.T) { needsLong(t); play(t, "tls") }

// Without a decision a request passes, and with failure_mode_deny: true Envoy answers 500, whatever has become of
// the only node. While it drains it decides.
func TestFailureModes(t *testing.T) { needsLong(t); play(t, "failure-*") }

// Three nodes are restarted one after the other, each as soon as the previous one is back, while 500 requests a
// second go through Envoy. Each request is decided, and no key exceeds its rule's bound.
//
// A call that Envoy gave up after 20 ms passes undecided. On a busy machine, some do so without any restart. They
// are at most 1 of 200, and each may be one over. All other failures are 0.
func TestRollingRestart(t *testing.T) { needsLong(t); play(t, "rolling-*") }

// A node that hangs costs requests the filter's timeout, for as long as deploy says: then Envoy's health checks
// have found it. None fails, and what hung is asked again when it goes on.
func TestHungNode(t *testing.T) { needsLong(t); play(t, "hung-*") }

// Calls that never begin, and answers that are not taken, leave an Envoy that fails open its decisions: of a
// limit, exactly as many pass.
func TestCallsThatNeverBeginOpenNothing(t *testing.T) { play(t, "hostile") }

// Envoy Gateway's configuration and rules, as it pushes them: a limit for each user, and a cost that is known when
// the answer has been sent.
func TestEnvoyGateway(t *testing.T) { needsLong(t); play(t, "envoy-gateway") }

// Agent Router's: the same of a QuotaPolicy, whose request costs 1.
func TestAgentRouter(t *testing.T) { needsLong(t); play(t, "agent-router") }

// A request holds 30 of a team's 100, and is charged what its answer says that it has used, be that JSON or events.
func TestTokensThroughEnvoy(t *testing.T) { play(t, "tokens") }

// Gateways that carry no hold, with their configurations and rules as they push them, and the additions that are
// shipped: a request holds what its answer costs, 40 of 100. Two are admitted, where a peek, or one hit, lets
// three pass and uses 120.
func TestGatewaysHoldWithoutAnID(t *testing.T) { play(t, "hold-without-id-*") }

// Holds with an id through gateways' own files: a request holds 40 of 100 and costs 10, so that seven are
// admitted. Were the call at the end taken for a request, two would be.
func TestGatewaysHoldWithAnID(t *testing.T) { play(t, "hold-with-id-*") }

// play runs scripts of testdata. Their language is that of testscript, with the commands below.
func play(t *testing.T, pattern string) {
	t.Helper()
	installed(t)
	files, err := filepath.Glob("testdata/" + pattern + ".txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(pattern, files, err)
	}
	all := map[string]func(*testscript.TestScript, bool, []string){}
	for name, does := range commands() {
		all[name] = func(ts *testscript.TestScript, not bool, args []string) {
			s := ts.Value("script").(*script)
			s.ts = ts
			if err := does(s, args); not == (err == nil) {
				ts.Fatalf("%s %q: %v", name, args, err)
			}
		}
	}
	testscript.RunT(serial{t}, testscript.Params{Files: files, Cmds: all, Setup: func(e *testscript.Env) error {
		e.Values["script"] = &script{world: &world{T: e.T().(serial).T}, dir: e.WorkDir}
		return nil
	}})
}

// serial has scripts run one after the other: Envoy's timeouts are short.
type serial struct{ *testing.T }

func (serial) Parallel()     {}
func (serial) Verbose() bool { return testing.Verbose() }
func (s serial) Run(name string, f func(testscript.T)) {
	s.T.Run(name, func(t *testing.T) { f(serial{t}) })
}

// script is the state of one that is played.
type script struct {
	*world
	ts      *testscript.TestScript
	dir     string              // of its files
	rules   cache.SnapshotCache // of the management server; nil: there is none
	version int                 // of these rules
	loaded  chan *answers       // of the load that goes on
	known   int64               // calls that a node that hangs has made late
	begun   chan error          // of the request that goes on
	slow    chan struct{}       // closed: no request does
}

// A command is done with its arguments. HEADER is NAME=VALUE, and N/M of M requests so many that pass.
type command func(s *script, args []string) error

func commands() map[string]command {
	return map[string]command{
		"config":    (*script).configure,    // FILE of deploy or testdata is Envoy's configuration
		"change":    (*script).replace,      // OLD NEW... texts of it; @FILE is what the file has, with its $NAMEs
		"route":     (*script).addRoute,     // PATH LIMITS [FILE], with the action in a file; KEY(x) is an action
		"istio":     (*script).istio,        // FILE of deploy/istio is patched in
		"patch":     (*script).patch,        // FILE of deploy/envoy-gateway is patched in
		"certs":     (*script).certificates, // of sluice and envoy, in the folder $CERTS
		"push":      (*script).push,         // DOMAIN FILE: these are the rules of a management server
		"adds":      (*script).adds,         // FILE HOLD: additions of deploy to pushed rules, with this hold
		"answer":    (*script).answer,       // costs|model|large|slow is how the service does
		"nodes":     (*script).nodes,        // N [alone] [FLAG...], with rules.yaml; alone: without a Redis
		"node":      (*script).node,         // N pause|continue|drain|ended|kill|start|restart
		"envoy":     (*script).start,        // N starts it, and waits until it finds so many nodes well
		"well":      (*script).untilWell,    // N: so many Envoy finds well then
		"get":       (*script).show,         // STATUS PATH [HEADER...] prints the answer's headers
		"passes":    (*script).admits,       // N/M PATH [HEADER...]
		"begin":     (*script).begin,        // PATH [HEADER...] is a request that passes, and goes on
		"end":       (*script).end,          // of it
		"costs":     (*script).costs,        // STATUS... of requests, of which those that pass have two calls
		"load":      (*script).load,         // RATE LENGTH HEADER=KEYS PATH [HEADER...] goes on meanwhile
		"loaded":    (*script).unload,       // LIMIT NAME=LEAST-MOST... of what it counted; late is of 1,000
		"hung":      (*script).hung,         // LEAST-MOST calls have come too late
		"undecided": (*script).undecided,    // N requests so far
		"attack":    (*script).attack,       // begin|take COMMAND..., under calls that never begin or take
		"sum":       (*script).counts,       // LEAST-MOST METRIC... of all nodes
		"left":      (*script).left,         // N TEAM of its limit
		"quiet":     (*script).quiet,        // Envoy warns of nothing that a configuration says
		"takes":     (*script).takes,        // LEAST-MOST COMMAND...
		"until":     (*script).until,        // COMMAND... succeeds then
		"each":      (*script).each,         // N COMMAND..., with the numbers below N for %d
		"sleep":     (*script).sleep,        // LENGTH
	}
}

// file is the path of a script's own file, or one that several have.
func (s *script) file(name string) string {
	for _, dir := range []string{s.dir, "../../deploy", "testdata"} {
		if file := filepath.Join(dir, name); exists(file) {
			return file
		}
	}
	s.Fatalf("there is no file %s", name)
	return ""
}

func exists(file string) bool { _, err := os.Stat(file); return err == nil }

func (s *script) number(text string) int {
	s.Helper()
	n, err := strconv.Atoi(text)
	s.need(err)
	return n
}

// between holds a number against LEAST-MOST, or the only one.
func (s *script) between(n int, bounds string) error {
	least, most, two := strings.Cut(bounds, "-")
	if !two {
		most = least
	}
	if n < s.number(least) || n > s.number(most) {
		return fmt.Errorf("it is %d", n)
	}
	return nil
}

// headers are names and values in turn.
func headers(args []string) (all []string) {
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		all = append(all, name, value)
	}
	return all
}

func (s *script) configure(args []string) error {
	s.config.Text = s.read(s.file(args[0]))
	return nil
}

func (s *script) replace(args []string) error {
	for i, a := range args {
		if name, ok := strings.CutPrefix(a, "@"); ok {
			args[i] = strings.TrimSuffix(os.Expand(s.read(s.file(name)), s.ts.Getenv), "\n")
		}
	}
	s.change(args...)
	return nil
}

func (s *script) addRoute(args []string) error {
	key := regexp.MustCompile(`KEY\((\w+)\)`)
	limits := key.ReplaceAllString(args[1], "{generic_key: {descriptor_key: $1, descriptor_value: v}}")
	action := ""
	if len(args) > 2 {
		action = strings.TrimSpace(s.read(s.file(args[2])))
	}
	s.route(args[0], limits, action)
	return nil
}

func (s *script) certificates([]string) error {
	a := redistest.NewAuthority(s.T)
	a.Leaf("sluice", time.Hour, "sluice")
	a.Leaf("envoy", time.Hour, "envoy")
	s.ts.Setenv("CERTS", filepath.Dir(a.File("ca.crt")))
	return nil
}

func (s *script) nodes(args []string) error {
	if exists(filepath.Join(s.dir, "rules.yaml")) {
		s.world.rules = s.read(s.file("rules.yaml"))
	}
	s.alone = slices.Contains(args, "alone")
	s.flags = append(s.flags, slices.DeleteFunc(args[1:], func(a string) bool { return a == "alone" })...)
	s.world.start(s.number(args[0]))
	s.flags = nil
	return nil
}

func (s *script) start(args []string) error { s.open(s.number(args[0])); return nil }

func (s *script) untilWell(args []string) error { return s.well(s.number(args[0])) }

func (s *script) node(args []string) error {
	i := s.number(args[0])
	n := s.fleet.Nodes[i]
	switch args[1] {
	case "pause", "continue":
		return n.Pause(args[1] == "pause")
	case "drain":
		return n.Signal(syscall.SIGTERM)
	case "ended":
		return n.Wait(15 * time.Second)
	case "kill":
		return n.Kill()
	case "start":
		return s.fleet.Start(i)
	default:
		return s.fleet.Restart(i)
	}
}

// show prints each header. The rest of a window is RESET.
func (s *script) show(args []string) error {
	a := s.get(args[1], headers(args[2:])...)
	reset := regexp.MustCompile(`(Reset: |;t=)` + cmp.Or(a.Header.Get("Ratelimit-Reset"), "none") + `$`)
	for _, name := range slices.Sorted(maps.Keys(a.Header)) {
		line := name + ": " + strings.Join(a.Header[name], " and ")
		fmt.Fprintln(s.ts.Stdout(), reset.ReplaceAllString(line, "${1}RESET"))
	}
	return s.between(a.Status, args[0])
}

// admits holds how many of so many requests pass. A call that Envoy gave up because this machine was busy lets its
// request pass undecided, and is charged or not.
func (s *script) admits(args []string) error {
	want, of, _ := strings.Cut(args[0], "/")
	passed, err := s.passes(s.number(of), args[1], headers(args[2:])...)
	undecided := int(s.stats()[undecidedStat])
	if limit := s.number(want); err == nil && (passed < limit || passed > limit+undecided) {
		err = fmt.Errorf("%d passed, and %d were undecided so far", passed, undecided)
	}
	return err
}

func (s *script) begin(args []string) error {
	before := s.backend.Passed.Load()
	s.begun = make(chan error, 1)
	go func() {
		a, err := s.client.Get(s.Context(), args[0], headers(args[1:])...)
		if err == nil && a.Status != http.StatusOK {
			err = fmt.Errorf("it is answered %d", a.Status)
		}
		s.begun <- err
	}()
	return Until("the service has the request", func() bool { return s.backend.Passed.Load() > before })
}

func (s *script) end([]string) error {
	close(s.slow)
	return <-s.begun
}

// costs waits for the calls of each request: one, and if it passes one with its cost, which is 10 where the
// service asks.
func (s *script) costs(args []string) error {
	completed := "cluster." + s.cluster + ".upstream_rq_completed"
	for i, want := range args {
		calls := s.stats()[completed] + 1
		if want == "200" {
			calls++
		}
		if got := s.get("/", "x-team", "red", "x-tokens", "10").Status; got != s.number(want) {
			return fmt.Errorf("request %d is answered %d", i, got)
		}
		if err := s.envoy.UntilStat(completed, calls); err != nil {
			return err
		}
	}
	return nil
}

// answers are those to a load.
type answers struct {
	sync.Mutex
	passed map[int]int64 // of each key
	counts map[string]int64
	err    error // the last that was not an answer
}

func (s *script) load(args []string) error {
	length, err := time.ParseDuration(args[1])
	header, keys, _ := strings.Cut(args[2], "=")
	l := load.Load{Rate: float64(s.number(args[0])), Keys: s.number(keys), Length: length}
	s.loaded = make(chan *answers, 1)
	go func() {
		all := &answers{passed: map[int]int64{}, counts: map[string]int64{}}
		caller.Open(s.Context(), l, 1, time.Now(), func(r load.Request, _ time.Time) {
			a, err := s.client.Get(s.Context(), args[3], append(headers(args[4:]), header, fmt.Sprintf("key-%d", r.Key))...)
			all.Lock()
			defer all.Unlock()
			all.counts["sent"]++
			switch a.Status {
			case http.StatusOK:
				all.counts["passed"]++
				all.passed[r.Key]++
			case http.StatusTooManyRequests:
				all.counts["refused"]++
			default:
				all.counts["failed"]++
				all.err = cmp.Or(err, fmt.Errorf("the answer is %d", a.Status))
			}
		})
		s.loaded <- all
	}()
	return err
}

// unload waits for the end of a load. Each call that Envoy gave up may be one over.
func (s *script) unload(args []string) error {
	if len(s.loaded) > 0 {
		return errors.New("it had ended before")
	}
	t := <-s.loaded
	stats, late := s.stats(), s.stats()[timeoutStat]
	limit, _ := strconv.Atoi(args[0])
	for _, n := range t.passed {
		t.counts["over"] = max(t.counts["over"], n-int64(limit)-late)
	}
	t.counts["late"] = (late - s.known) * 1000 / t.counts["sent"]
	t.counts["undecided"] = stats[undecidedStat] - late
	s.Log(t.counts)
	for _, want := range args[1:] {
		name, bounds, _ := strings.Cut(want, "=")
		if err := s.between(int(t.counts[name]), bounds); err != nil {
			return fmt.Errorf("%s: %w", want, errors.Join(err, t.err))
		}
	}
	return nil
}

func (s *script) undecided(args []string) error {
	return s.between(int(s.stats()[undecidedStat]), args[0])
}

// hung is how many calls Envoy has given up because of a node: unload does not count them as late.
func (s *script) hung(args []string) error {
	s.known = s.stats()[timeoutStat]
	return s.between(int(s.known), args[0])
}

func (s *script) attack(args []string) error {
	const streams, length = 8, 200 * time.Millisecond
	node, done := s.fleet.Addresses()[0], make(chan struct{})
	request, err := proto.Marshal(caller.Request("edge", "api_key", "other"))
	s.need(err)
	var attacker sync.WaitGroup
	before := hostile.Sent()
	attacker.Go(func() {
		for end := false; !end; {
			var err error
			if args[0] == "begin" {
				err = hostile.NeverBegin(hostile.Method, node, streams, length)
			} else {
				err = hostile.NeverTaken(hostile.Method, node, streams, request, length)
			}
			select {
			case <-done:
				end = true
			default:
				if err != nil {
					s.Log(err)
				}
			}
		}
	})
	s.need(Until("the attack is under way", func() bool { return hostile.Sent()-before > 50_000 }))
	err = commands()[args[1]](s, args[2:])
	close(done)
	attacker.Wait()
	return err
}

func (s *script) counts(args []string) error {
	sum := 0.0
	for _, name := range args[1:] {
		sum += s.sum(name)
	}
	return s.between(int(sum), args[0])
}

func (s *script) left(args []string) error {
	text, err := s.fleet.Nodes[0].Ask("/explain?domain=llm&entry=team=" + args[1])
	if err != nil {
		return err
	}
	var e struct{ Ledger struct{ Free int } }
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return err
	}
	return s.between(e.Ledger.Free, args[0])
}

// quiet leaves out warnings of Envoy about any configuration like these.
func (s *script) quiet([]string) error {
	for line := range strings.Lines(s.envoy.Log()) {
		// Each Envoy without this monitor has the first. The second is of DENY_ALL, which RLQS cannot do without.
		if !strings.Contains(line, "There is no configured limit to the number of allowed active downstream connections") &&
			!strings.Contains(line, "'envoy/type/v3/ratelimit_strategy.proto' marked as work-in-progress") {
			return fmt.Errorf("Envoy warns: %s", line)
		}
	}
	return nil
}

func (s *script) takes(args []string) error {
	began := time.Now()
	err := commands()[args[1]](s, args[2:])
	if err == nil {
		err = s.between(int(time.Since(began).Milliseconds()), args[0])
	}
	return err
}

func (s *script) until(args []string) (err error) {
	_ = Until(args[0], func() bool {
		err = commands()[args[0]](s, args[1:])
		return err == nil
	})
	return err
}

func (s *script) each(args []string) error {
	for i := range s.number(args[0]) {
		words := slices.Clone(args[1:])
		for n := range words {
			words[n] = strings.ReplaceAll(words[n], "%d", strconv.Itoa(i))
		}
		if err := commands()[words[0]](s, words[1:]); err != nil {
			return fmt.Errorf("%d: %w", i, err)
		}
	}
	return nil
}

func (s *script) sleep(args []string) error {
	length, err := time.ParseDuration(args[0])
	time.Sleep(length)
	return err
}

// answer has the service be a language model, or one of which each answer costs 40, or one that takes until the end
// of a slow request.
func (s *script) answer(args []string) error {
	s.slow = make(chan struct{})
	s.handler = map[string]http.HandlerFunc{
		"costs": func(a http.ResponseWriter, _ *http.Request) { a.Header().Set("x-tokens", "40") },
		"model": model(1 << 16),
		"large": model(2 << 20),
		"slow": func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-s.slow
			}
		},
	}[args[0]]
	return nil
}

// model answers as a language model does: how much was used is what the request's x-tokens says, and nothing
// without it. For clients that accept it, as Go's do, it might compress, which Envoy does not read. Its JSON has a
// size.
func model(size int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		usage := ""
		if n := r.Header.Get("x-tokens"); n != "" {
			usage = fmt.Sprintf(`, "usage": {"total_tokens": %s}`, n)
		}
		switch {
		case r.Header.Get("Accept-Encoding") != "":
			w.WriteHeader(http.StatusNotAcceptable)
		case r.URL.Path == "/fails":
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/events":
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			fmt.Fprintf(w, "data: {\"choices\": []}\n\ndata: {\"choices\": [%q", strings.Repeat("x", 1<<16))
			w.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond)
			fmt.Fprintf(w, "]%s}\n\ndata: [DONE]\n\n", usage)
		default:
			time.Sleep(20 * time.Millisecond)
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			fmt.Fprintf(w, `{"choices": [%q]%s}`, strings.Repeat("x", size), usage)
		}
	}
}
