package main

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// counting is a limiter that counts its calls, and fails those of a key.
type counting struct {
	calls, asks, undone atomic.Int64
	fails               string
}

func (c *counting) Decide(_ context.Context, _ ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	c.calls.Add(1)
	for i := range asks {
		if c.fails != "" && string(asks[i].Key) == c.fails {
			panic("it fails")
		}
		verdicts[i].Remaining = asks[i].Cost
	}
	c.asks.Add(int64(len(asks)))
}

func (c *counting) Undo(_ ratelimit.Instant, asks []ratelimit.Ask, _ []ratelimit.Verdict) {
	c.undone.Add(int64(len(asks)))
}

// Each limiter of several sees its own asks only, in one call, and their verdicts are in the order of the asks.
func TestSplit(t *testing.T) {
	all := []*counting{{}, {}}
	s := &split{
		of:  func(a *ratelimit.Ask) int { return int(a.Cost % 2) },
		all: []ratelimit.Limiter{all[0], all[1]},
	}
	asks := []ratelimit.Ask{{Cost: 1}, {Cost: 2}, {Cost: 3}, {Cost: 4}, {Cost: 7}}
	verdicts := make([]ratelimit.Verdict, len(asks))
	s.Decide(t.Context(), 0, asks, verdicts)
	for i := range asks {
		if verdicts[i].Remaining != asks[i].Cost {
			t.Errorf("verdict %d is %+v", i, verdicts[i])
		}
	}
	s.Decide(t.Context(), 0, asks[:1], verdicts)
	s.Decide(t.Context(), 0, nil, nil)
	s.Undo(0, asks, verdicts)
	for i, want := range [][3]int64{{1, 2, 2}, {2, 4, 3}} {
		c := all[i]
		if got := [3]int64{c.calls.Load(), c.asks.Load(), c.undone.Load()}; got != want {
			t.Errorf("limiter %d has %v calls, asks and undone, want %v", i, got, want)
		}
	}
	all[1].fails = "bad"
	asks[2].Key = []byte("bad")
	defer func() {
		if recover() == nil {
			t.Error("what fails in one limiter does not fail the request")
		}
	}()
	s.Decide(t.Context(), 0, asks, verdicts)
}
