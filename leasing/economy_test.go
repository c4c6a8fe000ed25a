package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The cost of ten seconds of a load on one key, at each node in turn: leases are renewed before they are used up, but
// neither often nor without need. The figures are at most those of today, and at least so many requests are admitted.
func TestCostOfLoads(t *testing.T) {
	const ms = time.Millisecond
	hours := func(n tokens) ratelimit.Limit {
		return ratelimit.Limit{Unit: ratelimit.Hour, Multiplier: 1, Requests: n}
	}
	twoSeconds := func(a ratelimit.Algorithm, n tokens) ratelimit.Limit {
		return ratelimit.Limit{Algorithm: a, Unit: ratelimit.Second, Multiplier: 2, Requests: n, Burst: n}
	}
	refund, eager := map[string]string{"on_deny": "refund"}, map[string]string{"reclaim": "eager"}
	small := map[string]string{"lease.size": "20"}
	for name, load := range map[string]struct {
		limit                   ratelimit.Limit
		fields                  map[string]string
		nodes                   int
		every                   time.Duration
		cost                    tokens
		waits, claims, admitted int // waits are of requests, for the ledger
	}{
		"steady":                  {hours(1e6), nil, 1, 5 * ms, 1, 1, 1, 2000},
		"rare":                    {hours(1e6), nil, 1, 700 * ms, 1, 1, 1, 15},
		"large costs":             {hours(1e6), nil, 2, 20 * ms, 100, 2, 2, 500},
		"last tokens":             {hours(1000), nil, 3, 5 * ms, 1, 14, 57, 1000},
		"refused":                 {hours(100), nil, 2, 2 * ms, 1, 26, 33, 100},
		"refused, not charged":    {hours(100), refund, 2, 2 * ms, 1, 25, 33, 100},
		"short windows":           {twoSeconds(ratelimit.FixedWindow, 1000), nil, 2, 4 * ms, 1, 8, 115, 2500},
		"short windows, used up":  {twoSeconds(ratelimit.FixedWindow, 100), nil, 2, 10 * ms, 1, 33, 284, 500},
		"sliding window":          {twoSeconds(ratelimit.SlidingWindow, 500), nil, 2, 5 * ms, 1, 14, 448, 2000},
		"sliding window, used up": {twoSeconds(ratelimit.SlidingWindow, 500), refund, 2, 3 * ms, 1, 2200, 2350, 2490},
		"bucket":                  {twoSeconds(ratelimit.TokenBucket, 200), nil, 2, 20 * ms, 1, 164, 252, 500},
		"bucket, used up":         {twoSeconds(ratelimit.TokenBucket, 200), refund, 2, 5 * ms, 1, 1231, 1315, 1196},
		"eager":                   {hours(1e6), eager, 2, 10 * ms, 1, 6, 20, 1000},
		"eager, last tokens":      {hours(500), eager, 2, 10 * ms, 1, 11, 57, 500},
		"small leases":            {hours(1e6), small, 1, 10 * ms, 1, 2, 83, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, load.nodes, 1000, 1, load.fields)
			s.rule.Limit, s.oneWay = load.limit, ms
			s.recalling()
			waits, admitted := 0, 0
			for end, i := s.now.Add(10*time.Second), 0; s.now < end; i++ {
				at := s.now
				if v := s.ask(i%load.nodes, "k", load.cost); !v.OverLimit {
					admitted++
				}
				waited := s.now.Sub(at)
				if waited > 0 {
					waits++
				}
				s.goOn(max(0, load.every-waited))
			}
			if waits > load.waits || s.claims > load.claims || admitted < load.admitted {
				t.Errorf("%d requests wait, %d claims, %d admitted; want at most %d and %d, and at least %d",
					waits, s.claims, admitted, load.waits, load.claims, load.admitted)
			}
		})
	}
}

// A node that is alone answers how much is left to the token, whatever it has leased, returned or lost in the meantime.
func TestRemainingAddsUp(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		s := newStage(t, 1, 1000, 200, nil)
		s.rule.Limit.Algorithm, s.rule.Limit.Burst = ratelimit.Algorithm(algorithm), 200
		s.rule.Limit.Unit = ratelimit.Year // nothing refills in the meantime
		left := tokens(200)
		for i, step := range []struct {
			kind ratelimit.Kind
			cost tokens
		}{
			{ratelimit.Spend, 3},
			{ratelimit.Spend, 1},
			{ratelimit.Refund, 2},
			{ratelimit.Spend, 40},
			{ratelimit.Charge, 30},
			{ratelimit.Spend, 1},
			{ratelimit.Refund, 20},
			{ratelimit.Spend, 100},
			{ratelimit.Peek, 0},
			{ratelimit.Spend, 1},
			{ratelimit.Release, 10},
			{ratelimit.Spend, 1},
			{ratelimit.Charge, 50},
			{ratelimit.Refund, 5},
			{ratelimit.Spend, 1},
		} {
			v := s.decide(0, ask{Rule: s.rule, Key: []byte("k"), Cost: step.cost, Kind: step.kind})
			switch step.kind {
			case ratelimit.Refund, ratelimit.Release:
				left += step.cost
			default:
				left -= step.cost
			}
			if v.Remaining != left || v.OverLimit {
				t.Errorf("%v, step %d: %d left, want %d", ratelimit.Algorithm(algorithm), i, v.Remaining, left)
			}
			s.goOn(300 * time.Millisecond)
		}
		v := s.decide(0, ask{Rule: s.rule, Key: []byte("k"), Cost: left + 7, Kind: ratelimit.Charge})
		if v.Charged != left || v.Debt != 7 || v.Remaining != 0 {
			t.Errorf("%v: %+v of a charge 7 above the rest", ratelimit.Algorithm(algorithm), v)
		}
	}
}
