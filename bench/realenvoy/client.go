package realenvoy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
)

// Backend is the service behind Envoy: it answers 200 to whatever passes, and counts. It is safe for concurrent use.
type Backend struct {
	Address string
	Passed  atomic.Int64 // requests
	server  http.Server
}

// StartBackend runs it until Stop. The handler is what answers; nil is 200.
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
	URL       string
	Path      string   // of the requests of Drive
	KeyHeader string   // in which they have their keys
	Headers   []string // further headers, as Get takes them
	http      *http.Client
}

// NewClient makes a client of the Envoy at a URL.
func NewClient(url string) *Client {
	return &Client{URL: url, Path: "/", KeyHeader: "x-api-key", http: &http.Client{
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

// Get requests a path with headers, which are names and values in turn.
func (c *Client) Get(ctx context.Context, path string, headers ...string) (Answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, http.NoBody)
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

// Tally is the count of a client.
type Tally struct {
	Passed, Limited, Failed int64                   // by the answer: 200, 429, all else
	Keys                    map[int]int64           // passed, of each key
	Latency                 *hdrhistogram.Histogram // microseconds, from the instant that the load says
	Slow                    []time.Duration         // such instants, of requests that took longer than Drive was told
	Err                     error                   // the last that was not an answer
}

// Over is how far the key that went furthest went over a limit.
func (t *Tally) Over(limit int64) (over int64) {
	for _, n := range t.Keys {
		over = max(over, n-limit)
	}
	return over
}

// Drive sends a load, whatever became of the requests before, and waits for all answers. slow is from when on a
// request is listed.
func (c *Client) Drive(ctx context.Context, l load.Load, slow time.Duration) *Tally {
	t := &Tally{Keys: map[int]int64{}, Latency: hdrhistogram.New(1, int64(10*time.Second/time.Microsecond), 3)}
	var mu sync.Mutex
	start := time.Now()
	caller.Open(ctx, l, 1, start, func(r load.Request, intended time.Time) {
		a, err := c.Get(ctx, c.Path, append([]string{c.KeyHeader, fmt.Sprintf("key-%d", r.Key)}, c.Headers...)...)
		took := time.Since(intended)
		mu.Lock()
		defer mu.Unlock()
		_ = t.Latency.RecordValue(max(1, int64(took/time.Microsecond)))
		if took > slow {
			t.Slow = append(t.Slow, r.At)
		}
		switch {
		case err != nil:
			t.Failed, t.Err = t.Failed+1, err
		case a.Status == http.StatusOK:
			t.Passed++
			t.Keys[r.Key]++
		case a.Status == http.StatusTooManyRequests:
			t.Limited++
		default:
			t.Failed, t.Err = t.Failed+1, fmt.Errorf("the answer is %d", a.Status)
		}
	})
	return t
}
