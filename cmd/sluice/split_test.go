package main

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
)

// outageRule admits one token of each unit at a node while nothing answers: a tenth of ten.
func outageRule(unit ratelimit.Unit) *ratelimit.Rule {
	r := &ratelimit.Rule{
		Domain: "d", Path: "k", Limit: ratelimit.Limit{Unit: unit, Requests: 10},
		Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{},
	}
	r.Coordination.OnStoreFailure = ratelimit.FailLocal
	return r
}

// The ring's own budgets for outages follow the wall clock, as the base's do.
func TestClockOfANodeInARing(t *testing.T) {
	now, wall := ratelimit.Instant(time.Hour), time.Unix(1_800_000_000, 0)
	clock := func() ratelimit.Instant { return now }
	base := local.New(100, now, wall)
	r := newByMode(base, routing.New(base, routing.Options{Addr: "a:1"}, clock, wall), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // there is no wait for a ring without this node
	rule := outageRule(ratelimit.Minute)
	rule.Coordination.Mode = ratelimit.Routing
	for _, x := range []struct {
		ahead time.Duration
		over  bool
	}{{0, false}, {0, true}, {time.Minute, false}, {time.Minute, true}} {
		r.SyncClock(now, wall.Add(x.ahead))
		v := make([]ratelimit.Verdict, 1)
		r.Decide(ctx, now, []ratelimit.Ask{{Rule: rule, Key: []byte("k"), Cost: 1}}, v)
		if v[0].OverLimit != x.over || v[0].Reason != ratelimit.FallbackPeer {
			t.Errorf("%v later: %+v, want over limit %v", x.ahead, v[0], x.over)
		}
	}
}
