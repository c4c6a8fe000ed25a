package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// storeWatch checks periodically whether the store may lose accounts in use, and whether it has lost some: Redis counts
// evicted keys, but does not report them to their holders. One goroutine looks. last is atomic, because scrapes read it
// meanwhile.
type storeWatch struct {
	name    string // of the setting that names the store
	ask     func(context.Context) (metrics.StoreSafety, []any, error)
	restate func() // accounts may be lost
	log     *slog.Logger

	last atomic.Pointer[metrics.StoreSafety] // nil: it has not answered yet
}

// healthEvery is how often the store is asked. An eviction is noticed by then, when
// no claim has met it before.
const healthEvery = 10 * time.Second

// run looks until ctx is done.
func (w *storeWatch) run(ctx context.Context) {
	w.look(ctx)
	upkeep.Every(ctx, healthEvery, func() { w.look(ctx) })
}

// look asks once, for at most two seconds. It warns when the store begins to allow evictions, and not at each look.
// Evictions before the first look do not count.
func (w *storeWatch) look(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	now, says, err := w.ask(bounded)
	says = append([]any{"setting", w.name}, says...)
	if err != nil { // that it does not answer, claims say; and it may be forbidden
		w.log.Debug("the store hides a setting of its persistence", "setting", w.name, "error", err)
		return
	}
	before := w.safety()
	w.last.Store(&now)
	if now.MayEvict != before.MayEvict && now.MayEvict > 0 {
		w.log.Warn("the store can evict accounts in use: each eviction can admit the limit of a key once more. Set its maxmemory-policy to noeviction", says...)
	}
	if !before.Known {
		w.log.Info("persistence of the store (optional): after a loss of data nodes restore its state, and it grants a twentieth of each limit meanwhile", says...)
	} else if now.Evicted > before.Evicted {
		w.log.Warn("the store evicted keys: nodes restore all accounts, at most once a minute", "setting", w.name, "keys", now.Evicted-before.Evicted)
		w.restate()
	}
}

// safety is the store's last answer.
func (w *storeWatch) safety() metrics.StoreSafety {
	if last := w.last.Load(); last != nil {
		return *last
	}
	return metrics.StoreSafety{}
}
