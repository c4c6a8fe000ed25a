package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const method = "ShouldRateLimit"

// LatencyUnit is the unit of the response time's histogram: seconds, as its name says, or milliseconds, as
// older versions of envoyproxy/ratelimit had it under that name.
type LatencyUnit time.Duration

// The units.
const (
	InSeconds      = LatencyUnit(time.Second)
	InMilliseconds = LatencyUnit(time.Millisecond)
)

// of is a time in seconds in the unit.
func (u LatencyUnit) of(seconds float64) float64 { return seconds * float64(time.Second) / float64(u) }

// NewLatency returns the histogram of whole calls under their name, which says
// seconds whatever unit it is in. Who observes gives seconds.
func NewLatency(unit LatencyUnit) *Latency {
	buckets := []float64{
		5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1,
		1,
	}
	for i := range buckets {
		buckets[i] = unit.of(buckets[i])
	}
	return &Latency{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:        "ratelimit_service_response_time_seconds",
		Help:        "Time from reading a request to writing its answer.",
		ConstLabels: prometheus.Labels{"grpc_method": method},
		Buckets:     buckets,
	}), unit}
}

// Latency is a histogram of times. It is safe for concurrent use.
type Latency struct {
	prometheus.Histogram
	unit LatencyUnit
}

// Seconds is a time in the unit of the histogram, in seconds.
func (l *Latency) Seconds(v float64) float64 { return v / l.unit.of(1) }

// Observe books a time in seconds.
func (l *Latency) Observe(seconds float64) { l.Histogram.Observe(l.unit.of(seconds)) }
