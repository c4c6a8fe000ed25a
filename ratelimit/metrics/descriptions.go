package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

const method = "ShouldRateLimit"

var (
	callErrors  = theirs("should_rate_limit_error", "Calls answered with an error.", "err_type")
	calls       = theirs("total_requests", "Calls.", "grpc_method")
	loadSuccess = theirs("config_load_success", "Configs put in force.")
	loadError   = theirs("config_load_error", "Configs refused.")

	coalesced = ours("config_changes_coalesced_total", "Changes of files and pushes that shared the load of a "+
		"later one.")
	copyErrors = ours("config_copy_errors_total", "Times that the last good rules could not be written to disk.")
	configInfo = ours("config_info", "1, with the fingerprint and the source of the rules in force as labels: nodes "+
		"that show the same fingerprint have the same rules.", "fingerprint", "source")
	configLoaded = ours("config_last_reload_success_timestamp_seconds", "When the rules in force were loaded, by "+
		"this node's clock.")
	reloadGood = ours("config_last_reload_successful", "1 if what the source of rules had last is in force; 0 for as "+
		"long as it has something bad, or nothing yet.")
	fromCopy    = ours("config_from_copy", "1 while the rules in force are the last good ones from disk.")
	sources     = ours("decision_sources_total", "Decisions by where they were made.", "source")
	answers     = ours("answers_total", "Answers by overall code.", "code")
	shadowed    = ours("global_shadow_total", "Answers made OK by SHADOW_MODE.")
	unknown     = ours("unknown_domain_total", "Requests for a domain without rules.")
	badCalls    = ours("bad_requests_total", "Requests refused as malformed.")
	panics      = ours("panics_total", "Requests that met a bug in sluice.")
	keys        = ours("keys", "Keys held now.", "in")
	keysMax     = ours("keys_max", "Keys that may be tracked.")
	evicted     = ours("leases_evicted_total", "Keys in use that a full table dropped to make room for others.")
	claims      = ours("ledger_claims_total", "Claims settled by the ledger.")
	fallbacks   = ours("fallback_decisions_total", "Decisions without the ledger, by reason.", "reason")
	breaker     = ours("store_breaker_open", "1 while the store does not answer and is not asked.")
	seat        = ours("drift_seat", "This node's drift seat; -1: it has none, and its rules lease.")
	seatsWanted = ours("drift_seat_wanted", "1 if a rule in force is of mode approx, or has a lease.reserve.")
	ringMembers = ours("ring_members", "Nodes in the ring, as this one sees it.")
	ringPrint   = ours("ring_fingerprint", "Of the ring: nodes that agree show the same.")
	peerAsks    = ours("peer_asks_total", "Asks between nodes: forwarded to an owner, received and decided, not this "+
		"node's, or leased instead of by an owner that does not answer.", "what")
	peerRefused   = ours("peers_refused_total", "Peers that could not prove to be one.")
	peerMalformed = ours("peer_messages_malformed_total", "Messages of peers that made no sense, and changed nothing.")
	rejected      = ours("rejected_total", "What was said to this node, could not be meant, and was not taken in: by "+
		"whom (peer, store), and its kind.", "from", "kind")
	handed       = ours("accounts_handed_over_total", "Accounts given to their new owners.")
	hotDecisions = ours("hot_key_decisions_total", "Decisions on hot keys of other owners, made here.")
	hotKeys      = ours("hot_keys", "Keys of this owner that are hot now.")
	syncAge      = ours("store_sync_age_seconds", "Time since the store last answered.")
	ruleCount    = ours("rules", "Rules in force.")
	domains      = ours("domains", "Domains in force.")
	build        = ours("build_info", "1, with the version as a label.", "version")
	claimsBy     = ours("claims_total", "Claims sent to the ledger, by what they were for.", "for")
	stale        = ours("claims_stale_total", "Claims that the ledger refused as older than what it knows, or for a "+
		"window that is over.")
	unreported = ours("late_reports_lost_total", "Accounts whose window is over, and whose last total was not told "+
		"to the store in three tries.")
	recoveries = ours("ledger_recoveries_total", "Times that the ledger was found to have lost data, and was told "+
		"again.")
	roundTrips = ours("store_operations_total", "Round trips to the store.", "result")
	storeTime  = ours("store_seconds", "Time of round trips to the store.")
	leaseSizes = ours("lease_tokens", "Tokens granted with a claim, where any were.")
	saved      = ours("store_operations_saved_total", "Decisions made without asking the store: what one "+
		"operation a request would have cost more.")
	queued   = ours("claims_queued", "Claims that wait to be sent.")
	inFlight = ours("bytes_in_flight", "Of calls and bodies that callers have begun and not ended, as they are "+
		"kept.", "port")
	callersEnded = ours("callers_ended_total", "Connections and bodies ended by a bound: crowded (more connections "+
		"than there may be), heaviest (too many bytes in flight), stalled (it did not go on), excess (far "+
		"more calls, or idle frames, than one connection may have).", "port", "why")
	queueSize  = ours("claims_queue_size", "Claims that may wait to be sent.")
	clockSteps = ours("store_clock_steps_total", "Times that the store's clock was set, by at least 100 ms.",
		"direction")
	missing = ours("store_accounts_lost_total", "Accounts in use that the store was found to have lost singly, "+
		"as by eviction.")
	missingTokens = ours("store_accounts_lost_tokens_total",
		"What they had granted to this node: the most that may have been granted again for it.")
	mayEvict = ours("store_may_evict", "1 if the store's maxmemory-policy may evict accounts in use; -1: it "+
		"does not say.")
	evictedKeys = ours("store_evicted_keys", "Keys that the store has evicted since it started.")
	persistent  = ours("store_persistent", "1 if the store keeps its data so; -1: it does not say.", "by")
	shedCalls   = ours("shed_total", "Calls answered UNAVAILABLE before anything was charged, by reason.", "reason")
	givenUp     = ours("calls_given_up_total", "Calls whose caller gave up while they were decided: what they were "+
		"charged was given back.")
	callsInFlight = ours("calls_in_flight", "Calls that are decided now.")
	waitingCalls  = ours("calls_waiting", "Calls that wait for their turn, or for their answer to be written, now.")
	quotaStreams  = ours("rlqs_streams", "Streams of Envoys that enforce by themselves, open now.")
	quotaBuckets  = ours("rlqs_buckets", "Buckets that they have subscribed to.")
	quotaUnproven = ours("rlqs_unproven_tokens",
		"Tokens charged for Envoys that are neither known to be spent nor in a "+
			"lease that is known to be in use.")
	quotaReports  = ours("rlqs_reports_total", "Reports of single buckets.")
	quotaRequests = ours("rlqs_requests_total", "Requests that Envoys have decided by themselves, as reported.",
		"decision")
	quotaMessages    = ours("rlqs_messages_total", "Answers sent to Envoys.")
	quotaAssignments = ours("rlqs_assignments_total", "Leases granted to Envoys.")
	quotaAbandoned   = ours("rlqs_abandoned_total", "Buckets that Envoys were told to forget.")
	quotaTokens      = ours("rlqs_tokens_total",
		"Tokens by what became of them: granted to Envoys, credited once proven "+
			"dead, forgone (the same of a token_bucket, which refills without them), carried (charged "+
			"to a second window, for their lease may cross), uncovered (to be charged, "+
			"and not to be "+
			"had), excess (let pass, and never granted).", "what")
	quotaLost    = ours("rlqs_reports_lost_total", "Reports that seem not to have arrived.")
	quotaRefused = ours("rlqs_refused_total",
		"Streams and buckets refused by a bound, streams ended because an answer "+
			"was not taken (stuck), and reports of buckets whose rule cannot be divided (rule).", "why")
	everything = []*prometheus.Desc{
		clockSteps, missing, missingTokens, mayEvict, evictedKeys, persistent,
		callErrors, calls, loadSuccess, loadError, coalesced, copyErrors, fromCopy, configInfo, configLoaded,
		reloadGood, sources, answers, shadowed,
		unknown, badCalls, panics, keys, keysMax, evicted, claims, fallbacks, breaker,
		ruleCount, domains, build, seat, seatsWanted, syncAge, claimsBy, stale, unreported, recoveries, roundTrips,
		storeTime, leaseSizes, saved, queued, queueSize,
		ringMembers, ringPrint, peerAsks, peerRefused, peerMalformed, rejected, handed, hotDecisions, hotKeys,
		inFlight, callersEnded,
		shedCalls, givenUp, callsInFlight, waitingCalls,
		quotaStreams, quotaBuckets, quotaUnproven, quotaReports, quotaRequests, quotaMessages, quotaAssignments,
		quotaAbandoned, quotaTokens, quotaLost, quotaRefused,
	}
)

func theirs(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ratelimit_service_"+name, help, labels, nil)
}

func ours(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_"+name, help, labels, nil)
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
		Help:        "Time from a request's bytes to its answer's.",
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
