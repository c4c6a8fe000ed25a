package sim

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var realHistories = flag.Int("redis-histories", 30, "how many histories to play against a real Redis")

// realLedger is a redis-server in virtual time: the scripts and transactions that serve, called when the simulator's
// messages arrive.
type realLedger struct {
	*account.Redis
	client *redis.Client
	prefix string
}

func (l *realLedger) Forget() { l.client.FlushDB(context.Background()) }

func (l *realLedger) Evict(key string, w ratelimit.Window) {
	l.client.Del(context.Background(), fmt.Sprintf("%s{%s}%d", l.prefix, key, w))
}

// The same histories that are played with the ledger in memory hold with the one in Redis: its scripts, their arguments
// and answers.
func TestHistoriesOnRealRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	t.Cleanup(func() { client.Close() })
	claims, draws, settled := int64(0), int64(0), int64(0)
	for seed, played := *first, 0; played < *realHistories; seed++ {
		o := History(seed)
		if o.Rule.Coordination.Mode == ratelimit.Routing {
			continue
		}
		played++
		o.Parts = 0
		prefix := fmt.Sprint(seed, ":")
		o.Ledger = func(clock func() ratelimit.LedgerTime) (Ledger, error) {
			l, err := account.NewRedis(client, prefix, func() bool { return true })
			if err != nil {
				return nil, err
			}
			l.GoBy(clock)
			return &realLedger{l, client, prefix}, nil
		}
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		claims, draws, settled = claims+r.Claims, draws+r.Draws, settled+r.Settled
		if r.Violation != nil {
			t.Errorf("seed %d, of %s: %v", seed, describe(&o), r.Violation)
		}
	}
	if claims < 1000 || draws == 0 {
		t.Errorf("only %d claims reached Redis, %d of them draws", claims, draws)
	}
	t.Logf("%d claims in %d histories, %d of them draws; %d totals were compared at the end", claims, *realHistories, draws, settled)
}
