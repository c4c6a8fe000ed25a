package rlqs

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// A key with an override gets leases of that limit's size over RLQS. Under a rule of 0 with max_override, others are
// denied, and so are buckets.
func TestInvitedKeysPassOverRLQS(t *testing.T) {
	for _, c := range []struct {
		algorithm   string
		limit, gets tokens // of the rule, and at least in 20 s, with an override
	}{
		{"fixed_window", 0, 1000},
		{"fixed_window", 6, 1000},
		{"sliding_window", 0, 1000},
		{"token_bucket", 0, 0},
		{"token_bucket", 6, 700},
	} {
		rules := rulesOf(t, fmt.Sprintf("domain: d\ndescriptors:\n- key: k\n  max_override: 10000\n  algorithm: %s"+
			"\n  rate_limit: {unit: minute, requests_per_unit: %d}\n", c.algorithm, c.limit))
		records, wall := overrides.NewTable(), func() time.Time { return time.Unix(1_800_000_000, 0) }
		at := func(ratelimit.Instant) ratelimit.LedgerTime { return ratelimit.LedgerTime(wall().UnixMicro()) }
		book := overrides.Book{Table: records, Keeper: &table.Alone{Table: records, Wall: wall}}
		own := overrides.NewLimiter(local.New(100, start, wall()), records, at)
		n := NewNode(Source{
			Rules: func() *config.Rules { return rules }, Limiter: own,
			Wall: func() time.Time { return time.Unix(1_800_000_000, 0) },
		}, Options{Streams: 1, Buckets: 3, BucketBytes: 64, Bytes: 10_000, Messages: 100})
		rule, key := rules.Domain("d").Match([]config.Entry{{Key: "k", Value: "invited"}}, nil)
		o := &overrides.Override{Override: ratelimit.Override{Requests: 6000}, Per: rule.Limit.Per()}
		if _, err := book.Set(t.Context(), key, o, table.Any); err != nil {
			t.Fatal(err)
		}
		s := n.NewSession()
		granted := map[string]tokens{}
		for at := instant(0); at < instant(20*time.Second); at += instant(5 * time.Second) {
			for _, who := range []string{"invited", "other"} {
				granted[who] += grantedIn(reports(t, s, start+at, usageOf(0, 500, "k", who)))
				s.Acked(t.Context(), start+at, s.sent)
			}
		}
		if of := granted["invited"]; of < c.gets || of > 1000*c.gets || granted["other"] > c.limit {
			t.Errorf("%d under %s: with an override of 6000, a key gets %d in 20 s, and another %d", c.limit,
				c.algorithm, of, granted["other"])
		}
	}
}
