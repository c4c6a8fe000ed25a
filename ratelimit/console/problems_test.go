package console

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// What is wrong is said, with whose it is and what it can be compared with; what
// is in order is not.
func TestProblems(t *testing.T) {
	rule := func(change func(*metrics.RuleState)) []metrics.RuleState {
		r := metrics.RuleState{Domain: "edge", Rule: "login", Policy: "open", Declared: 6}
		if change != nil {
			change(&r)
		}
		return []metrics.RuleState{r}
	}
	page, err := os.ReadFile("../../docs/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	runbooks := string(page)
	none := -1
	lately := func(r recentRule) recentRules { return recentRules{"edge\nlogin\n": r} }
	for name, c := range map[string]struct {
		s      State
		recent Rates
		rules  recentRules
		want   []string // severity and beginnings, in their order
	}{
		"nothing": {s: State{State: metrics.State{Rules: rule(nil)}}},
		"a bound is broken": {
			s:     State{State: metrics.State{Rules: rule(func(r *metrics.RuleState) { r.Beyond = 2 })}},
			rules: lately(recentRule{beyond: 1}),
			want: []string{"bad Rules exceeded their declared bound in the last 15 minutes|edge.login " +
				"(declared: 6"},
		},
		"a bound was broken long ago": {
			s:    State{State: metrics.State{Rules: rule(func(r *metrics.RuleState) { r.Beyond = 2 })}},
			want: []string{"warn Rules exceeded their declared bound before that, since the start|edge.login"},
		},
		"a policy admitted more": {
			s: State{State: metrics.State{Rules: rule(func(r *metrics.RuleState) {
				r.BeyondByPolicy,
					r.OverByPolicy = 1, 120
			})}},
			rules: lately(recentRule{byPolicy: 1}),
			want: []string{"warn on_store_failure admitted more than the limit|edge.login (open): 120 tokens " +
				"in all. The bound for normal operation holds."},
		},
		"no store": {
			s: State{State: metrics.State{Rules: rule(nil), Store: metrics.StoreState{
				BreakerOpen: true,
				SyncAge:     12,
			}, Seat: &none, SeatWanted: true}},
			recent: Rates{Alone: 14}, rules: lately(recentRule{alone: 14}),
			want: []string{
				"bad The store does not answer: the last reply was 12 s ago|Nodes spend",
				"warn 14 decisions a second are made without the store|By rule, with its " +
					"on_store_failure, a second: edge.login (open) 14",
			},
		},
		"a full table": {
			s: State{State: metrics.State{Leases: 1000, MaxKeys: 1000}}, recent: Rates{Full: 12},
			want: []string{"warn The table of keys is full: 12 decisions a second have no place in it|" +
				"1000 keys are tracked, of MAX_KEYS 1000"},
		},
		"lost data": {
			recent: Rates{Lost: 1},
			want:   []string{"warn The store lost its data, in the last quarter of an hour|Nodes restored"},
		},
		"no decision": {
			recent: Rates{Failed: 3.5},
			want:   []string{"bad 3.5 calls a second get no decision: errors or shed calls|Envoy admits"},
		},
		"bad rules": {
			s: State{State: metrics.State{Config: metrics.ConfigState{
				Error:  "a.yaml:3:1: unit is fortnight",
				Failed: time.Unix(0, 0),
			}}},
			want: []string{"bad The current rules are bad since 00:00:00 UTC: the previous rules stay in " +
				"force|a.yaml:3:1"},
		},
		"rules from the copy": {
			s:    State{State: metrics.State{Config: metrics.ConfigState{FromCopy: true}}},
			want: []string{"warn The rules in force are the last good copy|"},
		},
		"silent nodes, and two sets of rules": {
			s: State{Nodes: []Node{{Debug: "a:1", Rules: "x"}, {Debug: "b:1", Rules: "y"}, {
				Debug:  "c:1",
				Silent: true, Seen: 9, Rules: "z",
			}}},
			want: []string{
				"warn 1 of 3 nodes are silent|Last seen: c:1, 9 s ago",
				"warn Nodes run 2 different sets of rules|",
			},
		},
		"slow": {
			recent: Rates{P99: 0.013},
			want:   []string{"warn One decision in a hundred takes longer than 13 ms|"},
		},
		"no seat": {
			s:    State{State: metrics.State{Seat: &none, SeatWanted: true}},
			want: []string{"warn No drift seat: rules of mode approx use leases only|"},
		},
		"a bug": {
			s:    State{State: metrics.State{Panics: 1}},
			want: []string{"warn 1 requests since the start hit a bug|"},
		},
	} {
		got := problems(&c.s, c.recent, c.rules)
		for i, p := range got {
			title := strings.ToUpper(p.Runbook[:1]) + strings.ReplaceAll(p.Runbook[1:], "-", " ")
			if !strings.Contains(runbooks, "\n## "+title+"\n") {
				t.Errorf("%s: there is no runbook %s", name, p.Runbook)
			}
			text := p.Severity + " " + p.What
			if i >= len(c.want) {
				t.Errorf("%s: and %s", name, text)
				continue
			}
			what, detail, _ := strings.Cut(c.want[i], "|")
			if !strings.HasPrefix(text, what) || !strings.HasPrefix(p.Detail, detail) {
				t.Errorf("%s: %q (%q), want %q", name, text, p.Detail, c.want[i])
			}
		}
		if len(got) < len(c.want) {
			t.Errorf("%s: %d problems, want %d", name, len(got), len(c.want))
		}
	}
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
