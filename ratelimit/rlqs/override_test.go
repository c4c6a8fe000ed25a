package rlqs

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// Under a window of 0 with max_override, a key with an override gets a budget over RLQS. Others are denied, and so are
// buckets.
func TestInvitedKeysPassOverRLQS(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		rules := rulesOf(t, "domain: d\ndescriptors:\n- key: k\n  max_override: 10000\n  algorithm: "+algorithm+
			"\n  rate_limit: {unit: minute, requests_per_unit: 0}\n")
		own := leasing.NewLocal(100, start, time.Unix(1_800_000_000, 0))
		n := NewNode(Source{
			Rules: func() *config.Rules { return rules }, Limiter: own,
			Wall: func() time.Time { return time.Unix(1_800_000_000, 0) },
		}, Options{Streams: 1, Buckets: 3, BucketBytes: 64, Bytes: 10_000, Messages: 100})
		rule, key := rules.Domain("d").Match([]config.Entry{{Key: "k", Value: "invited"}}, nil)
		a := ratelimit.Ask{Rule: rule, Key: key, Kind: ratelimit.Peek}
		o := &ratelimit.Override{Requests: 6000}
		if _, err := own.SetOverride(t.Context(), start, &a, o, ratelimit.Match{Any: true}); err != nil {
			t.Fatal(err)
		}
		s := n.NewSession()
		said := map[string]string{}
		for at := instant(0); at < instant(20*time.Second); at += instant(5 * time.Second) {
			for _, who := range []string{"invited", "other"} {
				if err := s.Reports(t.Context(), start+at, wired(usageOf(0, 1, "k", who))); err != nil {
					t.Fatal(err)
				}
				said[who] += say(s.Answer(start+at)) + "; "
				s.Acked(t.Context(), start+at, s.sent)
			}
		}
		divided := algorithm != "token_bucket"
		invited, other := said["invited"], said["other"]
		if strings.Contains(invited, "bucket") != divided || strings.Contains(other, "bucket") ||
			!strings.Contains(other, "DENY_ALL") {
			t.Errorf("%s: a key with an override gets %q, and another %q", algorithm, invited, other)
		}
	}
}
