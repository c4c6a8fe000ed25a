package rlqs

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// purse is a limiter with one budget, which it never fills again. Its window ends at ends, and has a number.
type purse struct {
	left   tokens
	ends   instant
	window ratelimit.Window
	asks   int
	most   int // in a call
}

func (p *purse) Decide(_ context.Context, now instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	p.asks, p.most = p.asks+len(asks), max(p.most, len(asks))
	for i, a := range asks {
		verdicts[i] = ratelimit.Verdict{Remaining: max(0, p.left), ResetAfter: p.ends.Sub(now), Window: p.window}
		switch {
		case p.left < 0: // it is in debt, for an hour
			verdicts[i].OverLimit, verdicts[i].ResetAfter = true, time.Hour
		case a.Kind != ratelimit.Spend:
		case a.Cost > p.left:
			verdicts[i].OverLimit = true
		default:
			p.left -= a.Cost
			verdicts[i].Charged, verdicts[i].Remaining = a.Cost, p.left
		}
	}
}

func (p *purse) Undo(_ instant, _ []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for _, v := range verdicts {
		p.left += v.Charged
	}
}

const (
	start   = instant(time.Hour)
	oneRule = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: minute, requests_per_unit: 600}\n"
)

func rulesOf(t testing.TB, text string) *config.Rules {
	t.Helper()
	rules, _, problems := config.Parse([]config.Text{{Name: "rules", Data: []byte(text)}},
		config.Options{Coordination: ratelimit.DefaultCoordination()})
	if problems != nil {
		t.Fatal(problems)
	}
	return rules
}

// newNode is a node whose rules may be replaced.
func newNode(limiter ratelimit.Limiter, rules **config.Rules) *Node {
	return NewNode(Source{
		Rules: func() *config.Rules { return *rules }, Limiter: limiter,
		Wall: func() time.Time { return time.Unix(0, 0) },
	}, Options{Streams: 1, Buckets: 3, BucketBytes: 64, Bytes: 10_000, Messages: 100})
}

// newSession is a session whose budget has 600 tokens, in a window that ends after a minute.
func newSession(rules **config.Rules) (*Session, *Node, *purse) {
	p := &purse{left: 600, ends: start.Add(time.Minute), window: 1}
	n := newNode(p, rules)
	return n.NewSession(), n, p
}

// crowd is a node with a limiter that serves, and what each of its streams reports.
func crowd(tb testing.TB, buckets int) (*Node, []byte) {
	tb.Helper()
	rules := rulesOf(tb, strings.Replace(oneRule, "600", "999999", 1))
	n := newNode(local.New(1000, start, time.Unix(1_800_000_000, 0)), &rules)
	n.options = DefaultOptions()
	message := &rlqs.RateLimitQuotaUsageReports{Domain: "d"}
	for k := range buckets {
		of := usageOf(20, 0, "k", fmt.Sprint(k)).BucketQuotaUsages
		message.BucketQuotaUsages = append(message.BucketQuotaUsages, of...)
	}
	return n, wired(message)
}

// usageOf is a message with one report. The first one of a bucket is sent at once: it denied one request.
func usageOf(allowed, denied uint64, id ...string) *rlqs.RateLimitQuotaUsageReports {
	of := map[string]string{}
	for i := 0; i < len(id); i += 2 {
		of[id[i]] = id[i+1]
	}
	elapsed := 5 * time.Second
	if allowed == 0 && denied == 1 {
		elapsed = 0
	}
	return &rlqs.RateLimitQuotaUsageReports{
		Domain: "d", BucketQuotaUsages: []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{{
			BucketId: &rlqs.BucketId{Bucket: of}, NumRequestsAllowed: allowed, NumRequestsDenied: denied,
			TimeElapsed: durationpb.New(elapsed),
		}},
	}
}

// reports has a session handle a message, and returns its answer.
func reports(t *testing.T, s *Session, at instant, m *rlqs.RateLimitQuotaUsageReports) (answer []byte) {
	t.Helper()
	if err := s.Reports(t.Context(), at, wired(m)); err != nil {
		t.Fatal(err)
	}
	return s.Answer(at)
}

// wired is a message as it comes.
func wired(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// say writes an answer, as the protobuf library reads it, and how many tokens it grants.
func say(answer []byte) (said string, granted tokens) {
	var m rlqs.RateLimitQuotaResponse
	if err := proto.Unmarshal(answer, &m); err != nil {
		panic(err)
	}
	var parts []string
	for _, a := range m.GetBucketAction() {
		x := a.GetQuotaAssignmentAction()
		ttl := x.GetAssignmentTimeToLive().AsDuration()
		switch s := x.GetRateLimitStrategy().GetStrategy().(type) {
		case *typev3.RateLimitStrategy_BlanketRule_:
			parts = append(parts, fmt.Sprint(s.BlanketRule, " ", ttl))
		case *typev3.RateLimitStrategy_TokenBucket:
			parts = append(parts, fmt.Sprint("bucket ", ttl, " of ", s.TokenBucket.GetMaxTokens()))
			granted += tokens(s.TokenBucket.GetMaxTokens())
		default:
			parts = append(parts, "abandon")
		}
	}
	return strings.Join(parts, ", "), granted
}
