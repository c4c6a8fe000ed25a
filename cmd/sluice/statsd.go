package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/cmd/sluice/pace"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// statsd sends counters until ctx is done, if it is on; the channel is closed when the last are sent.
func (c *serveCmd) statsd(ctx context.Context, shown metrics.Collector, latency *metrics.Latency, log *slog.Logger) <-chan struct{} {
	done := make(chan struct{})
	if !c.UseStatsd || c.DisableStats {
		close(done)
		return done
	}
	tags, _ := parseTags(c.ExtraTags) // it was validated
	s := &metrics.Statsd{
		Addr: net.JoinHostPort(c.StatsdHost, strconv.Itoa(int(c.StatsdPort))), Interval: c.StatsInterval, Tags: tags,
		Counters: shown.Counters, Gauges: shown.Gauges, Latency: latency,
		OnError: pace.Seldom(time.Minute, func(err error) { log.Warn("statsd is unreachable: counters are kept until it answers", "error", err) }),
	}
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	return done
}

func (s *flags) latencyUnit() metrics.LatencyUnit {
	if s.LatencyMillis {
		return metrics.InMilliseconds
	}
	return metrics.InSeconds
}

// parseTags reads "k:v,k2:v2".
func parseTags(text string) (map[string]string, error) {
	tags := map[string]string{}
	if text == "" {
		return tags, nil
	}
	for tag := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(tag, ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("EXTRA_TAGS is %q, must be like env:prod,zone:eu: %q is not a name and a value", text, tag)
		}
		tags[name] = value
	}
	return tags, nil
}
