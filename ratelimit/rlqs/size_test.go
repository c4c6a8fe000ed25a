package rlqs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

// grown is by how many bytes the heap grows.
func grown(do func()) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int64(after.HeapAlloc - before.HeapAlloc)
}

// What a node keeps of a bucket is about 300 bytes, if others have subscribed to the same: the
// collector looks at all of it, while calls of RLS wait.
func TestBucketsAreSmall(t *testing.T) {
	const streams, buckets, most = 1000, 10, 450
	n, message := crowd(t, buckets)
	all := make([]*Session, streams)
	each := float64(grown(func() {
		for i := range all {
			all[i] = n.NewSession()
			if err := all[i].Reports(t.Context(), start, message); err != nil {
				t.Fatal(err)
			}
			all[i].Answer(start)
			all[i].Acked(t.Context(), start, all[i].sent)
		}
	})) / streams / buckets
	if each > most {
		t.Errorf("a bucket takes %.0f bytes, the most is %d", each, most)
	}
	if len(n.subjects) != buckets || len(n.offers) != 1 {
		t.Errorf("%d BucketIds and %d rules are kept, want those that there are, once", len(n.subjects), len(n.offers))
	}
	for _, s := range all {
		s.Close(start)
	}
	if len(n.subjects) != 0 {
		t.Errorf("%d BucketIds are kept without a stream", len(n.subjects))
	}
}

// A message that changes nothing leaves nothing for the collector.
func TestReportsAllocateNothing(t *testing.T) {
	n, message := crowd(t, 10)
	s, now := n.NewSession(), start
	report := func() {
		if err := s.Reports(t.Context(), now, message); err != nil {
			t.Fatal(err)
		}
	}
	report()
	s.Answer(now)
	s.Acked(t.Context(), now, s.sent)
	now = now.Add(200 * time.Millisecond)
	report() // it settles the leases
	sent := s.sent
	if got := testing.AllocsPerRun(100, report); got >= 1 {
		t.Errorf("a message of reports allocates %v times", got)
	}
	if s.Answer(now) != nil || s.sent != sent {
		t.Error("it answers: the test does not get to what it is about")
	}
}

// Streams that come and go at once share what they share, and leave nothing behind; people look on.
func TestStreamsAtOnce(t *testing.T) {
	const streams, rounds = 8, 50
	n, message := crowd(t, 5)
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			for round := range rounds {
				s, now := n.NewSession(), start.Add(time.Duration(round)*time.Second)
				s.Name = fmt.Sprint(i)
				for range 3 {
					if err := s.Reports(t.Context(), now, message); err != nil {
						t.Error(err)
					}
					s.Answer(now)
					s.Acked(t.Context(), now, s.sent)
					now = now.Add(200 * time.Millisecond)
				}
				n.Largest(3)
				for _, b := range s.buckets {
					if held, all := n.Look(b.pool.account); all < 1 || all > streams || len(held) != all {
						t.Errorf("%d of %d holders are shown, want 1 to %d", len(held), all, streams)
					}
				}
				s.Close(now)
			}
		})
	}
	wg.Wait()
	stats := n.Stats()
	if len(n.pools)+len(n.subjects) != 0 || stats.Buckets.Load() != 0 || stats.Unproven.Load() != 0 {
		t.Errorf("%d keys, %d BucketIds, %d buckets and %d unproven tokens are left behind", len(n.pools),
			len(n.subjects), stats.Buckets.Load(), stats.Unproven.Load())
	}
}

// Callers with many large BucketIds, and with long domains, make the node keep no more than it may.
func TestHostileStreamsAreBounded(t *testing.T) {
	const streams, most, each = 20, 4 << 20, 300
	n, _ := crowd(t, 0)
	n.options.Bytes = most
	all := make([]*Session, streams)
	bytes := grown(func() {
		for i := range all {
			all[i] = n.NewSession()
			for k := range 1000 / each {
				message := &rlqs.RateLimitQuotaUsageReports{Domain: "d"}
				for b := range each {
					id := fmt.Sprint(i, k, b, strings.Repeat("x", 1000))
					usages := usageOf(0, 1, "k", id).BucketQuotaUsages
					message.BucketQuotaUsages = append(message.BucketQuotaUsages, usages...)
				}
				if err := all[i].Reports(t.Context(), start, wired(message)); err != nil {
					t.Fatal(err)
				}
				if k == 0 { // later answers wait
					all[i].Answer(start)
				}
			}
		}
	})
	if bytes > 2*most {
		t.Errorf("%d streams take %d bytes, and may take %d", streams, bytes, most)
	}
	if err := n.NewSession().Reports(t.Context(), start, wired(&rlqs.RateLimitQuotaUsageReports{
		Domain: strings.Repeat("d", n.options.BucketBytes+1),
	})); err == nil || !strings.Contains(err.Error(), "the domain has 1025 bytes, and the maximum is 1024") {
		t.Errorf("a long domain: %v", err)
	}
	for _, s := range all {
		s.Close(start)
	}
	if n.held != 0 {
		t.Errorf("without streams, %d bytes are held", n.held)
	}
}

// remote is a purse far away: each call takes a while.
type remote struct {
	purse
	inside, most atomic.Int32
}

func (r *remote) Decide(_ context.Context, now instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	r.most.Store(max(r.most.Load(), r.inside.Add(1)))
	defer r.inside.Add(-1)
	time.Sleep(15 * time.Millisecond)
	r.purse.Decide(context.Background(), now, asks, verdicts)
}

// Other goroutines have their turn while a message is handled that has thousands of reports.
func TestReportsTakeTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	n, message := crowd(t, 1000)
	var turns atomic.Int32
	ctx, end := context.WithCancel(t.Context())
	defer end()
	go func() {
		for ; ctx.Err() == nil; turns.Add(1) {
			runtime.Gosched()
		}
	}()
	if err := n.NewSession().Reports(ctx, start, message); err != nil || turns.Load() < 1000/reportsATurn/2 {
		t.Errorf("%v, after %d turns of others in 1000 reports", err, turns.Load())
	}
}

// The debts of many streams that break at once are due at the same instant, the end of the window. They are settled
// by one goroutine, many in a call.
func TestDebtsAreSettledInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, buckets = 200, 3
		_, message := crowd(t, buckets)
		rules := rulesOf(t, strings.Replace(oneRule, "600", "999999", 1))
		begun := time.Now()
		clock := func() instant { return start.Add(time.Since(begun)) }
		limiter := &remote{purse: purse{left: 1 << 40, ends: start.Add(time.Minute), window: 1}}
		n := newNode(limiter, &rules)
		n.options = DefaultOptions()
		s := NewService(n, clock)
		var all []*exchange
		for range streams {
			e := &exchange{service: s, session: n.NewSession()}
			if err := e.session.Reports(t.Context(), clock(), message); err != nil {
				t.Fatal(err)
			}
			e.session.Answer(clock())
			all = append(all, e)
		}
		time.Sleep(time.Until(begun.Add(59 * time.Second)))
		granted, asks := n.stats.Granted.Load(), limiter.asks
		for _, e := range all { // none has acknowledged its leases
			e.close()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		got, atOnce := n.stats.Carried.Load(), limiter.most.Load()
		if got != granted || limiter.asks-asks != streams*buckets || atOnce > 1 {
			t.Errorf("%d of %d tokens were charged to the next window, in %d asks, with %d calls at once", got, granted,
				limiter.asks-asks, atOnce)
		}
	})
}

// Largest is the head of all, sorted.
func TestLargest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := NewNode(Source{}, DefaultOptions())
		var all []Holder
		for i := range rapid.IntRange(0, 60).Draw(t, "holders") {
			b := &bucket{of: &Session{Name: fmt.Sprint(i)}}
			key := []byte{byte(rapid.IntRange(0, 9).Draw(t, "key"))}
			is := Holder{
				Key: key, Name: b.of.Name, Charged: tokens(rapid.IntRange(0, 9).Draw(t, "charged")),
				PerSecond: float64(rapid.IntRange(0, 3).Draw(t, "rate")),
			}
			n.join(b, key).set(b, published{perSecond: is.PerSecond, charged: is.Charged})
			all = append(all, is)
		}
		most := rapid.IntRange(1, 30).Draw(t, "most")
		held, count := n.Largest(most)
		if count != len(all) || len(held) != min(most, len(all)) {
			t.Fatalf("%d of %d are shown, of %d the %d largest", len(held), count, len(all), most)
		}
		slices.SortFunc(all, func(a, b Holder) int {
			return cmp.Or(int(b.Charged-a.Charged), int(b.PerSecond-a.PerSecond))
		})
		for i, h := range held {
			if h.Charged != all[i].Charged || h.PerSecond != all[i].PerSecond {
				t.Fatalf("in place %d is %+v, want %+v", i, h, all[i])
			}
		}
	})
}

// BenchmarkReports is one message of reports of 10 buckets, from its bytes to those of its
// answer, on a node that has 10,000 streams: all but gRPC. At 2,000 messages a second, cores is
// what they take of a processor. MB is what the streams keep.
func BenchmarkReports(b *testing.B) {
	const streams, buckets = 10_000, 10
	n, message := crowd(b, buckets)
	now := start
	report := func(s *Session) {
		if err := s.Reports(b.Context(), now, message); err != nil {
			b.Fatal(err)
		}
		if s.Answer(now) != nil {
			s.Acked(b.Context(), now, s.sent)
		}
	}
	all := make([]*Session, streams)
	keep := grown(func() {
		for i := range all {
			all[i] = n.NewSession()
			report(all[i])
		}
	})
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		report(all[i])
		if i++; i == streams {
			i, now = 0, now.Add(5*time.Second)
		}
	}
	perReport := b.Elapsed().Seconds() / float64(b.N)
	b.ReportMetric(2000*perReport, "cores")
	b.ReportMetric(float64(keep)/(1<<20), "MB")
	runtime.KeepAlive(all)
}

// FuzzReports holds the reader of messages against the protobuf library.
func FuzzReports(f *testing.F) {
	// said is what a message says, read by either reader.
	type said struct {
		id              map[string]string // nil: it has too many entries
		allowed, denied tokens
		elapsed         time.Duration
	}
	// bytesOnly is the message as a session reads it.
	bytesOnly := func(message []byte) (domain string, all []said, err error) {
		if domain, err = domainOf(message); err != nil {
			return "", nil, err
		}
		err = eachReport(message, new(report), func(r *report) error {
			is := said{id: map[string]string{}, allowed: r.Allowed, denied: r.Denied, elapsed: r.Elapsed}
			for i, e := range r.id() {
				// What is not in order has no canonical name.
				if i > 0 && e.Key <= r.entries[i-1].Key {
					return bad("%q follows %q", e.Key, r.entries[i-1].Key)
				}
				is.id[e.Key] = e.Value
			}
			if r.more {
				is.id = nil
			}
			all = append(all, is)
			return nil
		})
		return domain, all, err
	}
	// library is the message as the protobuf library reads it.
	library := func(message []byte) (domain string, all []said, err error) {
		var m rlqs.RateLimitQuotaUsageReports
		if err := proto.Unmarshal(message, &m); err != nil {
			return "", nil, err
		}
		for _, u := range m.GetBucketQuotaUsages() {
			is := said{
				id: map[string]string{}, elapsed: max(0, u.GetTimeElapsed().AsDuration()),
				allowed: counted(u.GetNumRequestsAllowed()), denied: counted(u.GetNumRequestsDenied()),
			}
			maps.Copy(is.id, u.GetBucketId().GetBucket())
			if len(is.id) > maxEntries {
				is.id = nil
			}
			all = append(all, is)
		}
		return m.GetDomain(), all, nil
	}
	// notText reports whether a string of a message is no UTF-8, which the library refuses at once, and
	// a session when it subscribes.
	notText := func(all []said) bool {
		for _, is := range all {
			for k, v := range is.id {
				if !utf8.ValidString(k) || !utf8.ValidString(v) {
					return true
				}
			}
		}
		return false
	}
	// joined is a message whose parts come twice, and in another order than they are written in.
	joined := func() []byte {
		one, other := usageOf(7, 8, "k", "v", "a", "b"), usageOf(1, 2, "k", "w", "c", "")
		other.BucketQuotaUsages[0].TimeElapsed = &durationpb.Duration{Nanos: 5}
		b := wired(&rlqs.RateLimitQuotaUsageReports{BucketQuotaUsages: one.GetBucketQuotaUsages()})
		b = append(b, wired(other)...)
		usage := append(wired(one.GetBucketQuotaUsages()[0]), wired(other.GetBucketQuotaUsages()[0])...)
		return append(append(b, 0x12, byte(len(usage))), usage...)
	}
	// compare holds what a session reads against what the library does.
	compare := func(t *testing.T, message []byte) {
		t.Helper()
		domain, got, err := bytesOnly(message)
		wantDomain, want, wantErr := library(message)
		switch {
		case wantErr != nil:
			// An entry beyond those that are kept, or one whose value comes again, is not looked at.
			if err == nil && !notText(got) && utf8.Valid(message) {
				t.Fatalf("%q is read, and the library says %v", message, wantErr)
			}
			return
		case err != nil || domain != wantDomain || len(got) != len(want):
			t.Fatalf("%q is domain %q with %d reports, want %q with %d: %v", message, domain, len(got), wantDomain,
				len(want), err)
		}
		for i := range got {
			a, b := &got[i], &want[i]
			same := a.allowed == b.allowed && a.denied == b.denied && a.elapsed == b.elapsed
			if !same || (a.id == nil) != (b.id == nil) || !maps.Equal(a.id, b.id) {
				t.Fatalf("%q: report %d says %+v, want %+v", message, i, a, b)
			}
		}
	}
	_, ten := crowd(f, 10)
	f.Add(ten)
	f.Add(joined())
	f.Add(wired(usageOf(1<<63, 1<<64-1)))
	f.Add([]byte("\x12\x00\x0a\x01d\x18\x01"))
	f.Add([]byte("\x12\x0d\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, message []byte) { compare(t, message) })
}
