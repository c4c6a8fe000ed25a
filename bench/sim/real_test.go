package sim

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/etcd"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/postgres"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/etcdtest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var (
	redisHistories = flag.Int("redis-histories", 20, "how many histories to play against a real Redis")
	storeHistories = flag.Int("store-histories", 1, "how many histories to play against each other real store")
)

// The same histories hold with the ledger in memory and in Redis, PostgreSQL and etcd. The real
// server is called when the simulator's messages arrive, in virtual time.
//
//	go test -v -run TestHistoriesOnRealStores ./bench/sim -store-histories 200 -timeout 60m
func TestHistoriesOnRealStores(t *testing.T) {
	t.Parallel()
	type opener func(seed uint64, clock func() ratelimit.LedgerTime) (Ledger, error)
	on := func(s account.Store) opener {
		return func(seed uint64, clock func() ratelimit.LedgerTime) (Ledger, error) {
			return newRealStore(s, seed, clock)
		}
	}
	for name, start := range map[string]func(*testing.T) opener{
		"redis": func(t *testing.T) opener {
			client := redistest.Start(t).Client()
			t.Cleanup(func() { client.Close() })
			return func(seed uint64, clock func() ratelimit.LedgerTime) (Ledger, error) {
				prefix := fmt.Sprint(seed, ":")
				l, err := account.NewRedis(client, prefix)
				if err != nil {
					return nil, err
				}
				l.GoBy(clock)
				return &realRedis{l, client, prefix}, nil
			}
		},
		"postgres": func(t *testing.T) opener {
			return on(ledgertest.Prepared(t, postgres.Open, pgtest.Start(t, "fsync=off").URL(), "")) // nothing crashes
		},
		"etcd": func(t *testing.T) opener { return on(ledgertest.Prepared(t, etcd.Open, etcdtest.Start(t).URL(), "")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open, n := start(t), *storeHistories
			if name == "redis" {
				n = *redisHistories
			}
			var sum Result
			for seed, played := *firstSeed, 0; played < n; seed++ {
				o := History(seed)
				if o.Rule.Coordination.Mode == ratelimit.Routing {
					continue
				}
				o.Parts = 0
				o.Ledger = func(clock func() ratelimit.LedgerTime) (Ledger, error) { return open(seed, clock) }
				r, err := Run(o)
				if err != nil || r.Violation != nil {
					t.Fatalf("after %d histories seed %d, of %s: %v %v", played, seed, describe(&o), err, r.Violation)
				}
				sum.Claims, sum.Draws, sum.Settled = sum.Claims+r.Claims, sum.Draws+r.Draws, sum.Settled+r.Settled
				played++
			}
			if n > 3 && (sum.Claims < int64(30*n) || sum.Draws == 0) {
				t.Errorf("only %d claims reached the store, %d of them draws", sum.Claims, sum.Draws)
			}
			t.Logf("%d histories held, with %d claims, %d of them draws; %d totals were compared at the end", n, sum.Claims, sum.Draws, sum.Settled)
		})
	}
}

// realRedis is a redis-server in virtual time.
type realRedis struct {
	*account.Redis
	client *redis.Client
	prefix string
}

// DrawsLast says that draws of a round trip are settled after its claims.
func (l *realRedis) DrawsLast() {}

func (l *realRedis) Forget() { l.client.FlushDB(context.Background()) }

func (l *realRedis) Evict(key string, w ratelimit.Window) {
	l.client.Del(context.Background(), account.NameOf(l.prefix, key, w))
}

// realStore is a real store in virtual time: the times of records are moved, so that the store keeps them as long as it
// would. What is lost goes on under other names, of which the store has nothing.
type realStore struct {
	account.Store
	clock   func() ratelimit.LedgerTime
	ahead   ratelimit.LedgerTime // of the store's clock before clock, at first
	prefix  string
	lives   int
	evicted map[string]int // how often, by name
}

// realCAS is a ledger on a real store.
type realCAS struct {
	*account.CAS
	store *realStore
}

func newRealStore(s account.Store, seed uint64, clock func() ratelimit.LedgerTime) (Ledger, error) {
	x, err := s.Read(context.Background(), nil)
	r := &realStore{Store: s, clock: clock, ahead: x.Now - clock(), prefix: fmt.Sprint(seed, ":"), evicted: map[string]int{}}
	return &realCAS{account.NewCAS(r, ""), r}, err
}

func (l *realCAS) Forget() { l.store.lives++ }

func (l *realCAS) Evict(key string, w ratelimit.Window) {
	l.store.evicted[account.NameOf("", key, w)]++
}

// name is the present name of a key. The simulator's keys are bytes, and a fleet's are printable.
func (s *realStore) name(k account.StoreKey) account.StoreKey {
	k.Name = fmt.Sprintf("%s%d:%d:%+q", s.prefix, s.lives, s.evicted[k.Name], k.Name)
	if k.Over != 0 {
		k.Over += s.ahead
	}
	return k
}

func (s *realStore) life(life string) string { return fmt.Sprint(life, " ", s.lives) }

func (s *realStore) Read(ctx context.Context, keys []account.StoreKey) (account.Snapshot, error) {
	named := make([]account.StoreKey, len(keys))
	for i, k := range keys {
		named[i] = s.name(k)
	}
	x, err := s.Store.Read(ctx, named)
	x.Now, x.Life = s.clock(), s.life(x.Life)
	return x, err
}

func (s *realStore) Write(ctx context.Context, life string, changes []account.Change) ([]bool, error) {
	its, _, _ := strings.Cut(life, " ")
	if life != s.life(its) {
		return nil, account.ErrLife
	}
	all := make([]account.Change, len(changes))
	for i, c := range changes {
		c.StoreKey = s.name(c.StoreKey)
		if c.Until < 1<<52 { // others are never over
			c.Until += s.ahead
		}
		all[i] = c
	}
	return s.Store.Write(ctx, its, all)
}
