package store

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// ClaimCost is the cost of a claim on a real Redis.
type ClaimCost struct {
	Holders  int     `json:"holders" col:"holders of a key"`      // of each key
	Pipeline int     `json:"pipeline" col:"claims in a pipeline"` // claims that travel together
	CPU      float64 `json:"redis_us" col:"us|%.1f"`              // processor time of Redis for a claim, in microseconds
}

// claimCosts measures claims by the number of a key's holders, in pipelines of 100,
// and by the length of pipelines, with three holders.
func claimCosts(ctx context.Context) (costs []ClaimCost, err error) {
	for _, c := range []ClaimCost{
		{Holders: 1, Pipeline: 100},
		{Holders: 3, Pipeline: 100},
		{Holders: 10, Pipeline: 100},
		{Holders: 100, Pipeline: 100},
		{Holders: 1000, Pipeline: 100},
		{Holders: 3, Pipeline: 20},
		{Holders: 3, Pipeline: 5},
		{Holders: 3, Pipeline: 2},
		{Holders: 3, Pipeline: 1},
	} {
		if c.CPU, err = claimCost(ctx, c.Holders, c.Pipeline); err != nil {
			return nil, err
		}
		costs = append(costs, c)
	}
	return costs, nil
}

// claimKeys are the keys that claims are for, and claimCount how many are measured.
const claimKeys, claimCount = 100, 20_000

func claimCost(ctx context.Context, holders, pipeline int) (float64, error) {
	r, err := process.OpenRedis("")
	if err != nil {
		return 0, err
	}
	defer r.Close()
	client := redis.NewClient(&redis.Options{Addr: r.Addr, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	ledger, err := account.NewRedis(client, "", nil)
	if err != nil {
		return 0, err
	}
	claims, grants := make([]account.Claim, claimKeys), make([]account.Grant, claimKeys)
	settle := func(pipeline int) error {
		for i := 0; i < claimKeys; i += pipeline {
			if _, _, err := ledger.Settle(ctx, claims[i:i+pipeline], grants[i:i+pipeline]); err != nil {
				return fmt.Errorf("claims: %w", err)
			}
		}
		for i := range grants {
			if grants[i].Err != nil {
				return fmt.Errorf("a claim: %w", grants[i].Err)
			}
		}
		return nil
	}
	limit := ratelimit.Limit{Unit: ratelimit.Day, Multiplier: 1, Requests: 1_000_000}
	window := limit.WindowAt(ratelimit.LedgerTime(time.Now().UnixMicro()))
	for h := range holders {
		for i := range claims {
			claims[i] = account.Claim{
				Key: fmt.Sprint("minute|edge|user=", i), Window: window, Limit: limit, Seq: 1, Need: 1, Want: 2, Share: 2,
				Holder: ratelimit.Holder(1)<<60 + ratelimit.Holder(h)<<32,
			}
		}
		if err := settle(claimKeys); err != nil {
			return 0, err
		}
	}
	before := r.Used().CPU
	for range claimCount / claimKeys {
		for i := range claims {
			c, g := &claims[i], &grants[i]
			c.Seq++
			c.Taken, c.Spent = g.Total, g.Total
		}
		if err := settle(pipeline); err != nil {
			return 0, err
		}
	}
	return micros(r.Used().CPU-before, claimCount), nil
}
