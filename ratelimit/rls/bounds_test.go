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

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/fuzztest"
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

// Many descriptors of a rule with many names, or with much metadata, do not take the time of one by the other: that
// would be seconds.
func TestManyDescriptorsOfALargeRule(t *testing.T) {
	var names, entries []byte
	for i := range 20_000 {
		names, entries = fmt.Appendf(names, "{name: n%d}, ", i), fmt.Appendf(entries, "k%d: 1, ", i)
	}
	f := newFixture(t, Options{DynamicMetadata: true}, fmt.Sprintf(`domain: d
descriptors:
- {key: replaces, rate_limit: {unit: hour, requests_per_unit: 5, name: own, replaces: [%s]}}
- {key: metadata, rate_limit: {unit: hour, requests_per_unit: 5000}, metadata: {%s}}
`, names, entries))
	for _, key := range []string{"replaces=x", "metadata=x"} {
		r := rlsRequest()
		for range MaxDescriptors {
			r.Descriptors = append(r.Descriptors, desc(key))
		}
		begun := time.Now()
		if _, err := f.call(r); err != nil || time.Since(begun) > time.Second {
			t.Errorf("%d descriptors %s: %v after %v", MaxDescriptors, key, err, time.Since(begun))
		}
	}
}

// A small request after many large ones is not decided after all of them. A small body behind many large ones waits for
// a turn of each, and not for all of each.
func TestSmallRequestsPassLargeOnes(t *testing.T) {
	// overtaken does many large pieces of work and then a small one, with one processor, which runs ready work in the
	// order of its arrival. It returns how many were done before the small one.
	overtaken := func(many int, large func(i int), small func()) int32 {
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
	f := newFixture(t, Options{}, testRules)
	const many, bodies = largeAtOnce + largeWaiting, 20
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
	read := func(size int) func() {
		r := httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(strings.Repeat("x", size)))
		return func() {
			if _, _, err := f.readBody(httptest.NewRecorder(), r); err != nil {
				t.Error(err)
			}
		}
	}
	var large [bodies]func()
	for i := range large {
		large[i] = read(MaxRequestBytes)
	}
	if n := overtaken(bodies, func(i int) { large[i]() }, read(10)); n > bodies/2 {
		t.Errorf("%d of %d large bodies were read before a small one", n, bodies)
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

// Requests that a reload has overtaken take no names from others: their rule is gone, and gives nothing back again.
func TestReplacedCountersTakeNoNames(t *testing.T) {
	places := ratelimit.NewNameBudget(2)
	old, next := &ratelimit.RuleCounters{Budget: places}, &ratelimit.RuleCounters{Budget: places}
	old.Named([]byte("a"))
	places.Restore(old)
	old.Named([]byte("late"))
	next.Named([]byte("b"))
	if next.Named([]byte("c")) == next.Named([]byte("beyond the places")) {
		t.Error("a name of counters that are not used any more has the place of another")
	}
}

// Whatever the bytes, an answer or an error comes back; what is answered was read
// as protobuf's own decoder reads it; and no budget gives more than its limit.
//
// The service is made once. The budgets are new in every run: what a run does
// must not depend on those before it, or the fuzzer takes each for a discovery.
func FuzzAnswer(f *testing.F) {
	for _, r := range []*rlsv3.RateLimitRequest{
		rlsRequest(desc("five=x"), hits(desc("twenty=y"), 3), negative(hits(desc("twenty=y"), 9))),
		rlsRequest(override(desc("a=b"), 3, typev3.RateLimitUnit_DAY)),
		rlsRequest(desc("replacer=x"), desc("twenty=y"), desc("quota=q"), desc("bucket=b"), desc("node=a,leaf=b"),
			desc("shared=ab")),
	} {
		in, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(in)
	}
	f.Add([]byte{0x0a, 0x80})
	valid, _ := proto.Marshal(rlsRequest(desc("five=x")))
	// a field number that no message may have
	f.Add(protowire.AppendVarint(protowire.AppendVarint(valid, (1<<29)<<3), 1))
	// Two limits in one descriptor, which protobuf joins: the second has the unit that the first lacks.
	first, _ := proto.Marshal(hits(override(desc("a=b"), 3, typev3.RateLimitUnit_UNKNOWN), 7))
	second, _ := proto.Marshal(override(&common.RateLimitDescriptor{}, 0, typev3.RateLimitUnit_DAY))
	joined := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "d")
	f.Add(protowire.AppendBytes(protowire.AppendTag(joined, 2, protowire.BytesType), append(first, second...)))
	lean := newFixture(f, Options{Headers: HeaderNames{Limit: "L", Remaining: "Rem", Reset: "Res"}}, testRules)
	full := newFixture(f, Options{DynamicMetadata: true, Headers: HeaderNames{
		Limit: "L", Remaining: "Rem",
		Reset: "Res",
	}}, testRules)
	c, theirs, answer := &call{}, &rlsv3.RateLimitRequest{}, &rlsv3.RateLimitResponse{}
	// checkRefusal: what protobuf reads is refused only for a reason that the request shows.
	checkRefusal := func(t *testing.T, err, parseErr error, r *rlsv3.RateLimitRequest) {
		if _, ok := errors.AsType[*badRequest](err); !ok || len(err.Error()) > 300 {
			t.Fatalf("an error of %d bytes that is not the client's: %.300v", len(err.Error()), err)
		}
		if parseErr != nil || r.Domain == "" || len(r.Descriptors) == 0 || len(r.Descriptors) > MaxDescriptors {
			return
		}
		for _, d := range r.Descriptors {
			if len(d.Entries) > MaxEntries || d.HitsAddend.GetValue() > maxHits ||
				d.Limit != nil && (d.Limit.Unit < 1 || d.Limit.Unit > 6 || d.Limit.UnitMultiplier.GetValue() > 1) {
				return
			}
		}
		t.Fatalf("refused: %v\n%v", err, r)
	}
	// checkRequest compares the two readings.
	checkRequest := func(t *testing.T, got *request, want *rlsv3.RateLimitRequest) {
		if got.domain != want.Domain || got.hits != want.HitsAddend || len(got.descriptors) != len(want.Descriptors) {
			t.Fatalf("read %q, %d hits, %d descriptors of %v", got.domain, got.hits, len(got.descriptors), want)
		}
		for i, d := range want.Descriptors {
			x := &got.descriptors[i]
			entries := got.entriesOf(x)
			if len(entries) != len(d.Entries) || x.negative != d.IsNegativeHits || x.hasHits != (d.HitsAddend != nil) ||
				x.hits != d.HitsAddend.GetValue() || x.hasOverride != (d.Limit != nil) {
				t.Fatalf("read %+v of %v", x, d)
			}
			for j, e := range d.Entries {
				if entries[j].Key != e.Key || entries[j].Value != e.Value {
					t.Fatalf("read %+v of %v", entries[j], e)
				}
			}
			if x.hasOverride && (int64(x.override.Requests) != int64(d.Limit.RequestsPerUnit) ||
				int32(x.override.Unit) != int32(d.Limit.Unit) ||
				x.override.Multiplier != d.Limit.UnitMultiplier.GetValue()) {
				t.Fatalf("read %+v of %v", x.override, d.Limit)
			}
		}
	}
	// admittedBeyond reports whether one descriptor alone took more than its budget.
	// What shadow_mode and quota_mode answer OK is not a budget's word.
	type status = rlsv3.RateLimitResponse_DescriptorStatus
	admittedBeyond := func(s *status, d *common.RateLimitDescriptor, all uint32) bool {
		if s.Code != rlsv3.RateLimitResponse_OK || s.CurrentLimit == nil || d.IsNegativeHits ||
			d.Limit == nil && d.Entries[0].Key != "five" && d.Entries[0].Key != "node" {
			return false
		}
		cost := uint64(max(1, all))
		if d.HitsAddend != nil {
			cost = d.HitsAddend.Value
		}
		return cost > uint64(s.CurrentLimit.RequestsPerUnit)
	}
	// checkAnswer: budgets are whole, and in one request a key's descriptors are
	// admitted at most its limit and what is given back.
	checkAnswer := func(t *testing.T, answer *rlsv3.RateLimitResponse, r *rlsv3.RateLimitRequest) {
		if len(answer.Statuses) != len(r.Descriptors) {
			t.Fatalf("%d statuses for %d descriptors", len(answer.Statuses), len(r.Descriptors))
		}
		over := false
		for i, s := range answer.Statuses {
			over = over || s.Code == rlsv3.RateLimitResponse_OVER_LIMIT
			switch {
			case s.Code != rlsv3.RateLimitResponse_OK && s.Code != rlsv3.RateLimitResponse_OVER_LIMIT:
				t.Fatalf("status %d is %v", i, s)
			case s.CurrentLimit != nil && s.LimitRemaining > max(s.CurrentLimit.RequestsPerUnit, 3): // a bucket's burst
				t.Fatalf("remaining beyond the limit: %v", s)
			case r.Domain == "d" && admittedBeyond(s, r.Descriptors[i], r.HitsAddend):
				t.Fatalf("%v was admitted: %v", r.Descriptors[i], s)
			}
		}
		if !over && answer.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Fatalf("over limit, and no status is: %v", answer)
		}
	}
	run := func(t *testing.T, in []byte) {
		fix := lean
		if len(in)%8 == 0 { // metadata cost more than all else, and their maps have no order
			fix = full
		}
		fix.limiter = local.New(16, fix.now, time.Unix(1_800_000_015, 0))
		c.in = in
		err := fix.answer(context.Background(), c)
		parseErr := proto.Unmarshal(in, theirs)
		switch {
		case fix.Stats.Panics.Load() > 0:
			t.Fatal("it panicked")
		case parseErr != nil && err == nil:
			t.Fatalf("answered what protobuf refuses: %v", parseErr)
		case err != nil:
			checkRefusal(t, err, parseErr, theirs)
			return
		}
		checkRequest(t, &c.request, theirs)
		if err := proto.Unmarshal(c.out, answer); err != nil {
			t.Fatal(err)
		}
		checkAnswer(t, answer, theirs)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 4<<10 {
			return // more of the same
		}
		fuzztest.Bytes(in, func(in []byte) { run(t, in) })
	})
}
