package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// llmClients are clients of a language model in the demo, each with one request at a time.
const llmClients = 24

// llmAsker plays one request of a team to a language model, through what stands in for Envoy with the shipped
// configuration. Its cost has a heavy tail, and the longer it is the longer it takes. The steps are those of Envoy: an
// estimate is held at the beginning, and settled with the cost at the end. A refused or failed request is settled, too,
// so that its hold ends.
func llmAsker(node func() rls.RateLimitServiceClient) func(ctx context.Context, team string) (bool, error) {
	l := &envoy.LLM{Domain: "edge", Timeout: time.Second, Service: node}
	return func(ctx context.Context, team string) (bool, error) {
		r := &envoy.Request{Team: team}
		// A refusal is an answer, and an error is none.
		switch err := l.Begin(ctx, r); {
		case errors.Is(err, envoy.ErrOver):
			return false, l.End(r, nil)
		case err != nil:
			return false, errors.Join(fmt.Errorf("a request for tokens has no answer: %w", err), l.End(r, nil))
		}
		// A Pareto distribution with exponent 1.5: at least 200 tokens, 600 on average before the cut, at most 4000. A
		// token takes a millisecond.
		cost := min(4000, 200/math.Pow(1-rand.Float64(), 1/1.5))
		select {
		case <-time.After(time.Duration(cost) * time.Millisecond):
			return true, l.End(r, wrapperspb.UInt64(uint64(cost)))
		case <-ctx.Done():
			return true, l.End(r, nil)
		}
	}
}

// llmClient asks one request after the other until ctx is done. It pauses after a refusal. Three teams share the
// clients, so that each limit has several callers.
func llmClient(ctx context.Context, ask func(context.Context, string) (bool, error), client int, count func(ok bool, err error)) {
	for team := fmt.Sprint("team-", client%3); ctx.Err() == nil; {
		ok, err := ask(ctx, team)
		count(ok, err)
		if ok {
			continue
		}
		upkeep.Sleep(ctx, time.Second)
	}
}
