package rls

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// Parts of a request are counted as they come, in whatever pieces, and the first
// one too many is refused; quotes and escapes are no parts.
func TestShapeOfARequest(t *testing.T) {
	descriptors := func(n int, of string) string {
		return `{"domain":"d","descriptors":[` + strings.TrimSuffix(strings.Repeat(of+",", n), ",") + `]}`
	}
	entries := func(n int) string {
		return `{"entries":[` + strings.TrimSuffix(strings.Repeat("{},", n), ",") + `]}`
	}
	for name, c := range map[string]struct{ body, want string }{
		"as many as may be":    {descriptors(1000, "{}"), ""},
		"a descriptor more":    {descriptors(1001, "{}"), "more than 1000 descriptors"},
		"entries":              {descriptors(100, entries(100)), ""},
		"an entry more":        {descriptors(1, entries(101)), "descriptor 0 has more than 100 entries"},
		"entries in all":       {descriptors(101, entries(100)), "more than 10000 entries"},
		"deep":                 {strings.Repeat("[", 10), ""},
		"deeper":               {strings.Repeat("[", 11), "nested more than 10 deep"},
		"quoted":               {`{"domain":"` + strings.Repeat("{[", 5000) + `"}`, ""},
		"quoted, with escapes": {`{"domain":"\"` + strings.Repeat(`{\\`, 5000) + `"}`, ""},
		"escaped, then open":   {`{"a":"\\"` + strings.Repeat("[", 10), "nested more than 10 deep"},
	} {
		for _, piece := range []int{1, 7, 1 << 20} {
			var s shape
			var err error
			for b := []byte(c.body); len(b) > 0 && err == nil; {
				n := min(piece, len(b))
				err = s.add(b[:n])
				b = b[n:]
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s, %d bytes at a time: %v, want %q", name, piece, err, c.want)
			}
		}
	}
}

// What the shape lets through, in the largest request there may be, becomes a few
// megabytes.
func TestLargestShapeIsBounded(t *testing.T) {
	body := `{"domain":"d","descriptors":[` +
		strings.TrimSuffix(strings.Repeat(`{"entries":[`+strings.TrimSuffix(strings.Repeat("{},", 100), ",")+`]},`,
			100), ",") + `]}`
	var s shape
	if err := s.add([]byte(body)); err != nil || len(body) > MaxRequestBytes {
		t.Fatal(err, len(body))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var q rlsv3.RateLimitRequest
	if err := protojson.Unmarshal([]byte(body), &q); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 8<<20 {
		t.Errorf("%d bytes became %d", len(body), grew)
	}
}

// A body that is held open is given up, with 503 and Retry-After, when others need
// the room, and these are answered.
func TestHeldBodiesAreGivenUp(t *testing.T) {
	budget := transport.NewBudget(1 << 20)
	f := newFixture(t, Options{Budget: budget}, testRules)
	server := httptest.NewServer(http.HandlerFunc(f.ServeJSON))
	defer server.Close()
	address := server.Listener.Addr().String()
	half := `{"domain":"` + strings.Repeat("x", 200<<10)
	var answers sync.WaitGroup
	refused := make(chan string, 20)
	for range cap(refused) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(half)+1,
			half); err != nil {
			t.Fatal(err)
		}
		answers.Go(func() {
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			head := make([]byte, 1<<10)
			n, _ := io.ReadFull(c, head[:100])
			refused <- string(head[:n])
		})
	}
	for range 16 { // 20 bodies of 256 KB of buffer in 1 MB
		text := <-refused
		if !strings.Contains(text, "503 Service Unavailable") || !strings.Contains(text, "Retry-After: 1") {
			t.Fatalf("%q", text)
		}
	}
	if held := budget.Held(); held > 1<<20 {
		t.Errorf("%d bytes are held of 1 MB", held)
	}
	r, err := http.Post(server.URL, "application/json",
		strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"twenty"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusOK {
		t.Errorf("another, meanwhile: %s", r.Status)
	}
	server.CloseClientConnections()
	answers.Wait()
}

// slow is a limiter that decides nothing until it is let.
type slow struct {
	ratelimit.Limiter
	begun, goOn chan struct{}
}

func (s slow) Decide(context.Context, ratelimit.Instant, []ratelimit.Ask, []ratelimit.Verdict) {
	s.begun <- struct{}{}
	<-s.goOn
}

// Large requests are decided a few at a time, and keep nobody small waiting; one
// that nobody waits for any more is not decided.
func TestLargeRequestsWait(t *testing.T) {
	f := newFixture(t, Options{}, testRules)
	limiter := slow{f.limiter, make(chan struct{}, 100), make(chan struct{})}
	f.limiter = limiter
	ask := func(ctx context.Context, size int) error {
		q := fmt.Sprintf(`{"domain":"d","descriptors":[{"entries":[{"key":"twenty"}]},`+
			`{"entries":[{"key":"no","value":%q}]}]}`, strings.Repeat("x", size))
		var m rlsv3.RateLimitRequest
		if err := protojson.Unmarshal([]byte(q), &m); err != nil {
			return err
		}
		_, err := f.answerMessage(httptest.NewRequest(http.MethodPost, "/json", nil).WithContext(ctx), &m)
		return err
	}
	var all sync.WaitGroup
	for range 3 * largeAtOnce {
		all.Go(func() {
			if err := ask(context.Background(), largeBytes); err != nil {
				t.Error(err)
			}
		})
	}
	for range largeAtOnce {
		<-limiter.begun
	}
	given, cancel := context.WithCancel(context.Background())
	cancel()
	if err := ask(given, largeBytes); !errors.Is(err, errLarge) {
		t.Errorf("a call that was given up: %v", err)
	}
	if n := len(limiter.begun); n != 0 {
		t.Errorf("%d more than %d were decided", n, largeAtOnce)
	}
	all.Go(func() {
		if err := ask(context.Background(), 10); err != nil {
			t.Error(err)
		}
	})
	<-limiter.begun // the small one
	close(limiter.goOn)
	all.Wait()
}

// An error quotes a line, and not all of that.
func TestErrorsQuoteALine(t *testing.T) {
	for text, want := range map[string]string{
		"short": "short", "two\nlines": "two...", strings.Repeat("x", 201): strings.Repeat("x", 200) + "...",
		strings.Repeat("é", 101): strings.Repeat("é", 100) + "...",
		strings.Repeat("é", 100): strings.Repeat("é", 100),
		"bad\xff":                "bad\xff",
	} {
		if got := bad("%s", text).Error(); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
