package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// It sees the store by counters, once a second. It logs the end of an outage, with its length and the decisions without
// the store. The beginning is logged by shared. outageWatch logs late replies of the store, a full key table, and the
// ends of outages.
type outageWatch struct {
	stats func() ratelimit.LimiterStats
	young func() bool
	log   *slog.Logger

	out        time.Duration // since the store last answered, at the last look; 0: it answers
	fallbacks  uint64        // decisions without it, before
	recoveries uint64        // known of
	restoring  bool
	late, full sometimes
}

// sometimes is a count whose growth is logged once a minute at most.
type sometimes struct {
	logged uint64
	rest   int // looks without a line
}

// grew is by how much the count grew since it was logged; 0: it is not to be logged now. A look is a second, so 59
// looks of rest are a minute.
func (c *sometimes) grew(n uint64) (more uint64) {
	if c.rest > 0 || n == c.logged {
		c.rest = max(0, c.rest-1)
		return 0
	}
	more = n - c.logged
	c.logged = n
	c.rest = 59
	return more
}

func (w *outageWatch) run(ctx context.Context) {
	upkeep.Every(ctx, time.Second, func() { w.look(w.stats(), w.young()) })
}

// look records how the store is now. look compares with the look before. One goroutine calls it.
func (w *outageWatch) look(s ratelimit.LimiterStats, young bool) {
	// A full table is no outage: it has a warning of its own.
	fallbacks := uint64(0)
	for i, n := range s.Fallbacks {
		if i != int(ratelimit.FallbackTableFull) {
			fallbacks += n
		}
	}
	switch {
	// SyncAge is the time since the last answer, so its highest value is the length of the outage.
	case s.BreakerOpen:
		w.out = max(w.out, s.SyncAge)
	case w.out > 0:
		w.log.Info("the store answers again", "after", w.out.Round(time.Second), "decisions_without_it", fallbacks-w.fallbacks)
		w.out, w.fallbacks = 0, fallbacks
	default:
		w.fallbacks = fallbacks
	}
	// In an outage, late answers are no news.
	if n := w.late.grew(s.Fallbacks[ratelimit.FallbackDeadline]); n > 0 && !s.BreakerOpen {
		w.log.Warn("the store replied later than store_deadline: on_store_failure decided", "decisions", n)
	}
	if n := w.full.grew(s.Overflow); n > 0 {
		w.log.Warn("the table of keys is full: raise MAX_KEYS, or unset it", "decisions_without_a_place", n)
	}
	// A new life of the data is not an outage: the store may lose its data and answer all the time.
	if s.Recoveries > w.recoveries {
		w.log.Warn("the store lost its data: for two seconds nodes state their totals, and admit their leases and at most a twentieth of each limit")
		w.restoring = true
	}
	w.recoveries = s.Recoveries
	if w.restoring && !young {
		w.log.Info("the data of the store is restored, except the usage of nodes that ended")
		w.restoring = false
	}
}
