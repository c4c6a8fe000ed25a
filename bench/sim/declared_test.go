package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// What a rule declares is held here against what a fleet does in virtual time, a test a
// column of `sluice check` (docs/reference/bounds.md).

// One node makes at most the declared number of claims of a key: while there is plenty, while requests are
// refused, and with recalls. This includes a crash or a stop of a node, perhaps the key's owner.
//
//	go test -count=1 -v -run DeclaredStoreOps ./bench/sim
func TestDeclaredStoreOps(t *testing.T) {
	const length, keys = 62 * time.Second, 2
	check := func(t *testing.T, rule *ratelimit.Rule) {
		t.Parallel()
		l := rule.Limit
		worst := &opsCounter{}
		for _, run := range []struct {
			demand float64 // of the limit, for each key
			fault  []Fault
		}{
			{demand: 0.3},
			{demand: 1.5},
			{demand: 6},
			{1.5, []Fault{{At: 20 * time.Second, Kind: Crash, Node: 1}}},
			{1.5, []Fault{{At: 20 * time.Second, Kind: Pause, Node: 1, For: 10 * time.Second}}},
		} {
			rate := min(1500, keys*run.demand*float64(l.Requests)/l.Period().Seconds())
			ops := &opsCounter{}
			result := played(t, Options{
				Seed: 1, Nodes: 3, Rule: anew(rule), watch: ops, Net: near, Faults: run.fault,
				Load: load.Load{Rate: rate, Keys: keys, Length: length},
			})
			ops.finish()
			if ops.used > worst.used {
				worst = ops
			}
			if ops.used > 1 || result.Recalls > result.Claims {
				t.Errorf("%v times the limit, %v: %d claims of a key by a node for %+v: %.2f of what is declared; %d recalls, %d claims",
					run.demand, run.fault, ops.claims, ops.demand, ops.used, result.Recalls, result.Claims)
			}
		}
		t.Logf("%.2f of what is declared: %d claims for %+v", worst.used, worst.claims, worst.demand)
		if worst.claims == 0 {
			t.Error("no claim was counted")
		}
	}
	for _, requests := range []ratelimit.Tokens{30, 1500} {
		for name, rule := range everyWay(t, requests) {
			t.Run(name, func(t *testing.T) { check(t, rule) })
		}
	}
	// Where no request waits, each request without a lease drifts at once, and a claim reports it. Near
	// the end of a large limit that is one claim for each few tokens.
	t.Run("without waiting", func(t *testing.T) {
		l := ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 60_000}
		check(t, declaring(t, l, map[string]string{"mode": "approx", "drift_budget": "5%", "max_nodes": "3", "check_timeout": "0s"}))
	})
}

// No key exceeds its limit by more than declared, with demand for over three times the limit. A store takes 50 ms, or
// nodes crash with unreported usage. Without a crash, the excess is at most the drift budget.
func TestDeclaredOver(t *testing.T) { declaredOver(t, "slow", "silent") }

// A store that loses its data costs what is declared: keys are used up when it does, as they were in the window before,
// and demand goes on.
func TestDeclaredLoss(t *testing.T) { declaredOver(t, "loss") }

func declaredOver(t *testing.T, names ...string) {
	faults := map[string][]Fault{
		"slow":   {{At: 2 * time.Second, Kind: Slow, For: 50 * time.Millisecond}},
		"silent": {{At: 3300 * time.Millisecond, Kind: Crash, Node: 0}, {At: 3700 * time.Millisecond, Kind: Crash, Node: 2}},
		"loss":   {{At: 32 * time.Second, Kind: Amnesia}}, // in the second window
	}
	for _, name := range names {
		over := ratelimit.Tokens(0)
		for way, r := range everyWay(t, 600, map[string]string{"on_store_failure": "closed"}) {
			rate := map[string]float64{"slow": 72, "silent": 72, "loss": 120}[name]
			start := map[string]time.Duration{"loss": 40 * time.Second}[name]
			result := played(t, Options{
				Seed: 1, Nodes: 4, Rule: r, Net: near, Start: start, Load: load.Load{Rate: rate, Keys: 2, Length: 55 * time.Second}, Faults: faults[name],
			})
			declared := declare.Of(r, 4, declare.SharedStore)
			most := declared.Over.Drift
			switch name {
			case "silent":
				most += 2 * declared.Over.EachSilent
			case "loss":
				most += declared.OnLoss
			}
			if result.Over > most || name != "loss" && most > declared.Over.Tokens {
				t.Errorf("%s, %s: %d over, at most %d of %+v", way, name, result.Over, most, declared.Over)
			}
			over += result.Over
		}
		if t.Logf("%s: %d over, of all rules together", name, over); over == 0 {
			t.Errorf("%s: nothing was over: what was measured?", name)
		}
	}
}

// The nodes' count of over-admission is at least the excess that clients got. It is larger by at most the drift budget:
// the account does not show which of its tokens refusals were charged.
func TestOverAdmissionIsCounted(t *testing.T) {
	const limit = 10_000
	total := ratelimit.Tokens(0)
	for seed := range uint64(20) {
		r := declaring(t, ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: limit}, map[string]string{
			"mode": "approx", "drift_budget": "5%", "max_nodes": "3", "on_store_failure": "closed", "on_deny": []string{"charge", "refund"}[seed%2],
		})
		far := Net{Trip: Delay{Least: 50 * time.Millisecond}}
		result := played(t, Options{
			Seed: seed, Nodes: 3, Rule: r, Net: far, Load: load.Load{Rate: limit / 10, Keys: 1, Length: 30 * time.Second},
		})
		counted := ratelimit.Tokens(r.Counters.OverAdmitted.Load())
		if counted < result.Over || counted > result.Over+r.Coordination.DriftBudget.Of(limit) {
			t.Errorf("seed %d: %d over, and the nodes count %d", seed, result.Over, counted)
		}
		total += result.Over
	}
	if t.Logf("%d over in all", total); total == 0 {
		t.Error("nothing was over: was it tried?")
	}
}

// In a window without a store, nodes admit what is declared, and no more; what is over in
// the window in which it went is no more either. Demand is six times the limit.
func TestDeclaredOutage(t *testing.T) {
	const nodes, rate = 3, 60.0
	l := ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 600}
	for i := range 9 {
		fields := map[string]string{"on_store_failure": ratelimit.FailurePolicies[i/3], "mode": ratelimit.ModeNames()[i%3]}
		r := declaring(t, l, fields)
		result := played(t, Options{
			Seed: 1, Nodes: nodes, Rule: r, Net: near, Load: load.Load{Rate: rate, Keys: 1, Length: 120 * time.Second}, Points: 120,
			Faults: []Fault{{At: 30 * time.Second, Kind: Down, For: 100 * time.Second}},
		})
		admitted, offered := ratelimit.Tokens(0), ratelimit.Tokens(0)
		for _, p := range result.Timeline[60:] {
			admitted, offered = admitted+p.Admitted, offered+p.Offered
		}
		declared := declare.Of(r, nodes, declare.SharedStore).OnOutage
		most := declared.Fleet().At(rate)
		t.Logf("%v: %d over in the first window, %d admitted in the second, declared: %v", fields, result.Over, admitted, declared)
		switch {
		case !declared.Node.Bounded():
			// One that probes whether the store is back waits for store_deadline, beyond the end.
			underWay := ratelimit.Tokens(math.Ceil(rate * ratelimit.StoreDeadline.Seconds()))
			if admitted > offered || admitted < offered-underWay {
				t.Errorf("%v: %d admitted of %d", fields, admitted, offered)
			}
		case admitted > most || result.Over > most:
			t.Errorf("%v: %d over, %d admitted; at most %d", fields, result.Over, admitted, most)
		case declared.Policy == ratelimit.FailLocal && admitted == 0:
			t.Errorf("%v: nothing was admitted: what was measured?", fields)
		}
	}
}

// The store fails for good in second 24 of a window whose demand is twice the limit. The admissions before, those of
// leases and those of nodes alone are at most 110 % of the limit together, because nodes continue from the sum that they
// read last. In mode routing, a node reads no sum of keys that it forwards: all is at most as declared.
func TestWindowThatFails(t *testing.T) {
	for _, rate := range []float64{102, 300} {
		for name, r := range everyWay(t, 3000) {
			result := played(t, Options{
				Seed: 1, Nodes: 3, Rule: r, Net: near, Load: load.Load{Rate: rate, Keys: 1, Length: 60 * time.Second},
				Faults: []Fault{{At: 24 * time.Second, Kind: Down, For: 40 * time.Second}},
			})
			t.Logf("%s: %d over", name, result.Over)
			if most := r.Limit.Requests / 10; r.Coordination.Mode != ratelimit.Routing && result.Over > most {
				t.Errorf("%s: %d over, at most %d", name, result.Over, most)
			}
		}
	}
}

// No decision waits for longer than is declared: of a store that takes 100 ms, or does not
// answer, and of peers as slow.
//
// The first requests of all find a node that has no seat yet, and so no share: one in a hundred may wait for longer than
// a share lets it.
func TestDeclaredWait(t *testing.T) {
	inBuckets := func(d time.Duration) time.Duration { return d + d/500 } // the histogram has three digits
	longest := time.Duration(0)
	l := ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 600}
	slow := Fault{At: time.Second, Kind: Slow, For: 100 * time.Millisecond}
	hung := Fault{At: time.Second, Kind: Hang, For: 5 * time.Second}
	for _, fields := range coordinations {
		for i := range 8 {
			net := near
			net.Hop.Least = []time.Duration{300 * time.Microsecond, 100 * time.Millisecond}[i%2]
			fault := []Fault{slow, hung}[i/2%2]
			r := declaring(t, l, fields, map[string]string{"store_deadline": []string{"15ms", "40ms"}[i/4]})
			// A node's share of a key is seven tokens. It gets one request in two seconds, so that the share lasts while the
			// store hangs.
			result := played(t, Options{
				Seed: 1, Nodes: 3, Rule: r, Net: net, Load: load.Load{Rate: 60, Keys: 40, Length: 10 * time.Second}, Faults: []Fault{fault},
			})
			declared := declare.Of(r, 3, declare.SharedStore).Wait
			if result.Longest > inBuckets(declared.Longest) || declared.Drifts && result.P99 > inBuckets(declared.WithShare) {
				t.Errorf("%v %v, %v hops: a decision waited for %v, 99 of 100 for %v; declared: %v",
					fields, fault, net.Hop.Least, result.Longest, result.P99, declared)
			}
			longest = max(longest, result.Longest)
		}
	}
	if longest < 40*time.Millisecond {
		t.Errorf("nothing waited for longer than %v: what was measured?", longest)
	}
}

// The lease of a crashed node is stranded for a while: at most as declared. For leases of plenty
// that is a twentieth of the limit beyond three seconds of the node's demand. Demand is one and a
// half times the limits, so that all stranded tokens are missing. Tokens that are missing without a
// crash do not count.
//
//	go test -count=1 -v -run DeclaredUnder ./bench/sim
func TestDeclaredUnder(t *testing.T) {
	const nodes, keys, rate = 3, 3, 450
	for name, rule := range everyWay(t, 6000) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			under := func(faults ...Fault) ratelimit.Tokens {
				demand := load.Load{Rate: rate, Keys: keys, Length: 60 * time.Second}
				return played(t, Options{Seed: 1, Nodes: nodes, Rule: anew(rule), Load: demand, Faults: faults, Net: near}).Under
			}
			whole := under()
			declared := declare.Of(rule, nodes, declare.SharedStore).Under
			const measured = 2 * rate / keys / nodes // that of few requests may be twice the mean
			most := keys * declared.Crashed.At(measured)
			if declared.Lasts < rule.Limit.Period()/2 { // it is credited long before the window ends
				most = keys
			}
			for _, at := range []time.Duration{time.Second, 25 * time.Second} {
				got := under(Fault{At: at, Kind: Crash, Node: 1})
				t.Logf("crash at %v: %d under, and %d without it; at most %d more (%v)", at, got, whole, most, declared)
				if got > whole+most {
					t.Errorf("crash at %v: %d under, and %d without it; at most %d more", at, got, whole, most)
				}
			}
		})
	}
}

// opsCounter counts the claims of each node for each key in each window, and the demand that determines the declared
// maximum of claims. It keeps the window that used most of that.
type opsCounter struct {
	*world
	counts map[opsOf]*ops
	used   float64
	claims int64
	demand declare.Demand
}

// opsOf identifies a node and a key.
type opsOf struct {
	node ratelimit.Holder
	key  *key
}

// ops are those of one node for one key in a window.
type ops struct {
	rule    *ratelimit.Rule
	stretch int64 // number of the window, or of the times that a bucket could have filled
	first   int64 // nanoseconds
	last    int64
	short   spell // half of the limit or less is left
	refused spell // requests are refused
	claims  int64
	demand  declare.Demand
}

// spell is a state of a key, which each request in that state confirms. The zero spell never was.
type spell struct {
	until int64
	lasts time.Duration
}

// seen notes that the state holds now, and may guide the node for a while.
func (s *spell) seen(now int64) {
	until := now + int64(2*ratelimit.ClaimBackOff)
	s.lasts += time.Duration(until - max(now, s.until))
	s.until = until
}

func (c *opsCounter) open(w *world) { c.world, c.counts = w, map[opsOf]*ops{} }

// at is the count of a node and a key at this instant.
func (c *opsCounter) at(node ratelimit.Holder, k *key) *ops {
	at, l := opsOf{node, k}, &k.rule.Limit
	stretch := int64(l.WindowAt(k.part.time()))
	if l.Algorithm == ratelimit.TokenBucket {
		stretch = int64(float64(c.now) / float64(l.Period()) * float64(l.Requests) / float64(l.Burst))
	}
	if o := c.counts[at]; o != nil && o.stretch != stretch {
		c.close(o)
		delete(c.counts, at)
	}
	if c.counts[at] == nil {
		c.counts[at] = &ops{rule: k.rule, stretch: stretch, first: c.now}
	}
	c.counts[at].last = c.now
	return c.counts[at]
}

// close compares the claims in a window with the declared maximum.
func (c *opsCounter) close(o *ops) {
	o.demand.Time, o.demand.Windows = time.Duration(o.last-o.first), 1
	o.demand.Short, o.demand.Refused = o.short.lasts, o.refused.lasts
	declared := declare.Of(o.rule, len(c.nodes), declare.SharedStore).StoreOps
	if share := float64(o.claims) / declared.Most(&o.demand); share > c.used {
		c.used, c.claims, c.demand = share, o.claims, o.demand
	}
}

func (c *opsCounter) claimed(node ratelimit.Holder, k *key) { c.at(node, k).claims++ }

func (c *opsCounter) asked(n *node, k *key, a *ratelimit.Ask, v *ratelimit.Verdict) {
	if a.Kind != ratelimit.Spend {
		return
	}
	o := c.at(n.name, k)
	owned := k.rule.Coordination.Mode.Spec().Owned // but while an outage of the ring matters, its owner may not answer
	if owned && slices.ContainsFunc(c.bound.lost, func(s span) bool { return s.from <= c.now && c.now <= s.to }) {
		o.demand.Unowned += a.Cost
	}
	if k.judge.Room(k.part.time()) <= k.rule.Limit.Capacity()/2 {
		o.short.seen(c.now)
	}
	if v.OverLimit {
		o.refused.seen(c.now)
		return
	}
	o.demand.Tokens += a.Cost
}

// finish ends all windows that are still counted.
func (c *opsCounter) finish() {
	for _, o := range c.counts {
		c.close(o)
	}
}
