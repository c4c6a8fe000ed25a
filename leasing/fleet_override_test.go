package leasing

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// overridable is three nodes on one Redis under a rule whose overrides have a ceiling.
func overridable(t *testing.T, limit ratelimit.Limit) *onRedis {
	limit.Ceiling = 100_000
	c := newOnRedis(t, 3, limit)
	c.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	c.ready()
	return c
}

func (c *onRedis) override(node int, key string, o *ratelimit.Override) ratelimit.Override {
	c.Helper()
	is, err := c.nodes[node].SetOverride(context.Background(), c.clock(), &ask{Rule: c.rule, Key: []byte(key)}, o,
		ratelimit.Match{Any: true})
	if err != nil {
		c.Fatal(err)
	}
	return is
}

// within has every node be asked until it answers so, and says how long that took. It fails after a while only: of a busy
// machine nothing is to be said here.
func (c *onRedis) within(key string, over bool) (longest time.Duration) {
	c.Helper()
	began := c.clock()
	for node := range c.nodes {
		for {
			v, _ := c.attempt(node, key, 1)
			took := c.clock().Sub(began)
			if longest = max(longest, took); v.OverLimit == over {
				break
			}
			if took > 10*time.Second {
				c.Fatalf("node %d says after %v that %q is over: %v", node, took, key, v.OverLimit)
			}
		}
	}
	return longest
}

// drain asks all nodes in turn until each refuses, and says how many were admitted.
func (c *onRedis) drain(key string) (n int) {
	c.Helper()
	for refused := 0; refused < 3*len(c.nodes); {
		if v, _ := c.attempt((n+refused)%len(c.nodes), key, 1); v.OverLimit {
			refused++
		} else {
			n, refused = n+1, 0
		}
		if n > 10_000 {
			c.Fatal("it is without a limit")
		}
	}
	return n
}

// Overrides are in force at all nodes within a second, also where a key is refused without asking or tokens are in hand.
// What was spent counts on, whatever is set.
func TestOverrides(t *testing.T) {
	for name, limit := range map[string]ratelimit.Limit{
		"fixed":   {Unit: ratelimit.Year, Requests: 30},
		"sliding": {Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Year, Requests: 30},
	} {
		t.Run(name, func(t *testing.T) {
			c := overridable(t, limit)
			if n := c.drain("k"); n != 30 {
				t.Fatalf("%d are admitted of 30", n)
			}
			set := func(node int, o *ratelimit.Override, over bool) {
				t.Helper()
				c.override(node, "k", o)
				t.Log(c.within("k", over).Round(time.Microsecond))
			}
			set(0, &ratelimit.Override{Requests: 100}, false) // three more
			if n := c.drain("k"); n != 67 {
				t.Errorf("raised from 30 to 100, %d are admitted beside 33", n)
			}
			set(1, &ratelimit.Override{Requests: 200}, false)
			set(2, &ratelimit.Override{Requests: 110}, false) // 106 now, and in hand of a larger one
			if n := c.drain("k"); n != 4 {
				t.Errorf("lowered to 110, %d are admitted beside 106", n)
			}
			set(0, &ratelimit.Override{Unlimited: true}, false)
			set(0, &ratelimit.Override{}, true)
			if n := c.drain("k"); n != 0 {
				t.Errorf("%d are admitted of a key that is banned", n)
			}
			set(1, &ratelimit.Override{Requests: ratelimit.MaxLimit}, false)
			ends := ratelimit.LedgerTime(time.Now().Add(300 * time.Millisecond).UnixMicro())
			set(1, &ratelimit.Override{Requests: 1000, Expires: ends}, false)
			c.until("the override is not over", func() bool { return time.Now().UnixMicro() >= int64(ends) })
			t.Log(c.within("k", true))
			set(2, &ratelimit.Override{Requests: 500}, false)
			set(2, nil, true)
			is, ok, err := c.nodes[0].Override(context.Background(), c.clock(), &ask{Rule: c.rule, Key: []byte("k")})
			if ok || err != nil {
				t.Errorf("after it was removed it is %+v, %v", is, err)
			}
		})
	}
}

// A bucket that is lowered is cut, and one that is raised fills to its new burst.
func TestOverrideOfABucket(t *testing.T) {
	c := overridable(t, ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Hour, Requests: 100, Burst: 50})
	if n := c.drain("k"); n < 50 || n > 51 {
		t.Errorf("%d are admitted of a burst of 50", n)
	}
	c.override(0, "k", &ratelimit.Override{Requests: 36_000}) // ten a second
	c.within("k", false)
	c.override(0, "new", &ratelimit.Override{Requests: 10})
	if n := c.drain("new"); n != 5 {
		t.Errorf("%d are admitted of a burst of 5", n)
	}
	c.override(1, "full", nil)
	c.within("full", false)
	c.override(1, "full", &ratelimit.Override{})
	c.within("full", true)
}

// A Redis that has lost its data is told the overrides that nodes know, and not those that were removed or set anew.
func TestOverridesAreToldAgain(t *testing.T) {
	c := overridable(t, ratelimit.Limit{Unit: ratelimit.Year, Requests: 1000})
	ctx, client := context.Background(), c.store.Client()
	defer client.Close()
	for _, key := range []string{"lost", "removed", "banned"} {
		c.attempt(0, key, 1)
		c.override(0, key, &ratelimit.Override{Requests: 2})
	}
	c.override(0, "banned", &ratelimit.Override{})
	for _, key := range []string{"lost", "removed", "banned"} {
		c.drain(key)
	}
	old := c.override(0, "lost", &ratelimit.Override{Requests: 1, Reason: "because"})
	c.override(0, "removed", nil)
	c.within("lost", true)
	c.within("removed", false)
	if err := client.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	is := func(key string) (o ratelimit.Override) {
		o, _, _ = c.nodes[1].Override(ctx, c.clock(), &ask{Rule: c.rule, Key: []byte(key)})
		return o
	}
	c.until("the overrides are not there again", func() bool { return is("lost") == old && is("banned").Set != 0 })
	c.until("they are not in force again", func() bool {
		v, _ := c.attempt(2, "lost", 1)
		return v.OverLimit
	})
	if o := is("removed"); o.Set != 0 {
		t.Errorf("one that was removed is back: %+v", o)
	}
	listed, err := c.nodes[0].Overrides(ctx, c.clock(), "", "", 10)
	if err != nil || len(listed) != 2 {
		t.Errorf("listed are %v, %v", listed, err)
	}
}

var _ account.Overrider = (*account.Redis)(nil)
