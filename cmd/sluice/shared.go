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
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// shared is a limiter over one Redis, with a drift seat there.
type shared struct {
	*leasing.Fleet
	keeper *approx.Keeper
	client redis.UniversalClient
	people redis.UniversalClient // for what people ask: never of the connections that claims need
	seats  func() approx.Plan    // that are wanted
	failed func(error)
	watch  *storeWatch
	start  *startup
	warmed atomic.Int64 // the instant at which the store's connections were there; 0: not yet
	clock  ratelimit.Clock
}

func (c *serveCmd) shared(flags *redisFlags, seats func() approx.Plan, audit func(leasing.Reconciliation), clock ratelimit.Clock, log *slog.Logger) (*shared, error) {
	client, start, err := flags.heldClient()
	if err != nil {
		return nil, err
	}
	people, err := flags.peoplesClient()
	if err != nil {
		return nil, err
	}
	holder := ledger.NewHolder()
	ledger := ledger.NewRedis(client, flags.KeyPrefix)
	ledger.Refused = flags.refused
	ledger.LookThrough(people)
	f := leasing.NewFleet(ledger, holder, c.MaxKeys, clock, time.Now())
	failed := seldom(time.Second, func(err error) { log.Warn("the store does not answer: "+flags.advise(err), "error", err) })
	f.OnFailure = failed
	f.OnWarning = warnings(log)
	f.OnReconcile = audit
	keeper := approx.NewKeeper(approx.NewRedis(client, flags.KeyPrefix), holder, clock)
	keeper.OnChange, keeper.Epoch = logSeats(log), f.Epoch
	f.Drift = keeper
	watch := &storeWatch{name: flags.setting("URL"), health: oldHealth(ledger), doubt: f.DoubtEvicted, clock: clock, log: log}
	return &shared{Fleet: f, keeper: keeper, client: client, people: people, seats: seats, failed: failed, watch: watch, start: start, clock: clock}, nil
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

func oldHealth(l *ledger.Redis) func(context.Context) (account.Health, error) {
	return func(ctx context.Context) (account.Health, error) {
		h, err := l.Health(ctx)
		return account.Health(h), err
	}
}

// ping asks whether the Redis answers. It blocks until ctx is done, at most.
func (s *shared) ping(ctx context.Context) error { return s.client.Ping(ctx).Err() }

// storeSettles is how long a node that is warm waits for parts of its store that do
// not answer, and for a store to know all again that has just lost its data.
const storeSettles = 5 * time.Second

// ready tells whether the first request is answered by the store: it has answered over
// the connections that the request will use, and all of its parts were heard of and know
// what nodes have to tell. For some parts, and for a store that is new, a node waits for
// storeSettles at most; and where the store was not there when the node started, not at
// all: then it is as the nodes are that were there before.
func (s *shared) ready() bool {
	at := ratelimit.Instant(s.warmed.Load())
	if at == 0 {
		return false
	}
	heard, all := s.Heard()
	switch {
	case s.Ready():
		return true
	case s.start.late.Load() && heard == all:
		return true
	default:
		return heard > 0 && s.clock().Sub(at) >= storeSettles
	}
}

// run claims and keeps a seat until ctx is done, and then gives all back. It returns an
// error at once if the store did not come in time.
func (s *shared) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer func() {
		_ = s.client.Close()
		_ = s.people.Close()
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wg.Go(func() {
		err := s.start.run(ctx, s.client, func() {
			s.Answered()
			s.warmed.Store(int64(s.clock()))
		}, s.failed)
		if err != nil {
			cancel(err)
		}
	})
	wg.Go(func() { s.watch.run(ctx) })
	wg.Go(func() { s.Run(ctx) })
	wg.Go(func() { s.keeper.Run(ctx, s.seats) })
	wg.Wait()
	s.keeper.Leave(context.Background(), approx.Confirmed(!s.Drifting()))
	if err := context.Cause(ctx); errors.Is(err, errStartup) {
		return err
	}
	return nil
}

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
