package store

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Database is a store that changes records only if they are unchanged, and that keeps what else nodes share.
type Database interface {
	account.Store
	account.Messenger
	// Prepare connects, and creates the tables or keys. It is called first, until it succeeds.
	Prepare(ctx context.Context) error
	Ping(ctx context.Context) error
	// Register records a node's text, with "" that it is gone, and calls see with each node's latest text of a
	// time until now.
	Register(ctx context.Context, node, text string, within time.Duration, see func(node, text string, ago time.Duration)) error
	// Durable reports whether a write that was reported survives a crash.
	Durable(ctx context.Context) (bool, error)
	Close()
}

// inDatabase is a Store in a Database.
type inDatabase struct {
	Database
	feed   table.Store
	flags  *Redis // for the prefix, and how often a start tries
	ledger *account.CAS
	advice settings.Advice
}

func newDatabase(d Database, feed table.Store, o *Options, advice string) Store {
	return &inDatabase{Database: d, feed: feed, flags: &o.Redis, ledger: account.NewCAS(d, o.Redis.KeyPrefix), advice: settings.ReadAdvice(advice)}
}

// sweepEvery is the time between two sweeps, and the most time that one may take. In PostgreSQL, a sweep drops ended
// accounts. In etcd it compacts overwritten data, which would grow until etcd takes no more writes. In Redis, keys
// expire by themselves.
const sweepEvery = 30 * time.Second

// Start implements [Store]. Afterwards it drops ended accounts until ctx is done.
func (s *inDatabase) Start(ctx context.Context, came func(), failed func(error)) error {
	// REDIS_STARTUP_MAX_ELAPSED_TIME is for every store, in spite of its name.
	err := s.flags.insist(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, prepareTime)
		defer cancel()
		return s.Prepare(ctx)
	}, failed)
	// insist returns nil if ctx is done, so that the end of the node is no failure of the store.
	if err != nil || ctx.Err() != nil {
		return err
	}
	came()
	// Each node sweeps. In PostgreSQL, one does it if several sweep at once.
	upkeep.Every(ctx, sweepEvery, func() {
		bounded, cancel := context.WithTimeout(ctx, sweepEvery)
		defer cancel()
		if err := s.ledger.Sweep(bounded); err != nil && ctx.Err() == nil {
			failed(err)
		}
	})
	return nil
}

// prepareTime bounds one attempt to make the tables: other nodes may be making them.
const prepareTime = 10 * time.Second

// Ledger implements [Store].
func (s *inDatabase) Ledger() Ledger { return s.ledger }

// Advise implements [Store].
func (s *inDatabase) Advise(err error) string { return s.advice.On(err.Error(), nil) }

// Register implements [Store]. A surplus node is removed by an empty text.
func (s *inDatabase) Register(ctx context.Context, node, text string) (all []Registration, err error) {
	err = s.Database.Register(ctx, node, text, ListedFor, func(node, text string, ago time.Duration) {
		all = append(all, Registration{node, text, ago})
	})
	all, surplus := newest(all)
	for _, name := range surplus {
		err = errors.Join(err, s.Database.Register(ctx, name, "", ListedFor, func(string, string, time.Duration) {}))
	}
	return all, err
}

// Safety implements [Store]. A database drops nothing that it was not told to. So MayEvict stays 0, which is no, and
// RDB is -1, which is unknown.
func (s *inDatabase) Safety(ctx context.Context) (metrics.StoreSafety, []any, error) {
	durable, err := s.Durable(ctx)
	return metrics.StoreSafety{Known: err == nil, RDB: -1, AOF: metrics.Flag(durable)}, []any{"durable", durable}, err
}

// Table implements [Store].
func (s *inDatabase) Table() table.Store { return s.feed }

// Seats implements [Store]. It is a record like an account, but with a name that no account has, and no time at which a
// sweep drops it.
func (s *inDatabase) Seats() approx.Cell {
	return &databaseCell{s.Database, account.StoreKey{Name: s.flags.KeyPrefix + seatRecord}}
}

// databaseCell is one record.
type databaseCell struct {
	account.Store
	key account.StoreKey
}

// Load implements [approx.Cell]. One read returns the record and the time of the same instant, so that a seat's age is
// by the store's clock.
func (c *databaseCell) Load(ctx context.Context) ([]byte, uint64, ratelimit.LedgerTime, error) {
	s, err := c.Read(ctx, []account.StoreKey{c.key})
	if err != nil {
		return nil, 0, 0, err
	}
	return s.Records[0].Data, s.Records[0].Version, s.Now, nil
}

// never is a time at which nothing is over.
const never = ratelimit.LedgerTime(1) << 62

// Save implements [approx.Cell]. The record may be of an older life of the data: who has a seat there says so.
func (c *databaseCell) Save(ctx context.Context, version uint64, data []byte) (bool, error) {
	s, err := c.Read(ctx, nil)
	if err != nil {
		return false, err
	}
	// The life is read here and not by Load: only the version has to be unchanged since then. If another life begins in
	// between, Write makes no change, and the caller tries again.
	made, err := c.Write(ctx, s.Life, []account.Change{{StoreKey: c.key, Version: version, Data: data, Until: never}})
	return err == nil && made[0], err
}
