package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A ban that is set while the subscription to recalls is broken is in force soon after it is back, however often it
// broke before.
func TestBanWhileTheSubscriptionIsBroken(t *testing.T) {
	limit := ratelimit.Limit{Unit: ratelimit.Year, Requests: 1000, Ceiling: 1000}
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		c := newOnRedis(t, 2, limit)
		banned(t, c, func() { c.store.Do("CLIENT", "KILL", "TYPE", "pubsub") })
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		server := pgtest.Start(t)
		c := newOnClients(t, 0, limit, nil)
		c.joinPostgres(server, 2)
		banned(t, c, func() {
			server.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
		})
	})
}

// banned breaks the subscriptions three times, and bans a key of which a node has tokens in hand each time.
func banned(t *testing.T, c *onRedis, breaks func()) {
	t.Helper()
	c.ready()
	for _, key := range []string{"a", "b", "c"} {
		if v, _ := c.attempt(0, key, 1); v.OverLimit {
			t.Fatalf("%q is refused: %+v", key, v)
		}
		breaks()
		c.override(1, key, &ratelimit.Override{})
		time.Sleep(3 * time.Second) // the subscription is open again, and the totals are stated
		if v, _ := c.attempt(0, key, 1); !v.OverLimit {
			t.Errorf("%q is banned, and admitted from the tokens in hand: %+v", key, v)
		}
	}
}
