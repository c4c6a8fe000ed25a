package rlqs

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// crowd is a node with a limiter that serves, and what each of its streams reports.
func crowd(tb testing.TB, buckets int) (*Node, []byte) {
	tb.Helper()
	rules := rulesOf(tb, "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: minute, requests_per_unit: 999999}\n")
	n := NewNode(Source{
		Rules: func() *config.Rules { return rules }, Wall: time.Now,
		Limiter: local.New(1000, start, time.Unix(1_800_000_000, 0)),
	}, DefaultOptions())
	message := &rlqs.RateLimitQuotaUsageReports{Domain: "d"}
	for k := range buckets {
		message.BucketQuotaUsages = append(message.BucketQuotaUsages, &rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: &rlqs.BucketId{Bucket: map[string]string{"k": fmt.Sprint(k)}}, NumRequestsAllowed: 20,
			TimeElapsed: durationpb.New(5 * time.Second),
		})
	}
	return n, wired(message)
}

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
