package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
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

// hostileFleet is a node on the Redis at addr, with the client that serve has.
func hostileFleet(t *testing.T, addr string) (*leasing.Fleet, store.Store) {
	t.Helper()
	there, err := store.Open(hostileOptions(store.Redis{URL: addr, Type: "SINGLE", PoolSize: 4}, nil))
	if err != nil {
		t.Fatal(err)
	}
	f := leasing.NewFleet(there.Ledger(), account.NewHolder(), 1000, ratelimit.MonotonicClock(), time.Now())
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	came := make(chan struct{})
	all.Go(func() { f.Run(ctx) })
	all.Go(func() { _ = there.Start(ctx, sync.OnceFunc(func() { close(came) }), func(error) {}) })
	t.Cleanup(func() { cancel(); all.Wait(); there.Close() })
	<-came
	return f, there
}

func hostileOptions(r store.Redis, refused *atomic.Uint64) store.Options {
	r.Timeout = time.Second
	return store.Options{Flags: store.Flags{Redis: r}, Refused: refused}
}

func hostileRule(limit ratelimit.Tokens) *ratelimit.Rule {
	r := &ratelimit.Rule{Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Year, Requests: limit}, Coordination: ratelimit.DefaultCoordination()}
	r.Coordination.OnStoreFailure = ratelimit.FailClosed
	return r
}

func spend(f *leasing.Fleet, rule *ratelimit.Rule, key string, n int) (admitted int) {
	clock := ratelimit.MonotonicClock()
	for range n {
		v := make([]ratelimit.Verdict, 1)
		f.Decide(context.Background(), clock(), []ratelimit.Ask{{Rule: rule, Key: []byte(key), Cost: 1}}, v)
		if !v[0].OverLimit {
			admitted++
		}
	}
	return admitted
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
			var refused atomic.Uint64
			flags.PoolSize = 2
			there, err := store.Open(hostileOptions(flags, &refused))
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
			if refused.Load() == 0 {
				t.Error("no connection was refused")
			} else if name == "single" && !strings.Contains(advice, "more than 4194304 bytes") {
				t.Errorf("the advice is %q", advice)
			}
		})
	}
}

// A real Redis whose policy evicts causes a warning. After an eviction, all accounts are restated, and lost
// ones are counted.
func TestHostileEviction(t *testing.T) {
	server := redistest.Start(t, "--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "64")
	f, there := hostileFleet(t, server.Addr)
	var log lines
	watch := &storeWatch{name: "REDIS_URL", ask: there.Safety, restate: f.RestateEvicted, log: slog.New(slog.NewTextHandler(&log, nil))}
	watch.look(t.Context())
	if s := watch.safety(); !s.Known || s.MayEvict != 1 || s.RDB != 0 || s.AOF != 0 || !strings.Contains(log.String(), "maxmemory_policy=allkeys-lru") {
		t.Errorf("%+v\n%s", s, &log)
	}
	if f.Greet(); !becomes(f.Ready) {
		t.Fatal("the store does not answer")
	}
	rule := hostileRule(1000)
	if admitted := spend(f, rule, "quiet", 1010); admitted != 1000 {
		t.Fatalf("%d of 1000 were admitted", admitted)
	}
	client := server.Client()
	defer client.Close()
	name := "{" + leasing.KeyName([]byte("quiet")) + "}" + fmt.Sprint(rule.Limit.WindowAt(ratelimit.LedgerTime(time.Now().UnixMicro())))
	if n := client.Exists(t.Context(), name).Val(); n != 1 {
		t.Fatalf("there is no account %q", name)
	}
	evictQuiet(t, client, name)
	watch.look(t.Context())
	if s := watch.safety(); s.Evicted == 0 || !strings.Contains(log.String(), "evicted keys: nodes restore") {
		t.Errorf("%+v\n%s", s, &log)
	}
	counted := func() bool { s := f.Stats(); return s.Missing == 1 && s.MissingTokens == 1000 }
	if !becomes(counted) {
		t.Fatalf("the lost account is not counted: %+v", f.Stats())
	}
	other, _ := hostileFleet(t, server.Addr)
	if admitted := spend(other, rule, "quiet", 50); admitted > 0 {
		t.Errorf("%d more were admitted after the account was told again", admitted)
	}
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
