package leasing

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// In any time, a bucket admits burst and refill, at a slow store too. Requests that no longer wait return nothing that
// was refilled in their place.
func TestBucketsOfASlowStoreAtRandom(t *testing.T) {
	for seed := range *arenaSeeds {
		r := rand.New(rand.NewPCG(seed, 77)) //nolint:gosec // the same run each time
		nodes := 1 + r.IntN(3)
		rate, burst := []tokens{1, 5, 20}[r.IntN(3)], []tokens{20, 100, 400}[r.IntN(3)]
		policy := []string{"closed", "closed", "local"}[r.IntN(2)]
		fields := map[string]string{
			"on_deny": "refund", "on_store_failure": policy, "store_deadline": []string{"15ms", "100ms", "1s"}[r.IntN(3)],
		}
		if r.IntN(3) == 0 {
			fields["lease.size"] = fmt.Sprint(1 + burst/10)
		}
		share := tokens(0)
		if r.IntN(2) == 0 {
			share = []tokens{1, 4, burst / 2, burst * 2}[r.IntN(4)]
			fields["mode"], fields["max_nodes"] = "approx", fmt.Sprint(nodes)
			fields["check_timeout"] = []string{"0s", "5ms"}[r.IntN(2)]
			fields["drift_budget"] = fmt.Sprint(share * tokens(nodes))
		}
		x := newArena(t, bucketOf(rate, burst, ratelimit.Second), fields)
		for range nodes {
			x.start(nodes)
			if share > 0 {
				x.nodes[len(x.nodes)-1].Drift = always{share}
			}
			x.nodes[len(x.nodes)-1].oneWay = time.Duration([]int{0, 1, 5, 20, 80, 200}[r.IntN(6)])*time.Millisecond + time.Millisecond/2
		}
		x.goOn(2 * time.Second)
		level, at, worst, all := float64(burst), x.now, 0.0, tokens(0)
		refill := func() {
			level = min(float64(burst), level+x.now.Sub(at).Seconds()*float64(rate))
			at = x.now
		}
		lower, mutes := *x.rule, r.IntN(2) == 0
		lower.Limit.Burst, lower.Limit.Requests = max(1, burst/2), max(1, rate/2)
		rules := []*ratelimit.Rule{x.rule, x.rule, &lower}[r.IntN(2):]
		for range 400 {
			if mutes && r.IntN(10) == 0 {
				p := x.nodes[r.IntN(nodes)]
				p.mute, p.down = r.IntN(2) == 0, r.IntN(4) == 0
			}
			for range r.IntN(4) {
				cost := []tokens{1, 1, 2, burst / 4, burst/2 + 1, burst}[r.IntN(6)]
				node, a := r.IntN(nodes), ask{Rule: rules[r.IntN(len(rules))], Key: []byte("k"), Cost: max(1, cost)}
				undone := r.IntN(6) == 0
				x.begin(node, a, func(v *verdict) {
					if undone { // by another limit of the request
						x.nodes[node].Undo(x.now, []ask{a}, []verdict{*v})
						return
					}
					if v.OverLimit || v.Source == ratelimit.FromFallback {
						return
					}
					refill()
					all += a.Cost
					level -= float64(a.Cost)
					worst = min(worst, level)
				})
			}
			x.goOn(time.Duration([]int{1, 1, 5, 30, 300}[r.IntN(5)]) * time.Millisecond)
		}

		// A granted request may be answered later: by its deadline.
		slack := 1 + float64(share*tokens(nodes)) + float64(rate)*(x.rule.Coordination.Deadline().Seconds()+0.001)
		if -worst > slack {
			t.Errorf("seed %d: %d nodes, %v, %v: %.1f beyond burst and refill (slack %.1f), of %d", seed, nodes, x.rule.Limit, fields, -worst, slack, all)
		}
	}
}

// A bucket of a slow store passes its refill.
func TestRefillOfASlowStorePasses(t *testing.T) {
	for _, oneWay := range []int{1, 10, 20, 40, 80, 120} {
		for _, nodes := range []int{1, 3} {
			x := newArena(t, bucketOf(100, 100, ratelimit.Second), map[string]string{"on_deny": "refund", "on_store_failure": "closed", "store_deadline": "1s"})
			for range nodes {
				x.nodes[x.start(nodes)].oneWay = time.Duration(oneWay) * time.Millisecond
			}
			x.goOn(2 * time.Second)
			passed, asked := 0, 0
			for i := range 2000 { // 80 a second
				if i%2 == 0 && i%10 != 0 {
					asked++
					x.begin(i/2%nodes, ask{Rule: x.rule, Key: []byte("k"), Cost: 1}, func(v *verdict) {
						if !v.OverLimit {
							passed++
						}
					})
				}
				x.goOn(5 * time.Millisecond)
			}
			x.goOn(2 * time.Second)
			if passed < asked*95/100 {
				t.Errorf("%d ms one way, %d nodes: %d of %d pass", oneWay, nodes, passed, asked)
			}
		}
	}
}

// What a slow store granted for requests that left comes back, less the refill: of a bucket of a day, single tokens, too.
func TestRequestsThatLeaveReturnTheirTokens(t *testing.T) {
	for _, cost := range []tokens{1, 2} {
		x := newArena(t, bucketOf(10, 10, ratelimit.Day), map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
		p := x.nodes[x.start(1)]
		x.goOn(2 * time.Second)
		p.oneWay = 10 * time.Millisecond
		for range 10 / cost {
			if v := x.ask(0, "k", cost); !v.OverLimit || v.Charged > 0 {
				t.Errorf("%+v", v)
			}
			x.goOn(100 * time.Millisecond)
		}
		p.oneWay = time.Millisecond / 2
		x.goOn(5 * time.Second)
		if n := x.takes(0, "k", 1); n < 9 {
			t.Errorf("cost %d: all requests were refused, and %d of 10 tokens are left", cost, n)
		}
	}
}
