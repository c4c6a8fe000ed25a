package main

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// TestScripts plays testdata/scripts. A script starts stores and nodes, sends, and says what it expects. Its language is that
// of testscript; the commands that it has in addition are below.
func TestScripts(t *testing.T) {
	t.Parallel()
	playScripts(t, "testdata/scripts", "redis")
}

// TestScriptsOnEachStore plays testdata/scripts/stores on each kind of store.
func TestScriptsOnEachStore(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string) { playScripts(t, "testdata/scripts/stores", kind) })
}

// scriptCommand does a command of a script to nodes, with its arguments, and writes what it is answered to out.
type scriptCommand func(s *scripted, out io.Writer, nodes []*sluice, args []string) error

// scriptCommands are the commands that testscript does not have. Each may begin with nodes, @0, @0,2 or @all, and is
// for node 0 without. SETTING is NAME=VALUE.
var scriptCommands map[string]scriptCommand

func init() {
	scriptCommands = map[string]scriptCommand{
		"store":  (*scripted).doStore,  // [redis|postgres|etcd [ARG...]|cluster|none] starts one; [kill|run|stop|cont]; [do COMMAND...] of a Redis
		"trust":  (*scripted).doTrust,  // NAME LEAF[=HOST]... makes an authority and certificates, in the folder $NAME
		"fleet":  (*scripted).doFleet,  // N [ring=N] [SETTING...] starts nodes with rules.yaml instead of those there are, and waits until they are healthy
		"join":   (*scripted).doJoin,   // [SETTING...] starts one more
		"serve":  (*scripted).doServe,  // [SETTING...] [FLAG...] starts a node with no other settings but free ports
		"sluice": (*scripted).doSluice, // [SETTING...] ARG... runs the program
		"limit":  (*scripted).doLimit,  // ARG... runs sluice limit for a node, with its token
		"ask":    (*scripted).doAsk,    // REQUEST, as in testdata/parity, prints an answer a node
		"hold":   (*scripted).doHold,   // NAME REQUEST asks, and has what is held as $NAME
		"admits": (*scripted).doAdmits, // LEAST-MOST of N ENTRY... asks each entry N times, at the nodes in turn
		"call":   (*scripted).doCall,   // METHOD [PORT]PATH [Header:value...] [BODY] prints the status and the body
		"metric": (*scripted).doMetric, // NAME N|>N, the sum of a metric's series
		"logs":   (*scripted).doLogs,   // REGEXP, in the log of each
		"ends":   (*scripted).doEnds,   // [SIGNAL] waits until a node has ended; fails if it ends with an error
		"until":  (*scripted).doUntil,  // [!] COMMAND ... [-- REGEXP] repeats a command until it succeeds, and prints so
	}
}

// scripted is what a script has: nodes, and a store.
type scripted struct {
	*fleet
	script *testscript.TestScript
	kind   string // of the store
}

func playScripts(t *testing.T, dir, kind string) {
	t.Helper()
	all := map[string]func(*testscript.TestScript, bool, []string){}
	for name := range scriptCommands {
		all[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			s := ts.Value("scripted").(*scripted)
			s.script = ts
			if err := s.does(name, ts.Stdout(), args); neg == (err == nil) {
				log := "(no node)"
				if len(s.nodes) > 0 {
					log = s.nodes[0].log()
				}
				ts.Fatalf("%s %q: %v; the log of node 0:\n%.3000s", name, args, err, log)
			}
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: dir, Cmds: all,
		Setup: func(e *testscript.Env) error {
			t := e.T().(testing.TB)
			f := &fleet{TB: t, file: filepath.Join(e.WorkDir, "rules.yaml"), setup: setup{env: []string{"LOG_LEVEL=info"}}}
			e.Values["scripted"] = &scripted{fleet: f, kind: kind}
			e.Setenv("EXAMPLE", exampleRequest)
			e.Setenv("SLUICE", os.Args[0])
			e.Setenv("LINE", strings.Repeat("x", 10_000))
			e.Setenv("LONG", strings.Repeat("x", 100_000))
			e.Setenv("BRACKETS", strings.Repeat("[", 100_000))
			e.Setenv("FREE", freePort(t))
			many := "domain,descriptor,limit\n"
			for i := range 2010 {
				many += fmt.Sprintf("d,five=%d,7\n", i)
			}
			writeFile(t, filepath.Join(e.WorkDir, "many.csv"), many)
			writeFile(t, filepath.Join(e.WorkDir, "nested.yaml"), strings.Repeat("[", 45<<10))
			root, err := filepath.Abs(top)
			e.Setenv("TOP", root)
			return err
		},
		Condition: func(c string) (bool, error) { return c == kind, nil },
	})
}

// does a command to the nodes that it names.
func (s *scripted) does(name string, out io.Writer, args []string) error {
	nodes := s.nodes[:min(1, len(s.nodes))]
	if len(args) > 0 && strings.HasPrefix(args[0], "@") {
		nodes = s.nodes
		if args[0] != "@all" {
			nodes = nil
			for text := range strings.SplitSeq(args[0][1:], ",") {
				nodes = append(nodes, s.nodes[s.integer(text)])
			}
		}
		args = args[1:]
	}
	command := scriptCommands[name]
	if command == nil {
		return fmt.Errorf("there is no command %q", name)
	}
	return command(s, out, nodes, args)
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

var setting = regexp.MustCompile(`^[A-Z][A-Z0-9_]*=`)

// settingsOf are the leading arguments of the form NAME=VALUE.
func settingsOf(args []string) (settings, rest []string) {
	n := slices.IndexFunc(args, func(a string) bool { return !setting.MatchString(a) })
	if n < 0 {
		n = len(args)
	}
	return args[:n], args[n:]
}

func (s *scripted) doStore(out io.Writer, _ []*sluice, args []string) error {
	what := s.kind
	if len(args) > 0 {
		what = args[0]
	}
	switch what {
	case "none":
		s.store, s.redis = nil, nil
	case "cluster":
		s.script.Setenv("CLUSTER", redistest.Cluster(s.TB, 3)[0].Addr)
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
		_, address, _ := strings.Cut(s.store.URL(), "://")
		s.script.Setenv("STORE", address)
	}
	return nil
}

func (s *scripted) doTrust(_ io.Writer, _ []*sluice, args []string) error {
	a := redistest.NewAuthority(s.TB)
	for _, leaf := range args[1:] {
		name, host, _ := strings.Cut(leaf, "=")
		a.Sign(name, &x509.Certificate{DNSNames: strings.Fields(host), NotAfter: time.Now().Add(time.Hour)})
	}
	s.script.Setenv(args[0], filepath.Dir(a.File("ca.crt")))
	return nil
}

func (s *scripted) doFleet(_ io.Writer, _ []*sluice, args []string) error {
	for _, node := range s.nodes {
		_ = node.cmd.Process.Kill()
	}
	s.nodes, s.addrs, s.ring = nil, nil, 0
	n, args := s.integer(args[0]), args[1:]
	if len(args) > 0 && strings.HasPrefix(args[0], "ring=") {
		s.ring, args = s.integer(args[0][len("ring="):]), args[1:]
	}
	s.env = append(s.env, args...)
	s.begins(n)
	s.named()
	return nil
}

func (s *scripted) doJoin(_ io.Writer, _ []*sluice, args []string) error {
	s.join(args...).untilHealthy()
	s.named()
	return nil
}

func (s *scripted) doServe(_ io.Writer, _ []*sluice, args []string) error {
	env, flags := settingsOf(args)
	cmd := command(slices.Concat(freePorts, []string{"DRAIN_TIME=0s"}, env), append([]string{"serve"}, flags...)...)
	cmd.Dir = s.script.MkAbs(".")
	s.nodes = append(s.nodes, start(s.TB, cmd))
	s.named()
	return nil
}

// named gives a script the ports of nodes: HTTP_PORT0, DEBUG0 and so on.
func (s *scripted) named() {
	for i, n := range s.nodes {
		for name, address := range map[string]string{"HTTP": n.http, "GRPC": n.rpc, "DEBUG": n.debug} {
			_, port, _ := net.SplitHostPort(address)
			s.script.Setenv(fmt.Sprint(name, i), address)
			s.script.Setenv(fmt.Sprint(name, "_PORT", i), port)
		}
	}
}

func (s *scripted) doSluice(out io.Writer, _ []*sluice, args []string) error {
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

func (s *scripted) doLimit(out io.Writer, nodes []*sluice, args []string) error {
	args = slices.Concat([]string{"limit"}, args, []string{"--debug", nodes[0].debug, "--token=hunter2"})
	if slices.Contains([]string{"set", "rm", "import"}, args[1]) {
		args = append(args, "--by=ops")
	}
	return s.doSluice(out, nil, args)
}

func (s *scripted) doAsk(out io.Writer, nodes []*sluice, args []string) error {
	text := strings.Join(args, " ")
	if !strings.Contains(text, "|") {
		text = "domain=d | " + text
	}
	q := parseRequest(s.TB, text)
	for _, n := range nodes {
		answer := n.overGRPC(q)
		fmt.Fprintln(out, answer)
		if strings.HasPrefix(answer, "error: ") {
			return errors.New(answer)
		}
	}
	return nil
}

func (s *scripted) doHold(out io.Writer, nodes []*sluice, args []string) error {
	a, err := nodes[0].send(parseRequest(s.TB, "domain=d | "+strings.Join(args[1:], " ")))
	held := a.GetDynamicMetadata().GetFields()["sluice_hold"].GetStringValue()
	if err != nil || held == "" {
		return fmt.Errorf("nothing is held: %v %w", a, err)
	}
	s.script.Setenv(args[0], held)
	fmt.Fprintln(out, held)
	return nil
}

func (s *scripted) doAdmits(out io.Writer, nodes []*sluice, args []string) error {
	least, most, _ := strings.Cut(args[0], "-")
	for _, entry := range args[3:] {
		key, value, _ := strings.Cut(entry, "=")
		admitted := 0
		for i := range s.integer(args[2]) {
			if nodes[i%len(nodes)].admits(1, key, value) {
				admitted++
			}
		}
		fmt.Fprintln(out, entry, admitted)
		if admitted < s.integer(least) || admitted > s.integer(cmp.Or(most, least)) {
			return fmt.Errorf("of %s %d are admitted", entry, admitted)
		}
	}
	return nil
}

var header = regexp.MustCompile(`^[A-Z][A-Za-z-]+:`)

func (s *scripted) doCall(out io.Writer, nodes []*sluice, args []string) error {
	var headers []string
	body, path := "", args[1]
	for _, arg := range args[2:] {
		if name := header.FindString(arg); name != "" {
			headers = append(headers, strings.TrimSuffix(name, ":"), arg[len(name):])
		} else {
			body = arg
		}
	}
	for _, n := range nodes {
		port := n.debug
		if strings.HasPrefix(path, "/json") || strings.HasPrefix(path, "/healthcheck") {
			port = n.http
		} else if !strings.HasPrefix(path, "/") {
			port = ""
		}
		answer, text, err := try(args[0], port+path, body, headers...)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%d %s\n%s\n", answer.StatusCode, answer.Header.Get("Content-Type"), text)
	}
	return nil
}

func (s *scripted) doMetric(out io.Writer, nodes []*sluice, args []string) error {
	got := 0
	for _, n := range nodes {
		sum, series := n.sum(args[0])
		if series == 0 {
			return fmt.Errorf("a node has no metric %s", args[0])
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

func (s *scripted) doLogs(_ io.Writer, nodes []*sluice, args []string) error {
	for _, n := range nodes {
		if !s.pattern(args[0]).MatchString(n.log()) {
			return errors.New("a node does not log it")
		}
	}
	return nil
}

func (s *scripted) doEnds(out io.Writer, nodes []*sluice, args []string) error {
	for _, n := range nodes {
		switch strings.Join(args, " ") {
		case "TERM":
			n.Signal(syscall.SIGTERM)
		case "INT":
			n.Signal(syscall.SIGINT)
		case "KILL":
			n.Signal(syscall.SIGKILL)
		}
		err := <-n.exited
		fmt.Fprint(out, n.log())
		if err != nil && !slices.Contains(args, "KILL") {
			return err
		}
	}
	return nil
}

func (s *scripted) doUntil(out io.Writer, _ []*sluice, args []string) error {
	not := args[0] == "!"
	if not {
		args = args[1:]
	}
	want := s.pattern("")
	if i := slices.Index(args, "--"); i > 0 {
		want = s.pattern(args[i+1])
		args = args[:i]
	}
	var last bytes.Buffer
	var err error
	if !becomes(func() bool {
		last.Reset()
		err = s.does(args[0], &last, args[1:])
		return (err == nil) != not && want.Match(last.Bytes())
	}) {
		return fmt.Errorf("not within %v: %w; the last answer:\n%s", patience, errors.Join(err, errors.New("the condition is not met")), &last)
	}
	_, err = last.WriteTo(out)
	return err
}
