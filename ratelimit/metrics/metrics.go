// Package metrics shows the service's counters to Prometheus, under the names of envoyproxy/ratelimit where
// it has one, and as the text of /stats.
//
// Guarantee: requests do not wait for this package; counters are read at each scrape. The number of series is
// bounded by MaxRules and the config: no request can add one.
package metrics

import (
	"errors"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/declare"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// MaxRules is how many rules have series of their own; all others share those with the domain and key "(other)".
const MaxRules = 10_000

// Collector has the values of the metrics. It is a prometheus.Collector of all but those of rules; see Handler.
//
// A scrape has two parts. Metrics of rules are written as text (rules.go), because there may be 10,000 rules. All
// others are collected here by the library of Prometheus.
type Collector struct {
	Store   *config.Store
	Stats   *rls.Stats
	Limiter func() ratelimit.LimiterStats
	MaxKeys int
	Version string
	Region  string // of the node; "": it has none
	// Seat, if set, is the drift seat of this node, -1 for none, and whether a rule needs one.
	Seat func() (seat int, wanted bool)
	// Safety, if set, is the persistence of the store.
	Safety func() StoreSafety
	// StoreNow, if set, names the store, and its last error.
	StoreNow func() StoreNow
	// Ring, if set, is what this node did as one of a ring.
	Ring func() ratelimit.RoutingStats
	// Gate, if set, decides which calls are begun.
	Gate *shed.Gate
	// LocalCache, if set, counts refusals as of a local cache.
	LocalCache *rls.LocalCache
	// Pool, if set, counts the connections to Redis.
	Pool *Pool
	// Certificates, if set, counts how often those of gRPC were read again.
	Certificates *Loads
	// Budgets are what callers have begun and not ended, by port.
	Budgets map[string]*transport.Budget
	// Quotas are the grants to Envoys.
	Quotas *rlqs.Stats
	// Mapping, if set, names what envoyproxy/ratelimit counts, too.
	Mapping *Mapping
	// Overrides counts what became of changes of overrides at this node.
	Overrides *OverrideChanges
}

// Declare states the bounds of a rule on max_nodes nodes. A node of a ring without a store shares none.
func (c Collector) Declare(r *ratelimit.Rule) declare.Bounds {
	return declare.Of(r, r.Coordination.MaxNodes, declare.Storage(c.Safety != nil || c.Ring == nil))
}

// StoreSafety is how the store keeps its data: 1 yes, 0 no, -1 not known.
type StoreSafety struct {
	Known    bool // it was asked, and has answered
	MayEvict int  `metric:"sluice_store_may_evict"`
	RDB      int  `metric:"sluice_store_persistent,by=rdb"`
	AOF      int  `metric:"sluice_store_persistent,by=aof"`
	// Evicted are keys, since it started.
	Evicted uint64 `metric:"sluice_store_evicted_keys"`
}

// Describe implements prometheus.Collector. Which metrics there are depends on the fields that are set. A collector
// without descriptions is unchecked: the library allows it, and looks for duplicates at each scrape.
func (c Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	p, s := page(ch), c.Limiter()
	for _, counters := range []any{c.Stats, c.Quotas, c.Overrides, &s} {
		p.tagged(counters)
	}
	p.put("sluice_build_info", 1, "version", c.Version, "region", c.Region)
	p.put("sluice_keys_max", float64(c.MaxKeys))
	c.collectCalls(p)
	c.collectConfig(p)
	c.collectStore(p, &s)
	c.collectFleet(p)
	c.collectGate(p)
}

// collectCalls shows what became of calls. An unknown domain comes from a request, so its name is no label.
func (c Collector) collectCalls(p page) {
	// Dashboards of envoyproxy/ratelimit expect the series. Here on_store_failure decides, so it is always 0.
	p.put("ratelimit_service_should_rate_limit_error", 0, "err_type", "redis_error")
	saved := uint64(0)
	// Each decision but a claim would have cost an operation of a service that asks Redis for each request.
	for i := range ratelimit.Sources {
		if ratelimit.Source(i) != ratelimit.FromClaim {
			saved += c.Stats.Sources[i].Load()
		}
	}
	p.put("sluice_store_operations_saved_total", float64(saved))
	unknown := uint64(0)
	for _, u := range c.unlimited() {
		if u.Cause == NoRuleForDomain {
			unknown += u.Requests
			continue
		}
		p.put("sluice_unlimited_requests_total", float64(u.Requests), "domain", u.Domain, "key", u.Key)
	}
	p.put("sluice_unknown_domain_total", float64(unknown))
}

// collectConfig shows which rules are in force, and whether there is something newer that is bad. Without rules there
// is no fingerprint, and no time of a load.
func (c Collector) collectConfig(p page) {
	loaded, failed := c.Store.Loads()
	p.put("ratelimit_service_config_load_success", float64(loaded))
	p.put("ratelimit_service_config_load_error", float64(failed))
	reloads, s, rules := c.Store.Reloads(), c.Store.Status(), c.Store.Rules()
	p.tagged(&reloads)
	p.tagged(&s)
	p.put("sluice_rules", float64(len(rules.All())))
	p.put("sluice_domains", float64(rules.Domains()))
	if least := c.leastDeadline(); least > 0 {
		p.put("sluice_store_deadline_seconds", least.Seconds())
	}
	// There are no rules yet.
	if s.Fingerprint == "" {
		return
	}
	p.put("sluice_config_info", 1, "fingerprint", s.Fingerprint, "source", valid(s.Source))
	p.put("sluice_config_last_reload_success_timestamp_seconds", float64(s.Loaded.UnixMilli())/1e3)
}

// collectStore shows the work of the store, and what it may lose. A node without a store has the first ones, as 0.
func (c Collector) collectStore(p page, s *ratelimit.LimiterStats) {
	p.put("sluice_store_sync_age_seconds", s.SyncAge.Seconds())
	p.put("sluice_store_operations_total", float64(s.RoundTrips-min(s.Failed, s.RoundTrips)), "result", "answered")
	p.distribution("sluice_store_duration_seconds", s.StoreTime, 1e-6)
	p.distribution("sluice_lease_tokens", s.LeaseSizes, 1)
	if c.Safety == nil {
		return
	}
	if v := c.Safety(); v.Known {
		p.tagged(&v)
	}
}

// collectFleet shows what this node is among others, and the messages that it refused.
func (c Collector) collectFleet(p page) {
	if c.Seat != nil {
		n, wanted := c.Seat()
		p.put("sluice_drift_seat", float64(n))
		p.put("sluice_drift_seat_wanted", float64(Flag(wanted)))
	}
	p.put("sluice_rejected_total", float64(c.Pool.refused()), "from", "store", "kind", "reply")
	if c.Ring == nil {
		return
	}
	s := c.Ring()
	p.tagged(&s)
	// Kinds are names in package routing, so their number is bounded.
	for kind, n := range s.RejectedBy {
		p.put("sluice_rejected_total", float64(n), "from", "peer", "kind", kind)
	}
	// Nodes agree on the ring if their values are equal. A float64 holds 53 bits, so the lowest 12 of 64 are cut.
	// Each region has a ring of its own.
	p.put("sluice_ring_fingerprint", float64(s.Ring>>12), "region", c.Region)
}

// collectGate shows which calls were not begun, or not ended by their callers.
func (c Collector) collectGate(p page) {
	var s shed.Stats
	if c.Gate != nil {
		s = c.Gate.Stats()
	}
	p.tagged(&s)
	for port, b := range c.Budgets {
		p.put("sluice_in_flight_bytes", float64(b.Held()), "port", port)
		p.tagged(b, "port", port)
	}
}

// Handler serves the metrics of rules, and then those of the registry, which should have c. At most four scrapes are
// answered at a time. A scrape reads the counters of all rules, so unlimited scrapes could take the processor from
// decisions. All else is gathered before the first byte is written, so that an error can still have a status.
func (c Collector) Handler(registry prometheus.Gatherer) http.Handler {
	slots := make(chan struct{}, 4)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			http.Error(w, "four scrapes are in progress: try again", http.StatusServiceUnavailable)
			return
		}
		mapped, bad := c.mapped()
		families, err := registry.Gather()
		if err := errors.Join(bad, err); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
		if err := c.WriteRuleMetrics(w); err != nil {
			return // it has gone
		}
		for _, f := range slices.Concat(mapped, c.unmapped(families, mapped)) {
			if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
				return
			}
		}
	})
}
