package leasing

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/loads.txt anew, with the figures of this code")

// loads are ten seconds of demand for one key, at each node in turn. Each step is a request.
var loads = []struct {
	name  string
	every time.Duration
	step  func(s *stage, i int) []ask // nil: one token
}{
	{"steady", 20 * time.Millisecond, nil},
	{"flood", 2 * time.Millisecond, nil},
	{"rare", 700 * time.Millisecond, nil},
	{"bursts", 3 * time.Millisecond, func(s *stage, i int) []ask {
		if i%300 == 299 {
			s.goOn(1100 * time.Millisecond)
		}
		return []ask{{Cost: 1}}
	}},
	{"mixed", 15 * time.Millisecond, func(s *stage, i int) []ask { return []ask{{Cost: 1 + tokens(i*i%23)}} }},
	{"peeks", 10 * time.Millisecond, func(s *stage, i int) []ask {
		return []ask{{Kind: ratelimit.Peek}, {Kind: ratelimit.Charge, Cost: tokens(i%4) * 3}}
	}},
	{"refunds", 10 * time.Millisecond, func(s *stage, i int) []ask {
		return []ask{{Cost: 3}, {Kind: ratelimit.Refund, Cost: 1 + tokens(i%2)}}
	}},
	{"holds", 10 * time.Millisecond, func(s *stage, i int) []ask {
		return []ask{{Cost: 5}, {Kind: ratelimit.Release, Cost: 1 + tokens(i%4)}}
	}},
	{"outage", 10 * time.Millisecond, func(s *stage, i int) []ask {
		s.down = i > 250 && i < 450
		return []ask{{Cost: 1}}
	}},
	{"late answers", 10 * time.Millisecond, func(s *stage, i int) []ask {
		s.oneWay = time.Duration(1+i/100%3*8) * time.Millisecond
		return []ask{{Cost: 1}}
	}},
	{"other limits", 10 * time.Millisecond, func(s *stage, i int) []ask {
		switch l := &s.rule.Limit; i {
		case 300:
			s.limited(l.Requests / 3)
		case 600:
			s.limited(9 * l.Requests)
		}
		return []ask{{Cost: 1}}
	}},
	{"suspends", 10 * time.Millisecond, func(s *stage, i int) []ask {
		if i%200 == 199 {
			s.now = s.now.Add(time.Duration(i) * 7 * time.Millisecond)
		}
		return []ask{{Cost: 1}}
	}},
	{"loss", 10 * time.Millisecond, func(s *stage, i int) []ask {
		if i == 350 {
			s.ledger.Lose(nil, "2")
		}
		return []ask{{Cost: 1}}
	}},
	{"clock set", 10 * time.Millisecond, func(s *stage, i int) []ask {
		s.ahead = time.Duration(i/250%2) * 900 * time.Millisecond
		return []ask{{Cost: 1}}
	}},
}

// The costs of loads, under each algorithm and rule. A change of the core that moves a figure writes the table anew:
// a review then sees which loads cost more.
func TestCostOfLoads(t *testing.T) {
	every := func(a ratelimit.Algorithm, seconds uint32, n tokens) ratelimit.Limit {
		return ratelimit.Limit{Algorithm: a, Unit: ratelimit.Second, Multiplier: seconds, Requests: n, Burst: n}
	}
	limits := []ratelimit.Limit{
		every(ratelimit.FixedWindow, 3600, 1e6), every(ratelimit.FixedWindow, 3600, 700),
		every(ratelimit.FixedWindow, 2, 200), every(ratelimit.SlidingWindow, 2, 200),
		every(ratelimit.TokenBucket, 2, 200), every(ratelimit.SlidingWindow, 60, 1000),
		every(ratelimit.TokenBucket, 600, 1000), every(ratelimit.FixedWindow, 1, 7),
	}
	rules := []string{
		"", "on_deny: refund", "reclaim: eager", "lease.size: 20", "store_deadline: 9ms", "lease.size: 1", "audit: true",
		"mode: approx", "mode: routing",
	}
	var table strings.Builder
	for i := range limits {
		for j, load := range loads {
			field, value, _ := strings.Cut(rules[(3*i+j)%len(rules)], ": ")
			nodes := 1 + (i+j)%4
			s := newStage(t, nodes, 1000, 1, map[string]string{field: value, "max_nodes": "3", "drift_budget": "10%"})
			s.rule.Limit, s.oneWay = limits[i], time.Millisecond
			for _, n := range s.nodes {
				n.Drift = always{s.rule.DriftShare()}
			}
			s.recalling()
			fmt.Fprintf(&table, "%d in %v, %v, %s %s, %d nodes, %s: %s\n", limits[i].Requests, limits[i].Period(),
				limits[i].Algorithm, field, value, nodes, load.name, s.play(load.every, load.step))
		}
	}
	const file = "testdata/loads.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	was, is := strings.Split(string(want), "\n"), strings.Split(table.String(), "\n")
	for i := range max(len(was), len(is)) {
		if i >= len(was) || i >= len(is) || was[i] != is[i] {
			t.Fatalf("line %d of %s has other figures, see -rewrite:\n%s\n%s",
				i+1, file, was[min(i, len(was)-1)], is[min(i, len(is)-1)])
		}
	}
}

// play plays a load, and returns its costs.
func (s *stage) play(every time.Duration, step func(*stage, int) []ask) string {
	var admitted, refused, waits, failed int
	var charged, debt, left tokens
	var waited, reset time.Duration
	for end, i := s.now.Add(10*time.Second), 0; s.now < end; i++ {
		at, asks, w := s.now, []ask{{Cost: 1}}, window(0)
		if step != nil {
			asks = step(s, i)
		}
		for j, a := range asks {
			if a.Rule, a.Key = s.rule, []byte("k"); a.Kind == ratelimit.Release {
				a.Window = w
			}
			at := s.now
			v := s.decide((i+j)%len(s.nodes), a)
			if d := s.now.Sub(at); d > 0 {
				waits, waited = waits+1, waited+d
			}
			if v.Source == ratelimit.FromFallback {
				failed++
			}
			charged, debt, left, reset, w = charged+v.Charged, debt+v.Debt, left+v.Remaining, reset+v.ResetAfter, v.Window
			if v.OverLimit {
				refused++
				break
			}
			admitted++
		}
		s.goOn(max(0, every-s.now.Sub(at)))
	}
	return fmt.Sprintf("%d pass, %d refused, %d wait %v, %d by policy, %d claims; "+
		"charged %d, debt %d, used %d, left %d, reset %v", admitted, refused, waits, waited, failed, s.claims,
		charged, debt, s.used("k"), left, reset.Round(time.Millisecond))
}

// A node that is alone answers how much is left to the token, whatever it has leased, returned or lost in the meantime.
func TestRemainingAddsUp(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		s := newStage(t, 1, 1000, 200, nil)
		s.rule.Limit.Algorithm, s.rule.Limit.Burst = ratelimit.Algorithm(algorithm), 200
		s.rule.Limit.Unit = ratelimit.Year // nothing refills in the meantime
		left := tokens(200)
		for i, step := range []struct {
			kind ratelimit.Kind
			cost tokens
		}{
			{ratelimit.Spend, 3},
			{ratelimit.Spend, 1},
			{ratelimit.Refund, 2},
			{ratelimit.Spend, 40},
			{ratelimit.Charge, 30},
			{ratelimit.Spend, 1},
			{ratelimit.Refund, 20},
			{ratelimit.Spend, 100},
			{ratelimit.Peek, 0},
			{ratelimit.Spend, 1},
			{ratelimit.Release, 10},
			{ratelimit.Spend, 1},
			{ratelimit.Charge, 50},
			{ratelimit.Refund, 5},
			{ratelimit.Spend, 1},
		} {
			v := s.decide(0, ask{Rule: s.rule, Key: []byte("k"), Cost: step.cost, Kind: step.kind})
			switch step.kind {
			case ratelimit.Refund, ratelimit.Release:
				left += step.cost
			default:
				left -= step.cost
			}
			if v.Remaining != left || v.OverLimit {
				t.Errorf("%v, step %d: %d left, want %d", ratelimit.Algorithm(algorithm), i, v.Remaining, left)
			}
			s.goOn(300 * time.Millisecond)
		}
		v := s.decide(0, ask{Rule: s.rule, Key: []byte("k"), Cost: left + 7, Kind: ratelimit.Charge})
		if v.Charged != left || v.Debt != 7 || v.Remaining != 0 {
			t.Errorf("%v: %+v of a charge 7 above the rest", ratelimit.Algorithm(algorithm), v)
		}
	}
}
