package rlqs

import (
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

const bucketRule = "domain: d\ndescriptors:\n- key: k\n  algorithm: token_bucket\n" +
	"  rate_limit: {unit: minute, requests_per_unit: 600}\n"

// grantedIn is how many tokens an answer grants.
func grantedIn(answer []byte) (n tokens) {
	for _, a := range actionsOf(answer) {
		n += tokens(a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket().GetMaxTokens())
	}
	return n
}

// What an Envoy has not spent of a token_bucket is not given back, for it was refilled
// meanwhile; and of the burst is held back what refills while leases last.
func TestBucketIsNotCredited(t *testing.T) {
	rules := rulesOf(t, bucketRule)
	s, n, p := newSession(t, &rules)
	var granted tokens
	for i := range 20 { // within windows of 15 s, each with leases that are not used up
		at := start.Add(time.Duration(i) * 3 * time.Second)
		// Of each third lease the Envoy says that it is used up, though less was let pass.
		denied := uint64(0)
		if i%3 == 0 {
			denied = 10
		}
		granted += grantedIn(reports(t, s, at, usageOf(uint64(5*min(i, 1)), denied, "k", "v")))
		s.Acked(t.Context(), at.Add(time.Millisecond), s.sent)
	}
	excess := tokens(n.Stats().Excess.Load())
	if p.left != 600-granted-excess || granted < 22 {
		t.Errorf("%d were granted of 600, %d were let pass besides, and %d are left", granted, excess, p.left)
	}
	if forgone := n.Stats().Forgone.Load(); forgone == 0 {
		t.Error("nothing was forgone: the test does not get to what it is about")
	}
	if b := s.buckets[0].offer; b.asking.Limit.Burst != 444 || sublease.BucketWindow != 15600*time.Millisecond {
		t.Errorf("it is asked for %d, want the burst without what refills in 15.6 s", b.asking.Limit.Burst)
	}
	if debts := s.Close(start.Add(56 * time.Second)); len(debts) != 0 {
		t.Errorf("it leaves debts %+v", debts)
	}
}

// A lease that may arrive after its window is charged again: it is spent later than its charge allows for.
func TestBucketThatArrivesLate(t *testing.T) {
	rules := rulesOf(t, bucketRule)
	s, n, p := newSession(t, &rules)
	at := func(ms int) instant { return start.Add(time.Duration(ms) * time.Millisecond) }
	report := func(ms int, m *rlqs.RateLimitQuotaUsageReports) tokens {
		t.Helper()
		return grantedIn(reports(t, s, at(ms), m))
	}
	if report(0, usageOf(0, 1, "k", "v")) == 0 {
		t.Fatal("nothing is granted")
	}
	s.Acked(t.Context(), at(1), s.sent)
	late := report(12_000, usageOf(10, 200, "k", "v"))
	before := p.left
	turn := s.Next()
	if want := at(15_600).Add(turnLag); turn != want || late == 0 {
		t.Fatalf("%d are granted, and it is to wake up at %v, want %v", late, turn, want)
	}
	s.Wake(t.Context(), turn)
	if carried := tokens(n.Stats().Carried.Load()); before-p.left != carried || carried < late {
		t.Errorf("%d were charged again, and of the lease that is on its way %d may be spent", before-p.left, late)
	}
}

// A bucket that is smaller than a minute's tokens is denied, except with SHADOW_MODE.
func TestSmallBucketIsDenied(t *testing.T) {
	rules := rulesOf(t, bucketRule+"  burst: 599\n")
	for shadow, want := range map[bool]string{false: "DENY_ALL 1m0s", true: "ALLOW_ALL 1m0s"} {
		s, n, p := newSession(t, &rules)
		n.source.ShadowMode = shadow
		got := say(reports(t, s, start, usageOf(0, 1, "k", "v")))
		if got != want || p.left != 600 || (n.Stats().Unserved.Load() == 1) == shadow {
			t.Errorf("with SHADOW_MODE %t it answers %q, %d are left", shadow, got, p.left)
		}
	}
	rule := rules.All()[0]
	want := "a burst of 599 fills up in 59.9s, must be at least 1m0s: the refill of 15.6s is held back, because " +
		"tokens may be at Envoys for that long; use a burst of 600, or RLS"
	if err := sublease.Servable(rule); err == nil || err.Error() != want {
		t.Errorf("it says %v", err)
	}
	// One that takes millennia to fill is served.
	rule.Limit.Unit, rule.Limit.Requests, rule.Limit.Burst = ratelimit.Year, 1, 5000
	if err := sublease.Servable(rule); err != nil {
		t.Errorf("of a bucket of 5000 with one token a year it says %v", err)
	}
}

// A bucket whose window turned before it was settled gets one more answer, and is abandoned then.
func TestIdleBucketOverATurn(t *testing.T) {
	for _, text := range []string{oneRule, bucketRule} {
		rules := rulesOf(t, text)
		s, _, p := newSession(t, &rules)
		p.left = 140 // so little that idle buckets are abandoned
		for i := range 40 {
			// Whole windows end between two reports, one of which silences the bucket.
			at := start.Add(time.Duration(i) * 5 * time.Second)
			if next := s.Next(); next != 0 && next <= at {
				s.Wake(t.Context(), next)
				s.Answer(next)
				s.Acked(t.Context(), next.Add(time.Millisecond), s.sent)
			}
			p.ends = start.Add((at.Sub(start) + 3*time.Second).Truncate(time.Minute) + 57*time.Second)
			denied := uint64(0)
			if i == 5 {
				denied = 1
			}
			if len(s.buckets) == 0 && i > 5 {
				break
			}
			reports(t, s, at, usageOf(0, denied, "k", "v"))
			s.Acked(t.Context(), at.Add(time.Millisecond), s.sent)
		}
		if len(s.buckets) != 0 {
			t.Errorf("%s: after 200 s without requests it still has %+v", text, s.buckets[0].holding)
		}
	}
}
