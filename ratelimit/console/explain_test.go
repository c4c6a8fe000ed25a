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
)

// What people read of a key is as testdata/explain.txt has it: what the next request gets, and the sentence for a
// customer, which has the usage, when a request passes, and whether retries extend that.
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
