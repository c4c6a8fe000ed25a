package ratelimit_test

import (
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

func reserving(limit ratelimit.Tokens, nodes int, reserve string) *ratelimit.Rule {
	r := &ratelimit.Rule{
		Domain: "d", Path: "k", Limit: ratelimit.Limit{Unit: ratelimit.Day, Requests: limit},
		Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{},
	}
	r.Coordination.MaxNodes = nodes
	if err := r.Coordination.Set("lease.reserve", reserve); err != nil {
		panic(err)
	}
	return r
}

// A reserve is whole tokens for each of max_nodes, a tenth of the limit at most, and only of rules that may have one.
func TestReserveIsWholeShares(t *testing.T) {
	for _, c := range []struct {
		limit   ratelimit.Tokens
		nodes   int
		reserve string
		want    ratelimit.Tokens
	}{
		{1000, 5, "0.5%", 5},
		{1000, 10, "0.5%", 0}, // less than a token for each
		{100, 10, "0.5%", 0},  // less than a token
		{50, 10, "20", 0},     // at most a tenth, which is less than a token for each
		{1000, 3, "0.5%", 3},
		{1_000_000, 10, "0.4%", 4000},
		{1_000_000_000_000, 10_000, "10%", 100_000_000_000},
		{1000, 3, "250", 99}, // a tenth, in thirds
		{1000, 3, "10", 9},
		{1000, 3, "0", 0},
		{0, 3, "10", 0},
	} {
		r := reserving(c.limit, c.nodes, c.reserve)
		if got := r.Reserve(); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
		if got := r.Declare(3, ratelimit.SharedStore).Under.Reserve; got != c.want {
			t.Errorf("%+v: declared %d", c, got)
		}
		doubts, none := strings.Join(r.Doubts(), "; "), c.want == 0 && c.limit > 0 && c.reserve != "0"
		if strings.Contains(doubts, "nothing is held back") != none {
			t.Errorf("%+v: doubts are %q", c, doubts)
		}
		at := r.AtLedger()
		if c.want == 0 {
			if at != r || at.Whole() != nil {
				t.Errorf("%+v: without a reserve it is another rule at the ledger", c)
			}
			continue
		}
		if at == r || at.Whole() != r || at.Limit.Requests != c.limit-c.want || at.DriftShare()*ratelimit.Tokens(c.nodes) != c.want ||
			!at.Drifts() || at.AtLedger() != at || at.Counters != r.Counters || at.Path != r.Path {
			t.Errorf("%+v: at the ledger %+v", c, at)
		}
	}
	for what, spoil := range map[string]func(*ratelimit.Rule){
		"mode approx":    func(r *ratelimit.Rule) { r.Coordination.Mode = ratelimit.Approx },
		"an audit":       func(r *ratelimit.Rule) { r.Coordination.Audit = true },
		"a bucket":       func(r *ratelimit.Rule) { r.Limit.Algorithm = ratelimit.TokenBucket },
		"sliding":        func(r *ratelimit.Rule) { r.Limit.Algorithm = ratelimit.SlidingWindow },
		"a request's":    func(r *ratelimit.Rule) { r.Override = true },
		"what unlimited": func(r *ratelimit.Rule) { r.Unlimited = true },
	} {
		r := reserving(1000, 3, "0.5%")
		spoil(r)
		if r.Reserve() != 0 || r.AtLedger() != r {
			t.Errorf("%s has a reserve of %d", what, r.Reserve())
		}
	}
	routed := reserving(1000, 3, "0.5%")
	if routed.Coordination.Mode = ratelimit.Routing; routed.Reserve() != 3 {
		t.Errorf("routing: %d", routed.Reserve())
	}
}

// A rule is prepared once, and a copy that was changed since has a rule of its own at the ledger.
func TestCopyOfAPreparedRule(t *testing.T) {
	r := reserving(1000, 5, "0.5%")
	r.Prepare()
	if a, b := r.AtLedger(), r.AtLedger(); a != b {
		t.Error("it is made anew each time")
	}
	if n := testing.AllocsPerRun(100, func() { r.AtLedger() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	larger := *r
	larger.Limit.Requests = 2000
	if at := larger.AtLedger(); at.Limit.Requests != 1990 || at.Whole() != &larger {
		t.Errorf("of the rule that it is a copy of: %+v", at)
	}
	single := r.PerRequest()
	if at := single.AtLedger(); at.Limit.Requests != 995 || at.Coordination.Lease.Fixed != 1 {
		t.Errorf("a request's own: %+v", at)
	}
}

// What is left is said of the whole limit: all of it at first, nothing only where nothing is left, and never
// more after less.
func TestRemainingOfTheWhole(t *testing.T) {
	for _, limit := range []ratelimit.Tokens{1000, 2500, 1_000_000, 1_000_000_000_000} {
		at := reserving(limit, 5, "10%").AtLedger()
		part := at.Limit.Requests
		if got := at.Remaining(part); got != limit {
			t.Errorf("%d: all is %d", limit, got)
		}
		if got := at.Remaining(part - 1); got >= limit || got < limit-2 {
			t.Errorf("%d: after one %d", limit, got)
		}
		if at.Remaining(0) != 0 || at.Remaining(-1) != -1 || at.Remaining(1) < 1 {
			t.Errorf("%d: of nothing %d, of one %d", limit, at.Remaining(0), at.Remaining(1))
		}
		last := ratelimit.Tokens(0)
		for left := ratelimit.Tokens(0); left <= part; left += max(1, part/1000) {
			if got := at.Remaining(left); got < last || got < left || got > limit {
				t.Fatalf("%d: of %d %d, after %d", limit, left, got, last)
			} else {
				last = got
			}
		}
	}
	if r := reserving(1000, 5, "0"); r.Remaining(7) != 7 {
		t.Error("without a reserve it is what it is")
	}
}
