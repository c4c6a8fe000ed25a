package console

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// looked is a node with one rule that has decided so much since its start.
func looked(passed, refused, alone, beyond uint64) metrics.State {
	return metrics.State{
		OK: passed, OverLimit: refused, Fallbacks: map[string]uint64{"deadline": alone},
		Rules: []metrics.RuleState{{
			Domain: "d", Rule: "r", Decisions: passed + refused, Denied: refused, Beyond: beyond,
			Fallbacks: map[string]uint64{"deadline": alone},
		}},
	}
}

// The page shows seconds, also if the histogram has milliseconds (PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS).
func TestHistoryIsInSeconds(t *testing.T) {
	for _, unit := range []time.Duration{time.Second, time.Millisecond} {
		latency := metrics.NewLatency(unit)
		h := NewHistory(metrics.Collector{}, latency, noFleet)
		at := time.Unix(1_000_000, 0)
		h.observe(at, looked(0, 0, 0, 0), h.buckets())
		for range 100 {
			latency.Observe(0.0002)
		}
		h.observe(at.Add(lookEvery), looked(100, 0, 0, 0), h.buckets())
		if r, _ := h.Recent(); r.P99 < 0.0001 || r.P99 > 0.00025 {
			t.Errorf("in units of %v, calls of 0.2 ms have a p99 of %v s", unit, r.P99)
		}
	}
}

func took(fast, all uint64) []bucket { return []bucket{{0.001, fast}, {0.01, all}} }

const shownLooks = looks - 1 // rates are of two looks

// A page that is opened again shows the last quarter of an hour of the node: rates between two
// looks, and none of the first.
func TestHistoryIsAQuarterOfAnHour(t *testing.T) {
	h := NewHistory(metrics.Collector{}, nil, noFleet)
	at := time.Unix(1_000_000, 1) // at_ms lacks the nanosecond
	for i := range uint64(shownLooks + 10) {
		h.observe(at.Add(time.Duration(i)*lookEvery), looked(20*i, 10*i, 2*i, 0), took(90*i, 100*i))
	}
	v := h.columns(0)
	if len(v.At) != shownLooks || len(v.Passed) != shownLooks || len(v.Rules) != 1 ||
		len(v.Rules[0].Passed) != shownLooks {
		t.Fatalf("%d samples, %d rules", len(v.At), len(v.Rules))
	}
	if v.Passed[0] != 10 || v.Refused[0] != 5 || v.Alone[0] != 1 || v.Rules[0].Passed[0] != 10 ||
		v.Rules[0].Refused[0] != 5 || v.Rules[0].Alone[0] != 1 {
		t.Errorf("a second: passed %v, refused %v, without the store %v; the rule: %+v", v.Passed[0], v.Refused[0],
			v.Alone[0], v.Rules[0].Passed[0])
	}
	if v.P99[0] != 9.1 { // nine tenths of the way from 1 to 10 ms
		t.Errorf("p99 %v ms", v.P99[0])
	}
	if r, _ := h.Recent(); r.Passed != 10 || r.P99 != 0.0091 {
		t.Errorf("lately %+v", r)
	}
	newest := h.columns(v.At[shownLooks-3]).At
	if len(newest) != 2 || newest[1] != v.At[shownLooks-1] {
		t.Errorf("since the last but two: %v", newest)
	}
	for i := range int(recentFor/lookEvery) + 1 {
		h.observe(at.Add(time.Duration(shownLooks+11+i)*lookEvery), looked(1e6, 0, 0, 0), nil)
	}
	if r, _ := h.Recent(); r.Passed != 0 {
		t.Errorf("ten seconds without a call: %v a second", r.Passed)
	}
}

// Rules come and go, and counters begin anew: nothing is negative, and what is remembered of rules is bounded.
func TestHistoryIsBounded(t *testing.T) {
	h := NewHistory(metrics.Collector{}, nil, noFleet)
	at := time.Unix(1_000_000, 0)
	for i := range 500 {
		s := looked(5, 5, 5, 0)
		s.Rules = nil
		for r := range watchedRules {
			s.Rules = append(s.Rules, metrics.RuleState{
				Domain: "d", Rule: fmt.Sprint("r", i/10*7+r),
				Decisions: uint64(1000 - i),
			})
		}
		h.observe(at.Add(time.Duration(i)*time.Second), s, nil)
	}
	v := h.columns(0)
	if len(v.Rules) != chartedRules {
		t.Errorf("%d rules are charted", len(v.Rules))
	}
	for i := range v.At {
		if v.Passed[i] < 0 || v.P99[i] != -1 || v.Rules[0].Passed[i] < 0 {
			t.Fatalf("sample %d: passed %v, p99 %v", i, v.Passed[i], v.P99[i])
		}
	}
}

// What was beyond its bound is news for a quarter of an hour, and then no longer.
func TestHistoryForgetsNews(t *testing.T) {
	h := NewHistory(metrics.Collector{}, nil, noFleet)
	at := time.Unix(1_000_000, 0)
	look := func(i int, beyond uint64) uint64 {
		h.observe(at.Add(time.Duration(i)*lookEvery), looked(uint64(i), 0, 0, beyond), nil)
		_, rules := h.recent()
		return rules["d\nr\n"].beyond
	}
	look(0, 3) // of before the first look
	if n := look(1, 3); n != 0 {
		t.Errorf("%d of before are news", n)
	}
	if n := look(2, 4); n != 1 {
		t.Errorf("one more, and %d are news", n)
	}
	for i := range shownLooks + 2 {
		look(3+i, 4)
	}
	if n := look(shownLooks+10, 4); n != 0 {
		t.Errorf("a quarter of an hour later %d are news", n)
	}
	// Until then, it was not among the busiest rules.
	seldom := metrics.State{Rules: []metrics.RuleState{{Domain: "d", Rule: "seldom", Beyond: 1}}}
	h.observe(at.Add(17*time.Minute), seldom, nil)
	if _, rules := h.recent(); rules["d\nseldom\n"].beyond != 1 {
		t.Error("the bound of a rule with few requests is broken, which is no news")
	}
	h = NewHistory(metrics.Collector{}, nil, noFleet)
	for i := range 40 { // a node with many rules looks seldom
		h.observe(at.Add(time.Duration(i)*30*time.Second), looked(uint64(i), 0, 0, uint64(min(3+i, 4))), nil)
	}
	if _, rules := h.recent(); rules["d\nr\n"].beyond != 0 {
		t.Error("19 minutes later it is news")
	}
}

// Charts are of the fleet: what this node counts, and what the others that respond registered. A silent node, and a
// list that is too old, do not count.
func TestHistoryIsOfTheFleet(t *testing.T) {
	busy := func(id string, passed float64) *Rates {
		return &Rates{
			Passed: passed, Refused: 1, Failed: 2, P99: 0.03, Worst: 7, Rules: []RuleRates{{ID: id, Passed: passed}},
		}
	}
	fleet := Fleet{Nodes: []Node{
		{Here: true, Rates: busy("d\nr\n", 900)},
		{Rates: busy("d\nr\n", 40)},
		{Rates: busy("d\nother\n", 50)},
		{Silent: true, Rates: busy("d\nr\n", 700)},
		{},
	}}
	h := NewHistory(metrics.Collector{}, nil, func() Fleet { return fleet })
	at := time.Unix(1_000_000, 0)
	for i := range uint64(3) {
		fleet.Old = i == 2
		h.observe(at.Add(time.Duration(i)*lookEvery), looked(20*i, 10*i, 0, 0), took(90*i, 100*i))
	}
	v := h.columns(0)
	want := "[3 1] [100 10] [7 5] [4 0] [30 9.1] [7 0] [10 10] [9.1 9.1]"
	got := fmt.Sprint(v.Nodes, v.Passed, v.Refused, v.Failed, v.P99, v.Worst, v.Here.Passed, v.Here.P99)
	if got != want {
		t.Errorf("nodes, passed, refused, failed, p99, worst, here: %s; want %s", got, want)
	}
	rules := ""
	for _, r := range v.Rules {
		rules += fmt.Sprintf("%q %v ", r.ID, r.Passed)
	}
	if want := `"d\nother\n" [50 0] "d\nr\n" [50 10] `; rules != want {
		t.Errorf("rules %s; want %s", rules, want)
	}
	if r, _ := h.Recent(); len(r.Rules) != 1 || r.Rules[0] != (RuleRates{ID: "d\nr\n", Passed: 10, Refused: 5}) {
		t.Errorf("it registers %+v", r.Rules)
	}
}
