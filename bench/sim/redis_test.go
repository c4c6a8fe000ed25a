package sim

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var realHistories = flag.Int("redis-histories", 30, "how many histories to play against a real Redis")

// realLedger is a redis-server in virtual time: the script that serves, called
// when the simulator's messages arrive.
type realLedger struct {
	*ledger.Redis
	client *redis.Client
	prefix string
}

func (l *realLedger) Forget() { l.client.FlushDB(context.Background()) }

func (l *realLedger) Evict(key string) { l.client.Del(context.Background(), l.prefix+key) }

// The same histories that are played with the ledger in memory hold with the one
// in Redis: its script, its arguments and its answers.
func TestHistoriesOnRealRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	t.Cleanup(func() { client.Close() })
	claims := int64(0)
	for seed, played := *first, 0; played < *realHistories; seed++ {
		o := History(seed)
		if o.Rule.Coordination.Mode == ratelimit.Routing && o.Storeless {
			continue
		}
		played++
		prefix := fmt.Sprint(seed, ":")
		o.Ledger = func(clock func() ratelimit.LedgerTime) (Ledger, error) {
			l := ledger.NewRedis(client, prefix)
			l.GoBy(clock)
			return &realLedger{l, client, prefix}, nil
		}
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		claims += r.Claims
		if r.Violation != nil {
			t.Errorf("seed %d, of %s: %v", seed, describe(&o), r.Violation)
		}
	}
	if claims < 1000 {
		t.Errorf("only %d claims reached Redis", claims)
	}
	t.Logf("%d claims in %d histories", claims, *realHistories)
}
