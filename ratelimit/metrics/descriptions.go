package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

const method = "ShouldRateLimit"

var (
	callErrors = theirs("should_rate_limit_error",
		"Calls with an error: redis_error (no decision without the store), service_error (a bad "+
			"request, no rules, a bug).", "err_type")
	calls       = theirs("total_requests", "All calls.", "grpc_method")
	loadSuccess = theirs("config_load_success", "Loads of valid rules.")
	loadError   = theirs("config_load_error", "Loads of refused rules.")

	coalesced = ours("config_changes_coalesced_total",
		"Changes and pushes that shared a later load.")
	copyErrors = ours("config_copy_errors_total",
		"Failed writes of CONFIG_LAST_GOOD_FILE.")
	configInfo = ours("config_info",
		"The fingerprint of the rules in force. Missing without rules.", "fingerprint", "source")
	configLoaded = ours("config_last_reload_success_timestamp_seconds",
		"Unix time of the last successful load.")
	reloadGood = ours("config_last_reload_successful",
		"1 if the latest rules are in force, 0 while they are bad or missing.")
	fromCopy = ours("config_from_copy",
		"1 while the rules come from the last good copy.")
	sources = ours("decision_sources_total",
		"Decisions of all rules by source, including removed rules.", "source")
	answers  = ours("answers_total", "Answers by overall code.", "code")
	shadowed = ours("global_shadow_total", "Answers turned to OK by SHADOW_MODE.")
	unknown  = ours("unknown_domain_total", "Requests for a domain without rules.")
	badCalls = ours("bad_requests_total", "Malformed requests.")
	panics   = ours("panics_total", "Requests that hit a bug in Sluice.")
	keys     = ours("keys",
		"Tracked keys: leases of this node, or accounts in this process (ledger).", "in")
	keysMax         = ours("keys_max", "Maximum of tracked keys (MAX_KEYS).")
	overrideChanges = ours("override_changes_total",
		"Changes of overrides at this node: set, removed, conflict (another version), refused by the rule or as "+
			"invalid, failed without an answer of the store.", "result")
	evicted = ours("leases_evicted_total",
		"Keys with usage that a full table dropped. After a loss of data, their usage is not "+
			"restored. Raise MAX_KEYS if it grows.")
	claims    = ours("ledger_claims_total", "Claims that were settled or failed.")
	fallbacks = ours("fallback_decisions_total",
		"Decisions without the store, all rules.", "reason")
	breaker = ours("store_breaker_open", "1 while the breaker skips the store.")
	seat    = ours("drift_seat",
		"The drift seat of this node; -1: none, its rules use leases only.")
	seatsWanted = ours("drift_seat_wanted",
		"1 if a rule is of mode approx or has a lease.reserve.")
	ringMembers = ours("ring_members", "Members of the ring, as this node sees it.")
	ringPrint   = ours("ring_fingerprint", "Hash of the ring, equal on nodes that agree.")
	peerAsks    = ours("peer_asks_total",
		"Requests forwarded to an owner, received, or not_owner.", "what")
	peerRefused   = ours("peers_refused_total", "Peers without a valid proof.")
	peerMalformed = ours("peer_messages_malformed_total", "Invalid messages without effect.")
	rejected      = ours("rejected_total",
		"Invalid messages. From the store: reply (above 4 MiB), answer. From a peer: "+
			"plaintext and tls (no TLS 1.3), introduction, version, weight, name, secret (a wrong "+
			"proof or a relay), gossip, address, frame, sent (a clock more than a year off), ask, "+
			"reply, lease, fetch, presence, parcel, account, receipt.", "from", "kind")
	handed       = ours("accounts_handed_over_total", "Accounts sent to new owners.")
	hotDecisions = ours("hot_key_decisions_total",
		"Decisions here on hot keys of other owners.")
	hotKeys   = ours("hot_keys", "Hot keys of this owner.")
	syncAge   = ours("store_sync_age_seconds", "Age of the last reply.")
	ruleCount = ours("rules", "Rules in force.")
	domains   = ours("domains", "Domains in force.")
	build     = ours("build_info", "The version.", "version")
	claimsBy  = ours("claims_total",
		"Claims by cause: waiting requests, renewal, next_window, return, final report of a "+
			"window.", "for")
	stale = ours("claims_stale_total",
		"Claims refused as older than a later one, or for an ended window.")
	unreported = ours("late_reports_lost_total",
		"Accounts of ended windows whose last total did not reach the store in three tries. "+
			"Statistics, audits and sliding windows lack it.")
	recoveries = ours("ledger_recoveries_total",
		"Times that the store lost data and nodes restored it.")
	roundTrips = ours("store_operations_total",
		"Round trips, answered or failed, of up to 256 claims each.", "result")
	storeTime = ours("store_seconds",
		"Time of a round trip; buckets are powers of four from 1 us.")
	leaseSizes = ours("lease_tokens", "Tokens of a grant; buckets are powers of four.")
	saved      = ours("store_operations_saved_total", "Decisions without a round trip.")
	queued     = ours("claims_queued", "Claims in the queue.")
	inFlight   = ours("bytes_in_flight",
		"Unfinished calls and bodies; port grpc or http.", "port")
	callersEnded = ours("callers_ended_total",
		"Connections and bodies ended by a bound: crowded (too many connections), heaviest (too "+
			"many bytes), stalled (no progress), excess (too many calls or idle frames).", "port", "why")
	queueSize  = ours("claims_queue_size", "Size of the queue.")
	clockSteps = ours("store_clock_steps_total",
		"Steps of the store's clock by at least 100 ms, ahead or back.",
		"direction")
	missing = ours("store_accounts_lost_total",
		"Single accounts in use that the store lost, for example by eviction.")
	missingTokens = ours("store_accounts_lost_tokens_total",
		"Their tokens at this node: the upper bound of tokens that were granted again.")
	mayEvict = ours("store_may_evict",
		"1 if maxmemory-policy can evict accounts; -1 if unknown.")
	evictedKeys = ours("store_evicted_keys",
		"Keys that the store has evicted since its start.")
	persistent = ours("store_persistent",
		"1 if the store saves its data by rdb or aof; -1 if unknown.", "by")
	shedCalls = ours("shed_total",
		"Calls rejected without a charge: overload, or deadline (the caller would give up first).", "reason")
	givenUp = ours("calls_given_up_total",
		"Calls whose caller gave up; their charge was taken back.")
	callsInFlight = ours("calls_in_flight", "Calls being decided.")
	waitingCalls  = ours("calls_waiting",
		"Calls that wait for a decision or for their answer to be written.")
	quotaStreams  = ours("rlqs_streams", "Open streams of RLQS Envoys.")
	quotaBuckets  = ours("rlqs_buckets", "Buckets of these streams.")
	quotaUnproven = ours("rlqs_unproven_tokens",
		"Charged tokens that are neither spent nor in a confirmed lease.")
	quotaReports  = ours("rlqs_reports_total", "Reports of single buckets.")
	quotaRequests = ours("rlqs_requests_total",
		"Requests decided by Envoys, allowed or denied.",
		"decision")
	quotaMessages    = ours("rlqs_messages_total", "Answers to Envoys.")
	quotaAssignments = ours("rlqs_assignments_total", "Leases granted to Envoys.")
	quotaAbandoned   = ours("rlqs_abandoned_total", "Buckets that Envoys must drop.")
	quotaTokens      = ours("rlqs_tokens_total",
		"granted; credited (proven unspent); forgone (unspent in a token_bucket); carried "+
			"(charged to a second window); uncovered (not chargeable any more); excess (admitted "+
			"without a grant: a fallback is not DENY_ALL, or a lease was used after its TTL).", "what")
	quotaLost    = ours("rlqs_reports_lost_total", "Reports that seem lost.")
	quotaRefused = ours("rlqs_refused_total",
		"bound: too many streams or buckets; stuck: an answer was not "+
			"acknowledged; rule: the rule cannot be divided.", "why")
)

// everything are all of the above: each adds itself when it is declared.
var everything []*prometheus.Desc

func theirs(name, help string, labels ...string) *prometheus.Desc {
	return described("ratelimit_service_"+name, help, labels)
}

func ours(name, help string, labels ...string) *prometheus.Desc {
	return described("sluice_"+name, help, labels)
}

func described(name, help string, labels []string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	everything = append(everything, d)
	return d
}

// NewLatency returns the histogram of whole calls under their name, which says
// seconds whatever unit it is in. Who observes gives seconds.
func NewLatency(unit LatencyUnit) *Latency {
	buckets := []float64{
		5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1,
		1,
	}
	for i := range buckets {
		buckets[i] = unit.of(buckets[i])
	}
	return &Latency{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:        "ratelimit_service_response_time_seconds",
		Help:        "Time from reading a request to writing its answer.",
		ConstLabels: prometheus.Labels{"grpc_method": method},
		Buckets:     buckets,
	}), unit}
}

// Latency is a histogram of times. It is safe for concurrent use.
type Latency struct {
	prometheus.Histogram
	unit LatencyUnit
}

// Observe books a time in seconds.
func (l *Latency) Observe(seconds float64) { l.Histogram.Observe(l.unit.of(seconds)) }
