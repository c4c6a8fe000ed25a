package limit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/limit"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

// A program that limits by itself.
func ExampleNew() {
	limiter, err := limit.New(context.Background(), limit.Options{})
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	logins, err := limit.NewRule("login", ratelimit.Limit{Requests: 2, Unit: ratelimit.Year})
	if err != nil {
		panic(err)
	}
	for range 3 {
		d, err := limiter.Take(context.Background(), logins.Key("alice"), 1)
		fmt.Println(d.Allowed, d.Remaining, err)
	}
	// Output:
	// true 1 <nil>
	// true 0 <nil>
	// false 0 <nil>
}

// Programs that share a Redis share the budget of each key.
func ExampleOptions() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	limiter, err := limit.New(context.Background(), limit.Options{Redis: client, MaxKeys: 1_000_000})
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	sharing := ratelimit.DefaultCoordination()
	sharing.OnStoreFailure = ratelimit.FailClosed // rather refuse than guess while Redis is away
	exports, err := limit.NewRule("export", ratelimit.Limit{Requests: 100, Unit: ratelimit.Hour}, sharing)
	if err != nil {
		panic(err)
	}
	if d, _ := limiter.Take(context.Background(), exports.Key("tenant-7"), 10); !d.Allowed {
		fmt.Println("try again in", d.RetryAfter())
	}
}

func ExampleNewRule() {
	_, err := limit.NewRule("", ratelimit.Limit{Requests: -1, Unit: ratelimit.Minute, Burst: 3})
	fmt.Println(err)
	// Output:
	// limit: rule "": it has no name; Requests is -1, must be between 0 and 1000000000000; Burst is 3, and only a TokenBucket has one
}

// opened is a limiter that ends with the test. With a server it has a client of its own.
func opened(t *testing.T, server *redistest.Server, prefix string) *limit.Limiter {
	t.Helper()
	o := limit.Options{Prefix: prefix}
	if server != nil {
		client := server.Client()
		t.Cleanup(func() { _ = client.Close() })
		o.Redis = client
	}
	l, err := limit.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func yearly(t testing.TB, n ratelimit.Tokens) *limit.Rule {
	l := ratelimit.Limit{Requests: n, Unit: ratelimit.Year}
	sharing := ratelimit.DefaultCoordination()
	sharing.StoreDeadline = time.Second // longer than any pause of this machine
	sharing.OnStoreFailure = ratelimit.FailClosed
	r, err := limit.NewRule("test", l, sharing)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Three programs with one Redis admit the limit, and not one more; what one of them
// leased and did not spend, the others get when it is closed.
func TestLimitersShareARedis(t *testing.T) {
	server := redistest.Start(t)
	rule := yearly(t, 500)
	var admitted atomic.Int64
	all := make([]*limit.Limiter, 3)
	for i := range all {
		all[i] = opened(t, server, "lib:")
	}
	take := func(l *limit.Limiter) bool {
		d, err := l.Take(context.Background(), rule.Key("k"), 1)
		if err != nil || d.WithoutRedis {
			t.Errorf("%+v %v", d, err)
		}
		if d.Allowed {
			admitted.Add(1)
		}
		return d.Allowed
	}
	var callers sync.WaitGroup
	for i := range 6 {
		callers.Go(func() {
			for range 150 {
				take(all[i%3])
			}
		})
	}
	callers.Wait()
	all[0].Close()
	all[1].Close()
	// A refusal holds for a moment, so that the first may be due to the leases of others.
	for end := time.Now().Add(10 * time.Second); admitted.Load() < 500 && time.Now().Before(end); {
		take(all[2])
	}
	for range 10 {
		take(all[2])
	}
	all[2].Close()
	if n := admitted.Load(); n != 500 {
		t.Errorf("%d of 500 were admitted", n)
	}
}

// What cannot be is refused with what is wrong, where, and what to do.
func TestWrongOptionsAndRules(t *testing.T) {
	waits := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer waits.Close()
	for want, o := range map[string]limit.Options{
		"MaxKeys is -1, must be between 1 and 100000000, or 0 for 100000": {MaxKeys: -1},
		"ContextTimeoutEnabled: false and MaxRetries: 3":                  {Redis: waits},
	} {
		if _, err := limit.New(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	approx := ratelimit.DefaultCoordination()
	approx.Mode = ratelimit.Approx
	minute := ratelimit.Limit{Requests: 1, Unit: ratelimit.Minute}
	calendar, err := zone.Calendar(15, "Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	billed := ratelimit.Limit{Unit: ratelimit.Month, Requests: 10}.Billed(calendar)
	if _, err := limit.NewRule("r", billed); err != nil {
		t.Error(err)
	}
	month, uncut, sliding, ceiled := billed, billed, billed, billed
	month.Unit, uncut.Calendar, sliding.Algorithm, ceiled.Ceiling = ratelimit.Month, 0, ratelimit.SlidingWindow, 1
	for want, of := range map[string]struct {
		limit   ratelimit.Limit
		sharing []ratelimit.Coordination
	}{
		"Unit is 0": {ratelimit.Limit{Requests: 1}, nil},
		"Multiplier is 525601, must be at most 525600": {
			ratelimit.Limit{Requests: 1, Unit: ratelimit.Minute, Multiplier: 525_601}, nil,
		},
		"Unit is 5 and its calendar from day 15, Europe/Berlin, must be": {month, nil},
		"Unit is 9 and its calendar no calendar, must be":                {uncut, nil},
		"Algorithm is sliding_window and Multiplier 0, must be":          {sliding, nil},
		"Algorithm is fixed_window and Multiplier 2, must be": {
			ratelimit.Limit{Requests: 1, Unit: ratelimit.CalendarMonth, Multiplier: 2}, nil,
		},
		"Ceiling is 1, must be 0":                     {ceiled, nil},
		"mode is approx, must be leasing":             {minute, []ratelimit.Coordination{approx}},
		"max_nodes is 0, must be between 1 and 10000": {minute, make([]ratelimit.Coordination, 1)},
		"2 coordinations, must have at most one":      {minute, []ratelimit.Coordination{approx, approx}},
	} {
		if _, err := limit.NewRule("r", of.limit, of.sharing...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestWrongQuestions(t *testing.T) {
	l := opened(t, nil, "")
	key := yearly(t, 5).Key("k")
	if _, err := l.Take(context.Background(), limit.Key{}, 1); !errors.Is(err, limit.ErrNoRule) {
		t.Error(err)
	}
	for _, n := range []int64{0, -1} {
		if _, err := l.Take(context.Background(), key, n); !errors.Is(err, limit.ErrCost) {
			t.Error(n, err)
		}
	}
	_, _ = l.Take(context.Background(), key, 3)
	if d, err := l.Refund(context.Background(), key, 2); err != nil || d.Remaining != 4 {
		t.Error(d, err)
	}
	if d, err := l.Peek(context.Background(), key); err != nil || d.Remaining != 4 || !d.Allowed {
		t.Error(d, err)
	}
}

// A decision of a lone program, and one from a lease, allocates nothing.
func TestTakeDoesNotAllocate(t *testing.T) {
	for name, server := range map[string]*redistest.Server{"alone": nil, "with Redis": redistest.Start(t)} {
		l := opened(t, server, "")
		key := yearly(t, 1_000_000_000).Key("k")
		ctx := context.Background()
		for range 1000 {
			_, _ = l.Take(ctx, key, 1)
		}
		if n := testing.AllocsPerRun(100, func() { _, _ = l.Take(ctx, key, 1) }); n >= 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// The first calls on an empty Redis pass. A refused call says when to come again.
func TestFirstCallsOnAnEmptyRedis(t *testing.T) {
	l := opened(t, redistest.Start(t), "")
	key := yearly(t, 5).Key("k")
	for i := range 7 {
		d, err := l.Take(t.Context(), key, 1)
		if err != nil || d.Allowed != (i < 5) || d.WithoutRedis || (d.RetryAfter() > 0) == d.Allowed {
			t.Errorf("call %d of 5: %+v %v", i, d, err)
		}
	}
}

// A program whose Redis is away starts all the same, and its policy decides.
func TestStartWithoutRedis(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	l, err := limit.New(ctx, limit.Options{Redis: client})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	rule, err := limit.NewRule("local", ratelimit.Limit{Requests: 100, Unit: ratelimit.Year})
	if err != nil {
		t.Fatal(err)
	}
	admitted := 0
	for range 30 {
		if d, err := l.Take(t.Context(), rule.Key("k"), 1); err != nil || !d.WithoutRedis {
			t.Errorf("%+v %v", d, err)
		} else if d.Allowed {
			admitted++
		}
	}
	if admitted != 10 {
		t.Errorf("%d of a tenth of 100 were admitted", admitted)
	}
}
