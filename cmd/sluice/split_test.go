package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
)

// gone is a store that does not answer.
type gone struct{}

func (gone) Settle(context.Context, []account.Claim, []account.Grant) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	return ratelimit.Epoch{}, 0, errors.New("gone")
}

// outageRule admits one token of each unit at a node while nothing answers: a tenth of ten.
func outageRule(unit ratelimit.Unit) *ratelimit.Rule {
	r := &ratelimit.Rule{
		Domain: "d", Path: "k", Limit: ratelimit.Limit{Unit: unit, Requests: 10},
		Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{},
	}
	r.Coordination.OnStoreFailure = ratelimit.FailLocal
	return r
}

// With two stores, each for its units, a node has one set of budgets for outages. Admissions of either limiter
// without its store are not repeated for an outage of a key's owner.
func TestOneBudgetForOutagesOfTwoStores(t *testing.T) {
	now, wall := ratelimit.Instant(time.Hour), time.Unix(1_800_000_000, 0)
	clock := func() ratelimit.Instant { return now }
	b := newByUnit(leasing.NewFleet(gone{}, 7, 100, clock, wall), leasing.NewFleet(gone{}, 8, 100, clock, wall))
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // there is no wait for the store
	for _, unit := range []ratelimit.Unit{ratelimit.Second, ratelimit.Minute} {
		rule, v := outageRule(unit), make([]ratelimit.Verdict, 1)
		asks := []ratelimit.Ask{{Rule: rule, Key: []byte(unit.String()), Cost: 1}}
		b.Decide(ctx, now, asks, v)
		if v[0].OverLimit || v[0].Source != ratelimit.FromFallback {
			t.Fatalf("a limit of a %v is decided %+v", unit, v[0])
		}
		asks[0].Rule = rule.LocalShare(0)
		if b.Alone().Decide(ctx, now, asks, v); !v[0].OverLimit {
			t.Errorf("of a limit of a %v, the budget is admitted once more", unit)
		}
	}
}

// The ring's own budgets for outages follow the wall clock, as the base's do.
func TestClockOfANodeInARing(t *testing.T) {
	now, wall := ratelimit.Instant(time.Hour), time.Unix(1_800_000_000, 0)
	clock := func() ratelimit.Instant { return now }
	base := leasing.NewLocal(100, now, wall)
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
