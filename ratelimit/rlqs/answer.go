package rlqs

import (
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// mostActions is how many an answer has, about: what is beyond waits for the next.
const mostActions = 256

// never is the fill interval of a bucket that does not refill: a year, for one token.
const never = 31_536_000 * time.Second

type action = rlqs.RateLimitQuotaResponse_BucketAction

func assignment(id *rlqs.BucketId, s *typev3.RateLimitStrategy, ttl time.Duration) *action {
	return &action{BucketId: id, BucketAction: &rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
		QuotaAssignmentAction: &rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
			AssignmentTimeToLive: durationpb.New(ttl), RateLimitStrategy: s,
		},
	}}
}

// passes is what an Envoy lets pass that has no lease to count by.
type passes bool

const (
	nothing    passes = false
	everything passes = true
)

// blanket lets everything pass for a while, or nothing.
func blanket(id *rlqs.BucketId, what passes, ttl time.Duration) *action {
	rule := typev3.RateLimitStrategy_DENY_ALL
	if what == everything {
		rule = typev3.RateLimitStrategy_ALLOW_ALL
	}
	return assignment(id, &typev3.RateLimitStrategy{
		Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: rule},
	}, ttl)
}

// oneShot lets n requests pass, and no more. Envoy has no strategy of so many requests. A bucket
// that is as large, and takes a year for the next token, is one.
func oneShot(id *rlqs.BucketId, n tokens, ttl time.Duration) *action {
	return assignment(id, &typev3.RateLimitStrategy{
		Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
			MaxTokens: uint32(n), TokensPerFill: wrapperspb.UInt32(1), FillInterval: durationpb.New(never),
		}},
	}, ttl)
}

func abandon(id *rlqs.BucketId) *action {
	return &action{BucketId: id, BucketAction: &rlqs.RateLimitQuotaResponse_BucketAction_AbandonAction_{
		AbandonAction: &rlqs.RateLimitQuotaResponse_BucketAction_AbandonAction{},
	}}
}
