package store

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// Recalls without a pause count as many answers, and not as one beyond the bounds.
func TestManyRecallsKeepTheSubscription(t *testing.T) {
	const messages, channel = 2 * mostReply / 64, "sluice:recalled:1"
	server := redistest.Start(t)
	f, pool := few, new(metrics.Pool)
	f.URL = server.Addr
	o, err := f.options(pool)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewUniversalClient(o)
	defer client.Close()
	ledger, err := account.NewRedis(client, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for subscribed := int64(0); subscribed == 0 && ctx.Err() == nil; {
			subscribed = client.PubSubNumSub(ctx, channel).Val()[channel]
		}
		server.Do("EVAL", "for _ = 1, ARGV[1] do redis.call('PUBLISH', ARGV[2], ARGV[3]) end return 1", 0, messages, channel, account.NameOf("", "key", 1))
	}()
	got := 0
	ledger.Recalls(ctx, 1, func(key string, _ ratelimit.Window) {
		if got++; got == messages || key == "" {
			cancel()
		}
	})
	if got != messages || pool.Refused.Load() != 0 {
		t.Errorf("of %d recalls %d arrive, and %d connections are closed", messages, got, pool.Refused.Load())
	}
}
