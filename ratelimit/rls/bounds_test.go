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
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// A body that is held open is given up, with 503 and Retry-After, when others need the room, and these are answered.
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
	// The four that stay may still grow, and what they grow by is held until the budget has made room
	// for it. Then they have all that was sent of them, and no more is held again.
	for end := time.Now().Add(10 * time.Second); budget.Held() > 1<<20; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are held of 1 MB", budget.Held())
		}
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

// Large requests are decided a few at a time, few of them wait, and they delay no small ones.
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
	for range largeAtOnce + largeWaiting {
		all.Go(func() {
			if err := ask(context.Background(), largeBytes); err != nil {
				t.Error(err)
			}
		})
	}
	for range largeAtOnce {
		<-limiter.begun
	}
	for f.large.waiting.Load() < largeAtOnce+largeWaiting {
		runtime.Gosched()
	}
	if err := ask(context.Background(), largeBytes); !errors.Is(err, errLarge) {
		t.Errorf("one more than may wait: %v", err)
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
	// A request whose caller has gone is not decided.
	for range largeAtOnce {
		f.large.slots <- struct{}{}
	}
	given, cancel := context.WithCancel(context.Background())
	cancel()
	if err := ask(given, largeBytes); !errors.Is(err, errLarge) || !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was given up: %v", err)
	}
	if n := f.large.waiting.Load(); n != 0 {
		t.Errorf("%d wait, says the service; none does", n)
	}
}

// twenties is a request of n descriptors.
func twenties(n int) *rlsv3.RateLimitRequest {
	q := rlsRequest()
	for i := range n {
		q.Descriptors = append(q.Descriptors, desc(fmt.Sprintf("twenty=%d", i)))
	}
	return q
}

// A large request after another is decided in what the first one needed: what it leaves
// to the collector is not much more than its bytes and its answer's.
func TestLargeRequestsGrowOnce(t *testing.T) {
	f := newFixture(t, Options{}, testRules)
	in := f.wired(twenties(MaxDescriptors))
	answer := func() {
		if _, err := f.Answer(context.Background(), in, nil); err != nil {
			t.Fatal(err)
		}
	}
	left := func(times int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			answer()
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / uint64(times)
	}
	// The collector may empty the pool now and then, and the race detector does so often.
	if first, each := left(1), left(40); each > first/2 {
		t.Errorf("a large request of %d bytes left %d to the collector, and each of 40 after it %d", len(in), first,
			each)
	}
}

// overtaken does many large pieces of work and then a small one, with one processor, which runs ready work in the order
// of its arrival. It returns how many were done before the small one.
func overtaken(many int, large func(i int), small func()) int32 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var all sync.WaitGroup
	var done, before atomic.Int32
	for i := range many {
		all.Go(func() {
			large(i)
			done.Add(1)
		})
	}
	all.Go(func() {
		small()
		before.Store(done.Load())
	})
	all.Go(func() {}) // the last one would be the first to run
	all.Wait()
	return before.Load()
}

// A small request after many large ones is not decided after all of them.
func TestSmallRequestsPassLargeOnes(t *testing.T) {
	f := newFixture(t, Options{}, testRules)
	const many = largeAtOnce + largeWaiting
	calls := make([]*call, many+1)
	for i := range many {
		calls[i] = &call{in: f.wired(twenties(500))}
	}
	calls[many] = &call{in: f.wired(twenties(1))}
	answer := func(i int) {
		if err := f.answer(context.Background(), calls[i]); err != nil {
			t.Error(err)
		}
	}
	if n := overtaken(many, answer, func() { answer(many) }); n > many/2 {
		t.Errorf("%d of %d large requests were decided before a small one", n, many)
	}
}

// A small body that comes behind many large ones waits for a turn of each, and not for all of each.
func TestBodiesTakeTurns(t *testing.T) {
	f := newFixture(t, Options{}, testRules)
	const many = 20
	read := func(size int) func() {
		r := httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(strings.Repeat("x", size)))
		return func() {
			if _, _, err := f.readBody(httptest.NewRecorder(), r); err != nil {
				t.Error(err)
			}
		}
	}
	var bodies [many]func()
	for i := range bodies {
		bodies[i] = read(MaxRequestBytes)
	}
	if n := overtaken(many, func(i int) { bodies[i]() }, read(10)); n > many/2 {
		t.Errorf("%d of %d large bodies were read before a small one", n, many)
	}
}

// Parts of a request are counted as they come, in whatever pieces, and the first
// one too many is refused; quotes and escapes are no parts. What is let through becomes a few megabytes.
func TestShapeOfARequest(t *testing.T) {
	descriptors := func(n int, of string) string {
		return `{"domain":"d","descriptors":[` + strings.TrimSuffix(strings.Repeat(of+",", n), ",") + `]}`
	}
	entries := func(n int) string {
		return `{"entries":[` + strings.TrimSuffix(strings.Repeat("{},", n), ",") + `]}`
	}
	largest := descriptors(100, entries(100))
	for name, c := range map[string]struct{ body, want string }{
		"as many as may be":    {descriptors(1000, "{}"), ""},
		"a descriptor more":    {descriptors(1001, "{}"), "more than 1000 descriptors"},
		"entries":              {largest, ""},
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
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var q rlsv3.RateLimitRequest
	if err := protojson.Unmarshal([]byte(largest), &q); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 8<<20 || len(largest) > MaxRequestBytes {
		t.Errorf("%d bytes became %d", len(largest), grew)
	}
}

// With any number of keys over their limit, the cache keeps its size, and the last key.
func TestLocalCacheIsBounded(t *testing.T) {
	cache := NewLocalCache(1)
	const keys = leastCacheSize / cacheKeySize
	for i := range uint64(4 * keys) {
		cache.remember(i, ratelimit.Instant(1_000_000+i))
	}
	if s := cache.Stats(); s.Entries != keys || s.Evacuated != 3*keys {
		t.Errorf("%+v, want %d entries and %d forgotten", s, keys, 3*keys)
	}
	if !cache.lookUp(1, 4*keys-1, true) {
		t.Error("the last key is forgotten")
	}
}

// However many values, names and domains there are, nothing is lost, and so many are counted apart.
func TestNamesAreBounded(t *testing.T) {
	f := newFixture(t, Options{}, `
domain: d
descriptors: [{key: named, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}]
`)
	const workers, each = 4, 3000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				f.must(rlsRequest(desc(fmt.Sprintf("named=%d", i)),
					override(desc(fmt.Sprintf("o=%d", i*workers+w)), 1, typev3.RateLimitUnit_DAY)))
				unknown := rlsRequest(desc("a=b"))
				unknown.Domain = fmt.Sprintf("unknown %d", i)
				f.must(unknown)
			}
		})
	}
	wg.Wait()
	f.must(rlsRequest(desc("named=" + strings.Repeat("x", 2*ratelimit.MaxNameLen))))
	names, sums := 0, [2]uint64{}
	f.rules().EachCounters(func(_ string, keys []string, c *ratelimit.RuleCounters) {
		names++
		kind := 0
		if strings.HasPrefix(keys[0], "o_") {
			kind = 1
		}
		sums[kind] += c.Requests()
	})
	if names > 2*ratelimit.MaxNames+20 || sums[0]+sums[1] != 2*workers*each+1 {
		t.Errorf("%d names count %v decisions, want %d", names, sums, 2*workers*each+1)
	}
	unknown, requests := 0, uint64(0)
	f.Stats.UnknownDomains.EachNamed(func(_ string, c *ratelimit.RuleCounters) {
		unknown++
		requests += c.Requests()
	})
	if unknown != ratelimit.MaxNames+1 || requests != workers*each {
		t.Errorf("%d unknown domains, asked for %d times", unknown, requests)
	}
}
