package main

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// statsd sends counters until ctx is done, if it is on; the channel is closed when the last are sent.
func (c *serveCmd) statsd(ctx context.Context, shown metrics.Collector, latency *metrics.Latency, log *slog.Logger) <-chan struct{} {
	if !c.UseStatsd || c.DisableStats {
		return async(func() {})
	}
	tags, _ := c.tags() // they were validated
	s := &metrics.Statsd{
		Addr: net.JoinHostPort(c.StatsdHost, strconv.Itoa(int(c.StatsdPort))), Interval: c.StatsInterval, Tags: tags,
		Counters: shown.Counters, Gauges: shown.Gauges, Latency: latency,
		OnError: upkeep.Seldom(time.Minute, func(err error) { log.Warn("statsd is unreachable: counters are kept until it answers", "error", err) }),
	}
	return async(func() { s.Run(ctx) })
}

// mapping is that of PROMETHEUS_MAPPER_YAML, if it is set and the file is good. A bad file is no reason to refuse a
// start: rules and limits are unaffected. It is logged as an error.
func (s *flags) mapping(log *slog.Logger) *metrics.Mapping {
	if s.PrometheusMap == "" {
		return nil
	}
	m, err := metrics.ReadMapping(s.PrometheusMap)
	if err != nil {
		log.Error("PROMETHEUS_MAPPER_YAML was not read: metrics have the names of docs/reference/metrics.md until a restart with a valid file", "error", err)
	}
	return m
}

// async runs f; the channel is closed when it has ended.
func async(f func()) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return ended
}
