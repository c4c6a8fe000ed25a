package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// shared is a limiter over one Redis, with a drift seat there.
type shared struct {
	*leasing.Fleet
	holder ratelimit.Holder
	keeper *approx.Keeper
	seats  func() approx.Plan // that are wanted
	client redis.UniversalClient
	people redis.UniversalClient // for what people ask: never of the connections that claims need
	watch  *storeWatch
	start  *startup
	clock  ratelimit.Clock
	warmed atomic.Int64 // the instant at which the store's connections were there; 0: not yet
	failed func(error)
}

func (c *serveCmd) shared(flags *redisFlags, seats func() approx.Plan, reconciled func(*leasing.Reconciliation), clock ratelimit.Clock, log *slog.Logger) (*shared, error) {
	client, start, err := flags.heldClient()
	if err != nil {
		return nil, err
	}
	people, err := flags.peoplesClient()
	if err != nil {
		return nil, err
	}
	// Whether others are alive is not known at once: a ledger that nobody has known learns.
	ledger, err := account.NewRedis(client, flags.KeyPrefix, nil)
	if err != nil {
		return nil, err
	}
	ledger.LookThrough(people)
	holder := account.NewHolder()
	s := &shared{
		Fleet: leasing.NewFleet(ledger, holder, c.MaxKeys, clock, time.Now()), holder: holder, seats: seats,
		client: client, people: people, start: start, clock: clock,
	}
	s.failed = seldom(time.Second, func(err error) { log.Warn("the store does not answer: "+flags.advise(err), "error", err) })
	s.OnFailure, s.OnWarning, s.OnReconcile = s.failed, warnings(log), reconciled
	s.keeper = approx.NewKeeper(approx.NewRedis(client, flags.KeyPrefix), holder, clock)
	s.keeper.OnChange, s.keeper.Epoch = logSeats(log), s.Epoch
	s.Drift = s.keeper
	s.watch = &storeWatch{name: flags.setting("URL"), health: ledger.Health, doubt: s.DoubtEvicted, log: log}
	return s, nil
}

// ping asks whether the Redis answers. It blocks until ctx is done, at most.
func (s *shared) ping(ctx context.Context) error { return s.client.Ping(ctx).Err() }

// ready tells whether the first request is answered by a ledger that knows all; after a grace, also where it does not.
func (s *shared) ready() bool {
	at := ratelimit.Instant(s.warmed.Load())
	heard, all := s.Heard()
	switch {
	case at == 0:
		return false
	case s.Ready(), s.start.late.Load() && heard == all:
		return true
	default:
		return heard > 0 && s.clock().Sub(at) >= storeSettles
	}
}

// run claims and keeps a seat until ctx is done, and then gives all back. It returns an error at once if the store did
// not come in time.
func (s *shared) run(ctx context.Context) error {
	var all sync.WaitGroup
	defer func() {
		_ = s.client.Close()
		_ = s.people.Close()
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all.Go(func() {
		if err := s.start.run(ctx, s.client, func() {
			s.Answered()
			s.warmed.Store(int64(s.clock()))
		}, s.failed); err != nil {
			cancel(err)
		}
	})
	all.Go(func() { s.watch.run(ctx) })
	all.Go(func() { s.Run(ctx) })
	all.Go(func() { s.keeper.Run(ctx, s.seats) })
	all.Wait()
	s.keeper.Leave(context.Background(), approx.Confirmed(!s.Drifting()))
	if err := context.Cause(ctx); errors.Is(err, errStartup) {
		return err
	}
	return nil
}

// warnings logs what is wrong with what the store says, each kind seldom: metrics
// count them.
func warnings(log *slog.Logger) func(error) {
	rest := time.Minute
	clock := seldom(rest, func(err error) { log.Warn(err.Error()) })
	lost := seldom(rest, func(err error) { log.Warn(err.Error()) })
	wrong := seldom(rest, func(err error) {
		log.Warn("the store answered what cannot be: it is not taken, and on_store_failure decides", "error", err)
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

// storeSettles is how long a node that is warm waits for parts of its store that do
// not answer, and for a store to know all again that has just lost its data.
const storeSettles = 5 * time.Second

// logSeats says when this node gets or loses its drift seat.
func logSeats(log *slog.Logger) func(approx.Tenancy, error) {
	complain := seldom(10*time.Second, func(err error) { log.Warn("drift seats cannot be asked for", "error", err) })
	return func(t approx.Tenancy, err error) {
		switch {
		case err != nil:
			complain(err)
		case t.Seat < 0:
			log.Info("no drift seat: rules of mode approx run as leasing here, and first requests under rules with a lease.reserve wait for the store")
		default:
			log.Info("drift seat taken", "seat", t.Seat, "fence", t.Fence, "windows_from", time.UnixMicro(int64(t.Taint)).UTC())
		}
	}
}

// redisLog takes the client library's own lines at debug level.
type redisLog struct{ log *slog.Logger }

// Printf implements the library's logger.
func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, fmt.Sprintf(format, args...))
	}
}
