// Package metrics shows the service's counters to Prometheus, under the names of envoyproxy/ratelimit where
// it has one, and as the text of /stats.
//
// Guarantee: requests do not wait for this package; counters are read at each scrape. The number of series is
// bounded by MaxRules and the config: no request can add one.
package metrics

import (
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// MaxRules is how many rules have series of their own; all others share those
// with the domain and key "(other)".
const MaxRules = 10_000

// Source has the values of the metrics.
type Source struct {
	Store   *config.Store
	Stats   *rls.Stats
	Limiter func() ratelimit.LimiterStats
	MaxKeys int
	Version string
	// Seat, if set, is the drift seat of this node, -1 for none, and whether a
	// rule needs one.
	Seat func() (seat int, wanted bool)
	// Safety, if set, is the persistence of the store, and RepliesRefused the number of its connections that
	// were ended because of their announced sizes.
	Safety         func() StoreSafety
	RepliesRefused func() uint64
	// Ring, if set, is what this node did as one of a ring.
	Ring func() ratelimit.RoutingStats
	// Gate, if set, decides which calls are begun.
	Gate *shed.Gate
	// LocalCache, if set, counts refusals as of a local cache.
	LocalCache *rls.LocalCache
	// Pools are the connections to each Redis, by envoyproxy/ratelimit's name of the pool.
	Pools map[string]*Pool
	// Certificates, if set, counts how often those of gRPC were read again.
	Certificates *Loads
	// Budgets are what callers have begun and not ended, by port.
	Budgets map[string]*transport.Budget
	// Quotas, if set, are the grants to Envoys.
	Quotas *rlqs.Stats
	// Overrides counts what became of changes of overrides at this node; nil: there are none.
	Overrides *OverrideChanges
}

// StoreSafety is how the store keeps its data: 1 yes, 0 no, -1 not known.
type StoreSafety struct {
	Known              bool // it was asked, and has answered
	MayEvict, RDB, AOF int
	Evicted            uint64 // keys, since it started
}

// Collector is a prometheus.Collector over a Source, without the metrics of rules; see Handler.
type Collector struct{ Source }

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
	c.collectConfig(ch)
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
	c.collectLimiter(ch, local, count, gauge)
	decided := uint64(0)
	for i := range s.Sources {
		decided += s.Sources[i].Load()
	}
	count(saved, decided-min(local.Claims, decided))
	c.collectStore(local, count, gauge)
	c.collectGate(count, gauge)
	c.collectFleet(count, gauge)
	c.collectQuotas(count, gauge)
	c.collectOverrides(count)
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

// collectLimiter shows the table of keys, and the claims of the store.
func (c Collector) collectLimiter(ch chan<- prometheus.Metric, s ratelimit.LimiterStats,
	count func(*prometheus.Desc, uint64, ...string), gauge func(*prometheus.Desc, int, ...string),
) {
	gauge(keys, s.Leases, "leases")
	gauge(keys, s.Accounts, "ledger")
	gauge(keysMax, c.MaxKeys)
	count(evicted, s.Evicted)
	count(claims, s.Claims)
	for i, name := range ratelimit.FallbackReasons {
		count(fallbacks, s.Fallbacks[i], name)
	}
	gauge(breaker, flag(s.BreakerOpen))
	ch <- prometheus.MustNewConstMetric(syncAge, prometheus.GaugeValue, s.SyncAge.Seconds())
	for i, name := range ratelimit.ClaimReasons {
		count(claimsBy, s.ClaimsBy[i], name)
	}
	count(stale, s.Stale)
	count(unreported, s.Unreported)
	count(recoveries, s.Recoveries)
	count(roundTrips, s.RoundTrips-min(s.Failed, s.RoundTrips), "answered")
	count(roundTrips, s.Failed, "failed")
	ch <- histogram(storeTime, s.StoreTime, 1e-6)
	ch <- histogram(leaseSizes, s.LeaseSizes, 1)
	gauge(queued, s.Queued)
	gauge(queueSize, s.QueueSize)
}

// collectConfig shows which rules are in force, and whether there is something newer
// that is bad.
func (c Collector) collectConfig(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := c.Store.Status()
	gauge(reloadGood, float64(flag(s.Good)))
	if s.Fingerprint == "" {
		return
	}
	gauge(configInfo, 1, s.Fingerprint, strings.ToValidUTF8(s.Source, "?"))
	gauge(configLoaded, float64(s.Loaded.UnixMilli())/1e3)
}

// collectStore shows invalid answers of the store, and its persistence.
func (c Collector) collectStore(s ratelimit.LimiterStats, count func(*prometheus.Desc, uint64, ...string),
	gauge func(*prometheus.Desc, int, ...string),
) {
	count(rejected, s.Rejected, "store", "answer")
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
func (c Collector) collectGate(count func(*prometheus.Desc, uint64, ...string),
	gauge func(*prometheus.Desc, int, ...string),
) {
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

// collectQuotas shows the grants to Envoys.
func (c Collector) collectQuotas(count func(*prometheus.Desc, uint64, ...string),
	gauge func(*prometheus.Desc, int, ...string),
) {
	s := c.Quotas
	if s == nil {
		return
	}
	gauge(quotaStreams, int(s.Streams.Load()))
	gauge(quotaBuckets, int(s.Buckets.Load()))
	gauge(quotaUnproven, int(s.Unproven.Load()))
	count(quotaReports, s.Reports.Load())
	count(quotaRequests, s.Allowed.Load(), "allowed")
	count(quotaRequests, s.Denied.Load(), "denied")
	count(quotaMessages, s.Messages.Load())
	count(quotaAssignments, s.Assignments.Load())
	count(quotaAbandoned, s.Abandoned.Load())
	count(quotaTokens, s.Granted.Load(), "granted")
	count(quotaTokens, s.Credited.Load(), "credited")
	count(quotaTokens, s.Forgone.Load(), "forgone")
	count(quotaTokens, s.Carried.Load(), "carried")
	count(quotaTokens, s.Uncovered.Load(), "uncovered")
	count(quotaTokens, s.Excess.Load(), "excess")
	count(quotaLost, s.LostReports.Load())
	count(quotaRefused, s.Refused.Load(), "bound")
	count(quotaRefused, s.Stuck.Load(), "stuck")
	count(quotaRefused, s.Unserved.Load(), "rule")
}

// collectFleet shows what this node is among others.
func (c Collector) collectFleet(count func(*prometheus.Desc, uint64, ...string),
	gauge func(*prometheus.Desc, int, ...string),
) {
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
		count(peerAsks, s.Instead, "leased_instead")
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
			http.Error(w, "four scrapes are in progress: try again", http.StatusServiceUnavailable)
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
