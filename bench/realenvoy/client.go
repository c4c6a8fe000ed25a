package realenvoy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
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
	url  string
	http *http.Client
}

// NewClient makes a client of the Envoy at a URL.
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

// Get requests a path with headers, which are names and values in turn.
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
