package postgres

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var cost = flag.Duration("cost", 0, "how long TestCost measures each row of each way; 0: not at all")

// What PostgreSQL's processors do for a decision: by three nodes that lease, and where each request is an UPDATE. Rows
// 2, 3 and 6 of sluicelab bench store, once each node has asked for each key: first touches are counted apart.
//
//	go test -v -run TestCost ./leasing/postgres -cost 15s
func TestCost(t *testing.T) {
	if *cost == 0 {
		t.Skip("it takes minutes: -cost 15s")
	}
	const rate, nodes = 3000, 3
	for _, row := range []struct {
		name  string
		limit ratelimit.Limit
		keys  int
	}{
		{"2: 1,000 an hour, 10,000 keys", ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, 10_000},
		{"3: 1,000,000 a day, 10,000 keys", ratelimit.Limit{Unit: ratelimit.Day, Requests: 1_000_000}, 10_000},
		{"6: 1,000,000 a day, 10 keys", ratelimit.Limit{Unit: ratelimit.Day, Requests: 1_000_000}, 10},
	} {
		server := pgtest.Start(t)
		// Each node asks for each key once before. What that takes is for each touch.
		play := func(do func(node, key int)) (perTouch, perDecision time.Duration) {
			cold, next := server.CPU(), atomic.Int64{}
			var touching sync.WaitGroup
			for range 32 {
				touching.Go(func() {
					for n := int(next.Add(1)) - 1; n < nodes*row.keys; n = int(next.Add(1)) - 1 {
						do(n%nodes, n/nodes)
					}
				})
			}
			touching.Wait()
			perTouch = (server.CPU() - cold) / time.Duration(nodes*row.keys)
			stream := load.Load{Rate: rate, Keys: row.keys, Skew: 1.1, Length: *cost}.Stream(1)
			before, began, n := server.CPU(), time.Now(), 0
			var all sync.WaitGroup
			for r, ok := stream.Next(); ok; r, ok = stream.Next() {
				time.Sleep(time.Until(began.Add(r.At)))
				node := n % nodes
				all.Go(func() { do(node, r.Key) })
				n++
			}
			all.Wait()
			return perTouch, (server.CPU() - before) / time.Duration(max(1, n/1000))
		}
		touch, leased := func() (time.Duration, time.Duration) {
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer cancel()
			clock := ratelimit.MonotonicClock()
			rule := &ratelimit.Rule{Domain: "d", Path: "p", Limit: row.limit, Coordination: ratelimit.DefaultCoordination()}
			rule.Coordination.StoreDeadline = time.Second
			var fleets [nodes]*leasing.Fleet
			for i := range fleets {
				l := account.NewCAS(prepared(t, server.URL()), "t:", func() bool { return true })
				fleets[i] = leasing.NewFleet(l, account.NewHolder(), 100_000, clock, time.Now())
				all.Go(func() { fleets[i].Run(ctx) })
			}
			return play(func(node, key int) {
				asks := []ratelimit.Ask{{Rule: rule, Key: fmt.Appendf(nil, "key %d", key), Cost: 1}}
				fleets[node].Decide(ctx, clock(), asks, make([]ratelimit.Verdict, 1))
			})
		}()
		server.Exec("CREATE TABLE counters (key int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 70)")
		pool := prepared(t, server.URL()).pool
		_, each := play(func(_, key int) {
			var n int64
			err := pool.QueryRow(t.Context(), `INSERT INTO counters VALUES ($1, 1)
ON CONFLICT (key) DO UPDATE SET n = counters.n + 1 RETURNING n`, key).Scan(&n)
			if err != nil {
				t.Error(err)
			}
		})
		t.Logf("row %s: for 1,000 decisions PostgreSQL works %v with leases, %v with an UPDATE for each: a %.3f of it; a node's first "+
			"touch of a key costs %v", row.name, leased, each, float64(leased)/float64(each), touch)
	}
}
