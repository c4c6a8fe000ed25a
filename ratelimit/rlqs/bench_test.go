package rlqs

import (
	"runtime"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"
)

// BenchmarkReports is one message of reports of 10 buckets, from its bytes to those of its
// answer, on a node that has 10,000 streams: all but gRPC. At 2,000 messages a second, cores is
// what they take of a processor. MB is what the streams keep.
func BenchmarkReports(b *testing.B) {
	const streams, buckets = 10_000, 10
	n, message := crowd(b, buckets)
	now := start
	bytes, err := proto.Marshal(message)
	if err != nil {
		b.Fatal(err)
	}
	report := func(s *Session) {
		var m rlqs.RateLimitQuotaUsageReports
		if err := proto.Unmarshal(bytes, &m); err != nil {
			b.Fatal(err)
		}
		if err := s.Reports(b.Context(), now, &m); err != nil {
			b.Fatal(err)
		}
		if answer := s.Answer(now); answer != nil {
			if _, err := proto.Marshal(answer); err != nil {
				b.Fatal(err)
			}
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
