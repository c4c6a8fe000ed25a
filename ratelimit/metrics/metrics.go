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
	"github.com/sluice-gate/sluice/ratelimit/transport"
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
	// Safety, if set, is how the store keeps its data, and RepliesRefused how many of
	// its connections were ended because of what they announced.
	Safety         func() StoreSafety
	RepliesRefused func() uint64
	// Ring, if set, is what this node did as one of a ring.
	Ring func() ratelimit.RoutingStats
	// Gate, if set, decides which calls are begun.
	Gate *shed.Gate
	// Budgets are what callers have begun and not ended, by port.
	Budgets map[string]*transport.Budget
}

// StoreSafety is how the store keeps its data: 1 yes, 0 no, -1 not known.
type StoreSafety struct {
	Known              bool // it was asked, and has answered
	MayEvict, RDB, AOF int
	Evicted            uint64 // keys, since it started
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

	coalesced     = ours("config_changes_coalesced_total", "Changes of files and pushes that shared the load of a later one.")
	copyErrors    = ours("config_copy_errors_total", "Times that the last good rules could not be written to disk.")
	fromCopy      = ours("config_from_copy", "1 while the rules in force are the last good ones from disk.")
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
	rejected      = ours("rejected_total", "What was said to this node, could not be meant, and was not taken in: by whom (peer, store), and its kind.", "from", "kind")
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
	inFlight      = ours("bytes_in_flight", "Of calls and bodies that callers have begun and not ended, as they are kept.", "port")
	callersEnded  = ours("callers_ended_total", "Connections and bodies ended by a bound: crowded (more connections than there may be), heaviest (too many bytes in flight), stalled (it did not go on), excess (far more calls than one connection may have).", "port", "why")
	queueSize     = ours("claims_queue_size", "Claims that may wait to be sent.")
	clockSteps    = ours("store_clock_steps_total", "Times that the store's clock was set, by at least 100 ms.", "direction")
	missing       = ours("store_accounts_lost_total", "Accounts in use that the store was found to have lost singly, as by eviction.")
	missingTokens = ours("store_accounts_lost_tokens_total", "What they had granted to this node: the most that may have been granted again for it.")
	mayEvict      = ours("store_may_evict", "1 if the store's maxmemory-policy may evict accounts in use; -1: it does not say.")
	evictedKeys   = ours("store_evicted_keys", "Keys that the store has evicted since it started.")
	persistent    = ours("store_persistent", "1 if the store keeps its data so; -1: it does not say.", "by")
	shedCalls     = ours("shed_total", "Calls answered UNAVAILABLE before anything was charged, by reason.", "reason")
	givenUp       = ours("calls_given_up_total", "Calls whose caller gave up while they were decided: what they were charged was given back.")
	callsInFlight = ours("calls_in_flight", "Calls that are decided now.")
	waitingCalls  = ours("calls_waiting", "Calls that wait for their turn, or for their answer to be written, now.")
	everything    = []*prometheus.Desc{
		clockSteps, missing, missingTokens, mayEvict, evictedKeys, persistent,
		callErrors, calls, loadSuccess, loadError, coalesced, copyErrors, fromCopy, sources, answers, shadowed, unknown, badCalls, panics, keys, keysMax, evicted, claims, fallbacks, breaker,
		ruleCount, domains, build, seat, seatsWanted, syncAge, claimsBy, stale, void, recoveries, roundTrips, storeTime, leaseSizes, saved, queued, queueSize,
		ringMembers, ringPrint, peerAsks, peerRefused, peerMalformed, rejected, handed, hotDecisions, hotKeys, inFlight, callersEnded,
		shedCalls, givenUp, callsInFlight, waitingCalls,
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
	reloads := c.Store.Reloads()
	count(coalesced, reloads.Coalesced)
	count(copyErrors, reloads.CopyErrors)
	gauge(fromCopy, flag(reloads.FromCopy))
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
	c.collectStore(local, count, gauge)
	c.collectGate(count, gauge)
	c.collectFleet(count, gauge)
	for port, b := range c.Budgets {
		gauge(inFlight, int(b.Held()), port)
		count(callersEnded, b.Crowded.Load(), port, "crowded")
		count(callersEnded, b.Heaviest.Load(), port, "heaviest")
		count(callersEnded, b.Stalled.Load(), port, "stalled")
		count(callersEnded, b.Excess.Load(), port, "excess")
	}
	gauge(ruleCount, len(rules.All()))
	gauge(domains, rules.Domains())
	gauge(build, 1, c.Version)
}

// collectStore shows what is wrong with the store's answers, and how it keeps data.
func (c Collector) collectStore(s ratelimit.LimiterStats, count func(*prometheus.Desc, uint64, ...string), gauge func(*prometheus.Desc, int, ...string)) {
	for i, kind := range ratelimit.Rejections {
		count(rejected, s.Rejected[i], "store", kind)
	}
	count(clockSteps, s.ClockSteps[0], "ahead")
	count(clockSteps, s.ClockSteps[1], "back")
	count(missing, s.Missing)
	count(missingTokens, s.MissingTokens)
	if c.RepliesRefused != nil {
		count(rejected, c.RepliesRefused(), "store", "reply")
	}
	if c.Safety == nil {
		return
	}
	if v := c.Safety(); v.Known {
		gauge(mayEvict, v.MayEvict)
		gauge(evictedKeys, int(v.Evicted))
		gauge(persistent, v.RDB, "rdb")
		gauge(persistent, v.AOF, "aof")
	}
}

// collectGate shows which calls were not begun.
func (c Collector) collectGate(count func(*prometheus.Desc, uint64, ...string), gauge func(*prometheus.Desc, int, ...string)) {
	var s shed.Stats
	if c.Gate != nil {
		s = c.Gate.Stats()
	}
	for reason, name := range shed.Reasons {
		if name != "" {
			count(shedCalls, s.Shed[reason], name)
		}
	}
	count(givenUp, s.GivenUp)
	gauge(callsInFlight, s.InFlight)
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
		for i, kind := range ratelimit.Rejections {
			count(rejected, s.Rejected[i], "peer", kind)
		}
		gauge(ringMembers, len(s.Members))
		gauge(ringPrint, int(s.Ring>>12)) // what a float holds
		count(peerAsks, s.Forwarded, "forwarded")
		count(peerAsks, s.Received, "received")
		count(peerAsks, s.NotOwner, "not_owner")
		count(peerRefused, s.Refused)
		count(peerMalformed, s.Malformed)
		for kind, n := range s.RejectedBy {
			count(rejected, n, "peer", kind)
		}
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
