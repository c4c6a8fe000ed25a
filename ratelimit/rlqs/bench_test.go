package rlqs

import (
	"runtime"
	"testing"
	"time"
)

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
