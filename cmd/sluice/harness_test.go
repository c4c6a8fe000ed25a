package main

import (
	"bufio"
	"cmp"
	"context"
	goflag "flag" // flag is a function here
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gate/sluice/bench/sluicetest"
)

// The tests run the real binary: this one, called as sluice. Most of them wait for processes more than they compute, so
// that two for each core are run side by side, unless -parallel says how many. Tests that compare times, or count what
// a busy machine changes, are not parallel: they run one by one, before the others.
func TestMain(m *testing.M) {
	if name := os.Getenv("SLUICE_ATTACK"); name != "" {
		attacker(name)
	}
	if os.Getenv("SLUICE_PLAIN") != "" {
		servePlain()
	}
	if os.Getenv("SLUICE_RUN_MAIN") != "" {
		main()
	}
	goflag.Parse()
	chosen := false
	goflag.Visit(func(f *goflag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = goflag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
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
	peers            string // with the ports of hostile.TLS; "": it has none
	output           lines
	exited           chan error
}

// lines collects a log.
type lines struct {
	mu sync.Mutex
	b  strings.Builder // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// commandTime is longer than any test takes on a busy machine: a command that hangs fails its own test.
const commandTime = 5 * time.Minute

// command runs for commandTime at most, and longer in runs of that kind.
func command(env []string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime+*quiet+exerciseTime()+regionsTime())
	context.AfterFunc(ctx, cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), "SLUICE_RUN_MAIN=1")
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

var announced = regexp.MustCompile(`HTTP on (\S+), gRPC on (\S+), debug on (\S+)`)

// freePorts has a server serve on ports of this machine that are free.
var freePorts = []string{"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0"}

func serve(t testing.TB, env []string, args ...string) *sluice {
	t.Helper()
	return start(t, command(slices.Concat(freePorts, env), append([]string{"serve"}, args...)...))
}

// start runs a command that announces its ports.
func start(t testing.TB, cmd *exec.Cmd) *sluice {
	t.Helper()
	s := &sluice{TB: t, cmd: cmd, exited: make(chan error, 1)}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = cmp.Or[io.Writer](cmd.Stderr, &s.output)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	first := bufio.NewReader(out)
	line, err := first.ReadString('\n')
	go func() {
		_, _ = io.Copy(&s.output, first)
		s.exited <- s.cmd.Wait()
	}()
	m := announced.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("it announced %q (%v) and logged:\n%s", line, err, s.log())
	}
	s.http, s.rpc, s.debug = m[1], m[2], m[3]
	return s
}

func (s *sluice) log() string { return s.output.String() }

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

// seen is how many nodes a node has seen.
func (s *sluice) seen() int {
	_, text := s.get(s.debug + "/console/state")
	return strings.Count(text, `"seen_seconds"`)
}

// post sends one hit on key=value, over /json.
func (s *sluice) post(key, value string) int {
	s.Helper()
	body := fmt.Sprintf(`{"domain":"d","descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, key, value)
	return s.postBody(body)
}

func (s *sluice) postBody(body string) int {
	s.Helper()
	r, _ := s.do(http.MethodPost, s.http+"/json", body, "Content-Type", "application/json")
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

// patience is far longer than what processes do in their own time takes.
const patience = time.Minute

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

func (s *sluice) healthy() bool {
	code, _ := s.get(s.http + "/healthcheck")
	return code == 200
}

// untilHealthy waits until the node says that it can answer as its store would.
func (s *sluice) untilHealthy() {
	s.Helper()
	s.eventually("the node is healthy", s.healthy)
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
