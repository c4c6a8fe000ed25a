package account

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var (
	costRounds = flag.Int("cost-rounds", 30, "in how many rounds TestOverridesCostLittle measures")
	costStored = flag.Int("cost-overrides", 10_000, "how many overrides TestOverridesAreSmall stores")
)

// cpuOf is the processor time of a Redis until now, in seconds.
func cpuOf(t *testing.T, c *redis.Client) (sum float64) {
	t.Helper()
	for line := range strings.Lines(c.Info(t.Context(), "cpu").Val()) {
		for _, name := range []string{"used_cpu_sys:", "used_cpu_user:"} {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
				n, err := strconv.ParseFloat(v, 64)
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
		}
	}
	return sum
}

// A message whose limit may be overridden, and is not, costs Redis little more processor time than one whose limit may
// not be. Both are sent in turn, so that a busy machine slows both.
//
//	go test -v -run TestOverridesCostLittle -cost-rounds 300 ./leasing/account
func TestOverridesCostLittle(t *testing.T) {
	client := redistest.Start(t).Client()
	t.Cleanup(func() { client.Close() })
	l, err := NewRedis(client, "t:", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, seq := context.Background(), uint64(0)
	_, now, err := l.Settle(ctx, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	const messages, keys = 1024, 10_000
	trips := func(kind Kind, size int, ceiling tokens) float64 {
		limit := ratelimit.Limit{Unit: ratelimit.Year, Requests: ratelimit.MaxLimit / 2, Ceiling: ceiling}
		claims, grants := make([]Claim, size), make([]Grant, size)
		began := cpuOf(t, client)
		for range messages / size {
			for i := range claims {
				seq++
				claims[i] = Claim{
					Kind: kind, Key: fmt.Sprint("year|edge|api_key=", seq%keys), Window: limit.WindowAt(now), Limit: limit,
					Holder: 0xa00000001, Seq: seq, Need: 1, Want: 1, Share: 1,
				}
			}
			if _, _, err := l.Settle(ctx, claims, grants); err != nil || grants[0].Err != nil {
				t.Fatal(err, grants[0].Err)
			}
		}
		return (cpuOf(t, client) - began) / messages * 1e6
	}
	for _, c := range []struct {
		name string
		kind Kind
		size int
	}{{"claims, 32 a trip", States, 32}, {"claims, one a trip", States, 1}, {"draws, 32 a trip", Draws, 32}, {"draws, one a trip", Draws, 1}} {
		var plain, read []float64
		for round := range *costRounds {
			if rand.IntN(2) == 0 || round == 0 { // either may come first
				plain = append(plain, trips(c.kind, c.size, 0))
				read = append(read, trips(c.kind, c.size, ratelimit.MaxLimit))
			} else {
				read = append(read, trips(c.kind, c.size, ratelimit.MaxLimit))
				plain = append(plain, trips(c.kind, c.size, 0))
			}
		}
		slices.Sort(plain)
		slices.Sort(read)
		a, b := plain[len(plain)/2], read[len(read)/2]
		t.Logf("%s: %.2f us of Redis' processor without overrides, %.2f with none set: %+.1f %%", c.name, a, b, 100*(b/a-1))
		if b > 1.5*a {
			t.Errorf("%s: %.2f us are more than half as much again as %.2f", c.name, b, a)
		}
	}
}

// An override takes little of Redis' memory, its name in the list included.
//
//	go test -v -run TestOverridesAreSmall -cost-overrides 1000000 ./leasing/account
func TestOverridesAreSmall(t *testing.T) {
	client := redistest.Start(t).Client()
	t.Cleanup(func() { client.Close() })
	l, err := NewRedis(client, "t:", nil)
	if err != nil {
		t.Fatal(err)
	}
	used := func() (n int) {
		for line := range strings.Lines(client.Info(t.Context(), "memory").Val()) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
				n, _ = strconv.Atoi(v)
			}
		}
		return n
	}
	limit := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10, Ceiling: ratelimit.MaxLimit}
	work, done, before := make(chan int), make(chan error), used()
	const writers = 16
	for range writers {
		go func() {
			var err error
			for i := range work {
				_, e := l.SetOverride(t.Context(), &OverrideChange{
					Key: fmt.Sprint("minute|edge|api_key=customer-", i), Limit: limit, Match: ratelimit.Match{Any: true},
					Override: &ratelimit.Override{Requests: tokens(i), By: "ann@example.com", Reason: "contract 12345"},
				})
				err = errors.Join(err, e)
			}
			done <- err
		}()
	}
	for i := range *costStored {
		work <- i
	}
	close(work)
	for range writers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	each := (used() - before) / *costStored
	t.Logf("%d overrides take %d bytes each of Redis' memory", *costStored, each)
	if each > 600 {
		t.Errorf("an override takes %d bytes", each)
	}
}
