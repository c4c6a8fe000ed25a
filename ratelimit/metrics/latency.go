package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// method is the label of the histogram, and a part of names in statsd.
const method = "ShouldRateLimit"

// NewLatency returns the histogram of whole calls under their name, which says seconds whatever unit it is in. The unit
// is a second, or a millisecond, as older versions of envoyproxy/ratelimit had it under that name. The buckets are
// denser below a millisecond, because most calls are answered from memory in some microseconds.
func NewLatency(unit time.Duration) *Latency {
	scale := float64(time.Second / unit)
	buckets := []float64{
		5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1,
		1,
	}
	for i := range buckets {
		buckets[i] *= scale
	}
	return &Latency{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:        "ratelimit_service_response_time_seconds",
		Help:        "Time from reading a request to writing its answer.",
		ConstLabels: prometheus.Labels{"grpc_method": method},
		Buckets:     buckets,
	}), scale}
}

// Latency is a histogram of times. It is safe for concurrent use.
type Latency struct {
	prometheus.Histogram
	scale float64 // the values of a second
}

// Seconds is a value of the histogram, in seconds.
func (l *Latency) Seconds(v float64) float64 { return v / l.scale }

// Observe books a time in seconds.
func (l *Latency) Observe(seconds float64) { l.Histogram.Observe(seconds * l.scale) }
