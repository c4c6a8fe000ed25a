package metrics

import (
	"fmt"
	"io"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// WriteStats writes the counters as lines of "name: value" under the names of
// envoyproxy/ratelimit's statsd output.
func (c Collector) WriteStats(w io.Writer) {
	line := func(n uint64, name ...string) { fmt.Fprintf(w, "%s: %d\n", strings.Join(name, "."), n) }
	for _, r := range c.Store.Rules().All() {
		parts := []string{"ratelimit.service.rate_limit", segment(r.Domain)}
		for _, k := range r.Keys {
			parts = append(parts, segment(k))
		}
		name, n := strings.Join(parts, "."), r.Counters
		line(n.TotalHits.Load(), name, "total_hits")
		line(n.WithinLimit.Load(), name, "within_limit")
		line(n.NearLimit.Load(), name, "near_limit")
		line(n.OverLimit.Load(), name, "over_limit")
		line(n.ShadowMode.Load(), name, "shadow_mode")
	}
	loaded, failed := c.Store.Loads()
	line(loaded, "ratelimit.service.config_load_success")
	line(failed, "ratelimit.service.config_load_error")
	line(c.Stats.GlobalShadow.Load(), "ratelimit.service.global_shadow_mode")
	line(c.Stats.StoreErrors.Load(), "ratelimit.service.call.should_rate_limit.redis_error")
	line(c.Stats.ServiceErrors.Load(), "ratelimit.service.call.should_rate_limit.service_error")
	line(c.Stats.Requests.Load(), "ratelimit_server.ShouldRateLimit.total_requests")
}

// segment is one part of a statsd name.
func segment(s string) string { return strings.NewReplacer(":", "_", "|", "_").Replace(s) }

// WriteRules writes the rules in force, one a line.
func (c Collector) WriteRules(w io.Writer) {
	for _, r := range c.Store.Rules().All() {
		fmt.Fprintf(w, "%s.%s: %s\n", r.Domain, r.Path, describe(r))
	}
}

// WriteRing writes who is in the ring, and which of this owner's keys are hot.
func (c Collector) WriteRing(w io.Writer) {
	if c.Ring == nil {
		fmt.Fprintln(w, "PEERS is not set: there is no ring")
		return
	}
	s := c.Ring()
	fmt.Fprintf(w, "fingerprint: %x\n", s.Ring)
	for _, m := range s.Members {
		fmt.Fprintf(w, "member: %s\n", m)
	}
	for _, k := range s.HotKeys {
		fmt.Fprintf(w, "hot: %s\n", k)
	}
	for _, k := range s.HotHere {
		fmt.Fprintf(w, "leased from its owner: %s\n", k)
	}
}

func describe(r *ratelimit.Rule) string {
	what := "unlimited"
	if !r.Unlimited {
		what = fmt.Sprintf("unit=%s requests_per_unit=%d algorithm=%s", strings.ToUpper(r.Limit.Unit.String()), r.Limit.Requests, r.Limit.Algorithm)
		if r.Limit.Algorithm == ratelimit.TokenBucket {
			what += fmt.Sprintf(" burst=%d", r.Limit.Burst)
		}
	}
	return fmt.Sprintf("%s, mode=%s, shadow_mode: %t, quota_mode: %t", what, r.Coordination.Mode, r.Shadow, r.Quota)
}
