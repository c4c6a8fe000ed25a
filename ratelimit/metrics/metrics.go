// Package metrics shows the service's counters to Prometheus, under
// envoyproxy/ratelimit's names where it has one, and as the text of /stats.
//
// Guarantee: nothing here is on the way of a request; counters are read when
// somebody asks. The number of series is bounded by MaxRules and the config:
// no request can add one.
package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/service"
)

// MaxRules is how many rules have series of their own; all others share those
// with the domain and key "(other)".
const MaxRules = 10_000

// Source is what is shown.
type Source struct {
	Store   *config.Store
	Stats   *service.Stats
	Limiter func() ratelimit.LimiterStats
	MaxKeys int
	Version string
	// Seat, if set, is the drift seat of this node, -1 for none, and whether a
	// rule needs one.
	Seat func() (seat int, wanted bool)
	// Ring, if set, is what this node did as one of a ring.
	Ring func() ratelimit.RoutingStats
}

// Collector is a prometheus.Collector over a Source.
type Collector struct{ Source }

const method = "ShouldRateLimit"

var (
	ruleLabels = []string{"domain", "key1", "key2"}
	byRule     = []string{"domain", "rule"}

	totalHits   = theirs("rate_limit_total_hits", "Hits asked of a rule.", ruleLabels...)
	withinLimit = theirs("rate_limit_within_limit", "Hits that were within the limit.", ruleLabels...)
	nearLimit   = theirs("rate_limit_near_limit", "Hits within the limit, and above NEAR_LIMIT_RATIO of it.", ruleLabels...)
	overLimit   = theirs("rate_limit_over_limit", "Hits above the limit.", ruleLabels...)
	shadowMode  = theirs("rate_limit_shadow_mode", "Hits over a limit in shadow_mode.", ruleLabels...)
	callErrors  = theirs("should_rate_limit_error", "Calls answered with an error.", "err_type")
	calls       = theirs("total_requests", "Calls.", "grpc_method")
	loadSuccess = theirs("config_load_success", "Configs put in force.")
	loadError   = theirs("config_load_error", "Configs refused.")

	decisions     = ours("decisions_total", "Decisions of a rule, by code before shadow_mode.", "domain", "key1", "key2", "code")
	refunds       = ours("refunded_tokens_total", "Tokens refunded by is_negative_hits.", ruleLabels...)
	sources       = ours("decision_sources_total", "Decisions by where they were made.", "source")
	answers       = ours("answers_total", "Answers by overall code.", "code")
	shadowed      = ours("global_shadow_total", "Answers made OK by SHADOW_MODE.")
	unknown       = ours("unknown_domain_total", "Requests for a domain without rules.")
	badCalls      = ours("bad_requests_total", "Requests refused as malformed.")
	panics        = ours("panics_total", "Requests that met a bug in sluice.")
	keys          = ours("keys", "Keys held now.", "in")
	keysMax       = ours("keys_max", "Keys that may be tracked.")
	evicted       = ours("leases_evicted_total", "Leases given back to make room for others.")
	claims        = ours("ledger_claims_total", "Claims settled by the ledger.")
	fallbacks     = ours("fallback_decisions_total", "Decisions without the ledger, by reason.", "reason")
	breaker       = ours("store_breaker_open", "1 while the store does not answer and is not asked.")
	overAdmitted  = ours("over_admitted_tokens_total", "Tokens admitted beyond the limit by all nodes, as told to this one: the sum over nodes is the over-admission.", byRule...)
	underAdmitted = ours("under_admitted_tokens_total", "Tokens refused here while other nodes held unspent ones.", byRule...)
	declared      = ours("declared_over_admission_tokens", "What the rule declares to over-admit at most, for each key and window.", byRule...)
	unconfirmed   = ours("drift_unconfirmed_tokens", "Tokens spent here and not yet confirmed by the ledger.", byRule...)
	share         = ours("drift_share_tokens", "Tokens of each key that a seat may spend unconfirmed.", byRule...)
	seat          = ours("drift_seat", "This node's drift seat; -1: it has none, and its approx rules lease.")
	ringMembers   = ours("ring_members", "Nodes in the ring, as this one sees it.")
	ringPrint     = ours("ring_fingerprint", "Of the ring: nodes that agree show the same.")
	peerAsks      = ours("peer_asks_total", "Asks between nodes: forwarded to an owner, received and decided, or not this node's.", "what")
	peerRefused   = ours("peers_refused_total", "Peers that could not prove to be one.")
	peerMalformed = ours("peer_messages_malformed_total", "Messages of peers that made no sense, and changed nothing.")
	handed        = ours("accounts_handed_over_total", "Accounts given to their new owners.")
	hotDecisions  = ours("hot_key_decisions_total", "Decisions on hot keys of other owners, made here.")
	hotKeys       = ours("hot_keys", "Keys of this owner that are hot now.")
	syncAge       = ours("store_sync_age_seconds", "Time since the store last answered.")
	ruleCount     = ours("rules", "Rules in force.")
	domains       = ours("domains", "Domains in force.")
	build         = ours("build_info", "1, with the version as a label.", "version")
	everything    = []*prometheus.Desc{
		totalHits, withinLimit, nearLimit, overLimit, shadowMode, callErrors, calls, loadSuccess, loadError,
		decisions, refunds, sources, answers, shadowed, unknown, badCalls, panics, keys, keysMax, evicted, claims, fallbacks, breaker,
		ruleCount, domains, build, overAdmitted, underAdmitted, declared, unconfirmed, share, seat, syncAge,
		ringMembers, ringPrint, peerAsks, peerRefused, peerMalformed, handed, hotDecisions, hotKeys,
	}
)

func theirs(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ratelimit_service_"+name, help, labels, nil)
}

func ours(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_"+name, help, labels, nil)
}

// NewLatency returns the histogram of whole calls, in seconds, under their name.
func NewLatency() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:        "ratelimit_service_response_time_seconds",
		Help:        "Time from a request's bytes to its answer's.",
		ConstLabels: prometheus.Labels{"grpc_method": method},
		Buckets:     []float64{5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 1},
	})
}

// Describe implements prometheus.Collector.
func (c Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range everything {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	rules := c.Store.Rules()
	for labels, n := range sumCounters(rules) {
		l := labels[:]
		count(totalHits, n.total, l...)
		count(withinLimit, n.within, l...)
		count(nearLimit, n.near, l...)
		count(overLimit, n.over, l...)
		count(shadowMode, n.shadow, l...)
		count(refunds, n.refunded, l...)
		count(decisions, n.requests-n.denied, append(l, "OK")...)
		count(decisions, n.denied, append(l, "OVER_LIMIT")...)
	}
	s := c.Stats
	count(calls, s.Requests.Load(), method)
	count(callErrors, s.StoreErrors.Load(), "redis_error")
	count(callErrors, s.ServiceErrors.Load(), "service_error")
	loaded, failed := c.Store.Loads()
	count(loadSuccess, loaded)
	count(loadError, failed)
	for i, name := range ratelimit.Sources {
		count(sources, s.Sources[i].Load(), name)
	}
	count(answers, s.OK.Load(), "OK")
	count(answers, s.OverLimit.Load(), "OVER_LIMIT")
	count(shadowed, s.GlobalShadow.Load())
	unknownRequests := uint64(0)
	s.UnknownDomains.EachNamed(func(_ string, n *ratelimit.RuleCounters) { unknownRequests += n.Requests() })
	count(unknown, unknownRequests)
	count(badCalls, s.BadRequests.Load())
	count(panics, s.Panics.Load())
	local := c.Limiter()
	gauge(keys, local.Leases, "leases")
	gauge(keys, local.Accounts, "ledger")
	gauge(keysMax, c.MaxKeys)
	count(evicted, local.Evicted)
	count(claims, local.Claims)
	for i, name := range ratelimit.FallbackReasons {
		count(fallbacks, local.Fallbacks[i], name)
	}
	open := 0
	if local.BreakerOpen {
		open = 1
	}
	gauge(breaker, open)
	ch <- prometheus.MustNewConstMetric(syncAge, prometheus.GaugeValue, local.SyncAge.Seconds())
	c.collectDrift(count, gauge)
	gauge(ruleCount, len(rules.All()))
	gauge(domains, rules.Domains())
	gauge(build, 1, c.Version)
}

// collectDrift shows how far limits were from being kept, and may be.
func (c Collector) collectDrift(count func(*prometheus.Desc, uint64, ...string), gauge func(*prometheus.Desc, int, ...string)) {
	if c.Seat != nil {
		n, _ := c.Seat()
		gauge(seat, n)
	}
	if c.Ring != nil {
		s := c.Ring()
		gauge(ringMembers, len(s.Members))
		gauge(ringPrint, int(s.Ring>>12)) // what a float holds
		count(peerAsks, s.Forwarded, "forwarded")
		count(peerAsks, s.Received, "received")
		count(peerAsks, s.NotOwner, "not_owner")
		count(peerRefused, s.Refused)
		count(peerMalformed, s.Malformed)
		count(handed, s.Handed)
		count(hotDecisions, s.Hot)
		gauge(hotKeys, len(s.HotKeys))
	}
	shown := make(map[[2]string]bool, MaxRules)
	for _, r := range c.Store.Rules().All() {
		l := [2]string{valid(r.Domain), valid(r.Path)}
		if r.Unlimited || shown[l] || len(shown) >= MaxRules {
			continue
		}
		shown[l] = true
		count(overAdmitted, r.Counters.OverAdmitted.Load(), l[:]...)
		count(underAdmitted, r.Counters.UnderAdmitted.Load(), l[:]...)
		gauge(declared, int(r.Declare(r.Coordination.MaxNodes, true).Over), l[:]...)
		if r.Coordination.Mode == ratelimit.Approx {
			gauge(unconfirmed, int(r.Counters.Drifting.Load()), l[:]...)
			gauge(share, int(r.DriftShare()), l[:]...)
		}
	}
}

type counts struct{ total, within, near, over, shadow, refunded, requests, denied uint64 }

// sumCounters reads all counters by (domain, key1, key2). key2 holds all deeper
// levels; those that come out the same are summed, and so are those beyond
// MaxRules.
func sumCounters(rules *config.Rules) map[[3]string]counts {
	sums := make(map[[3]string]counts, min(len(rules.All()), MaxRules))
	rules.EachCounters(func(domain string, keys []string, c *ratelimit.RuleCounters) {
		labels := [3]string{valid(domain), valid(keys[0]), valid(strings.Join(keys[1:], "."))}
		n, ok := sums[labels]
		if !ok && len(sums) >= MaxRules {
			labels = [3]string{"(other)", "(other)", ""}
			n = sums[labels]
		}
		n.total += c.TotalHits.Load()
		n.within += c.WithinLimit.Load()
		n.near += c.NearLimit.Load()
		n.over += c.OverLimit.Load()
		n.shadow += c.ShadowMode.Load()
		n.refunded += c.Refunded.Load()
		// Denied first: a decision is counted as one before it is counted as denied.
		n.denied += c.Denied.Load()
		n.requests += c.Requests()
		sums[labels] = n
	})
	return sums
}

func valid(s string) string { return strings.ToValidUTF8(s, "?") }
