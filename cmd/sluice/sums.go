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

	"github.com/sluice-gate/sluice/leasing/account"
	leased "github.com/sluice-gate/sluice/leasing/fleet"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

var errSums = errors.New("LEDGER=sums")

// sums is a limiter on accounts that are sums (LEDGER=sums).
type sums struct {
	*leased.Fleet
	ledger *account.Redis
	holder ratelimit.Holder
	client redis.UniversalClient
	start  *startup
	clock  ratelimit.Clock
	warmed atomic.Int64 // the instant at which the store's connections were there; 0: not yet
	failed func(error)
}

func (c *serveCmd) sums(clock ratelimit.Clock, store *config.Store, log *slog.Logger) (*decider, error) {
	switch {
	case c.Redis.Type == "CLUSTER":
		return nil, fmt.Errorf("%w has no REDIS_TYPE=CLUSTER yet: set LEDGER=accounts", errSums)
	case c.Ring.Peers != "":
		return nil, fmt.Errorf("%w has no mode routing yet (PEERS is %q): set LEDGER=accounts", errSums, c.Ring.Peers)
	}
	if other, err := c.Redis.perSecond(); err != nil || other != nil {
		return nil, errors.Join(err, fmt.Errorf("%w has no second Redis yet (REDIS_PERSECOND): set LEDGER=accounts", errSums))
	}
	if rules := store.Rules(); rules != nil {
		for _, r := range rules.All() {
			if r.Coordination.Mode != ratelimit.Leasing {
				log.Warn("LEDGER=sums decides rules of all modes as leasing", "first", r.Domain+"."+r.Path)
				break
			}
		}
	}
	redis.SetLogger(redisLog{log})
	d := &decider{pools: map[string]*metrics.Pool{"redis_pool": {}}}
	c.Redis.refused, c.Redis.pool = &d.refused, d.pools["redis_pool"]
	s, err := c.newSums(clock, log)
	if err != nil {
		return nil, err
	}
	if s.OnAudit, err = c.recordSums(log); err != nil {
		return nil, err
	}
	d.limiter, d.run, d.ready = s.Fleet, s.run, s.ready
	d.ping = func(ctx context.Context) error { return s.client.Ping(ctx).Err() }
	d.who = newRegistry(s.client, c.Redis.KeyPrefix, s.holder)
	d.safety = func() metrics.StoreSafety { return metrics.StoreSafety{} }
	s.Nodes = func() int { return d.who.count() }
	return d, nil
}

func (c *serveCmd) newSums(clock ratelimit.Clock, log *slog.Logger) (*sums, error) {
	client, start, err := c.Redis.heldClient()
	if err != nil {
		return nil, err
	}
	// Whether others are alive is not known at once: a ledger that nobody has known learns.
	ledger, err := account.NewRedis(client, c.Redis.KeyPrefix, nil)
	if err != nil {
		return nil, err
	}
	s := &sums{ledger: ledger, holder: account.NewHolder(), client: client, start: start, clock: clock}
	s.Fleet = leased.New(ledger, s.holder, c.MaxKeys, clock, time.Now())
	s.failed = seldom(time.Second, func(err error) { log.Warn("the store does not answer: "+c.Redis.advise(err), "error", err) })
	s.OnFailure, s.OnWarning = s.failed, warnings(log)
	return s, nil
}

// ready tells whether the first request is answered by a ledger that knows all; after a grace, also where it does not.
func (s *sums) ready() bool {
	at := ratelimit.Instant(s.warmed.Load())
	return at != 0 && (s.Ready() || s.clock().Sub(at) >= storeSettles)
}

// verifyEvery is how often it is looked whether the same server has the data.
const verifyEvery = 500 * time.Millisecond

// run claims until ctx is done, and then gives all back. It returns an error at once if the store did not come in time.
func (s *sums) run(ctx context.Context) error {
	var all sync.WaitGroup
	defer func() { _ = s.client.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all.Go(func() {
		if err := s.start.run(ctx, s.client, func() { s.warmed.Store(int64(s.clock())) }, s.failed); err != nil {
			cancel(err)
		}
	})
	all.Go(func() { s.Run(ctx) })
	all.Go(func() { s.ledger.Recalls(ctx, s.holder, s.Recalled) })
	all.Go(func() { s.verify(ctx) })
	all.Wait()
	if err := context.Cause(ctx); errors.Is(err, errStartup) {
		return err
	}
	return nil
}

// verify has the ledger look whose data there is, and prolong its learning as long as this node has more to tell.
func (s *sums) verify(ctx context.Context) {
	every(ctx, verifyEvery, func() {
		s.Greet()
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		ask := s.ledger.Prolong
		if !s.Telling() {
			ask = func(ctx context.Context) error { _, err := s.ledger.Verify(ctx); return err }
		}
		if err := ask(bounded); err != nil && ctx.Err() == nil {
			s.failed(err)
		}
	})
}
