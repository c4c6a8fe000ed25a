package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/declare"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// The sentence has the usage, when the next request passes, and whether retries extend that. There is none where that
// is unknown.
func TestSentenceForACustomer(t *testing.T) {
	minute := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 90}
	begins := time.Unix(1_800_000_000, 0)
	window := minute.WindowAt(ratelimit.LedgerTime(begins.UnixMicro()))
	bucket := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 90, Burst: 90}
	used := func(free, charged ratelimit.Tokens) *ratelimit.Look {
		return &ratelimit.Look{Ledger: &ratelimit.AccountLook{Window: window, Limit: 90, Free: free, Charged: charged}}
	}
	leased := used(0, 90)
	leased.Lease = &ratelimit.LeaseLook{Unspent: 7, Expires: time.Second}
	for _, x := range []struct {
		limit  ratelimit.Limit
		refund bool
		from   string
		look   *ratelimit.Look
		resets time.Duration
		want   string
	}{
		{
			minute, false, "override", used(-204, 294), 0,
			"bob is over 90 per minute (override): 90 admitted, 204 refused. " +
				"The next request passes in 54s; retries do not extend this.",
		},
		{
			minute, false, "rule", used(0, 90), 3 * time.Second,
			"bob is over 90 per minute: 90 admitted. The next request passes in 3s; " +
				"retries do not extend this.",
		},
		{minute, false, "rule", used(12, 78), 0, "bob has 12 left of 90 per minute."},
		{minute, false, "rule", leased, 0, "bob has 7 left of 90 per minute."},
		{
			bucket, false, "rule", used(-3, 93), 2 * time.Second,
			"bob is over 90 per minute, bucket of 90: all is used, and 3 more were charged. " +
				"The next request passes in 2s; each retry before is charged, and extends this.",
		},
		{
			bucket, true, "rule", used(0, 90), 100 * time.Millisecond,
			"bob is over 90 per minute, bucket of 90: 90 admitted. The next request passes in 1s; " +
				"retries do not extend this.",
		},
		{bucket, true, "rule", used(0, 90), 0, "bob is over 90 per minute, bucket of 90: 90 admitted."},
		{
			ratelimit.AtOnce(4, time.Minute), true, "rule", used(0, 4), 0,
			"bob is over 4 at once, each for 1m at most: 4 in flight.",
		},
		{minute, false, "rule", &ratelimit.Look{Owner: "b:1", Ledger: used(0, 90).Ledger}, 0, ""},
		{minute, false, "rule", &ratelimit.Look{LedgerError: "timeout"}, 0, ""},
	} {
		rule := &ratelimit.Rule{Limit: x.limit, Coordination: ratelimit.DefaultCoordination()}
		if x.refund {
			rule.Coordination.OnDeny = ratelimit.DenyRefunds
		}
		e := Explanation{Limit: x.limit.String(), LimitFrom: x.from, Look: x.look, WholeAgain: x.resets}
		entries := []config.Entry{{Key: "tier", Value: "gold"}, {Key: "user", Value: "bob"}}
		if got := e.sentence(rule, entries, begins.Add(6*time.Second)); got != x.want {
			t.Errorf("%q,\nmust be %q", got, x.want)
		}
	}
}

// A request that holds more than is left is not explained as OK, and one of a rule in shadow_mode not as refused.
func TestExplainTellsTheNextAnswer(t *testing.T) {
	n := newOverridable(t)
	files := config.Static{{Name: "r.yaml", Data: []byte(`domain: d
descriptors:
- {key: held, hold: {amount: 60}, rate_limit: {unit: day, requests_per_unit: 100}}
- {key: dark, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: ban, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: invited, max_override: 9, algorithm: token_bucket, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: open, max_override: 9, coordination: {on_store_failure: open}, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: owned, coordination: {mode: routing}, rate_limit: {unit: day, requests_per_unit: 7}}
- {key: small, coordination: {mode: approx}, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: drift, coordination: {mode: approx, drift_budget: 10}, rate_limit: {unit: day, requests_per_unit: 100}}
`)}}
	n.console.Metrics.Store = config.NewStore(files, config.Options{Coordination: ratelimit.DefaultCoordination()},
		n.console.Log)
	if err := n.console.Metrics.Store.Load(); err != nil {
		t.Fatal(err)
	}
	d := n.console.Metrics.Store.Rules().Domain("d")
	explained := func(key, want string) (e Explanation) {
		t.Helper()
		e = n.console.explained(t.Context(), d, []config.Entry{{Key: key, Value: "x"}})
		if !strings.HasPrefix(e.Next, want) {
			t.Errorf("the next request of %s is explained as %q, must be %q", key, e.Next, want)
		}
		return e
	}
	explained("held", "OK, after a claim: 100 left")
	rule, key := d.Match([]config.Entry{{Key: "held", Value: "x"}}, nil)
	limiter := n.console.Inspector.(resetting)
	limiter.Decide(t.Context(), 1, []ratelimit.Ask{{Rule: rule, Key: key, Cost: 41, Kind: ratelimit.Spend}},
		make([]ratelimit.Verdict, 1))
	n.must(200, "", "PUT", "/v1/overrides/d?invited=x", `{"limit": 6}`)
	e := explained("invited", "OK, after a claim: 6 left")
	if !strings.HasPrefix(e.RLQS, "DENY_ALL: its token_bucket") {
		t.Errorf("over RLQS, a bucket that only its override refills is said to get %q", e.RLQS)
	}
	explained("held", "OVER_LIMIT: it holds 60, and 59 are left")
	explained("open", "OVER_LIMIT: ")
	explained("dark", "OK: the rule is in shadow_mode")
	explained("ban", "OVER_LIMIT: requests_per_unit is 0")
	rule, key = d.Match([]config.Entry{{Key: "small", Value: "x"}}, nil)
	limiter.Decide(t.Context(), 1, []ratelimit.Ask{{Rule: rule, Key: key, Cost: 1}}, make([]ratelimit.Verdict, 1))
	explained("small", "OVER_LIMIT: the account has no tokens left")
	n.console.Metrics.Ring = func() (s ratelimit.RoutingStats) { return s }
	if b := explained("owned", "OK").Bounds; b.Over.EachOwner != 7 || b.OnOutage.Of != declare.OwnerOutage {
		t.Errorf("of a ring without a store, %+v is declared", b)
	}
	n.console.ShadowMode = true
	explained("ban", "OK: the node is in SHADOW_MODE (OVER_LIMIT otherwise): requests_per_unit is 0")
	e = explained("held", "OK: the node is in SHADOW_MODE (OVER_LIMIT otherwise): it holds 60, and 59 are left")
	if !strings.HasPrefix(e.RLQS, "ALLOW_ALL") {
		t.Errorf("in SHADOW_MODE, Envoys are said to get %q", e.RLQS)
	}
	n.console.Inspector = looking{n.console.Inspector, ratelimit.Look{LedgerError: "no route to Redis"}}
	if e := explained("open", "OK: admitted by on_store_failure: open"); e.Trouble != "" {
		t.Errorf("a store that answers is said to be in trouble: %s", e.Trouble)
	}
	n.console.Metrics.Limiter = func() ratelimit.LimiterStats {
		return ratelimit.LimiterStats{BreakerOpen: true, SyncAge: 9 * time.Second}
	}
	leased := ratelimit.Look{LedgerError: "no route to Redis", Lease: &ratelimit.LeaseLook{Unspent: 5, Expires: 1}}
	n.console.Inspector = looking{n.console.Inspector, leased}
	e = explained("open", "OK, from the lease of this node: 5 unspent here")
	if !strings.Contains(e.Trouble, "for 9s: leases are spent, then on_store_failure (open) decides") ||
		strings.Contains(e.Next, "left in the account") {
		t.Errorf("in an outage, a key with a lease is explained as %q, %q", e.Trouble, e.Next)
	}
	n.console.Metrics.Seat = func() (int, bool) { return 0, true }
	for refuses, want := range map[time.Duration]string{0: "OK from a drift share", 1: "OK: the node is in SHADOW"} {
		is := ratelimit.Look{Lease: &ratelimit.LeaseLook{Refuses: refuses}, Ledger: &ratelimit.AccountLook{}}
		n.console.Inspector = looking{n.console.Inspector, is}
		explained("drift", want)
	}
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
