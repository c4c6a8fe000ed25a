// Package metrics shows the service's counters to Prometheus, under
// envoyproxy/ratelimit's names where it has one, and as the text of /stats.
//
// Guarantee: nothing here is on the way of a request; counters are read when
// somebody asks. The number of series is bounded by MaxRules and the config:
// no request can add one.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/service"
	"github.com/sluice-gate/sluice/ratelimit/shed"
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
	// Gate, if set, decides which calls are begun.
	Gate *shed.Gate
}

// Collector is a prometheus.Collector over a Source, but for the metrics of
// rules; see Handler.
type Collector struct{ Source }

const method = "ShouldRateLimit"

var (
	callErrors  = theirs("should_rate_limit_error", "Calls answered with an error.", "err_type")
	calls       = theirs("total_requests", "Calls.", "grpc_method")
	loadSuccess = theirs("config_load_success", "Configs put in force.")
	loadError   = theirs("config_load_error", "Configs refused.")

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
	seat          = ours("drift_seat", "This node's drift seat; -1: it has none, and its approx rules lease.")
	seatsWanted   = ours("drift_seat_wanted", "1 if a rule in force is of mode approx.")
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
	claimsBy      = ours("claims_total", "Claims sent to the ledger, by what they were for.", "for")
	stale         = ours("claims_stale_total", "Claims that the ledger refused as older than what it knows, or for a window that is over.")
	void          = ours("fences_refused_total", "Claims whose fence had been closed: their lease was another's, and nothing of it was spent.")
	recoveries    = ours("ledger_recoveries_total", "Times that the ledger was found to have lost data, and was told again.")
	roundTrips    = ours("store_operations_total", "Round trips to the store.", "result")
	storeTime     = ours("store_seconds", "Time of round trips to the store.")
	leaseSizes    = ours("lease_tokens", "Tokens granted with a claim, where any were.")
	saved         = ours("store_operations_saved_total", "Decisions made without asking the store: what one operation a request would have cost more.")
	queued        = ours("claims_queued", "Claims that wait to be sent.")
	queueSize     = ours("claims_queue_size", "Claims that may wait to be sent.")
	shedCalls     = ours("shed_total", "Calls answered UNAVAILABLE before anything was charged, by reason.", "reason")
	givenUp       = ours("calls_given_up_total", "Calls whose caller gave up while they were decided: what they were charged was given back.")
	inFlight      = ours("calls_in_flight", "Calls that are decided now.")
	waitingCalls  = ours("calls_waiting", "Calls that wait for their turn now.")
	everything    = []*prometheus.Desc{
		callErrors, calls, loadSuccess, loadError, sources, answers, shadowed, unknown, badCalls, panics, keys, keysMax, evicted, claims, fallbacks, breaker,
		ruleCount, domains, build, seat, seatsWanted, syncAge, claimsBy, stale, void, recoveries, roundTrips, storeTime, leaseSizes, saved, queued, queueSize,
		ringMembers, ringPrint, peerAsks, peerRefused, peerMalformed, handed, hotDecisions, hotKeys,
		shedCalls, givenUp, inFlight, waitingCalls,
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
	gauge(breaker, flag(local.BreakerOpen))
	ch <- prometheus.MustNewConstMetric(syncAge, prometheus.GaugeValue, local.SyncAge.Seconds())
	for i, name := range ratelimit.ClaimReasons {
		count(claimsBy, local.ClaimsBy[i], name)
	}
	count(stale, local.Stale)
	count(void, local.Void)
	count(recoveries, local.Recoveries)
	count(roundTrips, local.RoundTrips-min(local.Failed, local.RoundTrips), "answered")
	count(roundTrips, local.Failed, "failed")
	ch <- histogram(storeTime, local.StoreTime, 1e-6)
	ch <- histogram(leaseSizes, local.LeaseSizes, 1)
	decided := uint64(0)
	for i := range s.Sources {
		decided += s.Sources[i].Load()
	}
	count(saved, decided-min(local.Claims, decided))
	gauge(queued, local.Queued)
	gauge(queueSize, local.QueueSize)
	c.collectGate(count, gauge)
	c.collectFleet(count, gauge)
	gauge(ruleCount, len(rules.All()))
	gauge(domains, rules.Domains())
	gauge(build, 1, c.Version)
}

// collectGate shows which calls were not begun.
func (c Collector) collectGate(count func(*prometheus.Desc, uint64, ...string), gauge func(*prometheus.Desc, int, ...string)) {
	if c.Gate == nil {
		return
	}
	s := c.Gate.Stats()
	for reason, name := range shed.Reasons {
		if name != "" {
			count(shedCalls, s.Shed[reason], name)
		}
	}
	count(givenUp, s.GivenUp)
	gauge(inFlight, s.InFlight)
	gauge(waitingCalls, s.Waiting)
}

// collectFleet shows what this node is among others.
func (c Collector) collectFleet(count func(*prometheus.Desc, uint64, ...string), gauge func(*prometheus.Desc, int, ...string)) {
	if c.Seat != nil {
		n, wanted := c.Seat()
		gauge(seat, n)
		gauge(seatsWanted, flag(wanted))
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
}

func flag(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// histogram shows a distribution, whose values are multiplied by scale.
func histogram(d *prometheus.Desc, c ratelimit.DistributionCounts, scale float64) prometheus.Metric {
	buckets, sum := map[float64]uint64{}, uint64(0)
	for i, n := range c.Buckets[:len(c.Buckets)-1] {
		sum += n
		buckets[scale*float64(int64(1)<<(2*i))] = sum
	}
	return prometheus.MustNewConstHistogram(d, c.Count, scale*float64(c.Sum), buckets)
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
			http.Error(w, "four scrapes are under way: ask again", http.StatusServiceUnavailable)
			return
		}
		families, err := registry.Gather()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
		if err := c.WriteRuleMetrics(w); err != nil {
			return // it has gone
		}
		for _, f := range families {
			if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
				return
			}
		}
	})
}
