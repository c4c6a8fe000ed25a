package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// outageWatch logs the ends of outages: the store answers again, and lost data is restored.
type outageWatch struct {
	stats    func() ratelimit.LimiterStats
	learning func() bool
	log      *slog.Logger

	out        time.Duration // since the store last answered, at the last look; 0: it answers
	fallbacks  uint64        // decisions without it, before
	recoveries uint64        // known of
	restoring  bool
}

func (w *outageWatch) run(ctx context.Context) {
	every(ctx, time.Second, func() { w.look(w.stats(), w.learning()) })
}

// look takes in how the store is now.
func (w *outageWatch) look(s ratelimit.LimiterStats, learning bool) {
	fallbacks := uint64(0)
	for i, n := range s.Fallbacks {
		if i != int(ratelimit.FallbackTableFull) {
			fallbacks += n
		}
	}
	switch {
	case s.BreakerOpen:
		w.out = max(w.out, s.SyncAge)
	case w.out > 0:
		w.log.Info("the store answers again", "after", w.out.Round(time.Second), "decisions_without_it", fallbacks-w.fallbacks)
		w.out, w.fallbacks = 0, fallbacks
	default:
		w.fallbacks = fallbacks
	}
	if s.Recoveries > w.recoveries {
		w.log.Warn("the store lost its data: nodes restore their totals, and it grants a twentieth of each limit meanwhile")
		w.restoring = true
	}
	if w.recoveries = s.Recoveries; w.restoring && !learning {
		w.log.Info("the data of the store is restored, except the usage of nodes that ended")
		w.restoring = false
	}
}
