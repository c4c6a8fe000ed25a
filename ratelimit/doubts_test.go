package ratelimit_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// check doubts settings that are valid and cannot have their effect.
func TestDoubts(t *testing.T) {
	blind := &ratelimit.Hold{Amount: 7, On: []ratelimit.Tokens{0}}
	for _, c := range []struct {
		change func(*ratelimit.Rule)
		want   []string // none: there is no doubt
	}{
		{func(*ratelimit.Rule) {}, nil},
		{func(r *ratelimit.Rule) {
			r.Limit.Requests, r.Coordination.StoreDeadline = 1<<32-1, 19*time.Millisecond
		}, nil},
		{func(r *ratelimit.Rule) { r.Coordination.StoreDeadline = 20 * time.Millisecond }, []string{
			"store_deadline 20ms is not below 20ms, the default timeout of Envoy",
		}},
		{func(r *ratelimit.Rule) { r.Limit.Requests = 1 << 32 }, []string{
			"requests_per_unit is 4294967296, and RLS has 32 bits for it",
		}},
		{func(r *ratelimit.Rule) { r.Limit.Algorithm, r.Limit.Burst = ratelimit.TokenBucket, 1<<32-1 }, nil},
		{func(r *ratelimit.Rule) { r.Limit.Algorithm, r.Limit.Burst = ratelimit.TokenBucket, 1<<32 }, []string{
			"burst is 4294967296, and with a store a bucket holds at most 4294967295",
		}},
		{func(r *ratelimit.Rule) { r.Hold = blind }, nil},
		{func(r *ratelimit.Rule) { r.Hold, r.Quota = blind, true }, []string{"its end credits up to 7"}},
		{func(r *ratelimit.Rule) { r.Hold, r.Shadow = blind, true }, []string{"its end credits up to 7"}},
		{func(r *ratelimit.Rule) { r.Limit = ratelimit.AtOnce(3, time.Minute); r.Hold = r.Limit.HoldsSlot() }, nil},
		{func(r *ratelimit.Rule) {
			r.Limit = ratelimit.AtOnce(3, time.Minute)
			r.Coordination.Mode, r.Coordination.Audit, r.Coordination.Lease.Fixed = ratelimit.Approx, true, 5
		}, []string{"mode approx has no effect", "audit true has", "lease.size 5 has"}},
	} {
		r := boundsRule(t, nil)
		c.change(r)
		doubts := r.Doubts()
		all := strings.Join(doubts, "; ")
		if len(doubts) != len(c.want) {
			t.Errorf("doubts are %q, must be %q", doubts, c.want)
		}
		for _, want := range c.want {
			if !strings.Contains(all, want) {
				t.Errorf("doubts are %q, must be %q", doubts, c.want)
			}
		}
	}
}
