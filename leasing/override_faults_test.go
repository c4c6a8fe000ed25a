package leasing

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A limit of 0 has no share for each node in an outage. A banned key does not pass, nor one without an override,
// under a rule that admits only keys with one.
func TestOutageAdmitsNoBannedKey(t *testing.T) {
	for name, limit := range map[string]ratelimit.Limit{
		"banned, sliding": {Unit: ratelimit.Year, Requests: 30, Algorithm: ratelimit.SlidingWindow},
		"banned, bucket":  {Unit: ratelimit.Hour, Requests: 30, Burst: 30, Algorithm: ratelimit.TokenBucket},
		"never invited":   {Unit: ratelimit.Year},
	} {
		t.Run(name, func(t *testing.T) {
			c := overridable(t, limit)
			c.rule.Coordination.OnStoreFailure = ratelimit.FailLocal
			c.rule.Coordination.StoreDeadline = 200 * time.Millisecond
			key := "another" // which is new to all nodes
			if limit.Requests > 0 {
				key = "k"
				c.override(0, key, &ratelimit.Override{})
				for node := range c.nodes {
					if v, _ := c.attempt(node, key, 1); !v.OverLimit && v.Source != ratelimit.FromFallback {
						t.Fatalf("node %d admits it while the store answers: %+v", node, v)
					}
				}
			}
			c.store.Kill()
			for node := range c.nodes {
				for range 20 {
					if v, _ := c.attempt(node, key, 1); !v.OverLimit {
						t.Errorf("the limit in force is 0, and node %d admits in an outage: %+v", node, v)
						break
					}
				}
			}
		})
	}
}

// Removing an override that is not there keeps no record at a node alone.
func TestRemovalsOfNothingTakeNoRoom(t *testing.T) {
	l, ctx := NewLocal(100, 1, time.Unix(1_800_000_000, 0)), context.Background()
	r := &ratelimit.Rule{Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Day, Requests: 3, Ceiling: 50}}
	for i := range 100 {
		a := ask{Rule: r, Key: []byte{byte(i)}}
		if _, err := l.SetOverride(ctx, 1, &a, nil, ratelimit.Match{Any: true}); err != nil {
			t.Fatal(err)
		}
	}
	all, _ := l.Overrides(ctx, 1, "", "", 100)
	_, err := l.SetOverride(ctx, 1, &ask{Rule: r, Key: []byte("k")}, &ratelimit.Override{}, ratelimit.Match{Any: true})
	if err != nil {
		t.Errorf("there are %d overrides of at most 100, and a ban cannot be set: %v", len(all), err)
	}
}

// overriding is a ledger that takes no override while it is down.
type overriding struct {
	account.Overrider
	down bool
	told int
}

func (o *overriding) SetOverride(context.Context, *account.OverrideChange) (ratelimit.Override, error) {
	if o.down {
		return ratelimit.Override{}, errBreaker
	}
	o.told++
	return ratelimit.Override{}, nil
}

// A ledger that loses an override, and then does not answer for an hour, gets it back.
func TestLostOverrideOutlivesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFleet(account.NewMemory(nil), 1, 10, ratelimit.MonotonicClock(), time.Now())
		ledger, dead := &overriding{down: true}, &f.lanes[0]
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range breakAfter {
			dead.breaker.Failure(f.clock(), 0)
		}
		go f.restateOverrides(ctx, ledger)
		f.lost <- account.OverrideChange{Key: "k"}
		time.Sleep(time.Hour)
		dead.mu.Lock()
		dead.breaker.Success()
		ledger.down = false
		dead.mu.Unlock()
		time.Sleep(2 * SweepEvery)
		if ledger.told != 1 {
			t.Errorf("it is told %d times", ledger.told)
		}
	})
}
