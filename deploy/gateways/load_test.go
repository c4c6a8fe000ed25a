package gateways

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A load sends requests at a steady rate, whatever the answers, to the ready Envoys of a door in turn, over connections that stay.
type load struct {
	door
	request call
	client  *http.Client
	stop    context.CancelFunc
	running sync.WaitGroup
	envoys  atomic.Pointer[[]netip.AddrPort]
	stall   time.Duration // the longest pause between two requests: longer than a tick, it is the machine's

	sent, passed, refused, free, failed atomic.Int64
	mu                                  sync.Mutex
	errors                              []string // the first few
}

const rate = 200 // requests a second

// begin starts a load of requests.
func (d door) begin(t *testing.T, request call) *load {
	t.Helper()
	l := &load{door: d, request: request, client: &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 50, DisableCompression: true},
	}}
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Minute)
	l.stop = stop
	l.running.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			_ = l.look()
		}
	})
	l.running.Go(func() {
		tick := time.NewTicker(time.Second / rate)
		defer tick.Stop()
		for last := time.Now(); ctx.Err() == nil; {
			<-tick.C
			l.stall = max(l.stall, time.Since(last))
			last = time.Now()
			l.running.Go(l.send)
		}
	})
	return l
}

// end stops the load, and waits for its answers.
func (l *load) end() {
	l.stop()
	l.running.Wait()
	l.client.CloseIdleConnections()
}

func (l *load) look() error {
	all, err := l.door()
	if err == nil {
		l.envoys.Store(&all)
	}
	return err
}

func (l *load) send() {
	envoys := *l.envoys.Load()
	to := envoys[int(l.sent.Add(1))%len(envoys)]
	r, err := l.request.to(context.Background(), to)
	if err != nil {
		l.fail(err.Error())
		return
	}
	answer, err := l.client.Do(r)
	if err != nil {
		l.fail(err.Error())
		return
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	switch {
	case answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusTooManyRequests:
		l.fail(answer.Status)
	case limitIn(answer) == "":
		l.free.Add(1)
	case answer.StatusCode == http.StatusOK:
		l.passed.Add(1)
	default:
		l.refused.Add(1)
	}
}

func (l *load) fail(why string) {
	l.failed.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.errors) < 5 {
		l.errors = append(l.errors, why)
	}
}

// drain sends requests one after the other until least passed: nodes may take some seconds to find the last tokens of others.
// Then it goes on until 100 in a row are refused.
func (l *load) drain(least int64) {
	for end := time.Now().Add(20 * time.Second); l.passed.Load() < least && time.Now().Before(end); {
		before := l.refused.Load()
		l.send()
		if l.refused.Load() > before {
			time.Sleep(20 * time.Millisecond)
		}
	}
	for row, n := 0, 0; row < 100 && n < 2*budget; n++ {
		before := l.refused.Load()
		l.send()
		row++
		if l.refused.Load() == before {
			row = 0
		}
	}
}

func (l *load) String() string {
	return fmt.Sprintf("%d sent, %d passed, %d refused, %d without a limit, %d failed %v", l.sent.Load(), l.passed.Load(), l.refused.Load(), l.free.Load(), l.failed.Load(), l.errors)
}
