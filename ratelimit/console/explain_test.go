package console

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

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
	if b := explained("owned", "OK").Bounds; b.Over.EachOwner != 7 || b.OnOutage.Of != ratelimit.OwnerOutage {
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
