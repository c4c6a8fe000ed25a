package console

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unique"

	dto "github.com/prometheus/client_model/go"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Bounds of the history: 1.3 MB with 10 rules, 4.5 MB with watchedRules, and at most a
// two-hundredth of a CPU to collect it.
const (
	lookEvery    = 2 * time.Second
	looks        = 451 // a quarter of an hour
	watchedRules = 50
	chartedRules = 6
	restFor      = 200 // times the duration of a look until the next
	recentFor    = 10 * time.Second
)

// History has the counters of a node in the last quarter of an hour, so that a newly opened page shows it at once. All
// that it says is the difference of two looks. It is safe for concurrent use.
//
// A look every two seconds goes into a ring. A chart's point is the difference of two looks that follow each other, and
// the rates of the page are the difference over ten seconds.
type History struct {
	metrics metrics.Collector
	latency *metrics.Latency // of whole calls; nil: unknown
	nodes   func() Fleet

	mu   sync.Mutex
	last metrics.State // guarded by mu: of the latest look
	ring [looks]look   // guarded by mu
	n    int           // guarded by mu. Invariant: looks ever taken; ring[n%looks] is next
}

// look has the counters of a node at one moment.
//
// It has counters since the start and not rates, so that any two looks can be compared.
type look struct {
	at time.Time
	counters
	lost  uint64
	worst float64 // see Rates
	took  []bucket
	// replies are the times of round trips, in microseconds.
	replies ratelimit.DistributionCounts
	rules   map[string]counters // at most watchedRules
	others  others
}

// counters are those of a node or a rule, since its start.
type counters [countKinds]uint64

// What counters count.
const (
	countPassed = iota
	countRefused
	countFailed
	countAlone
	countFull
	countBeyond
	countByPolicy
	countUnlimited // requests without a rule
	countBare      // requests without descriptors
	countOther     // of countFailed, except for those without descriptors
	countHits      // cost of requests
	countEnded     // holds, see metrics.RuleState
	countCostless  // holds, see metrics.RuleState
	countTrips     // round trips
	countWaited    // microseconds of round trips
	countKinds
)

// bucket counts calls that took at most so many seconds. Counts are cumulative, as in Prometheus.
type bucket struct {
	top float64
	n   uint64
}

// Rates are per second.
type Rates struct {
	Passed  float64 `json:"passed"`
	Refused float64 `json:"refused"`
	Failed  float64 `json:"failed"` // answered with an error, or shed
	Alone   float64 `json:"alone"`  // decisions without the store
	Full    float64 `json:"full"`   // decisions of keys without a place in the table
	// Unlimited requests have no rule: no rule has their domain or one of their keys, or they have no descriptors.
	Unlimited float64 `json:"unlimited"`
	// Bare requests have no descriptors. They are among Unlimited and Failed.
	Bare  float64 `json:"without_descriptors,omitempty"`
	Other float64 `json:"other_errors,omitempty"` // of Failed, except for Bare
	Trips float64 `json:"trips"`                  // round trips to the store
	Trip  float64 `json:"trip_seconds"`           // mean time of one; 0: there was none
	// Fastest is a time that each of them took at least, to a factor of two.
	Fastest float64 `json:"fastest_trip_seconds"`
	P99     float64 `json:"p99_seconds"`
	// Worst is the excess of the worst key over its limit in a window of the last 30 s, in percent of its allowance.
	Worst float64 `json:"worst_percent"`
	// Lost counts losses of data in the store, during the history.
	Lost uint64 `json:"lost"`
	// Rules are the busiest ones.
	Rules []RuleRates `json:"rules,omitempty"`
}

// recentRules are, by rule, decisions a second without the store, and tokens beyond a bound during the history.
type recentRules map[string]recentRule

type recentRule struct {
	alone            float64
	beyond, byPolicy uint64
	// During the history, at most a quarter of an hour: decisions, refusals, and the cost of all.
	decisions, refused, hits uint64
	ended, costless          uint64 // holds of that time, see metrics.RuleState
}

// ruleID names a rule in looks and in registrations. The mode is part of it, because a rule that changed its mode has
// counters of its own.
func ruleID(r *metrics.RuleState) string { return r.Domain + "\n" + r.Rule + "\n" + r.Mode }

// NewHistory is empty. Run fills it. nodes returns the nodes that share the store, at any time.
func NewHistory(c metrics.Collector, latency *metrics.Latency, nodes func() Fleet) *History {
	return &History{metrics: c, latency: latency, nodes: nodes}
}

// Run looks at the node until ctx is done. It blocks. On a node with many rules a look takes longer, so looks come less
// often.
func (h *History) Run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		h.observe(began, h.metrics.State(watchedRules), h.buckets())
		upkeep.Sleep(ctx, max(lookEvery, restFor*time.Since(began)))
	}
}

// buckets reads the times of calls; nil: they are unknown.
func (h *History) buckets() (all []bucket) {
	var m dto.Metric
	if h.latency == nil || h.latency.Write(&m) != nil {
		return nil
	}
	for _, b := range m.GetHistogram().GetBucket() {
		all = append(all, bucket{h.latency.Seconds(b.GetUpperBound()), b.GetCumulativeCount()})
	}
	// The library leaves out the last bucket. As in Prometheus, what is above all bounds is at the highest.
	if n := len(all); n > 0 {
		all = append(all, bucket{all[n-1].top, m.GetHistogram().GetSampleCount()})
	}
	return all
}

// observe adds a look at the counters. The counters are read before the lock is taken, so that pages wait for a copy
// only.
func (h *History) observe(at time.Time, s metrics.State, took []bucket) {
	l := lookAt(at, &s, took)
	l.others = othersOf(h.nodes())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = s
	h.ring[h.n%looks] = l
	h.n++
}

// lookAt keeps what charts need of a state. Names of rules are shared by all looks (unique), because each look would
// otherwise have copies of them.
func lookAt(at time.Time, s *metrics.State, took []bucket) look {
	crowded := s.Fallbacks[ratelimit.FallbackReasons[ratelimit.FallbackTableFull]]
	l := look{at: at, lost: s.Store.Recoveries, took: took, replies: s.Store.Replies, counters: counters{
		countPassed: s.OK, countRefused: s.OverLimit,
		countFailed: s.Errors + s.Shed, countOther: s.OtherErrors + s.Shed,
		countAlone: sum(s.Fallbacks) - crowded,
		countFull:  crowded + s.Sources[ratelimit.Sources[ratelimit.FromOverflow]],
		countTrips: s.Store.RoundTrips, countWaited: uint64(s.Store.Waited * 1e6),
		countUnlimited: s.UnlimitedRequests, countBare: s.BareRequests,
	}}
	l.rules = make(map[string]counters, len(s.Rules))
	for i := range s.Rules {
		r := &s.Rules[i]
		// Share is 0 for rules that do not drift: they have no allowance to compare with.
		if r.Share > 0 {
			l.worst = max(l.worst, 100*float64(r.Worst)/float64(r.Share))
		}
		l.rules[unique.Make(ruleID(r)).Value()] = counters{
			countPassed: r.Decisions - r.Denied, countRefused: r.Denied, countAlone: sum(r.Fallbacks),
			countBeyond: r.Beyond, countByPolicy: r.BeyondByPolicy, countHits: r.Hits,
			countEnded: r.Ended, countCostless: r.Costless,
		}
	}
	return l
}

// since are the increases from earlier counters. A counter that was reset has none.
func (c counters) since(before counters) counters {
	for i := range c {
		c[i] -= min(before[i], c[i])
	}
	return c
}

// rates are those of increases in so many seconds. seconds must not be 0: two looks have different times.
func (c counters) rates(seconds float64) Rates {
	rate := func(count int) float64 { return float64(c[count]) / seconds }
	return Rates{
		Passed: rate(countPassed), Refused: rate(countRefused), Failed: rate(countFailed),
		Alone: rate(countAlone), Full: rate(countFull), Trips: rate(countTrips),
		Unlimited: rate(countUnlimited), Bare: rate(countBare), Other: rate(countOther),
		Trip: float64(c[countWaited]) / 1e6 / float64(max(1, c[countTrips])),
	}
}

// since are a node's rates from an earlier look on.
func (l *look) since(before *look) Rates {
	r := l.counters.since(before.counters).rates(l.at.Sub(before.at).Seconds())
	r.Fastest = float64(l.replies.LeastSince(&before.replies)) / 1e6
	r.P99 = quantile(0.99, before.took, l.took)
	r.Worst = l.worst
	r.Lost = l.lost - min(before.lost, l.lost)
	return r
}

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// quantile is a quantile of the values that a histogram counted between two looks, in its unit; -1: no values. Between
// two bounds it assumes that values are spread evenly, as Prometheus does. Both histograms must have the same bounds.
func quantile(q float64, before, now []bucket) float64 {
	grown := func(i int) float64 { return float64(now[i].n) - float64(before[i].n) }
	if len(now) == 0 || grown(len(now)-1) <= 0 {
		return -1
	}
	rank := q * grown(len(now)-1)
	low, under := 0.0, 0.0
	for i, b := range now {
		n := grown(i)
		if n >= rank {
			return low + (b.top-low)*(rank-under)/(n-under)
		}
		low, under = b.top, n
	}
	return low
}

// looksLocked are those of the last quarter of an hour, the oldest first. With many rules, they are more seldom.
func (h *History) looksLocked() []*look {
	var all []*look
	last := h.ring[(h.n+looks-1)%looks].at
	for i := max(0, h.n-looks); i < h.n; i++ {
		if l := &h.ring[i%looks]; last.Sub(l.at) < looks*lookEvery {
			all = append(all, l)
		}
	}
	return all
}

// Recent returns the rates of the last seconds, and the number of the node's problems at the last look, without those
// of other nodes. It does not block. Other nodes get both in this node's registration, so problems of the fleet are not
// counted twice.
func (h *History) Recent() (r Rates, wrong int) {
	h.mu.Lock()
	s := State{State: h.last}
	h.mu.Unlock()
	r, rules := h.recent()
	return r, len(problems(&s, r, rules))
}

// recent compares the last look with that of ten seconds before, and for rules also with the first in the ring. With
// fewer than two looks it returns zeros.
func (h *History) recent() (Rates, recentRules) {
	rules := recentRules{}
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.looksLocked()
	if len(all) < 2 {
		return Rates{}, rules
	}
	now, from := all[len(all)-1], len(all)-2
	// It goes back to the first look that is at least ten seconds old, or to the oldest.
	for from > 0 && now.at.Sub(all[from].at) < recentFor {
		from--
	}
	r := now.since(all[from])
	r.P99, r.Lost = max(0, r.P99), now.since(all[0]).Lost
	for id, is := range now.rules {
		ever := is.since(first(all, id))
		lately := is.since(first(all[from:], id)).rates(now.at.Sub(all[from].at).Seconds())
		r.Rules = append(r.Rules, RuleRates{id, round(lately.Passed), round(lately.Refused), round(lately.Alone)})
		rules[id] = recentRule{
			alone:     lately.Alone,
			beyond:    is.since(all[0].rules[id])[countBeyond], // a rule beyond its bound is in each look
			byPolicy:  ever[countByPolicy],
			decisions: ever[countPassed] + ever[countRefused], refused: ever[countRefused], hits: ever[countHits],
			ended: ever[countEnded], costless: ever[countCostless],
		}
	}
	r.Rules = busiestRules(r.Rules)
	return r, rules
}

// first returns the counters of a rule at the earliest look that has them. A rule is missing from a look in which it
// was not among the busiest. Then a later look stands for it.
func first(all []*look, id string) counters {
	for _, l := range all {
		if c, ok := l.rules[id]; ok {
			return c
		}
	}
	return counters{}
}

// remembered is the answer to /console/history: columns of equal length. They are sums of the nodes that respond, and
// of the slowest node and the worst key, except those of Here, which are this node's.
type remembered struct {
	At    []int64 `json:"at_ms"`
	Nodes []int   `json:"nodes"`
	column
	Failed series       `json:"failed"`
	P99    []float64    `json:"p99_ms"` // -1: there were no calls
	Worst  series       `json:"worst_percent"`
	Here   hereColumn   `json:"here"`
	Rules  []ruleColumn `json:"rules"`
}

type hereColumn struct {
	Passed series    `json:"passed"`
	P99    []float64 `json:"p99_ms"`
}

type ruleColumn struct {
	ID string `json:"id"`
	column
}

type column struct {
	Passed  series `json:"passed"`
	Refused series `json:"refused"`
	Alone   series `json:"alone"`
}

type series []float64

func (s *series) add(v float64) { *s = append(*s, round(v)) }

func (c *column) add(passed, refused, alone float64) {
	c.Passed.add(passed)
	c.Refused.add(refused)
	c.Alone.add(alone)
}

// Two decimals are enough for a chart, and keep the answer short.
func round(v float64) float64 { return math.Round(v*100) / 100 }

// inMilliseconds is a quantile in seconds, or -1.
func inMilliseconds(seconds float64) float64 {
	if seconds < 0 {
		return seconds
	}
	return math.Round(seconds*1e6) / 1e3
}

// columns has the rates of each look after a time in Unix milliseconds, with the rules of the most decisions.
func (h *History) columns(since int64) remembered {
	v := remembered{At: []int64{}, Rules: []ruleColumn{}}
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.looksLocked()
	for _, id := range busiest(all) {
		v.Rules = append(v.Rules, ruleColumn{ID: id})
	}
	for i := 1; i < len(all); i++ {
		if all[i].at.UnixMilli() > since {
			v.add(all[i-1], all[i])
		}
	}
	return v
}

// add appends the rates between two looks.
func (v *remembered) add(was, is *look) {
	r := is.since(was)
	v.At = append(v.At, is.at.UnixMilli())
	v.Nodes = append(v.Nodes, is.others.nodes+1)
	v.Here.Passed.add(r.Passed)
	v.Here.P99 = append(v.Here.P99, inMilliseconds(r.P99))
	r.add(&is.others.rates)
	v.column.add(r.Passed, r.Refused, r.Alone)
	v.Failed.add(r.Failed)
	v.P99 = append(v.P99, inMilliseconds(r.P99))
	v.Worst.add(r.Worst)
	for i := range v.Rules {
		c := &v.Rules[i]
		var of RuleRates
		old, had := was.rules[c.ID]
		now, has := is.rules[c.ID]
		// A rule that one of the looks lacks has no difference, and is drawn as 0.
		if had && has {
			here := now.since(old).rates(is.at.Sub(was.at).Seconds())
			of = RuleRates{Passed: here.Passed, Refused: here.Refused, Alone: here.Alone}
		}
		if there := is.others.rules[c.ID]; there != nil {
			of.add(there)
		}
		c.add(of.Passed, of.Refused, of.Alone)
	}
}

// history answers with the looks after ?since=, in Unix milliseconds. A page first requests all looks, and then those
// after its last one.
func (c *console) history(w http.ResponseWriter, r *http.Request) error {
	var since int64
	var err error
	if text := r.URL.Query().Get("since"); text != "" {
		since, err = strconv.ParseInt(text, 10, 64)
		if err != nil {
			return refusing(http.StatusBadRequest, "since is %q, must be Unix milliseconds, as in at_ms", text)
		}
	}
	answer(w, c.History.columns(since))
	return nil
}
