package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// What people read of a key is as testdata/explain.txt has it: what the next request gets, and the sentence for a
// customer. The sentence has the usage, when a request passes, and whether retries extend that.
func TestExplanations(t *testing.T) {
	rules := ""
	datadriven.RunTest(t, "testdata/explain.txt", func(t *testing.T, in *datadriven.TestData) string {
		if in.Cmd == "rules" {
			rules = in.Input
			return ""
		}
		var out strings.Builder
		synctest.Test(t, func(t *testing.T) {
			n := newOverridable(t)
			c, at := n.console, &n.console.Metrics
			source := config.Static{{Name: "r.yaml", Data: []byte(rules)}}
			at.Store = config.NewStore(source, config.Options{Coordination: ratelimit.DefaultCoordination()}, c.Log)
			if err := at.Store.Load(); err != nil {
				t.Fatal(err)
			}
			d := at.Store.Rules().Domain("d")
			time.Sleep(6 * time.Second) // of a minute that began with this bubble
			for line := range strings.SplitSeq(in.Input, "\n") {
				cmd, rest, _ := strings.Cut(line, " ")
				key, args, _ := strings.Cut(rest, " ")
				entries := []config.Entry{{Key: key, Value: "bob"}}
				rule, name := d.Match(entries, nil)
				switch cmd {
				case "take": // so many tokens of a key
					n, _ := strconv.Atoi(args)
					ask := ratelimit.Ask{Rule: rule, Key: name, Cost: ratelimit.Tokens(n)}
					c.Inspector.(resetting).Decide(t.Context(), 1, []ratelimit.Ask{ask}, make([]ratelimit.Verdict, 1))
				case "override":
					n.must(200, "", "PUT", "/v1/overrides/d?"+key+"=bob", `{"limit": `+args+`}`)
				case "ring": // without a store
					at.Ring = func() (s ratelimit.RoutingStats) { return s }
				case "shadow":
					c.ShadowMode = true
				case "seat":
					at.Seat = func() (int, bool) { return 0, true }
				case "outage":
					at.Limiter = func() ratelimit.LimiterStats {
						return ratelimit.LimiterStats{BreakerOpen: true, SyncAge: 9 * time.Second}
					}
				case "explain": // a key, of which the inspector may say what is written behind it
					inspector := c.Inspector
					if args != "" {
						now := rule.Limit.WindowAt(ratelimit.LedgerTime(time.Now().UnixMicro()))
						is := looking{Inspector: inspector}
						args = strings.ReplaceAll(args, "NOW", fmt.Sprint(now))
						if err := json.Unmarshal([]byte(args), &is.is); err != nil {
							t.Fatal(err)
						}
						c.Inspector = is
					}
					e := c.explained(t.Context(), d, entries)
					c.Inspector = inspector
					fmt.Fprintf(&out, "%s: %s\n", key, e.Next)
					for _, x := range [][2]string{
						{"sentence", e.Sentence}, {"trouble", e.Trouble}, {"Envoys", e.RLQS},
					} {
						if x[1] != "" && in.HasArg(x[0]) {
							fmt.Fprintf(&out, "  %s\n", x[1])
						}
					}
					if in.HasArg("bounds") {
						b := e.Bounds
						fmt.Fprintf(&out, "  each owner %d beyond, in an outage: %s\n", b.Over.EachOwner, b.OnOutage)
					}
				default:
					t.Errorf("what is %q?", cmd)
				}
			}
		})
		return out.String()
	})
}

// looking is an inspector that shows the same of each key.
type looking struct {
	ratelimit.Inspector
	is ratelimit.Look
}

func (l looking) Look(context.Context, ratelimit.Instant, *ratelimit.Ask) ratelimit.Look { return l.is }

// A text that is cut within a character is cut once.
func TestErrorsAreCutOnce(t *testing.T) {
	entry := strings.Repeat("%E6%BC%A2", 100)
	w := newOverridable(t).must(400, "...\"", "GET", "/explain?domain=edge&entry="+entry, "")
	if strings.Contains(w.Body.String(), "....") {
		t.Errorf("%s was cut twice", w.Body)
	}
}

func TestProblems(t *testing.T) {
	runbooks, err := os.ReadFile("../../docs/reference/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	datadriven.RunTest(t, "testdata/problems.txt", func(t *testing.T, in *datadriven.TestData) string {
		var s State
		var recent Rates
		var lately struct {
			Alone    float64
			Beyond   uint64
			ByPolicy uint64 `json:"by_policy"`

			Decisions, Refused, Hits, Ended, Costless uint64
		}
		d := json.NewDecoder(strings.NewReader(in.Input))
		d.DisallowUnknownFields()
		if err := errors.Join(d.Decode(&s), d.Decode(&recent), d.Decode(&lately)); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		rule := recentRule{
			lately.Alone, lately.Beyond, lately.ByPolicy, lately.Decisions, lately.Refused, lately.Hits, lately.Ended,
			lately.Costless,
		}
		for _, p := range problems(&s, recent, recentRules{"edge\nlogin\n": rule}) {
			fmt.Fprintf(&out, "%s: %s: %s [%s]\n", p.Severity, p.What, p.Detail, p.Runbook)
			title := strings.ToUpper(p.Runbook[:1]) + strings.ReplaceAll(p.Runbook[1:], "-", " ")
			if !strings.Contains(string(runbooks), "\n## "+title+"\n") {
				t.Errorf("there is no runbook %s", p.Runbook)
			}
		}
		return out.String()
	})
}

// Hidden values are the same mark wherever they stand, another in another process,
// and nothing of them is left; what the rules say is shown.
func TestRedactor(t *testing.T) {
	r := NewRedactor()
	keys := []ratelimit.HotKey{
		{Account: "minute|edge|api_key=s3cret|path=/login"},
		{Account: "second|edge|api_key=s3cret"},
		{Account: "#s3cret"},
		{Account: "day|edge|s3cret"},
	}
	hidden := r.hottest(keys)
	for i, k := range hidden {
		if strings.Contains(k.Account, "s3cret") || strings.Contains(k.Account, "login") ||
			!strings.Contains(keys[i].Account, "s3cret") {
			t.Errorf("%s is shown as %s", keys[i].Account, k.Account)
		}
	}
	mark := r.mark("s3cret")
	if hidden[0].Account != "minute|edge|api_key="+mark+"|path="+r.mark("/login") ||
		hidden[1].Account != "second|edge|api_key="+mark {
		t.Errorf("%s, %s", hidden[0].Account, hidden[1].Account)
	}
	if NewRedactor().mark("s3cret") == mark {
		t.Error("another process makes the same mark: values could be tried out")
	}
	if got := r.Accounts([]string{keys[1].Account}); got[0] != hidden[1].Account {
		t.Error(got)
	}
	var shown *Redactor
	if got := shown.hottest(keys); got[0] != keys[0] || shown.Accounts([]string{"a"})[0] != "a" {
		t.Error("values are hidden unasked")
	}
}

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
		for range 100 {
			latency.Observe(1.1) // above all buckets
		}
		h.observe(at.Add(2*lookEvery), looked(200, 0, 0, 0), h.buckets())
		if r, _ := h.Recent(); r.P99 != 1 {
			t.Errorf("in units of %v, calls of 1.1 s have a p99 of %v s", unit, r.P99)
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
		// The path of a rule may be as long as its file.
		s.Rules = append(s.Rules, metrics.RuleState{Rule: strings.Repeat("x", 1<<20), Decisions: uint64(9000 + i)})
		h.observe(at.Add(time.Duration(i)*time.Second), s, nil)
	}
	recent, _ := h.Recent()
	if text, err := json.Marshal(recent); err != nil || len(text) > 10<<10 {
		t.Errorf("%d bytes are registered: %v", len(text), err)
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
