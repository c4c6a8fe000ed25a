package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/deploy"
)

// llmClients are clients of a language model in the demo, each with one request at a time.
const llmClients = 24

// llmAsker plays one request of a team to a language model, through what stands in for Envoy, with the shipped
// configuration. Its cost has a heavy tail, and the longer it is the longer it takes.
func llmAsker(nodes []rls.RateLimitServiceClient) (asker, error) {
	entries, err := envoy.ParseEntries(deploy.EnvoyLLM)
	if err != nil {
		return nil, err
	}
	f := &envoy.Filter{
		Domain: "edge", Entries: entries, Timeout: time.Second, FailureModeDeny: true,
		Service: func() rls.RateLimitServiceClient { return nodes[rand.IntN(len(nodes))] },
	}
	return func(ctx context.Context, key, value string) (bool, error) {
		s := &envoy.Stream{Request: http.Header{"X-" + key: {value}}, Metadata: map[string]*structpb.Struct{}}
		switch status := f.Begin(ctx, s); status {
		case http.StatusOK:
		case http.StatusTooManyRequests:
			return false, f.End(s)
		case 0:
			return false, ctx.Err()
		default:
			return false, errors.Join(fmt.Errorf("a request for tokens is answered with %d", status), f.End(s))
		}
		cost := min(4000, 200/math.Pow(1-rand.Float64(), 1/1.5))
		select {
		case <-time.After(time.Duration(cost) * time.Millisecond):
			s.Metadata["llm"] = &structpb.Struct{Fields: map[string]*structpb.Value{"tokens": structpb.NewNumberValue(math.Floor(cost))}}
		case <-ctx.Done():
		}
		return true, f.End(s)
	}, nil
}

// llmClient asks one request after the other until ctx is done. It pauses after a refusal.
func llmClient(ctx context.Context, ask asker, client int, count func(ok bool, err error)) {
	for team := fmt.Sprint("team-", client%3); ctx.Err() == nil; {
		ok, err := ask(ctx, "Team", team)
		count(ok, err)
		if ok {
			continue
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}
