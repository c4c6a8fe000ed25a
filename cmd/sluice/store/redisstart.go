package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// startup holds a client back until its Redis has answered for the first time, and
// then makes the connections that the first requests will use.
//
//	asking --an answer--> warming --all connections are there--> warm
//	  |  ^                   |
//	  +--+ no answer         +--> asking, if one of them fails
//
// Until then the client opens no connection, and each command fails with the error of the last attempt. A pool
// that has failed often dials only once a second, which is too late for a Redis that starts.
//
// Who waits for whom: commands wait for the first attempt (tried), which takes a second at most. Connections of the
// pool wait for an answer (came), or for the end of the probes (ended). An error of the probe is the error of all
// commands meanwhile, so a log says the cause instead of a time that ran out.
type startup struct {
	flags  *Redis
	client redis.UniversalClient
	ping   func(context.Context) error // over a connection of its own
	tried  chan struct{}               // closed when the first attempt has ended
	came   chan struct{}               // closed when the Redis has answered
	ended  chan struct{}               // closed when no probe runs any more
	// The last probe's error; nil: none has ended. The probing goroutine stores it, and any command loads it.
	why atomic.Pointer[error]
}

// Bounds of a start.
const (
	askEvery        = 250 * time.Millisecond // between two attempts: health follows within a second
	warmConnections = 8                      // to each server, or all of a smaller pool
	attemptTime     = time.Second
)

var (
	errNotAsked = errors.New("the store has not answered since this node started")
	// ErrStartup says that the store did not come in time.
	ErrStartup = errors.New("the store did not answer within REDIS_STARTUP_MAX_ELAPSED_TIME")
)

// newStartup makes one that has asked nothing. The caller sets client before Start.
func newStartup(flags *Redis, ping func(context.Context) error) *startup {
	return &startup{flags: flags, ping: ping, tried: make(chan struct{}), came: make(chan struct{}), ended: make(chan struct{})}
}

// Start implements [Store]. It probes until the Redis answers, calls came, and warms the client. It returns when that
// is done.
func (s *startup) Start(ctx context.Context, came func(), failed func(error)) error {
	defer close(s.ended)
	first := true
	return s.flags.insist(ctx, func(ctx context.Context) error {
		err := s.attempt(ctx, came)
		if first {
			close(s.tried)
			first = false
		}
		return err
	}, failed)
}

// insist tries until it succeeds or ctx is done. It returns an error if it took longer than they allow; failed gets the
// error of each attempt. The order at the end of a turn counts: after the pause comes the check of the time, so that
// the last error is part of ErrStartup. An end of the node returns nil.
func (f *Redis) insist(ctx context.Context, try func(context.Context) error, failed func(error)) error {
	if most := f.StartupMaxElapsed; most > 0 {
		bounded, cancel := context.WithTimeoutCause(ctx, most, ErrStartup)
		defer cancel()
		ctx = bounded
	}
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			failed(err)
		}
		upkeep.Sleep(ctx, askEvery)
		if errors.Is(context.Cause(ctx), ErrStartup) {
			return fmt.Errorf("%w, which is %v: %w", ErrStartup, f.StartupMaxElapsed, err)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// attempt asks once, and warms the client when the server has answered. came is closed before the warm-up, which needs
// connections. A failed warm-up is tried again without another probe, because refusal is nil from then on.
func (s *startup) attempt(ctx context.Context, answered func()) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	if s.refusal() != nil {
		if err := s.ping(ctx); err != nil {
			s.why.Store(&err)
			return err
		}
		close(s.came)
	}
	if err := s.warmUp(ctx); err != nil {
		return err
	}
	answered()
	return nil
}

// warmUp loads the ledger's scripts into each server, and fills the pool with used connections. Of a Cluster, one
// server is enough: a shard that is down must not keep the keys of the others from being served.
func (s *startup) warmUp(ctx context.Context) error {
	switch c := s.client.(type) {
	case *redis.ClusterClient:
		var warm atomic.Bool
		err := c.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error {
			err := s.warmServer(ctx, server)
			if err == nil {
				warm.Store(true)
			}
			return err
		})
		if warm.Load() {
			return nil
		}
		return err
	case *redis.Client:
		return s.warmServer(ctx, c)
	}
	return s.client.Ping(ctx).Err()
}

// warmServer blocks until each connection has answered. Pings at the same time each need a connection of their own, so
// the pool ends up with that many. Without this, the first requests would each wait for a dial, and with TLS for a
// handshake.
func (s *startup) warmServer(ctx context.Context, client *redis.Client) error {
	if err := account.LoadScripts(ctx, client); err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, min(warmConnections, s.flags.PoolSize))
	for i := range errs { // each holds its connection until all have one
		conn := client.Conn()
		defer func() { _ = conn.Close() }() // back to the pool
		wg.Go(func() { errs[i] = conn.Ping(ctx).Err() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// refusal is why no command is sent yet, or nil. It does not block.
func (s *startup) refusal() error {
	select {
	case <-s.came:
		return nil
	default:
	}
	if why := s.why.Load(); why != nil {
		return *why
	}
	return errNotAsked
}

// wait is refusal once the first attempt has ended. It keeps a command of the first moment from failing where the
// server answers at once. So the first request after a start is decided by the store.
func (s *startup) wait(ctx context.Context) error {
	select {
	case <-s.came:
		return nil
	case <-s.tried:
	case <-ctx.Done():
	}
	return s.refusal()
}

// hold has the client's connections wait until the Redis has answered. After the probes have ended without an answer,
// the node itself ends. Then dials fail at once, instead of waiting for ever.
func (s *startup) hold(next dial) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		select { // not until ctx is done: the pool would count it as a failure
		case <-s.came:
		case <-s.ended:
			if err := s.refusal(); err != nil {
				return nil, err
			}
		}
		return next(ctx, network, address)
	}
}

// DialHook implements [redis.Hook]. Dials wait in hold instead.
func (s *startup) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (s *startup) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := s.wait(ctx); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (s *startup) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := s.wait(ctx); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}
