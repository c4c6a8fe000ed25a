package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing/account"
	leased "github.com/sluice-gate/sluice/leasing/fleet"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// sums is a limiter on accounts that are sums (LEDGER=sums), with a drift seat in the same Redis.
type sums struct {
	*leased.Fleet
	ledger *account.Redis
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

func (c *serveCmd) sums(clock ratelimit.Clock, store *config.Store, log *slog.Logger) (*decider, error) {
	other, err := c.Redis.perSecond()
	if err != nil {
		return nil, err
	}
	redis.SetLogger(redisLog{log})
	d := &decider{pools: map[string]*metrics.Pool{"redis_pool": {}}}
	c.Redis.refused, c.Redis.pool = &d.refused, d.pools["redis_pool"]
	seats := plans(store)
	s, err := c.newSums(&c.Redis, seats, clock, log)
	if err != nil {
		return nil, err
	}
	d.seat, d.safety = s.keeper.Seat, s.watch.safety
	record, err := c.recordSums(log)
	if err != nil {
		return nil, err
	}
	s.OnAudit = record
	d.who = newRegistry(s.client, c.Redis.KeyPrefix, s.holder)
	nodes := func() int { return d.who.count() }
	s.Nodes = nodes
	d.limiter, d.run, d.ready, d.ping = s.Fleet, s.run, s.ready, s.ping
	if other == nil {
		return d, nil
	}
	d.pools["redis_per_second_pool"] = &metrics.Pool{}
	other.refused, other.pool = &d.refused, d.pools["redis_per_second_pool"]
	brief, err := c.newSums(other, seats, clock, log)
	if err != nil {
		return nil, err
	}
	brief.Nodes, brief.OnAudit = nodes, record
	d.limiter = newByUnit(s.Fleet, brief.Fleet)
	d.who = newRegistry(s.client, c.Redis.KeyPrefix, s.holder, brief.holder)
	d.run = func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return brief.run(ctx) })
		g.Go(func() error { return s.run(ctx) })
		return g.Wait()
	}
	d.ping = func(ctx context.Context) error { return errors.Join(s.ping(ctx), brief.ping(ctx)) }
	d.ready = func() bool { return s.ready() && brief.ready() }
	d.safety = func() metrics.StoreSafety { return worse(s.watch.safety(), brief.watch.safety()) }
	return d, nil
}

func (c *serveCmd) newSums(flags *redisFlags, seats func() approx.Plan, clock ratelimit.Clock, log *slog.Logger) (*sums, error) {
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
	s := &sums{
		Fleet: leased.New(ledger, holder, c.MaxKeys, clock, time.Now()), ledger: ledger, holder: holder, seats: seats,
		client: client, people: people, start: start, clock: clock,
	}
	s.failed = seldom(time.Second, func(err error) { log.Warn("the store does not answer: "+flags.advise(err), "error", err) })
	s.OnFailure, s.OnWarning, s.OnReconcile = s.failed, warnings(log), reconciled(log)
	s.keeper = approx.NewKeeper(approx.NewRedis(client, flags.KeyPrefix), holder, clock)
	s.keeper.OnChange, s.keeper.Epoch = logSeats(log), s.Epoch
	s.Drift = s.keeper
	s.watch = &storeWatch{name: flags.setting("URL"), health: ledger.Health, doubt: s.DoubtEvicted, clock: clock, log: log}
	return s, nil
}

// reconciled logs what answers have settled of what was spent without asking.
func reconciled(log *slog.Logger) func(*leased.Reconciliation) {
	return func(r *leased.Reconciliation) {
		if log.Enabled(context.Background(), slog.LevelDebug) {
			log.Debug("drift reconciled", "domain", r.Rule.Domain, "rule", r.Rule.Path, "key", r.Key, "window", r.Window, "fence", r.Fence,
				"drift", r.Drift, "charged", r.Charged, "by_policy", r.Unasked, "over", r.Over, "sum", r.Sum)
		}
	}
}

// ping asks whether the Redis answers. It blocks until ctx is done, at most.
func (s *sums) ping(ctx context.Context) error { return s.client.Ping(ctx).Err() }

// ready tells whether the first request is answered by a ledger that knows all; after a grace, also where it does not.
func (s *sums) ready() bool {
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

// greetEvery is how often the store is heard of at least, and verifyEvery how often it is looked whether the same server
// has the data, which answers of the same server tell as well, but not after each change of its replication.
const greetEvery, verifyEvery = 500 * time.Millisecond, 2 * time.Second

// run claims and keeps a seat until ctx is done, and then gives all back. It returns an error at once if the store did
// not come in time.
func (s *sums) run(ctx context.Context) error {
	var all sync.WaitGroup
	defer func() {
		_ = s.client.Close()
		_ = s.people.Close()
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all.Go(func() {
		if err := s.start.run(ctx, s.client, func() { s.warmed.Store(int64(s.clock())) }, s.failed); err != nil {
			cancel(err)
		}
	})
	all.Go(func() { s.watch.run(ctx) })
	all.Go(func() { s.Run(ctx) })
	all.Go(func() { s.ledger.Recalls(ctx, s.holder, s.Recalled) })
	all.Go(func() { s.verify(ctx) })
	all.Go(func() { s.keeper.Run(ctx, s.seats) })
	all.Wait()
	s.keeper.Leave(context.Background(), approx.Confirmed(!s.Drifting()))
	if err := context.Cause(ctx); errors.Is(err, errStartup) {
		return err
	}
	return nil
}

// verify has the ledger look whose data there is, and prolong its learning as long as this node has more to tell.
func (s *sums) verify(ctx context.Context) {
	verified, losses := s.clock(), uint64(0)
	every(ctx, greetEvery, func() {
		// Who has known another life of the ledger says so once, also if nothing is left to tell: otherwise it would
		// look like a ledger that nobody has known.
		telling := s.Telling() || s.Recoveries() != losses
		losses = s.Recoveries()
		if now := s.clock(); !telling && now.Sub(verified) < verifyEvery {
			s.Greet()
			return
		} else if !telling {
			verified = now
		}
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		ask := s.ledger.Prolong
		if !telling {
			ask = func(ctx context.Context) error { _, err := s.ledger.Verify(ctx); return err }
		}
		if err := ask(bounded); err != nil && ctx.Err() == nil {
			s.failed(err)
		}
	})
}
