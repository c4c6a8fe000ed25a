package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/slots"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// shared is a limiter over one store, with a drift seat there.
//
// The store's failures are logged by kind, once a minute, with advice. The last one is in now, for the console.
type shared struct {
	*leasing.Fleet
	slots  *slots.Limiter // of limits of all units
	store  store.Store
	holder ratelimit.Holder
	keeper *approx.Keeper
	seats  func() approx.Plan // that are wanted
	watch  *storeWatch
	outage *outageWatch
	clock  ratelimit.Clock
	warmed atomic.Int64 // the instant at which the store's connections were there; 0: not yet
	late   atomic.Bool  // it was not there when this node started
	failed func(error)
	now    atomic.Pointer[metrics.StoreNow]
}

// shared makes the parts and connects their functions. Nothing runs or connects before run.
func (c *serveCmd) shared(s store.Store, seats func() approx.Plan, clock ratelimit.Clock, log *slog.Logger) *shared {
	// Log lines name the setting that the operator wrote.
	setting, address := "REDIS_URL", c.Store.Redis.URL
	if c.Store.URL != "" {
		setting, address = "STORE_URL", c.Store.URL
	}
	address = settings.MaskedURL(address)
	// The holder is a random name of this process, new at each start. The store keeps totals, seats and registrations
	// under it.
	holder := account.NewHolder()
	x := &shared{
		Fleet: leasing.NewFleet(s.Ledger(), holder, c.MaxKeys, clock, time.Now()), store: s, holder: holder, seats: seats, clock: clock,
	}
	// In an outage, slots and tokens are decided by the same budgets of this node (Alone).
	x.slots = slots.New(s.Ledger(), x.Alone(), clock)
	x.now.Store(&metrics.StoreNow{Address: address})
	x.failed = upkeep.ByKind(time.Now, time.Minute, s.Advise, func(err error, count int) {
		log.Warn("the store does not answer: "+s.Advise(err), "error", err, "round_trips", count)
	})
	// Failures of claims come from many goroutines. StoreNow is replaced as a whole.
	x.OnFailure = func(err error) {
		x.now.Store(&metrics.StoreNow{Address: address, LastError: ratelimit.OneLine(err.Error()), LastErrorAt: time.Now().UTC()})
		if x.warmed.Load() > 0 { // before, the start has the reason
			x.failed(err)
		}
	}
	x.slots.OnFailure, x.OnWarning = x.OnFailure, warnings(log)
	x.keeper = approx.NewKeeper(approx.NewStored(s.Seats()), holder, clock)
	x.keeper.OnChange, x.keeper.Epoch = logSeats(log), x.Epoch
	x.Drift = x.keeper
	x.outage = &outageWatch{stats: x.stats, young: x.Young, log: log.With("setting", setting)}
	x.watch = &storeWatch{name: setting, ask: s.Safety, restate: x.RestateEvicted, log: log}
	return x
}

// stats adds the work of concurrency limits.
func (s *shared) stats() ratelimit.LimiterStats {
	all := s.Stats()
	all.Add(s.slots.Stats())
	return all
}

// ready reports whether a ledger with all totals answers the first request; after a grace time, also without them.
// Traffic that comes earlier would be decided by on_store_failure. If only a part of a Cluster answers, the node waits
// storeSettles for the rest, and then serves the keys of that part.
func (s *shared) ready() bool {
	at := ratelimit.Instant(s.warmed.Load())
	answered, all := s.PartsAnswered()
	switch {
	case at == 0:
		return false
	case s.Ready(), s.late.Load() && answered == all:
		return true
	default:
		return answered > 0 && s.clock().Sub(at) >= storeSettles
	}
}

// run claims and keeps a seat until ctx is done, and then gives all back. It returns an error at once if the store did
// not come in time. The seat is given up after the limiter has returned its tokens: only then is it certain whether
// drift remains unconfirmed. With such drift, the next tenant has to wait. The store closes last.
func (s *shared) run(ctx context.Context) error {
	var all sync.WaitGroup
	defer s.store.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all.Go(func() {
		// Start calls the first function once connections are warm. Answered ends the breaker's pause, so that waiting
		// requests are sent at once.
		if err := s.store.Start(ctx, func() {
			s.Answered()
			s.warmed.Store(int64(s.clock()))
		}, func(err error) {
			s.late.Store(s.late.Load() || s.warmed.Load() == 0)
			s.failed(err)
		}); err != nil {
			cancel(err)
		}
	})
	// All of them end with ctx. The fleet and the slots return their tokens first, so Wait takes as long as that.
	all.Go(func() { s.watch.run(ctx) })
	all.Go(func() { s.outage.run(ctx) })
	all.Go(func() { s.Run(ctx) })
	all.Go(func() { s.slots.Run(ctx) })
	all.Go(func() { s.keeper.Run(ctx, s.seats) })
	all.Wait()
	s.keeper.Leave(context.Background(), !s.Drifting())
	if err := context.Cause(ctx); errors.Is(err, store.ErrStartup) {
		return err
	}
	return nil
}

// warnings logs invalid answers of the store, each kind rarely: metrics count them. Each kind has its own minute, so
// that a frequent one does not hide another.
func warnings(log *slog.Logger) func(error) {
	plain := func() func(error) { return upkeep.Seldom(time.Minute, func(err error) { log.Warn(err.Error()) }) }
	clock, lost := plain(), plain()
	wrong := upkeep.Seldom(time.Minute, func(err error) {
		log.Warn("the store sent an invalid reply: it is ignored, and on_store_failure decides", "error", err)
	})
	return func(err error) {
		switch {
		case errors.Is(err, leasing.ErrClockSet):
			clock(err)
		case errors.Is(err, leasing.ErrEvicted):
			lost(err)
		default:
			wrong(err)
		}
	}
}

// storeSettles is how long a warm node waits for parts of its store without an answer, and for a store to be
// restored that has just lost its data.
const storeSettles = 5 * time.Second

// logSeats says when this node gets or loses its drift seat. A seat changes rarely. Errors may come with each
// application, every few seconds.
func logSeats(log *slog.Logger) func(approx.Tenancy, error) {
	complain := upkeep.Seldom(10*time.Second, func(err error) { log.Warn("the store does not answer requests for a drift seat", "error", err) })
	return func(t approx.Tenancy, err error) {
		switch {
		case err != nil:
			complain(err)
		case t.Seat < 0:
			log.Info("no drift seat: here, mode approx works like leasing")
		default:
			log.Info("drift seat taken", "seat", t.Seat, "fence", t.Fence, "windows_from", time.UnixMicro(int64(t.NotBefore)).UTC())
		}
	}
}
