package rlqs

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// overridden is a session at a node that decides in its memory, whose key k=v has an override.
func overridden(t *testing.T, text string) (s *Session, set func(now instant, n tokens)) {
	t.Helper()
	rules := rulesOf(t, text)
	own := leasing.NewLocal(100, start, time.Unix(1_800_000_000, 0))
	n := NewNode(Source{
		Rules: func() *config.Rules { return rules }, Limiter: own,
		Wall: func() time.Time { return time.Unix(1_800_000_000, 0) },
	}, Options{Streams: 1, Buckets: 3, BucketBytes: 64, Messages: 100})
	rule, key := rules.Domain("d").Match([]config.Entry{{Key: "k", Value: "v"}}, nil)
	return n.NewSession(), func(now instant, n tokens) {
		a := ratelimit.Ask{Rule: rule, Key: key, Kind: ratelimit.Peek}
		_, err := own.SetOverride(t.Context(), now, &a, &ratelimit.Override{Requests: n}, ratelimit.Match{Any: true})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// HIGH. "With requests_per_unit: 0 and max_override, only keys with an override pass": over RLQS they do not, for
// serviceOf denies a rule of 0 for good and never asks the limiter. A customer who pays is refused by each Envoy.
func TestAttackInvitedKeysAreDeniedOverRLQS(t *testing.T) {
	s, set := overridden(t, "domain: d\ndescriptors:\n- key: k\n  max_override: 10000\n"+
		"  rate_limit: {unit: minute, requests_per_unit: 0}\n")
	set(start, 6000)
	said := ""
	for at := instant(0); at < instant(20*time.Second); at += instant(5 * time.Second) {
		if err := s.Reports(t.Context(), start+at, wired(usageOf(0, 1, "k", "v"))); err != nil {
			t.Fatal(err)
		}
		said += say(s.Answer(start+at)) + "; "
		s.Acked(t.Context(), start+at, s.sent)
	}
	if !strings.Contains(said, "bucket") {
		t.Errorf("a key with an override of 6000 gets over RLQS: %s", said)
	}
}

// HIGH. A ban does not reach an Envoy over RLQS: the node does not look at the override of a key that its streams hold,
// and an Envoy keeps the lease it has until the window ends. Of a day's window that is up to a day. The page says that a
// lowered limit counts within one second "at each node with requests of the key", and docs/rlqs.md says nothing.
func TestAttackBanDoesNotReachEnvoys(t *testing.T) {
	s, set := overridden(t, "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 600000}\n")
	report := func(at time.Duration, allowed, denied uint64) string {
		if err := s.Reports(t.Context(), start.Add(at), wired(usageOf(allowed, denied, "k", "v"))); err != nil {
			t.Fatal(err)
		}
		said := say(s.Answer(start.Add(at)))
		s.Acked(t.Context(), start.Add(at), s.sent)
		return said
	}
	if first := report(0, 0, 1); !strings.Contains(first, "bucket") {
		t.Fatalf("the first answer is %q", first)
	}
	set(start.Add(4*time.Second), 0)
	said := ""
	for at := 5 * time.Second; at < 5*time.Minute; at += 5 * time.Second {
		said += report(at, 10, 0)
		s.Wake(t.Context(), start.Add(at+time.Second))
		said += say(s.Answer(start.Add(at + time.Second)))
		s.Acked(t.Context(), start.Add(at+time.Second), s.sent)
	}
	if !strings.Contains(said, "DENY_ALL") {
		t.Errorf("five minutes after a ban the Envoy spends its lease, and was told: %q", said)
	}
}
