package ratelimit_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// check doubts a deadline for which Envoy does not wait, and says of a limit beyond 32
// bits what answers say; declared waits are the rule's own.
func TestDoubtsOfDeadlinesAndLargeLimits(t *testing.T) {
	rule := func(deadline time.Duration, limit ratelimit.Tokens) *ratelimit.Rule {
		r := &ratelimit.Rule{
			Limit:        ratelimit.Limit{Unit: ratelimit.Month, Requests: limit},
			Coordination: ratelimit.DefaultCoordination(),
		}
		r.Coordination.StoreDeadline = deadline
		return r
	}
	for _, c := range []struct {
		rule *ratelimit.Rule
		want string // "" for none
	}{
		{rule(0, 100), ""},
		{rule(19*time.Millisecond, 1<<32-1), ""},
		{rule(20*time.Millisecond, 100), "store_deadline 20ms is not below 20ms, the default timeout of Envoy"},
		{rule(0, 1<<32), "requests_per_unit is 4294967296, and RLS has 32 bits for it"},
	} {
		doubts := strings.Join(c.rule.Doubts(), "; ")
		if c.want == "" && doubts != "" || !strings.Contains(doubts, c.want) {
			t.Errorf("%v and %v: %q, want %q", c.rule.Coordination.StoreDeadline, c.rule.Limit, doubts, c.want)
		}
	}
	for burst, want := range map[ratelimit.Tokens]string{
		1<<32 - 1: "", 1 << 32: "burst is 4294967296, and with a store a bucket holds at most 4294967295",
	} {
		bucket := rule(0, 100)
		bucket.Limit.Algorithm, bucket.Limit.Burst = ratelimit.TokenBucket, burst
		if got := strings.Join(bucket.Doubts(), "; "); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("of a burst of %d: %q, want %q", burst, got, want)
		}
	}
	for deadline, want := range map[time.Duration]time.Duration{
		70 * time.Millisecond: 70 * time.Millisecond, 0: 15 * time.Millisecond,
	} {
		wait := rule(deadline, 100).Declare(3, ratelimit.SharedStore).Wait
		said := strings.Contains(wait.String(), want.String())
		if wait.For != ratelimit.StoresAnswer || wait.Longest != want || !said {
			t.Errorf("store_deadline %v: %+v, said as %q", deadline, wait, wait)
		}
	}
}

// check doubts holds without an id where full limits let requests pass, and settings that slots do not read.
func TestDoubtsOfHolds(t *testing.T) {
	r := &ratelimit.Rule{
		Limit: ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}, Coordination: ratelimit.DefaultCoordination(),
		Hold: &ratelimit.Hold{Amount: 7, On: []ratelimit.Tokens{0}},
	}
	for _, passes := range []*bool{&r.Quota, &r.Shadow} {
		*passes = true
		if got := strings.Join(r.Doubts(), "; "); !strings.Contains(got, "its end credits up to 7") {
			t.Errorf("doubts are %q", got)
		}
		*passes = false
	}
	r.Limit = ratelimit.AtOnce(3, time.Minute)
	r.Hold = r.Limit.HoldsSlot()
	if got := r.Doubts(); got != nil {
		t.Errorf("doubts are %q", got)
	}
	r.Coordination.Mode, r.Coordination.Audit, r.Coordination.Lease.Fixed = ratelimit.Approx, true, 5
	got := strings.Join(r.Doubts(), "; ")
	for _, want := range []string{"mode approx has no effect", "audit true has", "lease.size 5 has"} {
		if !strings.Contains(got, want) {
			t.Errorf("doubts are %q, must be about %q", got, want)
		}
	}
}
