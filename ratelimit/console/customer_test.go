package console

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// The sentence has the usage, when the next request passes, and whether retries extend that. There is none where that
// is unknown.
func TestSentenceForACustomer(t *testing.T) {
	minute := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 90}
	begins := time.Unix(1_800_000_000, 0)
	window := minute.WindowAt(ratelimit.LedgerTime(begins.UnixMicro()))
	bucket := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 90, Burst: 90}
	used := func(free, charged ratelimit.Tokens) *ratelimit.Look {
		return &ratelimit.Look{Ledger: &ratelimit.AccountLook{Window: window, Limit: 90, Free: free, Charged: charged}}
	}
	leased := used(0, 90)
	leased.Lease = &ratelimit.LeaseLook{Unspent: 7, Expires: time.Second}
	for _, x := range []struct {
		limit  ratelimit.Limit
		refund bool
		from   string
		look   *ratelimit.Look
		resets time.Duration
		want   string
	}{
		{
			minute, false, "override", used(-204, 294), 0,
			"bob is over 90 per minute (override): 90 admitted, 204 refused. " +
				"The next request passes in 54s; retries do not extend this.",
		},
		{
			minute, false, "rule", used(0, 90), 3 * time.Second,
			"bob is over 90 per minute: 90 admitted. The next request passes in 3s; " +
				"retries do not extend this.",
		},
		{minute, false, "rule", used(12, 78), 0, "bob has 12 left of 90 per minute."},
		{minute, false, "rule", leased, 0, "bob has 7 left of 90 per minute."},
		{
			bucket, false, "rule", used(-3, 93), 2 * time.Second,
			"bob is over 90 per minute, bucket of 90: all is used, and 3 more were charged. " +
				"The next request passes in 2s; each retry before is charged, and extends this.",
		},
		{
			bucket, true, "rule", used(0, 90), 100 * time.Millisecond,
			"bob is over 90 per minute, bucket of 90: 90 admitted. The next request passes in 1s; " +
				"retries do not extend this.",
		},
		{bucket, true, "rule", used(0, 90), 0, "bob is over 90 per minute, bucket of 90: 90 admitted."},
		{
			ratelimit.AtOnce(4, time.Minute), true, "rule", used(0, 4), 0,
			"bob is over 4 at once, each for 1m at most: 4 in flight.",
		},
		{minute, false, "rule", &ratelimit.Look{Owner: "b:1", Ledger: used(0, 90).Ledger}, 0, ""},
		{minute, false, "rule", &ratelimit.Look{LedgerError: "timeout"}, 0, ""},
	} {
		rule := &ratelimit.Rule{Limit: x.limit, Coordination: ratelimit.DefaultCoordination()}
		if x.refund {
			rule.Coordination.OnDeny = ratelimit.DenyRefunds
		}
		e := Explanation{Limit: x.limit.String(), LimitFrom: x.from, Look: x.look, WholeAgain: x.resets}
		entries := []config.Entry{{Key: "tier", Value: "gold"}, {Key: "user", Value: "bob"}}
		if got := e.sentence(rule, entries, begins.Add(6*time.Second)); got != x.want {
			t.Errorf("%q,\nmust be %q", got, x.want)
		}
	}
}
