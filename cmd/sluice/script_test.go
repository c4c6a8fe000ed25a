package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/etcdtest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
)

// TestScripts plays testdata/scripts. A script starts stores and nodes, sends, and says what it expects. Its language is that
// of testscript; the commands that it has in addition are below.
func TestScripts(t *testing.T) { playScripts(t, "testdata/scripts", "redis") }

// TestScriptsOnEachStore plays testdata/scripts/stores on each kind of store.
func TestScriptsOnEachStore(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) { playScripts(t, "testdata/scripts/stores", kind) })
}

// eachKind runs a test for each kind of store.
func eachKind(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range []string{"redis", "postgres", "etcd"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

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

// scriptCommand does a command of a script, with its arguments, and writes what it is answered to out.
type scriptCommand func(s *scripted, out io.Writer, args []string) error

// scriptCommands are the commands that testscript does not have. NODES is @0, @0,2 or @all, and node 0 where it is left out.
// SETTING is NAME=VALUE.
var scriptCommands map[string]scriptCommand

func init() {
	scriptCommands = map[string]scriptCommand{
		"store":     (*scripted).doStore,     // [redis|postgres|etcd [ARG...]|cluster|none] starts one; [kill|run|stop|cont]; [do COMMAND...] of a Redis
		"authority": (*scripted).doAuthority, // NAME makes certificates in the folder $NAME
		"leaf":      (*scripted).doLeaf,      // AUTHORITY NAME LASTS [HOST...] makes a certificate
		"fleet":     (*scripted).doFleet,     // N [ring=N] [SETTING...] starts nodes with rules.yaml instead of those there are, and waits until they are healthy
		"join":      (*scripted).doJoin,      // [SETTING...] starts one more
		"serve":     (*scripted).doServe,     // [SETTING...] [FLAG...] starts a node with no other settings but free ports
		"sluice":    (*scripted).doSluice,    // [SETTING...] ARG... runs the program
		"limit":     (*scripted).doLimit,     // [NODES] ARG... runs sluice limit for a node, with its token
		"ask":       (*scripted).doAsk,       // [NODES] REQUEST, as in testdata/parity, prints an answer a node
		"admits":    (*scripted).doAdmits,    // [NODES] LEAST-MOST of N ENTRY... asks each entry N times
		"call":      (*scripted).doCall,      // [NODES] METHOD PATH [Header:value...] [BODY] prints the status and the body
		"metric":    (*scripted).doMetric,    // [NODES] NAME N|>N, the sum of a metric's series
		"logs":      (*scripted).doLogs,      // [NODES] REGEXP, in the log of each
		"healthy":   (*scripted).doHealthy,   // [NODES]
		"signal":    (*scripted).doSignal,    // [NODES] NAME
		"ends":      (*scripted).doEnds,      // [NODES] [SIGNAL] waits until a node has ended; fails if it ends with an error
		"until":     (*scripted).doUntil,     // [!] COMMAND ... [-- REGEXP] repeats a command until it succeeds, and prints so
	}
}

func playScripts(t *testing.T, dir, kind string) {
	t.Helper()
	all := map[string]func(*testscript.TestScript, bool, []string){}
	for name, does := range scriptCommands {
		all[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			s := ts.Value("scripted").(*scripted)
			s.script = ts
			if err := does(s, ts.Stdout(), args); neg == (err == nil) {
				ts.Fatalf("%s %q: %v; the log of node 0:\n%.3000s", name, args, err, s.logOf(0))
			}
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: dir, Cmds: all,
		Setup: func(e *testscript.Env) error {
			t := e.T().(testing.TB)
			f := &fleet{TB: t, file: filepath.Join(e.WorkDir, "rules.yaml"), setup: setup{env: []string{"LOG_LEVEL=info"}}}
			e.Setenv("EXAMPLE", exampleRequest)
			root, err := filepath.Abs(top)
			if err != nil {
				return err
			}
			e.Setenv("TOP", root)
			var many strings.Builder
			many.WriteString("domain,descriptor,limit\n")
			for i := range 2010 {
				fmt.Fprintf(&many, "d,five=%d,7\n", i)
			}
			writeFile(t, filepath.Join(e.WorkDir, "many.csv"), many.String())
			writeFile(t, filepath.Join(e.WorkDir, "nested.yaml"), strings.Repeat("[", 45<<10))
			e.Values["scripted"] = &scripted{fleet: f, kind: kind, authorities: map[string]*redistest.Authority{}}
			return nil
		},
		Condition: func(c string) (bool, error) { return c == kind, nil },
	})
}

// scripted is what a script has: nodes, a store, authorities.
type scripted struct {
	*fleet
	script      *testscript.TestScript
	kind        string // of the store
	authorities map[string]*redistest.Authority
}

// chosen are the nodes that a command names, and the rest of its arguments.
func (s *scripted) chosen(args []string) (nodes []int, rest []string) {
	if len(args) == 0 || !strings.HasPrefix(args[0], "@") {
		return []int{0}, args
	}
	if args[0] == "@all" {
		for i := range s.nodes {
			nodes = append(nodes, i)
		}
		return nodes, args[1:]
	}
	for text := range strings.SplitSeq(args[0][1:], ",") {
		nodes = append(nodes, s.integer(text))
	}
	return nodes, args[1:]
}

func (s *scripted) integer(text string) int {
	n, err := strconv.Atoi(text)
	s.script.Check(err)
	return n
}

// pattern compiles a regular expression, of which . has no line's end.
func (s *scripted) pattern(text string) *regexp.Regexp {
	p, err := regexp.Compile("(?m)" + text)
	s.script.Check(err)
	return p
}

func (s *scripted) logOf(node int) string {
	if node >= len(s.nodes) {
		return "(no node)"
	}
	return s.nodes[node].log()
}

// settings are the leading arguments of the form NAME=VALUE.
func settingsOf(args []string) (settings, rest []string) {
	is := regexp.MustCompile(`^[A-Z][A-Z0-9_]*=`)
	n := slices.IndexFunc(args, func(a string) bool { return !is.MatchString(a) })
	if n < 0 {
		n = len(args)
	}
	return args[:n], args[n:]
}

func (s *scripted) doStore(out io.Writer, args []string) error {
	what := s.kind
	if len(args) > 0 {
		what = args[0]
	}
	switch what {
	case "none":
		s.store, s.redis = nil, nil
	case "cluster":
		s.redis = redistest.Cluster(s.TB, 3)[0]
		s.script.Setenv("CLUSTER", s.redis.Addr)
	case "kill":
		s.store.Kill()
	case "run":
		s.store.Run()
	case "stop":
		s.store.Signal(syscall.SIGSTOP)
	case "cont":
		s.store.Signal(syscall.SIGCONT)
	case "do":
		words := make([]any, len(args)-1)
		for i, word := range args[1:] {
			words[i] = word
		}
		fmt.Fprintln(out, s.redis.Do(words...))
	default:
		s.store = startStore(s.TB, what, args[min(1, len(args)):]...)
		s.redis, _ = s.store.(*redistest.Server)
		s.script.Setenv("STORE_URL", s.store.URL())
		if s.redis != nil {
			s.script.Setenv("REDIS", s.redis.Addr)
		}
	}
	return nil
}

func (s *scripted) doAuthority(_ io.Writer, args []string) error {
	a := redistest.NewAuthority(s.TB)
	s.authorities[args[0]] = a
	s.script.Setenv(args[0], filepath.Dir(a.File("ca.crt")))
	return nil
}

func (s *scripted) doLeaf(_ io.Writer, args []string) error {
	lasts, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	s.authorities[args[0]].Leaf(args[1], lasts, args[3:]...)
	return nil
}

func (s *scripted) doFleet(_ io.Writer, args []string) error {
	n := s.integer(args[0])
	args = args[1:]
	for _, node := range s.nodes {
		_ = node.cmd.Process.Kill()
	}
	s.nodes, s.clients, s.addrs, s.ring = nil, nil, nil, 0
	if len(args) > 0 && strings.HasPrefix(args[0], "ring=") {
		s.ring = s.integer(args[0][len("ring="):])
		args = args[1:]
	}
	for range s.ring {
		s.addrs = append(s.addrs, "127.0.0.1:"+freePort(s.TB))
	}
	s.env = append(s.env, args...)
	for range n {
		s.join()
		s.named(len(s.nodes) - 1)
	}
	s.untilWhole()
	return nil
}

func (s *scripted) doJoin(_ io.Writer, args []string) error {
	was := s.env
	s.env = slices.Concat(was, args)
	s.join().untilHealthy()
	s.named(len(s.nodes) - 1)
	s.env = was
	return nil
}

func (s *scripted) doServe(_ io.Writer, args []string) error {
	env, flags := settingsOf(args)
	cmd := command(slices.Concat(freePorts, []string{"DRAIN_TIME=0s"}, env), append([]string{"serve"}, flags...)...)
	cmd.Dir = s.script.MkAbs(".")
	s.add(start(s.TB, cmd))
	s.named(len(s.nodes) - 1)
	return nil
}

// named gives a script the ports of a node: HTTP_PORT0, DEBUG0 and so on.
func (s *scripted) named(node int) {
	n := s.nodes[node]
	for name, address := range map[string]string{"HTTP": n.http, "GRPC": n.rpc, "DEBUG": n.debug} {
		_, port, _ := net.SplitHostPort(address)
		s.script.Setenv(fmt.Sprint(name, node), address)
		s.script.Setenv(fmt.Sprint(name, "_PORT", node), port)
	}
}

func (s *scripted) doSluice(out io.Writer, args []string) error {
	env, args := settingsOf(args)
	cmd := command(env, args...)
	cmd.Dir = s.script.MkAbs(".")
	var said bytes.Buffer
	cmd.Stdout = io.MultiWriter(out, &said)
	cmd.Stderr = io.MultiWriter(s.script.Stderr(), &said)
	err := cmd.Run()
	if strings.Contains(said.String(), "hunter2") {
		s.script.Fatalf("sluice %q prints a secret", args)
	}
	return err
}

func (s *scripted) doLimit(out io.Writer, args []string) error {
	nodes, args := s.chosen(args)
	args = append(append([]string{"limit"}, args...), "--debug", s.nodes[nodes[0]].debug, "--token=hunter2")
	if slices.Contains([]string{"set", "rm", "import"}, args[1]) {
		args = append(args, "--by=ops")
	}
	return s.doSluice(out, args)
}

func (s *scripted) doAsk(out io.Writer, args []string) error {
	nodes, args := s.chosen(args)
	text := strings.Join(args, " ")
	if !strings.Contains(text, "|") {
		text = "domain=d | " + text
	}
	q := parseRequest(s.TB, text)
	for _, n := range nodes {
		answer := s.nodes[n].overGRPC()(q)
		fmt.Fprintln(out, answer)
		if strings.HasPrefix(answer, "error: ") {
			return errors.New(answer)
		}
	}
	return nil
}

var ranged = regexp.MustCompile(`^(\d+)(?:-(\d+))?$`)

func (s *scripted) doAdmits(out io.Writer, args []string) error {
	nodes, args := s.chosen(args)
	want := ranged.FindStringSubmatch(args[0])
	if want == nil || len(args) < 4 || args[1] != "of" {
		return fmt.Errorf("write admits LEAST-MOST of N KEY=VALUE...")
	}
	for _, entry := range args[3:] {
		key, value, _ := strings.Cut(entry, "=")
		admitted := 0
		for i := range s.integer(args[2]) {
			if a, err := s.send(nodes[i%len(nodes)], descriptor(1, key, value)); err != nil {
				return err
			} else if a.OverallCode != rls.RateLimitResponse_OVER_LIMIT {
				admitted++
			}
		}
		fmt.Fprintln(out, entry, admitted)
		if least, most := s.integer(want[1]), s.integer(cmp.Or(want[2], want[1])); admitted < least || admitted > most {
			return fmt.Errorf("of %s %d are admitted", entry, admitted)
		}
	}
	return nil
}

// ofPort has the port that serves a path.
func (s *sluice) ofPort(path string) string {
	if strings.HasPrefix(path, "/json") || strings.HasPrefix(path, "/healthcheck") {
		return s.http + path
	}
	return s.debug + path
}

var header = regexp.MustCompile(`^[A-Z][A-Za-z-]+:`)

func (s *scripted) doCall(out io.Writer, args []string) error {
	nodes, args := s.chosen(args)
	var headers []string
	body := ""
	for _, arg := range args[2:] {
		if name := header.FindString(arg); name != "" {
			headers = append(headers, strings.TrimSuffix(name, ":"), arg[len(name):])
		} else {
			body = arg
		}
	}
	for _, n := range nodes {
		answer, text, err := try(args[0], s.nodes[n].ofPort(args[1]), body, headers...)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%d %s\n%s\n", answer.StatusCode, answer.Header.Get("Content-Type"), text)
	}
	return nil
}

func (s *scripted) doMetric(out io.Writer, args []string) error {
	nodes, args := s.chosen(args)
	got := 0
	for _, n := range nodes {
		sum, series := s.nodes[n].total(args[0])
		if series == 0 {
			return fmt.Errorf("node %d has no metric %s", n, args[0])
		}
		got += sum
	}
	fmt.Fprintln(out, args[0], got)
	more, least := strings.CutPrefix(args[1], ">")
	if least && got > s.integer(more) || args[1] == strconv.Itoa(got) {
		return nil
	}
	return fmt.Errorf("it is %d", got)
}

// total is the sum of all series of a metric, or one series, and how many there are.
func (s *sluice) total(name string) (sum, series int) {
	_, text := s.get(s.debug + "/metrics")
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if ok && (rest[0] == ' ' || rest[0] == '{') {
			sum += s.number(rest[strings.LastIndexByte(rest, ' ')+1:])
			series++
		}
	}
	return sum, series
}

func (s *scripted) doLogs(_ io.Writer, args []string) error {
	nodes, args := s.chosen(args)
	for _, n := range nodes {
		if !s.pattern(args[0]).MatchString(s.logOf(n)) {
			return fmt.Errorf("node %d does not log it", n)
		}
	}
	return nil
}

func (s *scripted) doHealthy(_ io.Writer, args []string) error {
	nodes, _ := s.chosen(args)
	for _, n := range nodes {
		if !s.nodes[n].healthy() {
			return fmt.Errorf("node %d is not healthy", n)
		}
	}
	return nil
}

var signals = map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL, "HUP": syscall.SIGHUP}

func (s *scripted) doSignal(_ io.Writer, args []string) error {
	nodes, args := s.chosen(args)
	for _, n := range nodes {
		signal, known := signals[args[0]]
		if !known {
			s.script.Fatalf("there is no signal %s", args[0])
		}
		s.nodes[n].Signal(signal)
	}
	return nil
}

func (s *scripted) doEnds(out io.Writer, args []string) error {
	nodes, args := s.chosen(args)
	for _, n := range nodes {
		if len(args) > 0 {
			s.nodes[n].Signal(signals[args[0]])
		}
		err := <-s.nodes[n].exited
		fmt.Fprint(out, s.logOf(n))
		if err != nil && !slices.Contains(args, "KILL") {
			return err
		}
	}
	return nil
}

// errUnmet is of a command that succeeds, and prints something else than is waited for.
var errUnmet = errors.New("the condition is not met")

func (s *scripted) doUntil(out io.Writer, args []string) error {
	rest, not := args, args[0] == "!"
	if not {
		rest = rest[1:]
	}
	var want *regexp.Regexp
	if i := slices.Index(rest, "--"); i > 0 {
		want = s.pattern(rest[i+1])
		rest = rest[:i]
	}
	does := scriptCommands[rest[0]]
	if does == nil {
		return fmt.Errorf("there is no command %q", rest[0])
	}
	var last bytes.Buffer
	var err error
	if !becomes(func() bool {
		last.Reset()
		err = does(s, &last, rest[1:])
		return (err == nil) != not && (want == nil || want.Match(last.Bytes()))
	}) {
		return fmt.Errorf("not within %v: %w; the last answer:\n%s", patience, errors.Join(err, errUnmet), &last)
	}
	_, err = last.WriteTo(out)
	return err
}
