package console

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// Bounds of the history: about 700 KB, and at most a two-hundredth of a CPU to collect it.
const (
	sampleEvery  = 2 * time.Second
	samples      = 450 // a quarter of an hour
	sampledRules = 50
	chartedRules = 6
	restFor      = 200 // times the duration of a sample until the next
	recentFor    = 10 * time.Second
)

// History has the activity of a node in the last quarter of an hour, so that a newly opened page shows it at once. It
// is safe for concurrent use.
type History struct {
	metrics metrics.Collector
	latency prometheus.Metric // of whole calls; nil: unknown

	mu   sync.Mutex
	last metrics.State     // guarded by mu: cumulative, at the latest look
	at   time.Time         // guarded by mu: time of the latest look
	took []*dto.Bucket     // guarded by mu: of latency, then
	ring [samples]sample   // guarded by mu
	n    int               // guarded by mu. Invariant: samples ever taken; ring[n%samples] is next
	base map[string]counts // guarded by mu: of each sampled rule at its first sample
	lost uint64            // guarded by mu: losses of data in the store at the first look
}

// sample is the change between two looks.
type sample struct {
	at    time.Time
	node  Rates       // Lost is since the start
	rules []ruleRates // at most sampledRules
}

// Rates are per second.
type Rates struct {
	Passed  float64 `json:"passed"`
	Refused float64 `json:"refused"`
	Failed  float64 `json:"failed"` // answered with an error, or shed
	Alone   float64 `json:"alone"`  // decisions without the store
	Full    float64 `json:"full"`   // decisions of keys without a place in the table
	Trips   float64 `json:"trips"`  // round trips to the store
	P99     float64 `json:"p99_seconds"`
	// Worst is the excess of the worst key over its limit in a window of the last 30 s, in percent of its allowance.
	Worst float64 `json:"worst_percent"`
	// Lost counts losses of data in the store, during the history.
	Lost uint64 `json:"lost"`
}

type ruleRates struct {
	id                     string
	passed, refused, alone float32
	counts
}

// counts are totals of a rule since the start.
type counts struct{ beyond, byPolicy uint64 }

func ruleID(r *metrics.RuleState) string { return r.Domain + "\n" + r.Rule + "\n" + r.Mode }

// NewHistory is empty. Run fills it.
func NewHistory(c metrics.Collector, latency prometheus.Metric) *History {
	return &History{metrics: c, latency: latency, base: map[string]counts{}}
}

// Run looks at the node until ctx is done. It blocks.
func (h *History) Run(ctx context.Context) {
	for {
		began := time.Now()
		h.observe(began, h.metrics.State(sampledRules), h.buckets())
		pause := max(sampleEvery, restFor*time.Since(began))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (h *History) buckets() []*dto.Bucket {
	var m dto.Metric
	if h.latency == nil || h.latency.Write(&m) != nil {
		return nil
	}
	return m.GetHistogram().GetBucket()
}

// observe adds a sample with the counters at a time.
func (h *History) observe(at time.Time, s metrics.State, took []*dto.Bucket) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { h.last, h.took, h.at = s, took, at }()
	for i := range s.Rules {
		r := &s.Rules[i]
		if _, known := h.base[ruleID(r)]; !known && len(h.base) < 2*sampledRules {
			h.base[ruleID(r)] = counts{r.Beyond, r.BeyondByPolicy}
		}
	}
	seconds := at.Sub(h.at).Seconds()
	if h.at.IsZero() {
		h.lost = s.Store.Recoveries
	}
	if h.at.IsZero() || seconds <= 0 { // a rate needs two looks
		return
	}
	now := sample{at: at, node: rates(&h.last, &s, seconds)}
	now.node.P99 = quantile(0.99, h.took, took)
	for i := range s.Rules {
		if r := &s.Rules[i]; r.Share > 0 {
			now.node.Worst = max(now.node.Worst, 100*float64(r.Worst)/float64(r.Share))
		}
	}
	old := make(map[string]*metrics.RuleState, len(h.last.Rules))
	for i := range h.last.Rules {
		old[ruleID(&h.last.Rules[i])] = &h.last.Rules[i]
	}
	for i := range s.Rules {
		r := &s.Rules[i]
		if b := old[ruleID(r)]; b != nil {
			now.rules = append(now.rules, ruleRates{
				id:      ruleID(r),
				passed:  float32(since(r.Decisions-r.Denied, b.Decisions-b.Denied) / seconds),
				refused: float32(since(r.Denied, b.Denied) / seconds),
				alone:   float32(since(sum(r.Fallbacks), sum(b.Fallbacks)) / seconds),
				counts:  counts{r.Beyond, r.BeyondByPolicy},
			})
		}
	}
	h.ring[h.n%samples] = now
	h.n++
}

func rates(before, now *metrics.State, seconds float64) Rates {
	crowded := func(s *metrics.State) uint64 { return s.Fallbacks[tableFull] }
	full := func(s *metrics.State) uint64 {
		return crowded(s) + s.Sources[ratelimit.Sources[ratelimit.FromOverflow]]
	}
	return Rates{
		Passed: since(now.OK, before.OK) / seconds, Refused: since(now.OverLimit, before.OverLimit) / seconds,
		Failed: since(now.Errors+now.Shed, before.Errors+before.Shed) / seconds,
		Alone:  since(sum(now.Fallbacks)-crowded(now), sum(before.Fallbacks)-crowded(before)) / seconds,
		Full:   since(full(now), full(before)) / seconds,
		Lost:   now.Store.Recoveries,
		Trips:  since(now.Store.RoundTrips, before.Store.RoundTrips) / seconds,
	}
}

var tableFull = ratelimit.FallbackReasons[ratelimit.FallbackTableFull]

// since is the increase of a counter, or 0 if it was reset.
func since(now, before uint64) float64 { return float64(now - min(before, now)) }

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// quantile is a quantile of the values that a histogram counted between two looks, in its unit; -1: no values.
func quantile(q float64, before, now []*dto.Bucket) float64 {
	grown := func(i int) float64 {
		if i < len(before) {
			return float64(now[i].GetCumulativeCount()) - float64(before[i].GetCumulativeCount())
		}
		return float64(now[i].GetCumulativeCount())
	}
	if len(now) == 0 || grown(len(now)-1) <= 0 {
		return -1
	}
	rank := q * grown(len(now)-1)
	low, under := 0.0, 0.0
	for i, b := range now {
		top, n := b.GetUpperBound(), grown(i)
		if n >= rank {
			if math.IsInf(top, 1) || n == under {
				return low
			}
			return low + (top-low)*(rank-under)/(n-under)
		}
		low, under = top, n
	}
	return low
}

// eachLocked calls f with the samples since a time, the oldest first. The caller holds the lock.
func (h *History) eachLocked(since time.Time, f func(*sample)) {
	for i := max(0, h.n-samples); i < h.n; i++ {
		if s := &h.ring[i%samples]; s.at.After(since) {
			f(s)
		}
	}
}

// Wrong is the number of the node's problems at the last look, without those of other nodes. It does not block.
func (h *History) Wrong() int {
	h.mu.Lock()
	s := State{State: h.last}
	h.mu.Unlock()
	recent, rules := h.recent()
	return len(problems(&s, recent, rules))
}

// Recent returns the rates of the last seconds. It does not block.
func (h *History) Recent() Rates {
	r, _ := h.recent()
	return r
}

// recentRules are, by rule, decisions a second without the store, and tokens beyond a bound during the history.
type recentRules map[string]*ruleRates

func (h *History) recent() (all Rates, rules recentRules) {
	rules = recentRules{}
	if h == nil {
		return all, rules
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n == 0 {
		return all, rules
	}
	newest := h.ring[(h.n-1)%samples].at
	n := 0.0
	h.eachLocked(newest.Add(-recentFor), func(s *sample) {
		n++
		all.Passed, all.Refused, all.Failed = all.Passed+s.node.Passed, all.Refused+s.node.Refused,
			all.Failed+s.node.Failed
		all.Alone, all.Trips, all.P99 = all.Alone+s.node.Alone, all.Trips+s.node.Trips, max(all.P99, s.node.P99)
		all.Full, all.Worst, all.Lost = all.Full+s.node.Full, max(all.Worst, s.node.Worst), s.node.Lost
		for i := range s.rules {
			r := rules[s.rules[i].id]
			if r == nil {
				r = &ruleRates{}
				rules[s.rules[i].id] = r
			}
			r.alone += s.rules[i].alone
			r.counts = s.rules[i].counts
		}
	})
	all.Passed, all.Refused, all.Failed, all.Alone, all.Trips = all.Passed/n, all.Refused/n, all.Failed/n,
		all.Alone/n, all.Trips/n
	all.Full /= n
	lost := h.lost
	oldest := h.base
	if h.n >= samples { // older counts are not recent
		lost = h.ring[h.n%samples].node.Lost
		oldest = map[string]counts{}
		for _, r := range h.ring[h.n%samples].rules {
			oldest[r.id] = r.counts
		}
	}
	all.Lost -= min(lost, all.Lost)
	for id, r := range rules {
		r.alone /= float32(n)
		if o, known := oldest[id]; known {
			r.beyond -= min(o.beyond, r.beyond)
			r.byPolicy -= min(o.byPolicy, r.byPolicy)
		}
	}
	return all, rules
}

// remembered is the answer to /console/history: columns of equal length.
type remembered struct {
	At      []int64      `json:"at_ms"`
	Passed  []float64    `json:"passed"`
	Refused []float64    `json:"refused"`
	Failed  []float64    `json:"failed"`
	Alone   []float64    `json:"alone"`
	P99     []float64    `json:"p99_ms"` // -1: there were no calls
	Worst   []float64    `json:"worst_percent"`
	Rules   []ruleColumn `json:"rules"`
}

type ruleColumn struct {
	ID      string    `json:"id"`
	Passed  []float64 `json:"passed"`
	Refused []float64 `json:"refused"`
	Alone   []float64 `json:"alone"`
}

func round(v float64) float64 { return math.Round(v*100) / 100 }

// columns has the samples since a time, with the rules of the most decisions.
func (h *History) columns(from time.Time) remembered {
	v := remembered{At: []int64{}, Rules: []ruleColumn{}}
	h.mu.Lock()
	defer h.mu.Unlock()
	busy := map[string]float64{}
	h.eachLocked(time.Time{}, func(s *sample) {
		for i := range s.rules {
			busy[s.rules[i].id] += float64(s.rules[i].passed + s.rules[i].refused)
		}
	})
	ids := make([]string, 0, len(busy))
	for id := range busy {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(busy[b], busy[a]), cmp.Compare(a, b)) })
	ids = ids[:min(len(ids), chartedRules)]
	slices.Sort(ids) // rules keep their columns while others overtake them
	for _, id := range ids {
		v.Rules = append(v.Rules, ruleColumn{ID: id})
	}
	h.eachLocked(from, func(s *sample) {
		v.At = append(v.At, s.at.UnixMilli())
		v.Passed, v.Refused = append(v.Passed, round(s.node.Passed)), append(v.Refused, round(s.node.Refused))
		v.Failed, v.Alone = append(v.Failed, round(s.node.Failed)), append(v.Alone, round(s.node.Alone))
		ms := s.node.P99
		if ms >= 0 {
			ms = math.Round(ms*1e6) / 1e3
		}
		v.P99, v.Worst = append(v.P99, ms), append(v.Worst, round(s.node.Worst))
		for i := range v.Rules {
			r, c := ruleRates{}, &v.Rules[i]
			if at := slices.IndexFunc(s.rules, func(r ruleRates) bool { return r.id == c.ID }); at >= 0 {
				r = s.rules[at]
			}
			c.Passed, c.Refused = append(c.Passed, round(float64(r.passed))), append(c.Refused,
				round(float64(r.refused)))
			c.Alone = append(c.Alone, round(float64(r.alone)))
		}
	})
	return v
}

// history answers with the samples after ?since=, in Unix milliseconds.
func (c *console) history(w http.ResponseWriter, r *http.Request) {
	from := time.Time{}
	if text := r.URL.Query().Get("since"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			refuse(w, http.StatusBadRequest, "since is %q, must be Unix milliseconds, as in at_ms", text)
			return
		}
		from = time.UnixMilli(ms)
	}
	if c.History == nil {
		answer(w, remembered{})
		return
	}
	answer(w, c.History.columns(from))
}
