package rls

import (
	"context"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// Answers, headers and statistics are of the limit that is in force for the key.
func TestAnswersSayTheLimitInForce(t *testing.T) {
	f := newFixture(t, Options{Headers: HeaderNames{Limit: "L", Remaining: "R", Reset: "T"}}, `domain: d
descriptors:
- {key: k, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: invited, max_override: 100, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: banned, rate_limit: {unit: hour, requests_per_unit: 0}}
`)
	own := f.limiter.(ratelimit.Overrider)
	for _, key := range []string{"k", "invited"} {
		rule, name := f.rules().Domain("d").Match([]config.Entry{{Key: key, Value: "a"}}, nil)
		a := ratelimit.Ask{Rule: rule, Key: name, Kind: ratelimit.Peek}
		_, err := own.SetOverride(context.Background(), f.now, &a, &ratelimit.Override{Requests: 5},
			ratelimit.Match{Any: true})
		if err != nil {
			t.Fatal(err)
		}
	}
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
	if got := short(f.must(rlsRequest(desc("invited=b")))); !strings.Contains(got, "OVER_LIMIT") {
		t.Errorf("a key without an override under a limit of 0 is answered %s", got)
	}
}
