package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// listening answers each connection with this, until the test ends.
func listening(t *testing.T, reply string) (addr string) {
	t.Helper()
	l := listens(t)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				_, _ = io.WriteString(c, reply)
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String()
}

// The bound is that of every connection, of whatever type of Redis; what it names is said where it is reached.
func TestHostileRepliesOfEveryType(t *testing.T) {
	addr := listening(t, "$99999999999\r\n")
	for name, flags := range map[string]store.Redis{
		"single":   {URL: addr, Type: "SINGLE"},
		"cluster":  {URL: addr + "," + addr, Type: "CLUSTER"},
		"sentinel": {URL: "m," + addr, Type: "SENTINEL"},
	} {
		t.Run(name, func(t *testing.T) {
			var pool metrics.Pool
			flags.PoolSize, flags.Timeout = 2, time.Second
			there, err := store.Open(store.Options{Flags: store.Flags{Redis: flags}, Pool: &pool})
			if err != nil {
				t.Fatal(err)
			}
			defer there.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			advice := ""
			_ = there.Start(ctx, func() { t.Error("it has answered") }, func(err error) {
				advice = there.Advise(err)
				cancel()
			})
			if pool.Refused.Load() == 0 {
				t.Error("no connection was refused")
			} else if name == "single" && !strings.Contains(advice, "more than 4194304 bytes") {
				t.Errorf("the advice is %q", advice)
			}
		})
	}
}

// A real Redis whose policy evicts causes a warning. After an eviction, all accounts are restated.
func TestHostileEviction(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "64")
	f := newFleet(t, 1, setup{rules: "domain: d\ncoordination: {on_store_failure: closed}\ndescriptors: [{key: quiet, rate_limit: {unit: year, requests_per_unit: 1000}}]\n", store: server})
	s := f.nodes[0]
	if s.metric("sluice_store_may_evict") != 1 || s.metric(`sluice_store_persistent{by="rdb"}`) != 0 || !strings.Contains(s.log(), "maxmemory_policy=allkeys-lru") {
		t.Errorf("it does not warn of evictions:\n%s", s.log())
	}
	f.load("quiet", 10, 101, 0).Wait()
	f.untilAdmitted("quiet", 1000, 0)
	client := server.Client()
	defer client.Close()
	names := client.Keys(t.Context(), "*quiet*").Val()
	if got := f.admitted.Load(); got != 1000 || len(names) != 1 {
		t.Fatalf("%d of 1000 were admitted, and the accounts are %q", got, names)
	}
	evictQuiet(t, client, names[0])
	s.eventually("the account is there again", func() bool {
		n, _ := client.HGet(t.Context(), names[0], "sum").Int()
		return n >= 1000 // refused requests are charged, too
	})
	f.join().untilHealthy()
	f.load("quiet", 1, 50, 1).Wait()
	if more := f.admitted.Load() - 1000; more > 0 {
		t.Errorf("%d more were admitted after the account was told again", more)
	}
	s.eventually("it warns of what was evicted", func() bool {
		return s.metric("sluice_store_evicted_keys") > 0 && strings.Contains(s.log(), "evicted keys: nodes restore")
	})
}

// evictQuiet writes other keys until the quiet one is gone. The quiet one is the least recently used, and the
// others are so few that Redis finds it.
func evictQuiet(t *testing.T, client *redis.Client, quiet string) {
	t.Helper()
	dump, ttl := client.Dump(t.Context(), quiet).Val(), client.PTTL(t.Context(), quiet).Val()
	if err := client.Do(t.Context(), "RESTORE", quiet, ttl.Milliseconds(), dump, "REPLACE", "IDLETIME", 1000).Err(); err != nil {
		t.Fatal(err)
	}
	epoch := client.Get(t.Context(), "sluice:life").Val()
	junk := strings.Repeat("x", 100_000)
	for i := range 3000 {
		pipe := client.Pipeline()
		pipe.Get(t.Context(), "sluice:life")
		pipe.Set(t.Context(), fmt.Sprint("junk", i), junk, 0)
		gone := pipe.Exists(t.Context(), quiet)
		_, _ = pipe.Exec(t.Context())
		if gone.Err() == nil && gone.Val() == 0 {
			client.ConfigSet(t.Context(), "maxmemory", "0")                                // no more is evicted, not even for the account made anew
			if err := client.Set(t.Context(), "sluice:life", epoch, 0).Err(); err != nil { // if it went, too
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("the account was not evicted")
}
