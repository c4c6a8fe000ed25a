package sim

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/judge"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

var outages = flag.Int("outages", 54, "how many runs with outages TestOutages plays")

// outageRow is the result of runs of one mode and policy: the largest parts of the declared numbers, at most 1.
type outageRow struct{ normal, edges, between float64 }

// In random outages of the store, each mode with each policy admits at most the number that `sluice check` prints. It is
// another one in windows in which an outage begins or ends, between, and without one. Outages come alone or in a row, for all nodes or
// for one. Nodes end and start in them, rules change, tokens are refunded, wall clocks are wrong, and data is lost.
//
//	go test -count=1 -v -run '^TestOutages$' ./bench/sim -outages 1000
func TestOutages(t *testing.T) {
	t.Parallel()
	modes, policies := ratelimit.ModeNames(), ratelimit.FailurePolicies
	rows := make([]outageRow, len(modes)*len(policies))
	for seed := range uint64(*outages) {
		i := int(seed) % len(rows)
		o := drawOutage(seed, modes[i/len(policies)], policies[i%len(policies)])
		if r, err := Run(o.Options); err != nil || r.Violation != nil {
			t.Errorf("seed %d, %v, %+v, %d nodes, %v, %v: %v %v", seed, &o.Rule.Limit, o.Rule.Coordination, o.Nodes, o.Faults, o.Changes, err, r.Violation)
		}
		rows[i].normal, rows[i].edges = max(rows[i].normal, o.part.normal), max(rows[i].edges, o.part.edges)
		rows[i].between = max(rows[i].between, o.part.between)
	}
	tried := rows[slices.Index(policies[:], "local")] // of mode leasing
	for i, r := range rows {
		t.Logf("%s, %s: the largest part of the declared number: normal %.0f%%, first and last %.0f%%, between %.0f%%",
			modes[i/len(policies)], policies[i%len(policies)], 100*r.normal, 100*r.edges, 100*r.between)
	}
	if tried.normal < 0.9 || tried.edges < 0.4 || tried.between < 0.9 {
		t.Errorf("was it tried? %+v", tried)
	}
}

// Runs with an outage that is not known are judged as those without one, and exceed their number.
func TestOutageThatIsNotDeclared(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"local", "open"} {
		found := false
		for seed := uint64(0); seed < 40 && !found; seed++ {
			o := drawOutage(seed, ratelimit.Leasing.String(), policy)
			o.spans = nil
			r, err := Run(o.Options)
			found = err != nil || r.Violation != nil
		}
		if !found {
			t.Errorf("%s: nothing is beyond its number: what is judged?", policy)
		}
	}
}

// outage is a run with outages of the store. As its watcher, it compares each admission with the declared numbers.
type outage struct {
	Options
	*world
	part  outageRow
	spans []span                 // outages
	whole []span                 // those of all nodes
	ahead time.Duration          // of the wall clocks of nodes
	own   map[*node]*judge.Judge // of what nodes admit by on_store_failure
	told  map[*node]bool         // nodes that the store has answered
}

// drawOutage makes a run from its seed. One key is enough, because each key has its own bound.
func drawOutage(seed uint64, mode, policy string) *outage {
	h := &historian{Rand: rand.New(rand.NewPCG(seed, 0x0a7a9e))}
	limit, nodes := pick(h, ratelimit.Tokens(1), 2, 10, 60, 600, 3000), 1+h.IntN(5)
	r := &ratelimit.Rule{
		Domain: "outage", Path: "key", Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{},
		Limit: ratelimit.Limit{
			Algorithm: ratelimit.Algorithm(h.IntN(len(ratelimit.RateAlgorithms()))), Unit: ratelimit.Second,
			Multiplier: pick(h, uint32(1), 2, 5, 10, 30, 60), Requests: limit,
		},
	}
	if r.Limit.Algorithm == ratelimit.TokenBucket {
		r.Limit.Burst = pick(h, max(1, limit/3), limit, 3*limit)
	}
	h.coordination(&r.Coordination)
	if err := setFields(&r.Coordination, map[string]string{"mode": mode, "on_store_failure": policy}); err != nil {
		panic(err) // the fields are wrong
	}
	r.Coordination.MaxNodes = pick(h, nodes, 10)
	one := r.Limit.Period()
	o := &outage{own: map[*node]*judge.Judge{}, told: map[*node]bool{}}
	o.Options = Options{
		Seed: seed, Nodes: nodes, Rule: r, Refuses: h.chance(0.5), watch: o, Start: time.Duration(h.Int64N(int64(one))),
		Net: Net{
			Trip: Delay{Least: time.Duration(200+h.IntN(1500)) * time.Microsecond}, Hop: Delay{Least: 300 * time.Microsecond},
			Skew: pick(h, 0, 20e-6, 90e-6),
		},
		Load: load.Load{Rate: 1, Keys: 1, Length: 5 * one},
	}
	if h.chance(0.3) {
		o.Mix = Mix{Peeks: 0.1, Refunds: pick(h, 0, 0.1), Settles: pick(h, 0, 0.2), Large: pick(h, 0, 0.02), Honest: true}
	}
	if r.Limit.Algorithm != ratelimit.TokenBucket { // the judge of a bucket has no clock that steps back
		o.ahead = time.Duration(h.Int64N(int64(2*one))) - one
	}
	// Outages are as long as windows, or as the pauses of a breaker.
	scale, at := pick(h, one, one, 300*time.Millisecond), time.Duration(h.Int64N(int64(2*one)))
	for n := pick(h, 1, 1, 2, 6); n > 0 && at < o.Load.Length; n-- {
		f := Fault{At: at, Kind: pick(h, Down, Down, Hang, Cut), Node: h.IntN(nodes), For: 10*time.Millisecond + time.Duration(h.Int64N(int64(2*scale)))}
		o.Faults = append(o.Faults, f)
		o.spans = append(o.spans, span{int64(at), int64(at + f.For)})
		if f.Kind != Cut {
			o.whole = append(o.whole, span{int64(at + ahead), int64(at + f.For)})
		}
		if h.chance(0.3) { // nodes come and go
			mid, node := at+time.Duration(h.Int64N(int64(f.For))), h.IntN(nodes)
			o.Faults = append(o.Faults, Fault{At: mid, Kind: pick(h, Crash, Leave), Node: node}, Fault{At: mid, Kind: pick(h, Restart, Restart, Join), Node: node})
		}
		if f.Kind != Cut && h.chance(0.2) { // what returns lacks data
			o.Faults = append(o.Faults, Fault{At: at + f.For, Kind: pick(h, Amnesia, FailOver), For: f.For + time.Duration(h.Int64N(int64(one)))})
		}
		at += f.For + time.Duration(h.Int64N(int64(2*scale)))
	}
	slices.SortStableFunc(o.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	if h.chance(0.2) {
		next := *r
		next.Limit.Requests = max(1, pick(h, limit/2, limit*2))
		next.Coordination.MaxNodes, next.Coordination.OnDeny = pick(h, nodes, 10), ratelimit.OnDeny(h.IntN(len(ratelimit.OnDenies)))
		o.Changes = []Change{{At: time.Duration(h.Int64N(int64(o.Load.Length))), Rule: &next, What: "limit", Spread: time.Second}}
	}
	// Demand is 0.3 to 5.3 times the limit, and mostly near it: the product of two uniform numbers is small.
	o.Recorded = unevenly(h.Rand, nodes, o.Load.Length, float64(limit)*(0.3+5*h.Float64()*h.Float64())/one.Seconds())
	return o
}

// unevenly is demand for one key whose nodes change: all of them, or one. So nodes have read the usage at different
// times. At the beginning of an outage, a node that has read a high usage admits less than one that has read none: the
// declared number must hold for both.
func unevenly(h *rand.Rand, nodes int, length time.Duration, rate float64) *load.Recorded {
	r := &load.Recorded{Keys: []string{"k"}}
	// In two of three outages, requests cost one token, and in the third up to five.
	only, until, cost := -1, 0.0, 1+int64(h.IntN(3)/2*h.IntN(5))
	for at := 0.0; ; {
		// The mean cost is (1+cost)/2, so rate is in tokens and not in requests.
		at += h.ExpFloat64() / rate * float64(1+cost) / 2
		if at >= length.Seconds() {
			return r
		}
		if at > until {
			only, until = h.IntN(2*nodes), at+h.Float64()*length.Seconds()/5
		}
		node := only
		if only >= nodes {
			node = h.IntN(nodes)
		}
		r.Requests = append(r.Requests, load.Request{At: time.Duration(at * 1e9), Cost: 1 + h.Int64N(cost), Node: node})
	}
}

const (
	// ahead is the time before a window at which nodes claim tokens of it.
	ahead = 150 * time.Millisecond
	// probes is the time after an outage until all nodes have an answer.
	probes = 2 * time.Second
)

func (o *outage) open(w *world) { o.world = w }

func (o *outage) claimed(ratelimit.Holder, *key) {}

// matter is the number of outages with a part in what counts now. Those of a window share one part of the limit. They
// count until the window ends in which all nodes have an answer again, or the next one. The excess of a bucket stays while
// demand goes on.
func (o *outage) matter(at ratelimit.LedgerTime, l *ratelimit.Limit) (n int) {
	for _, s := range o.spans {
		until := l.WindowAt(at.Add(time.Duration(s.to-o.now) + probes))
		if l.Algorithm == ratelimit.SlidingWindow {
			until++
		}
		if s.from <= o.now && (l.Algorithm == ratelimit.TokenBucket || l.WindowAt(at) <= until) {
			n++
		}
	}
	if l.Algorithm == ratelimit.TokenBucket {
		return n
	}
	return min(n, 1)
}

// asked compares an admission with the declared numbers: the largest of the rule's versions, with the largest limit.
func (o *outage) asked(n *node, k *key, a *ratelimit.Ask, v *ratelimit.Verdict) {
	// Before the first answer of the store, a node has counted no others, and has the windows of its wall clock.
	o.told[n] = o.told[n] || v.Source == ratelimit.FromLease || v.Source == ratelimit.FromClaim
	n.stepped.Nodes = func() int {
		if o.told[n] {
			return o.alive()
		}
		return 0
	}
	defer n.stepped.SyncClock(n.clock(), time.UnixMicro(int64(o.ledgerTime())).Add(o.ahead))
	if a.Kind != ratelimit.Spend || v.OverLimit {
		return
	}
	l, at, rule := k.judge.Limit, k.part.time(), *n.rule
	rule.Limit = l
	for _, r := range o.bound.versions(k) {
		rule.Coordination.MaxNodes = min(rule.Coordination.MaxNodes, r.Coordination.MaxNodes)
	}
	declared := declare.Of(&rule, o.bound.fewest, declare.SharedStore)
	each := declared.OnOutage.Node
	if v.Source == ratelimit.FromFallback && each.Bounded() {
		o.partOf(n, k, a, &rule)
	}
	since := at.Sub(l.WindowEnd(l.WindowAt(at) - 1))
	whole := func(s span) bool { return s.from <= o.now-int64(since) && o.now < s.to }
	leased := v.Source == ratelimit.FromLease || v.Source == ratelimit.FromClaim
	if leased && len(o.bound.forgets) == 0 && l.Algorithm == ratelimit.FixedWindow && slices.ContainsFunc(o.whole, whole) {
		o.violate(n.slot, k.index, "it admits %d by a lease in a window without any answer", a.Cost)
	}
	most, of := declared.Over.Tokens+o.bound.travels(&rule), &o.part.normal
	for i := range o.bound.forgets {
		most += declared.OnLoss + o.bound.untold(k, &o.bound.forgets[i])
	}
	for _, x := range k.extra { // refunds that the ledger books later, and changes of limits
		most += x.n
	}
	// Each name is a node.
	if outages := max(o.matter(at, &l), min(1, len(o.bound.forgets))); outages > 0 {
		if !each.Bounded() {
			return
		}
		of, most = &o.part.edges, most+each.Times(int(o.names)*outages).Tokens
	}
	over := a.Cost - k.judge.Room(at)
	if over > most {
		o.violate(n.slot, k.index, "it admits %d by %v: %d are over, and %d are declared", a.Cost, ratelimit.Sources[v.Source], over, most)
	}
	*of = max(*of, float64(over+l.Capacity())/float64(max(1, most+l.Capacity())))
}

// partOf compares what a node admits by on_store_failure with its part of the limit, by its own clock.
func (o *outage) partOf(n *node, k *key, a *ratelimit.Ask, r *ratelimit.Rule) {
	share := r.LocalShare(min(o.bound.fewest, r.Coordination.MaxNodes)).Limit
	j := o.own[n]
	if j == nil {
		j = judge.New(share)
		o.own[n] = j
	}
	if share.Capacity() > j.Limit.Capacity() {
		j.Allow(share)
	}
	if over := j.Admit(n.stepped.Alone().LedgerNow(n.clock()), a.Cost); over > 0 {
		o.violate(n.slot, k.index, "it admits %d beyond its part of %v", over, &j.Limit)
	}
	o.part.between = max(o.part.between, 1-float64(j.Room(n.stepped.Alone().LedgerNow(n.clock())))/float64(max(1, share.Capacity())))
}
