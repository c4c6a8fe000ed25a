package metrics

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// WriteStats writes the counters as lines of "name: value" under the names of envoyproxy/ratelimit's statsd output, and
// then the gauges.
func (c Collector) WriteStats(w io.Writer) {
	write := func(name string, n uint64) { fmt.Fprintf(w, "%s: %d\n", name, n) }
	c.Counters(write)
	c.Gauges(write)
}

// Counters gives each counter under envoyproxy/ratelimit's statsd name: seven for each rule, or for each name from its
// requests. The names from requests, and those of unknown domains, are bounded ([ratelimit.MaxNames]).
func (c Collector) Counters(each func(name string, n uint64)) {
	c.Store.Rules().EachCounters(func(domain string, keys []string, n *ratelimit.RuleCounters) {
		name := statsdName(domain, keys) + "."
		for _, h := range hits {
			each(name+h.name, uint64(h.of(n)))
		}
	})
	c.served(each)
}

const limits = "ratelimit.service.rate_limit."

// statsdName is the name of a rule's counters, without their ends.
func statsdName(domain string, keys []string) string {
	return limits + segment(domain) + "." + segment(strings.Join(keys, "."))
}

// served gives the counters that are not of rules.
func (c Collector) served(each func(name string, n uint64)) {
	loaded, failed := c.Store.Loads()
	each("ratelimit.service.config_load_success", loaded)
	each("ratelimit.service.config_load_error", failed)
	each("ratelimit.service.global_shadow_mode", c.Stats.GlobalShadow.Load())
	each("ratelimit.service.call.should_rate_limit.redis_error", 0) // on_store_failure decides
	each("ratelimit.service.call.should_rate_limit.service_error", c.Stats.ServiceErrors.Load())
	c.Stats.UnknownDomains.EachNamed(func(domain string, n *ratelimit.RuleCounters) {
		each(limits+segment(domain)+".domain_not_found", n.TotalHits.Load())
	})
	each("ratelimit_server."+method+".total_requests", c.Stats.Requests.Load())
	c.counters(each)
}

var (
	unsafeInNames = strings.NewReplacer(":", "_", "|", "_", "\n", "_", "\r", "_")
	ipv4          = regexp.MustCompile(`\d{1,3}(\.\d{1,3}){3}`)
)

// segment is a part of a statsd name: separators, and the dots of an IPv4 address, become "_". A colon or a bar would
// end the name in a line of statsd.
func segment(s string) string {
	if s = unsafeInNames.Replace(s); strings.Count(s, ".") < 3 { // the expression is slow, and rules are many
		return s
	}
	return ipv4.ReplaceAllStringFunc(s, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

// WriteRules writes the rules in force, one a line. Lines about all of them begin with '#': their
// fingerprint, and the errors of newer ones that were refused.
func (c Collector) WriteRules(w io.Writer) {
	s := c.Store.Status()
	if s.Fingerprint != "" {
		fmt.Fprintf(w, "# rules %s, loaded %s from %s\n", s.Fingerprint, s.Loaded.UTC().Format(time.RFC3339),
			ratelimit.OneLine(s.Source))
	}
	if s.Error != "" {
		fmt.Fprintf(w, "# newer rules are refused since %s:\n", s.Failed.UTC().Format(time.RFC3339))
		for line := range strings.Lines(s.Error) {
			fmt.Fprintf(w, "#   %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
	for _, r := range c.Store.Rules().All() {
		fmt.Fprintf(w, "%s: %s\n", r.FullName(), describe(r))
	}
}

// WriteRing writes the members of the ring, and this owner's hot keys. A value may be hidden in keys: the source of
// Ring does that.
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

// describe is a rule on one line, in the words of envoyproxy/ratelimit where it has them.
func describe(r *ratelimit.Rule) string {
	what := "unlimited"
	switch {
	case r.Unlimited:
	case r.Limit.Algorithm == ratelimit.Concurrency:
		what = fmt.Sprintf("concurrency=%d hold_ttl=%v", r.Limit.Requests, r.Limit.Period())
	default:
		what = fmt.Sprintf("unit=%s requests_per_unit=%d algorithm=%s", strings.ToUpper(r.Limit.Unit.String()),
			r.Limit.Requests, r.Limit.Algorithm)
		if r.Limit.Multiplier > 1 {
			what += fmt.Sprintf(" unit_multiplier=%d", r.Limit.Multiplier)
		}
		if r.Limit.Unit == ratelimit.CalendarMonth {
			what += " (of the calendar)"
		}
		if r.Limit.Calendar != 0 {
			what += fmt.Sprintf(" (%v)", r.Limit.Calendar)
		}
		if r.Limit.Algorithm == ratelimit.TokenBucket {
			what += fmt.Sprintf(" burst=%d", r.Limit.Burst)
		}
	}
	return fmt.Sprintf("%s, mode=%s, shadow_mode: %t, quota_mode: %t", what, r.Coordination.Mode, r.Shadow, r.Quota)
}
