package bench

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing"
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
	length   = flag.Duration("length", 200*time.Millisecond, "how long TestStores measures each row in each way")
	measured = flag.String("rows", "hot", "which rows TestStores measures")
	stores   = flag.String("stores", "redis,postgres,etcd", "which stores TestStores measures")
)

// real is a real server of a store, and two ways to use it.
type real struct {
	ledger func(fleet string) account.Ledger        // of one node
	each   func(ctx context.Context, key int) error // counts a request there
	cpu    func() time.Duration                     // of the server, so far
}

func cpuOf(t *testing.T, pid int) func() time.Duration {
	return func() time.Duration {
		d, err := process.CPUOf(pid)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// startReal starts a server. Redis counts as package baseline does.
func startReal(t *testing.T, store string) (r real) {
	switch store {
	case "redis":
		server := redistest.Start(t)
		client := server.Client()
		t.Cleanup(func() { client.Close() })
		r.ledger = func(fleet string) account.Ledger {
			l, err := account.NewRedis(client, fleet)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		r.each = func(ctx context.Context, key int) error {
			pipe := client.Pipeline()
			pipe.IncrBy(ctx, fmt.Sprint("counter", key), 1)
			pipe.Expire(ctx, fmt.Sprint("counter", key), time.Hour)
			_, err := pipe.Exec(ctx)
			return err
		}
		r.cpu = cpuOf(t, server.PID())
	case "postgres":
		server := pgtest.Start(t)
		server.Exec("CREATE TABLE counters (key int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 70)")
		pool, err := pgxpool.New(t.Context(), server.URL()+"?pool_max_conns=10")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		r.ledger = func(fleet string) account.Ledger {
			return account.NewCAS(ledgertest.Prepared(t, postgres.Open, server.URL(), fleet), fleet)
		}
		r.each = func(ctx context.Context, key int) error {
			return pool.QueryRow(ctx, `INSERT INTO counters VALUES ($1, 1)
ON CONFLICT (key) DO UPDATE SET n = counters.n + 1 RETURNING n`, key).Scan(new(int64))
		}
		r.cpu = server.CPU
	case "etcd": // it has no counters: a request writes, and reads nothing, which is the least that one would cost
		server := etcdtest.Start(t)
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{strings.TrimPrefix(server.URL(), "etcd://")}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		r.ledger = func(fleet string) account.Ledger {
			return account.NewCAS(ledgertest.Prepared(t, etcd.Open, server.URL(), fleet), fleet)
		}
		r.each = func(ctx context.Context, key int) error {
			_, err := client.Put(ctx, fmt.Sprint("counter", key), "1")
			return err
		}
		r.cpu = cpuOf(t, server.PID())
	}
	return r
}

// nodes make a fleet on ledgers, which runs until the test ends.
func nodes(t *testing.T, ledgers ...account.Ledger) (all []*leasing.Fleet, clock ratelimit.Clock) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	clock = ratelimit.MonotonicClock()
	for _, l := range ledgers {
		f := leasing.NewFleet(l, account.NewHolder(), 200_000, clock, time.Now())
		f.Nodes = func() int { return len(ledgers) }
		running.Go(func() { f.Run(ctx) })
		all = append(all, f)
	}
	return all, clock
}

// The CPU of a store's server for a decision: by three nodes in mode leasing, and with a claim for each
// request. First requests are separate: each node has claimed each key once before.
//
//	go test -v -run TestStores ./bench -rows cool,hourly,warm,cold,second,hot -length 20s -timeout 60m
func TestStores(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts servers")
	}
	for store := range strings.SplitSeq(*stores, ",") {
		server := startReal(t, store)
		before, began := server.cpu(), time.Now()
		time.Sleep(*length) // processors are counted in ticks of 10 ms
		idle := float64(server.cpu()-before) / float64(time.Since(began))
		t.Logf("%s: %.3f of a processor when nobody asks", store, idle)
		for i := range rows {
			if slices.Contains(strings.Split(*measured, ","), rows[i].id) {
				measureStore(t, store, server, &rows[i], idle)
			}
		}
	}
}

// measureStore measures a row.
func measureStore(t *testing.T, store string, server real, r *row, idle float64) {
	const count = 3
	rule := r.rule(map[string]string{"mode": "leasing"})
	rule.Coordination.StoreDeadline = time.Second
	var ledgers []account.Ledger
	for range count {
		ledgers = append(ledgers, server.ledger(fmt.Sprint("row ", r.id, ":")))
	}
	fleet, clock := nodes(t, ledgers...)
	stats := func() (s ratelimit.LimiterStats) {
		for _, f := range fleet {
			s.Add(f.Stats())
		}
		return s
	}
	spent := func(run func()) time.Duration {
		before, began := server.cpu(), time.Now()
		run()
		return beyond(server.cpu()-before, time.Since(began), idle)
	}
	decide := func(node, key int) {
		v := make([]ratelimit.Verdict, 1)
		fleet[node].Decide(t.Context(), clock(), []ratelimit.Ask{{Rule: rule, Key: fmt.Appendf(nil, "key %d", key), Cost: 1}}, v)
	}
	touch := spent(func() {
		var all errgroup.Group
		all.SetLimit(32)
		for i := range count * r.keys {
			all.Go(func() error { decide(i%count, i/count); return nil })
		}
		_ = all.Wait() // none fails
	}) / time.Duration(count*r.keys)
	play := func(do func(node, key int)) (each time.Duration, n int64) {
		var asked atomic.Int64
		all := spent(func() {
			caller.Open(context.Background(), r.load(3000, *length), 1, time.Now(), func(q load.Request, _ time.Time) {
				do(int(asked.Add(1))%count, q.Key)
			})
		})
		return all / time.Duration(max(1, asked.Load())), asked.Load()
	}
	before := stats()
	leased, asked := play(decide)
	after := stats()
	each, _ := play(func(_, key int) { _ = server.each(t.Context(), key) })
	t.Logf("%s, row %s (%s): for 1,000 decisions the server works %v with leases, %v where each asks: %.3f of it; %.1f messages with %.1f "+
		"claims; a node's first touch of a key costs %v", store, r.id, r.name, 1000*leased, 1000*each, float64(leased)/float64(each),
		1000*float64(after.RoundTrips-before.RoundTrips)/float64(asked), 1000*float64(after.Claims-before.Claims)/float64(asked), touch)
	// Processors are counted in ticks of 10 ms, and what the server does unasked is subtracted: a short run says little.
	if asked == 0 || *length >= 5*time.Second && (each == 0 || r.id == "hot" && leased > each/2) {
		t.Errorf("a decision costs %v with leases, and %v where each asks", leased, each)
	}
}
