package rls

import (
	"context"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// overriding decides by another limit than the rule's, as where a key has an override.
type overriding struct {
	ratelimit.Limiter
	by ratelimit.Override
}

func (l overriding) Decide(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask,
	verdicts []ratelimit.Verdict,
) {
	for i := range asks {
		inForce := *asks[i].Rule
		inForce.Limit = inForce.Limit.Under(&l.by)
		a := asks[i]
		a.Rule = &inForce
		l.Limiter.Decide(ctx, now, []ratelimit.Ask{a}, verdicts[i:i+1])
		verdicts[i].Rule = &inForce
	}
}

// Answers, headers and statistics are of the limit that is in force for the key.
func TestAnswersSayTheLimitInForce(t *testing.T) {
	f := newFixture(t, Options{Headers: HeaderNames{Limit: "L", Remaining: "R", Reset: "T"}}, `domain: d
descriptors:
- {key: k, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: invited, max_override: 100, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: banned, rate_limit: {unit: hour, requests_per_unit: 0}}
`)
	plain := f.limiter
	f.limiter = overriding{plain, ratelimit.Override{Requests: 5}}
	for i, left := range []uint32{4, 3, 2, 1, 0} {
		a := f.must(rlsRequest(desc("k=a")))
		st := a.Statuses[0]
		if st.CurrentLimit.RequestsPerUnit != 5 || st.LimitRemaining != left || a.OverallCode.String() != "OK" {
			t.Errorf("request %d of 5 is answered %v", i+1, a)
		}
		if got := headersOf(a); !strings.Contains(got, "L: 5") {
			t.Errorf("its headers are %s", got)
		}
	}
	if got := short(f.must(rlsRequest(desc("k=a")))); !strings.Contains(got, "OVER_LIMIT") {
		t.Errorf("the sixth of 5 is answered %s", got)
	}
	c := f.rules().All()[0].Counters
	if near := c.NearLimit.Load(); near != 1 || c.Denied.Load() != 1 {
		t.Errorf("of 5, %d are near the limit and %d were refused, must be 1 and 1", near, c.Denied.Load())
	}
	if got := short(f.must(rlsRequest(desc("invited=a")))); !strings.Contains(got, "OK") {
		t.Errorf("a key with an override under a limit of 0 is answered %s", got)
	}
	if got := short(f.must(rlsRequest(desc("banned=a")))); !strings.Contains(got, "OVER_LIMIT") {
		t.Errorf("a rule without max_override and a limit of 0 answers %s", got)
	}
	f.limiter = plain
	if got := short(f.must(rlsRequest(desc("invited=b")))); !strings.Contains(got, "OVER_LIMIT") {
		t.Errorf("a key without an override under a limit of 0 is answered %s", got)
	}
}
