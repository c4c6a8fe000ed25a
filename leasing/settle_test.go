package leasing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// settle books a settlement at a node: what a spend took too few, or too many.
func (c *cluster) settle(node int, key string, w window, difference tokens) ratelimit.Verdict {
	a := ratelimit.Ask{Rule: c.rule, Key: []byte(key), Kind: ratelimit.Charge, Cost: difference, Window: w}
	if difference < 0 {
		a.Kind, a.Cost = ratelimit.Release, -difference
	}
	var v [1]ratelimit.Verdict
	c.nodes[node].Decide(context.Background(), c.clock(), []ratelimit.Ask{a}, v[:])
	return v[0]
}

// Requests hold an estimate at one node, and settle at another, in any order. No cost is above its estimate: the limit
// holds at every moment, and in the end the ledger has what was used, to the token.
func TestSettlementsAtAnyNode(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			c := newCluster(t, 3, ratelimit.Limit{Unit: ratelimit.Year, Requests: 1000})
			c.rule.Coordination.OnDeny = ratelimit.DenyRefunds
			type holding struct {
				window window
				amount tokens
			}
			var open []holding
			used, inFlight := tokens(0), tokens(0)
			for range 80 {
				if len(open) > 0 && r.IntN(2) == 0 {
					i := r.IntN(len(open))
					h := open[i]
					open = append(open[:i], open[i+1:]...)
					actual := tokens(r.IntN(int(h.amount) + 1))
					inFlight, used = inFlight-h.amount, used+actual
					if actual != h.amount {
						c.settle(r.IntN(3), "k", h.window, actual-h.amount)
					}
					continue
				}
				n := tokens(1 + r.IntN(120))
				if v := c.ask(r.IntN(3), "k", ratelimit.Spend, n); !v.OverLimit {
					open, inFlight = append(open, holding{v.Window, n}), inFlight+n
				}
				if used+inFlight > 1000 {
					t.Fatalf("%d are used and %d held, of 1000", used, inFlight)
				}
			}
			c.end()
			if got := c.total("k"); got != used+inFlight {
				t.Errorf("%d are used and %d held, and the ledger has %d", used, inFlight, got)
			}
		})
	}
}

// While there is plenty, what was held too much stays in hand at the node that settles, and the ledger is not asked.
func TestSettlementsAskSeldom(t *testing.T) {
	c := newCluster(t, 1, ratelimit.Limit{Unit: ratelimit.Year, Requests: 1_000_000})
	c.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	for range 1000 {
		v := c.ask(0, "k", ratelimit.Spend, 1000)
		if v.OverLimit {
			t.Fatal("refused, and a quarter of the limit is used")
		}
		c.settle(0, "k", v.Window, -750)
	}
	if n := c.nodes[0].Stats().Claims; n > 20 {
		t.Errorf("1,000 requests that settle asked the ledger %d times", n)
	}
}

// settlements are the results of a charge of 30 and a release of 30 for a window that is not the current one, with 40
// of 100 used.
var settlements = []struct {
	name    string
	limit   ratelimit.Limit
	before  window // so many windows before the one that goes on; below 0: after it
	charged tokens
	freed   tokens
}{
	{"its own", ratelimit.Limit{Unit: ratelimit.Year, Requests: 100}, 0, 30, 30},
	{"ended", ratelimit.Limit{Unit: ratelimit.Year, Requests: 100}, 1, 0, 0},
	{"to come", ratelimit.Limit{Unit: ratelimit.Year, Requests: 100}, -1, 0, 0},
	{"ended, sliding", ratelimit.Limit{Unit: ratelimit.Year, Requests: 100, Algorithm: ratelimit.SlidingWindow}, 1, 30, 0},
	{"bucket", ratelimit.Limit{Unit: ratelimit.Year, Requests: 100, Burst: 100, Algorithm: ratelimit.TokenBucket}, 1, 30, 30},
}

// What is settled late credits nothing, and is charged where that still counts: on a fleet and on a node alone.
func TestSettlementsOfOtherWindows(t *testing.T) {
	for _, s := range settlements {
		t.Run(s.name, func(t *testing.T) {
			c := newCluster(t, 2, s.limit)
			alone := local.New(64, 1, time.Unix(1_800_000_000, 0))
			askAlone := func(a ratelimit.Ask) ratelimit.Verdict {
				a.Key = []byte("k")
				v := make([]ratelimit.Verdict, 1)
				alone.Decide(t.Context(), 1, []ratelimit.Ask{a}, v)
				return v[0]
			}
			fleet, one := c.ask(0, "k", ratelimit.Spend, 40), askAlone(ratelimit.Ask{Rule: c.rule, Cost: 40})
			settle := func(what string, difference, want tokens) {
				t.Helper()
				v := c.settle(1, "k", fleet.Window-s.before, difference)
				a := ratelimit.Ask{Rule: c.rule, Kind: ratelimit.Charge, Cost: max(difference, -difference), Window: one.Window - s.before}
				if difference < 0 {
					a.Kind = ratelimit.Release
				}
				w := askAlone(a)
				if v.Charged+v.Debt != want || w.Charged+w.Debt != want || v.OverLimit || w.OverLimit {
					t.Errorf("the %s books %+v in a fleet and %+v alone, must be %d", what, v, w, want)
				}
			}
			settle("charge", 30, s.charged)
			settle("release", -30, s.freed)
			// What is left says whether it was booked: 60, and what was freed, less what was charged.
			left := 60 + s.freed - s.charged
			if v := c.ask(0, "k", ratelimit.Spend, left+1); !v.OverLimit {
				t.Errorf("a fleet admits %d, must have %d left", left+1, left)
			}
			if v := askAlone(ratelimit.Ask{Rule: c.rule, Cost: left}); v.OverLimit {
				t.Errorf("a node alone refuses %d: %+v", left, v)
			}
		})
	}
}
