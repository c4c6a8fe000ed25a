package store

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

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
	measured = flag.String("rows", "6", "which rows TestStores measures")
	stores   = flag.String("stores", "redis,postgres,etcd", "which stores TestStores and TestWarmNodes measure")
	rounds   = flag.Int("rounds", 2, "how often TestWarmNodes measures each store, in turn")
)

// real is a real server of a store, and two ways to use it.
type real struct {
	ledger func(fleet string) account.Ledger        // of one node
	each   func(ctx context.Context, key int) error // counts a request there
	cpu    func() time.Duration                     // of the server, so far
}

var reals = map[string]func(*testing.T) real{"redis": realRedis, "postgres": realPostgres, "etcd": realEtcd}

func cpuOf(t *testing.T, pid int) func() time.Duration {
	return func() time.Duration {
		d, err := process.CPUOf(pid)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// realRedis counts as package baseline does.
func realRedis(t *testing.T) real {
	server := redistest.Start(t)
	client := server.Client()
	t.Cleanup(func() { client.Close() })
	return real{
		func(fleet string) account.Ledger {
			l, err := account.NewRedis(client, fleet)
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		func(ctx context.Context, key int) error {
			pipe := client.Pipeline()
			pipe.IncrBy(ctx, fmt.Sprint("counter", key), 1)
			pipe.Expire(ctx, fmt.Sprint("counter", key), time.Hour)
			_, err := pipe.Exec(ctx)
			return err
		},
		cpuOf(t, server.PID()),
	}
}

func realPostgres(t *testing.T) real {
	server := pgtest.Start(t)
	server.Exec("CREATE TABLE counters (key int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 70)")
	pool, err := pgxpool.New(t.Context(), server.URL()+"?pool_max_conns=10")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return real{
		func(fleet string) account.Ledger {
			return account.NewCAS(ledgertest.Prepared(t, postgres.Open, server.URL(), fleet), fleet)
		},
		func(ctx context.Context, key int) error {
			return pool.QueryRow(ctx, `INSERT INTO counters VALUES ($1, 1)
ON CONFLICT (key) DO UPDATE SET n = counters.n + 1 RETURNING n`, key).Scan(new(int64))
		},
		server.CPU,
	}
}

// realEtcd writes for each request, and reads nothing: etcd has no counters, and this is the least that one would cost.
func realEtcd(t *testing.T) real {
	server := etcdtest.Start(t)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{strings.TrimPrefix(server.URL(), "etcd://")}, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return real{
		func(fleet string) account.Ledger {
			return account.NewCAS(ledgertest.Prepared(t, etcd.Open, server.URL(), fleet), fleet)
		},
		func(ctx context.Context, key int) error {
			_, err := client.Put(ctx, fmt.Sprint("counter", key), "1")
			return err
		},
		cpuOf(t, server.PID()),
	}
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
//	go test -v -run TestStores ./bench/store -rows 1,2,3,4,5,6 -length 20s -timeout 60m
func TestStores(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	for store := range strings.SplitSeq(*stores, ",") {
		server := reals[store](t)
		before, began := server.cpu(), time.Now()
		time.Sleep(*length) // processors are counted in ticks of 10 ms
		idle := float64(server.cpu()-before) / float64(time.Since(began))
		t.Logf("%s: %.3f of a processor when nobody asks", store, idle)
		for i := range rows {
			if slices.Contains(strings.Split(*measured, ","), fmt.Sprint(i+1)) {
				measureStore(t, store, server, i, idle)
			}
		}
	}
}

// measureStore measures a row.
func measureStore(t *testing.T, store string, server real, row int, idle float64) {
	const count = 3
	r := &rows[row]
	rule := r.rule(&modes[slices.IndexFunc(modes, func(m mode) bool { return m.name == "leasing" })])
	rule.Coordination.StoreDeadline = time.Second
	var ledgers []account.Ledger
	for range count {
		ledgers = append(ledgers, server.ledger(fmt.Sprint("row ", row, ":")))
	}
	fleet, clock := nodes(t, ledgers...)
	var before ratelimit.LimiterStats // of the first touches
	touch, leased, asked := r.play(server.cpu, idle, count, func(node, key int) error {
		v := make([]ratelimit.Verdict, 1)
		fleet[node].Decide(t.Context(), clock(), []ratelimit.Ask{{Rule: rule, Key: fmt.Appendf(nil, "key %d", key), Cost: 1}}, v)
		return nil
	}, func() { before = statsOf(fleet) })
	after := statsOf(fleet)
	sent, told := after.RoundTrips-before.RoundTrips, after.Claims-before.Claims
	_, each, _ := r.play(server.cpu, idle, count, func(_, key int) error { return server.each(t.Context(), key) }, func() {})
	t.Logf("%s, row %d (%s): for 1,000 decisions the server works %v with leases, %v where each asks: %.3f of it; %.1f messages with %.1f "+
		"claims; a node's first touch of a key costs %v", store, row+1, r.Name, 1000*leased, 1000*each, float64(leased)/float64(each),
		1000*float64(sent)/float64(asked), 1000*float64(told)/float64(asked), touch)
	// Processors are counted in ticks of 10 ms, and what the server does unasked is subtracted: a short run says little.
	if asked == 0 || *length >= 5*time.Second && (each == 0 || row == 5 && leased > each/2) {
		t.Errorf("a decision costs %v with leases, and %v where each asks", leased, each)
	}
}

func statsOf(fleet []*leasing.Fleet) (s ratelimit.LimiterStats) {
	for _, f := range fleet {
		s.Add(f.Stats())
	}
	return s
}

// play has each node do something for each key once, and then for a load at 3,000 a second. It returns what that costs
// the server each.
func (r *Row) play(
	cpu func() time.Duration, idle float64, nodes int, do func(node, key int) error, begin func(),
) (touch, decision time.Duration, n int) {
	const rate, touching = 3000, 32
	spent := func(n int, run func()) time.Duration {
		before, began := cpu(), time.Now()
		run()
		return beyond(cpu()-before, time.Since(began), idle) / time.Duration(max(1, n))
	}
	touches := nodes * r.Keys
	touch = spent(touches, func() {
		var next atomic.Int64
		var all sync.WaitGroup
		for range touching {
			all.Go(func() {
				for i := int(next.Add(1)) - 1; i < touches; i = int(next.Add(1)) - 1 {
					_ = do(i%nodes, i/nodes)
				}
			})
		}
		all.Wait()
	})
	begin()
	var decisions atomic.Int64
	decision = spent(1, func() {
		caller.Open(context.Background(), r.load(rate, *length), 1, time.Now(), func(q load.Request, _ time.Time) {
			_ = do(int(decisions.Add(1))%nodes, q.Key)
		})
	})
	n = int(decisions.Load())
	return touch, decision / time.Duration(max(1, n)), n
}

// What a node's processors do for a decision on a warm key, with each store in turn: the same, for no store is asked.
//
//	go test -v -run TestWarmNodes ./bench/store -rounds 20
func TestWarmNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	const decisions = 200_000
	names := append([]string{"memory"}, strings.Split(*stores, ",")...)
	rule := rows[5].rule(&mode{})
	rule.Limit.Requests = 4e9 // of which a lease outlasts the test
	rule.Coordination.StoreDeadline = time.Second
	var warm []func(n int) (fromLease int)
	for _, name := range names {
		var l account.Ledger = account.NewMemory(func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) })
		if name != "memory" {
			l = reals[name](t).ledger("warm:")
		}
		fleet, clock := nodes(t, l)
		asks, verdicts := []ratelimit.Ask{{Rule: rule, Key: []byte("key"), Cost: 1}}, make([]ratelimit.Verdict, 1)
		warm = append(warm, func(n int) (fromLease int) {
			for range n {
				fleet[0].Decide(t.Context(), clock(), asks, verdicts)
				if verdicts[0].Source == ratelimit.FromLease && !verdicts[0].OverLimit {
					fromLease++
				}
			}
			return fromLease
		})
		for warm[len(warm)-1](1000) < 1000 {
		}
	}
	took := make([][]time.Duration, len(names))
	for range *rounds {
		for i, run := range warm {
			before, err := process.CPUOf(os.Getpid())
			fromLease := run(decisions)
			after, failed := process.CPUOf(os.Getpid())
			if err != nil || failed != nil || fromLease < decisions {
				t.Fatalf("%s: %d of %d decisions on a warm key are from its lease; %v, %v", names[i], fromLease, decisions, err, failed)
			}
			took[i] = append(took[i], (after-before)*1000/decisions)
		}
	}
	least := slices.Min(took[0])
	for i, name := range names {
		slices.Sort(took[i])
		t.Logf("%s: 1,000 decisions cost the node %v at least, %v in the median: %.3f of memory's least", name, took[i][0],
			took[i][len(took[i])/2], float64(took[i][0])/float64(least))
	}
}
