package rlqs

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
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
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	all := make([]*Session, streams)
	for i := range all {
		all[i] = n.NewSession()
		report(all[i])
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
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
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MB")
	runtime.KeepAlive(all)
}
