package console

import (
	"context"
	"strings"
	"testing"

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
`)}}
	n.console.Metrics.Store = config.NewStore(files, config.Options{Coordination: ratelimit.DefaultCoordination()},
		n.console.Log)
	if err := n.console.Metrics.Store.Load(); err != nil {
		t.Fatal(err)
	}
	d := n.console.Metrics.Store.Rules().Domain("d")
	explained := func(key, want string) {
		t.Helper()
		e := n.console.explained(context.Background(), d, []config.Entry{{Key: key, Value: "x"}})
		if got := e.Next + "; " + e.RLQS; !strings.HasPrefix(got, want) {
			t.Errorf("the next request of %s is explained as %q, must be %q", key, got, want)
		}
	}
	explained("held", "OK, after a claim: 100 left")
	rule, key := d.Match([]config.Entry{{Key: "held", Value: "x"}}, nil)
	n.Decide(context.Background(), 1, []ratelimit.Ask{{Rule: rule, Key: key, Cost: 41, Kind: ratelimit.Spend}},
		make([]ratelimit.Verdict, 1))
	explained("held", "OVER_LIMIT: it holds 60, and 59 are left")
	explained("dark", "OK: the rule is in shadow_mode")
	explained("ban", "OVER_LIMIT: requests_per_unit is 0")
	n.console.ShadowMode = true
	explained("ban", "OK: the node is in SHADOW_MODE (OVER_LIMIT otherwise): requests_per_unit is 0")
	explained("held", "OK: the node is in SHADOW_MODE (OVER_LIMIT otherwise): it holds 60, and 59 are left; ALLOW_ALL")
}
