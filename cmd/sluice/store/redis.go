package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// inRedis is a Redis: single, Sentinel or Cluster. There are three clients: client for the ledger and the
// registrations, people for views, seats and the table, and one for each probe at start.
//
// The separation keeps a screen from slowing decisions: a look at an account waits only for a connection of people. It
// also keeps the ledger's watches, which any transaction on the same connection would end.
type inRedis struct {
	*startup
	people redis.UniversalClient // for what people ask: never of the connections that claims need
	ledger *account.Redis
}

var redisScheme = scheme{names: []string{"redis", "rediss"}, open: openRedis, promise: Promise{
	Kind: "Redis",
	Loss: "A crash loses the writes that Redis has not saved. A failover loses those that the replica has not received. " +
		"The column DATA LOST has the cost.",
	Failover: "Sentinel or the Cluster decides how long writes fail (down-after-milliseconds, cluster-node-timeout).",
	Young:    ratelimit.YoungFor, Trips: 1,
	Claim: "Redis runs a script for each claim, without a wait for the disk.",
}}

func openRedis(o *Options) (Store, error) {
	f := &o.Redis
	if f.URL == "" {
		f.URL = o.URL
	}
	f.log = o.Log
	if o.Log != nil {
		redis.SetLogger(redisLog{o.Log})
	}
	options, err := f.options(o.Pool)
	if err != nil {
		return nil, err
	}
	// Two connections are enough for all that is no decision: the table, seats and views.
	few := *options
	few.PoolSize, few.MinIdleConns = 2, 0
	s := &inRedis{people: redis.NewUniversalClient(&few)}
	// A probe has a client of its own, and ends it. A pool would remember failed dials, and refuse the next probes for
	// up to a second.
	s.startup = newStartup(f, func(ctx context.Context) error {
		client := redis.NewUniversalClient(&few)
		defer func() { _ = client.Close() }() // it only ends
		return client.Ping(ctx).Err()
	})
	// Only the ledger's client is held back. Views and probes dial at once, and report their own errors.
	held := *options
	held.Dialer = s.hold(held.Dialer)
	s.client = redis.NewUniversalClient(&held)
	s.client.AddHook(s.startup)
	// Other nodes may be alive, which is unknown yet: the ledger learns.
	s.ledger, err = account.NewRedis(s.client, f.KeyPrefix)
	if err != nil {
		return nil, err
	}
	s.ledger.LookThrough(s.people)
	return s, nil
}

// Ledger implements [Store].
func (s *inRedis) Ledger() Ledger { return s.ledger }

// Ping implements [Store].
func (s *inRedis) Ping(ctx context.Context) error {
	// In a transaction, as each trip is. Proxies that lack MULTI answer a PING alone.
	_, err := s.client.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Ping(ctx).Err() })
	return err
}

// Advise implements [Store].
func (s *inRedis) Advise(err error) string { return s.flags.advise(err) }

// Close implements [Store].
func (s *inRedis) Close() {
	_ = s.client.Close()
	_ = s.people.Close()
}

// Register implements [Store]: a field of a hash for each node, with Unix seconds by Redis' clock before its text.
func (s *inRedis) Register(ctx context.Context, node, text string) (all []Registration, err error) {
	key := s.flags.KeyPrefix + "sluice:nodes"
	at, err := account.TimeIn(account.TimeOf(ctx, s.client, key))
	if err != nil {
		return nil, err
	}
	// The time is in whole seconds: a node registers every two seconds at most, and the list shows seconds.
	now, pipe := int64(at)/int64(time.Second/time.Microsecond), s.client.Pipeline()
	if text == "" {
		pipe.HDel(ctx, key, node)
	} else {
		pipe.HSet(ctx, key, node, strconv.FormatInt(now, 10)+" "+text)
	}
	// If the fleet is gone, so is its list. It is twice ListedFor, so that the last node that left is listed for all of
	// its time.
	pipe.Expire(ctx, key, 2*ListedFor)
	// The read comes behind the write in one pipeline, so that the answer includes this node.
	fields := pipe.HGetAll(ctx, key)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	// A field is of no use if it has no number, is older than a day, or is of a time that has not come. The last may
	// come from a server whose clock was set back by more than a minute. It would count as present until that time.
	var over []string
	for name, value := range fields.Val() {
		at, text, _ := strings.Cut(value, " ")
		seen, err := strconv.ParseInt(at, 10, 64)
		ago := time.Duration(now-seen) * time.Second // below 0 if the clock was set back
		if err != nil || ago > ListedFor || ago < -SilentFor {
			over = append(over, name)
			continue
		}
		all = append(all, Registration{name, text, max(0, ago)})
	}
	all, surplus := newest(all)
	over = append(over, surplus...)
	// An error is left out: the fields are met again at the next registration.
	if len(over) > 0 {
		s.client.HDel(ctx, key, over...)
	}
	return all, nil
}

// Safety implements [Store]. The numbers are those of metrics: -1 is unknown, 0 no, 1 yes. A managed service that
// refuses CONFIG leaves its snapshots unknown.
func (s *inRedis) Safety(ctx context.Context) (metrics.StoreSafety, []any, error) {
	h, err := healthOf(ctx, s.client)
	if err != nil {
		return metrics.StoreSafety{}, nil, err
	}
	x := metrics.StoreSafety{Known: true, MayEvict: -1, Evicted: h.Evicted, RDB: -1}
	if h.Policy != "" {
		x.MayEvict = metrics.Flag(h.mayEvict())
	}
	rdb := "unknown"
	if h.Saves {
		x.RDB, rdb = metrics.Flag(h.RDB), fmt.Sprint(h.RDB)
	}
	x.AOF = metrics.Flag(h.AOF)
	return x, []any{"rdb", rdb, "aof", h.AOF, "maxmemory_policy", h.Policy, "maxmemory", h.MaxMemory}, nil
}

// Table implements [Store].
func (s *inRedis) Table() table.Store { return newRedisFeed(s.people, s.flags.KeyPrefix) }

// Seats implements [Store]. These commands have connections of people.
func (s *inRedis) Seats() approx.Cell {
	return &redisCell{s.people, s.flags.KeyPrefix + seatRecord} // a transaction ends the watch of the ledger's connections
}

// redisCell is a string that changes only if it is unchanged: WATCH, and a transaction. Its version is its digest: what
// reads the same is the same.
type redisCell struct {
	client redis.UniversalClient
	name   string
}

// Load implements [approx.Cell].
func (c *redisCell) Load(ctx context.Context) ([]byte, uint64, ratelimit.LedgerTime, error) {
	pipe := c.client.Pipeline()
	at, get := account.TimeOf(ctx, pipe, c.name), pipe.Get(ctx, c.name)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, 0, 0, fmt.Errorf("redis: %w", err)
	}
	now, err := account.TimeIn(at)
	if err != nil {
		return nil, 0, 0, err
	}
	data, version, err := versioned(get)
	return data, version, now, err
}

// versioned reads a string and its version. The version of a string is never 0, because 0 says that there is none: so
// the lowest bit of the digest is always set.
func versioned(get *redis.StringCmd) ([]byte, uint64, error) {
	data, err := get.Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("redis: %w", err)
	}
	return data, xxhash.Sum64(data) | 1, nil
}

// Save implements [approx.Cell]. Between WATCH and EXEC, a change by another node makes the server refuse the
// transaction: then it returns false, and the caller reads again. The string has no expiry, because seats have times of
// their own in it.
func (c *redisCell) Save(ctx context.Context, version uint64, data []byte) (bool, error) {
	err := c.client.Watch(ctx, func(tx *redis.Tx) error {
		_, is, err := versioned(tx.Get(ctx, c.name))
		if err != nil {
			return err
		}
		if is != version {
			return redis.TxFailedErr
		}
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, c.name, data, 0)
			return nil
		})
		return err
	}, c.name)
	if errors.Is(err, redis.TxFailedErr) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("redis: %w", err)
	}
	return true, nil
}

// redisLog takes the client library's own lines at debug level. The library reports each failed dial and each lost
// connection by itself. Those reach the log once a minute as errors of the store, with advice.
type redisLog struct{ log *slog.Logger }

// Printf implements the library's logger.
func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, fmt.Sprintf(format, args...))
	}
}
