// Package metrics shows the service's counters to Prometheus, under the names of envoyproxy/ratelimit where
// it has one, and as the text of /stats.
//
// Guarantee: requests do not wait for this package; counters are read at each scrape. The number of series is
// bounded by MaxRules and the config: no request can add one.
package metrics

import (
	"errors"
	"net/http"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit/declare"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// MaxRules is how many rules have series of their own; all others share those with the domain and key "(other)".
const MaxRules = 10_000

// Collector has the values of the metrics. It is a prometheus.Collector of all but those of rules; see Handler.
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
	Known              bool // it was asked, and has answered
	MayEvict, RDB, AOF int
	Evicted            uint64 // keys, since it started
}

// Describe implements prometheus.Collector. Which metrics there are depends on the fields that are set.
func (c Collector) Describe(chan<- *prometheus.Desc) {}

// page handles a scrape: each metric says its name, its help and its labels, and then its values.
type page chan<- prometheus.Metric

func (p page) number(kind prometheus.ValueType, name, help string, labels []string) func(float64, ...string) {
	d := prometheus.NewDesc(name, help, labels, nil)
	return func(v float64, values ...string) { p <- prometheus.MustNewConstMetric(d, kind, v, values...) }
}

func (p page) count(name, help string, labels ...string) func(n uint64, values ...string) {
	put := p.number(prometheus.CounterValue, name, help, labels)
	return func(n uint64, values ...string) { put(float64(n), values...) }
}

func (p page) gauge(name, help string, labels ...string) func(n int, values ...string) {
	put := p.precise(name, help, labels...)
	return func(n int, values ...string) { put(float64(n), values...) }
}

// precise is a gauge with fractions.
func (p page) precise(name, help string, labels ...string) func(v float64, values ...string) {
	return p.number(prometheus.GaugeValue, name, help, labels)
}

// distribution shows one, whose values are multiplied by scale.
func (p page) distribution(name, help string, c ratelimit.DistributionCounts, scale float64) {
	buckets, sum := map[float64]uint64{}, uint64(0)
	for i, n := range c.Buckets[:len(c.Buckets)-1] {
		sum += n
		buckets[scale*float64(int64(1)<<i)] = sum
	}
	p <- prometheus.MustNewConstHistogram(prometheus.NewDesc(name, help, nil, nil), c.Count, scale*float64(c.Sum),
		buckets)
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	p, s := page(ch), c.Limiter()
	c.collectCalls(p)
	c.collectConfig(p)
	c.collectLimiter(p, &s)
	c.collectStore(p, &s)
	c.collectFleet(p, &s)
	c.collectGate(p)
	c.collectQuotas(p)
	c.collectOverrides(p)
}

// collectCalls shows what became of calls.
func (c Collector) collectCalls(p page) {
	s := c.Stats
	p.count("ratelimit_service_total_requests", "All calls.", "grpc_method")(s.Requests.Load(), method)
	failed := p.count("ratelimit_service_should_rate_limit_error",
		"Calls with an error: service_error (a bad request, no rules, a bug), redis_error (always 0: on_store_failure "+
			"decides).", "err_type")
	failed(0, "redis_error")
	failed(s.ServiceErrors.Load(), "service_error")
	sources := p.count("sluice_decision_sources_total",
		"Decisions of all rules by source, including removed rules.", "source")
	saved := uint64(0)
	for i, name := range ratelimit.Sources {
		n := s.Sources[i].Load()
		sources(n, name)
		if ratelimit.Source(i) != ratelimit.FromClaim {
			saved += n
		}
	}
	p.count("sluice_store_operations_saved_total", "Decisions without a round trip.")(saved)
	answers := p.count("sluice_answers_total", "Answers by overall code.", "code")
	answers(s.OK.Load(), "OK")
	answers(s.OverLimit.Load(), "OVER_LIMIT")
	p.count("sluice_global_shadow_total", "Answers turned to OK by SHADOW_MODE.")(s.GlobalShadow.Load())
	unknown := uint64(0)
	s.UnknownDomains.EachNamed(func(_ string, n *ratelimit.RuleCounters) { unknown += n.Requests() })
	p.count("sluice_unknown_domain_total", "Requests for a domain without rules.")(unknown)
	unlimited := p.count("sluice_unlimited_requests_total",
		"Requests that no rule limits: no rule of their domain has this key, or (key \"\") they have no descriptors.",
		"domain", "key")
	for _, u := range c.unlimited() {
		if u.Cause != NoRuleForDomain {
			unlimited(u.Requests, u.Domain, u.Key)
		}
	}
	p.count("sluice_bad_requests_total", "Malformed requests.")(s.BadRequests.Load())
	p.count("sluice_panics_total", "Requests that hit a bug in Sluice.")(s.Panics.Load())
	p.gauge("sluice_build_info", "The version and the region.", "version", "region")(1, c.Version, c.Region)
}

// collectConfig shows which rules are in force, and whether there is something newer that is bad.
func (c Collector) collectConfig(p page) {
	loaded, failed := c.Store.Loads()
	p.count("ratelimit_service_config_load_success", "Loads of valid rules.")(loaded)
	p.count("ratelimit_service_config_load_error", "Loads of refused rules.")(failed)
	reloads, s, rules := c.Store.Reloads(), c.Store.Status(), c.Store.Rules()
	p.count("sluice_config_changes_coalesced_total", "Changes and pushes that shared a later load.")(reloads.Coalesced)
	p.count("sluice_config_copy_errors_total", "Failed writes of CONFIG_LAST_GOOD_FILE.")(reloads.CopyErrors)
	p.gauge("sluice_config_from_copy", "1 while the rules come from the last good copy.")(Flag(s.FromCopy))
	p.gauge("sluice_rules", "Rules in force.")(len(rules.All()))
	p.gauge("sluice_domains", "Domains in force.")(rules.Domains())
	p.gauge("sluice_config_last_reload_successful",
		"1 if the latest rules are in force, 0 while they are bad or missing.")(Flag(s.Good))
	if s.Fingerprint == "" {
		return
	}
	p.gauge("sluice_config_info",
		"The fingerprint of the rules in force. Missing without rules.", "fingerprint", "source")(
		1, s.Fingerprint, strings.ToValidUTF8(s.Source, "?"))
	p.precise("sluice_config_last_reload_success_timestamp_seconds",
		"Unix time of the last successful load.")(float64(s.Loaded.UnixMilli()) / 1e3)
}

// collectLimiter shows the table of keys, and the claims of the store.
func (c Collector) collectLimiter(p page, s *ratelimit.LimiterStats) {
	keys := p.gauge("sluice_keys", "Tracked keys: leases of this node, or accounts in this process (ledger).", "kind")
	keys(s.Leases, "leases")
	keys(s.Accounts, "ledger")
	p.gauge("sluice_keys_max", "Maximum of tracked keys (MAX_KEYS).")(c.MaxKeys)
	p.count("sluice_leases_evicted_total",
		"Keys with usage that a full table dropped. After a loss of data, their usage is not restored. Raise "+
			"MAX_KEYS if it grows.")(s.Evicted)
	p.count("sluice_ledger_claims_total", "Claims that were settled or failed.")(s.Claims)
	fallbacks := p.count("sluice_fallback_decisions_total", "Decisions without the store, all rules.", "reason")
	for i, name := range ratelimit.FallbackReasons {
		fallbacks(s.Fallbacks[i], name)
	}
	p.gauge("sluice_store_breaker_open", "1 while the breaker skips the store.")(Flag(s.BreakerOpen))
	p.precise("sluice_store_sync_age_seconds", "Age of the last reply.")(s.SyncAge.Seconds())
	claimsFor := p.count("sluice_claims_total",
		"Claims by reason: waiting requests, renewal, return, final report of a window.", "reason")
	for i, name := range ratelimit.ClaimReasons {
		claimsFor(s.ClaimsBy[i], name)
	}
	p.count("sluice_claims_stale_total", "Claims refused as older than a later one, or for an ended window.")(s.Stale)
	p.count("sluice_late_reports_lost_total",
		"Accounts of ended windows whose last total did not reach the store in three tries. Statistics, audits and "+
			"sliding windows lack it.")(s.Unreported)
	p.count("sluice_ledger_recoveries_total", "Times that the store lost data and nodes restored it.")(s.Recoveries)
	trips := p.count("sluice_store_operations_total",
		"Round trips, answered or failed, of up to 256 claims each.", "result")
	trips(s.RoundTrips-min(s.Failed, s.RoundTrips), "answered")
	trips(s.Failed, "failed")
	p.distribution("sluice_store_duration_seconds",
		"Time of a round trip; buckets are powers of two from 1 us.", s.StoreTime, 1e-6)
	if least := c.leastDeadline(); least > 0 {
		p.precise("sluice_store_deadline_seconds", "The shortest store_deadline of the rules.")(least.Seconds())
	}
	p.distribution("sluice_lease_tokens", "Tokens of a grant; buckets are powers of two.", s.LeaseSizes, 1)
	p.gauge("sluice_claims_queued", "Claims in the queue.")(s.Queued)
	p.gauge("sluice_claims_queue_size", "Size of the queue.")(s.QueueSize)
}

// collectStore shows what the store lost or may lose.
func (c Collector) collectStore(p page, s *ratelimit.LimiterStats) {
	steps := p.count("sluice_store_clock_steps_total",
		"Steps of the store's clock by at least a second, ahead or back.", "direction")
	steps(s.ClockSteps[0], "ahead")
	steps(s.ClockSteps[1], "back")
	p.count("sluice_store_accounts_lost_total",
		"Single accounts in use that the store lost, for example by eviction.")(s.Missing)
	p.count("sluice_store_accounts_lost_tokens_total",
		"Their tokens at this node: the upper bound of tokens that were granted again.")(s.MissingTokens)
	if c.Safety == nil {
		return
	}
	if v := c.Safety(); v.Known {
		p.gauge("sluice_store_may_evict", "1 if maxmemory-policy can evict accounts; -1 if unknown.")(v.MayEvict)
		p.gauge("sluice_store_evicted_keys", "Keys that the store has evicted since its start.")(int(v.Evicted))
		persistent := p.gauge("sluice_store_persistent",
			"1 if the store saves its data by rdb or aof; -1 if unknown.", "by")
		persistent(v.RDB, "rdb")
		persistent(v.AOF, "aof")
	}
}

// collectFleet shows what this node is among others, and the messages that it refused.
func (c Collector) collectFleet(p page, local *ratelimit.LimiterStats) {
	if c.Seat != nil {
		n, wanted := c.Seat()
		p.gauge("sluice_drift_seat", "The drift seat of this node; -1: none, its rules use leases only.")(n)
		p.gauge("sluice_drift_seat_wanted", "1 if a rule is of mode approx.")(Flag(wanted))
	}
	rejected := p.count("sluice_rejected_total",
		"Invalid messages. From the store: reply (above 4 MiB), answer. From a peer: plaintext and tls (no TLS 1.3), "+
			"introduction, version, name, region, secret (a wrong proof or a relay), gossip, address, frame, sent (a "+
			"clock more than a year off), ask, reply, fetch, presence, parcel, account, receipt, bug.",
		"from", "kind")
	rejected(local.Rejected, "store", "answer")
	rejected(c.Pool.refused(), "store", "reply")
	if c.Ring == nil {
		return
	}
	s := c.Ring()
	for kind, n := range s.RejectedBy {
		rejected(n, "peer", kind)
	}
	p.gauge("sluice_ring_members", "Members of the ring, as this node sees it.")(len(s.Members))
	p.gauge("sluice_ring_fingerprint",
		"Hash of the ring, equal on nodes that agree.")(int(s.Ring >> 12)) // what a float holds
	asks := p.count("sluice_peer_asks_total", "Requests forwarded to an owner, received, or not_owner.", "kind")
	asks(s.Forwarded, "forwarded")
	asks(s.Received, "received")
	asks(s.NotOwner, "not_owner")
	asks(s.Instead, "leased_instead")
	p.count("sluice_peers_refused_total", "Peers without a valid proof.")(s.Refused)
	p.count("sluice_peer_messages_malformed_total", "Invalid messages without effect.")(s.Malformed)
	p.count("sluice_accounts_handed_over_total", "Accounts sent to new owners.")(s.Handed)
	p.count("sluice_hot_key_decisions_total", "Decisions here on hot keys of other owners, with a store.")(s.Hot)
	p.gauge("sluice_hot_keys", "Hot keys of this owner.")(len(s.HotKeys))
}

// collectGate shows which calls were not begun, or not ended by their callers.
func (c Collector) collectGate(p page) {
	var s shed.Stats
	if c.Gate != nil {
		s = c.Gate.Stats()
	}
	refused := p.count("sluice_shed_total",
		"Calls rejected without a charge: overload, or deadline (the caller would give up first).", "reason")
	for reason, name := range shed.Reasons {
		if name != "" {
			refused(s.Shed[reason], name)
		}
	}
	p.count("sluice_calls_given_up_total", "Calls whose caller gave up; their charge was taken back.")(s.GivenUp)
	p.gauge("sluice_calls_in_flight", "Calls that wait for their decision, as for a store.")(s.InFlight)
	p.gauge("sluice_calls_waiting", "Calls that wait for their turn.")(s.Waiting)
	held := p.gauge("sluice_in_flight_bytes", "Unfinished calls and bodies; port grpc or http.", "port")
	ended := p.count("sluice_callers_ended_total",
		"Connections and bodies ended by a bound: crowded (too many connections), heaviest (too many bytes), "+
			"stalled (no progress), excess (too many calls or idle frames).", "port", "reason")
	for port, b := range c.Budgets {
		held(int(b.Held()), port)
		ended(b.Crowded.Load(), port, "crowded")
		ended(b.Heaviest.Load(), port, "heaviest")
		ended(b.Stalled.Load(), port, "stalled")
		ended(b.Excess.Load(), port, "excess")
	}
}

// collectQuotas shows the grants to Envoys.
func (c Collector) collectQuotas(p page) {
	s := c.Quotas
	p.gauge("sluice_rlqs_streams", "Open streams of RLQS Envoys.")(int(s.Streams.Load()))
	p.gauge("sluice_rlqs_buckets", "Buckets of these streams.")(int(s.Buckets.Load()))
	p.gauge("sluice_rlqs_unproven_tokens",
		"Charged tokens that are neither spent nor in a confirmed lease.")(int(s.Unproven.Load()))
	p.count("sluice_rlqs_reports_total", "Reports of single buckets.")(s.Reports.Load())
	requests := p.count("sluice_rlqs_requests_total", "Requests decided by Envoys, allowed or denied.", "decision")
	requests(s.Allowed.Load(), "allowed")
	requests(s.Denied.Load(), "denied")
	p.count("sluice_rlqs_messages_total", "Answers to Envoys.")(s.Messages.Load())
	p.count("sluice_rlqs_assignments_total", "Leases granted to Envoys.")(s.Assignments.Load())
	p.count("sluice_rlqs_abandoned_total", "Buckets that Envoys must drop.")(s.Abandoned.Load())
	tokens := p.count("sluice_rlqs_tokens_total",
		"granted; credited (proven unspent); forgone (unspent in a token_bucket); carried (charged to a second "+
			"window); uncovered (not chargeable any more); excess (admitted without a grant: a fallback is not "+
			"DENY_ALL, or a lease was used after its TTL).", "kind")
	tokens(s.Granted.Load(), "granted")
	tokens(s.Credited.Load(), "credited")
	tokens(s.Forgone.Load(), "forgone")
	tokens(s.Carried.Load(), "carried")
	tokens(s.Uncovered.Load(), "uncovered")
	tokens(s.Excess.Load(), "excess")
	p.count("sluice_rlqs_reports_lost_total", "Reports that seem lost.")(s.LostReports.Load())
	refused := p.count("sluice_rlqs_refused_total",
		"bound: too many streams or buckets; stuck: an answer was not acknowledged; rule: the rule cannot be "+
			"divided.", "reason")
	refused(s.Refused.Load(), "bound")
	refused(s.Stuck.Load(), "stuck")
	refused(s.Unserved.Load(), "rule")
}

// Flag is the value of a gauge that is 1 or 0.
func Flag(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Handler serves the metrics of rules, and then those of the registry, which
// should have c. At most four scrapes are answered at a time.
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
		families, err := registry.Gather()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
		mapped := c.mapped()
		if err := errors.Join(mapped.write(w), c.WriteRuleMetrics(w)); err != nil {
			return // it has gone
		}
		for _, f := range families {
			if mapped.replaces(f) {
				continue
			}
			if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
				return
			}
		}
	})
}
