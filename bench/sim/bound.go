package sim

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// bound is the declared over-admission of a key: that of the rule, and that of each fault, for as long as the fault
// matters. The declared number of package declare is for one fault. A history has many, so the bound adds one term for
// each of them (of), for as long as it matters (lasts). Events note themselves here when they happen, such as by
// outage, miss, starts and closed, and apart in ring.go. check compares at each admission beyond a limit.
//
// A term that is too large hides bugs, and one that is too small reports bugs that are none. Each term therefore says
// which admission needs it.
type bound struct {
	*world
	forgets []loss  // losses of data
	outages []span  // when on_store_failure may decide
	steps   []step  // when a clock of the ledger was set
	losable bool    // the ledger will lose data
	evicts  bool    // it has lost an account
	slow    bool    // answers may come too late, at any time
	lost    []span  // when the owner of a key may not answer
	splits  []span  // when nodes of a ring without a store may count separately
	used    float64 // the highest share of the bound that a key has used
}

// span is a time from one instant to another.
type span struct{ from, to int64 }

// step is a change of the clock of a part of the ledger.
type step struct {
	at   int64
	part *part
}

// loss is a loss of a part's data.
type loss struct {
	at     int64
	part   *part
	absent map[ratelimit.Holder]bool // nodes that could not state their totals
}

// spending is the usage of a key by one node.
type spending struct {
	at int64 // the last time
	n  ratelimit.Tokens
}

// extra is the additional bound of one key, after an event of that key. An extra without an end lasts like a fault.
// Those of Envoys have an end, and may begin in the future.
type extra struct {
	at int64
	n  ratelimit.Tokens
	to int64 // 0: for as long as a fault matters to the rule
}

// patience is the minimum wait of a request for the store: half of the deadline after a wait for a key's owner. A
// message that takes less time always arrives before its request gives up.
func (b *bound) patience() time.Duration { return b.Rule.Coordination.Deadline() / 2 }

// learns is the time after a loss in which a node need not have stated its totals: the ledger grants a
// twentieth until then.
const learns = int64(2_000_000_000)

// open decides whether answers may be late at any time. With losses, a tail of delays or long trips, any request may
// run out of its deadline. Then on_store_failure counts as possible all the time, and outages need not be noted.
func (b *bound) open(w *world) {
	b.world = w
	trips := time.Duration(2)
	if w.Regions > 1 { // at a turn of the window, a request waits for three, and on_store_failure may decide
		trips = 4
	}
	b.slow = w.Net.Loss > 0 || w.Net.Trip.Tail > 0 || w.Net.Trip.Least+w.Net.Wake >= b.patience()/trips
}

// lasts is the time in nanoseconds for which a fault matters to a rule. Usage counts for at most two periods, in a
// sliding window. A third covers leases of the next window, which nodes claim before it begins.
func (b *bound) lasts(r *ratelimit.Rule) int64 {
	if r.Limit.Algorithm == ratelimit.TokenBucket {
		return 1 << 62 // debt stays
	}
	return int64(3 * r.Limit.Period())
}

// closed notes that others take back what nodes have in hand of a key: what those spent and did not report is granted
// again. None of them counts on its registration, unless the store has lost some.
func (b *bound) closed(k *key, closes []account.Claim) {
	each := ratelimit.Tokens(0)
	for _, r := range b.versions(k) {
		own := *r
		own.Limit = k.rule.Limit
		each = max(each, declare.Of(&own, b.fewest, declare.SharedStore).Over.EachSilent)
	}
	for i := range closes {
		// A registered node may still spend its tokens: closing it early would grant them twice.
		n := b.nodeOf(closes[i].Holder)
		if n != nil && n.alive && n.stepped.Registered(n.clock()) && !b.lossy() {
			b.violate(n.slot, k.index, "what it has in hand is taken back, and it is registered")
		}
		k.extra = append(k.extra, extra{at: b.now, n: each})
	}
}

// miss notes that a node may be unable to state its totals. The node's usage counts as lost for each young epoch in
// which it was away for a moment: it may have missed the one message with its total.
func (b *bound) miss(n *node) {
	for i := range b.forgets {
		if f := &b.forgets[i]; b.now-f.at <= learns {
			f.absent[n.name] = true
		}
	}
}

// late notes the travel time of a message to the store.
func (b *bound) late(took time.Duration) {
	if took >= b.patience() {
		b.outage(took)
	}
}

// outage notes that on_store_failure may decide until then, and until the breaker's next probe. The three seconds more
// cover messages in flight, which end within lane.TimeLimit, and the pauses of the breaker.
func (b *bound) outage(d time.Duration) {
	b.outages = append(b.outages, span{b.now, b.now + int64(d) + 3*learns/2})
	if b.envoys != nil {
		b.envoys.outage(d)
	}
}

// starts notes that a node starts. A process that has read no epoch claims when the epoch is old enough
// (docs/reference/protocol.md), so that on_store_failure decides soon after a loss. A real node is not ready until then.
func (b *bound) starts() {
	if slices.ContainsFunc(b.forgets, func(f loss) bool { return f.at >= b.now-int64(ratelimit.YoungFor) }) {
		b.outage(ratelimit.YoungFor)
	}
}

// forgot notes that a part of the ledger loses its data. All nodes that cannot write their totals now are noted as
// absent, also those that have ended: names are numbers from 1 on.
func (b *bound) forgot(p *part) {
	if slices.ContainsFunc(b.nodes, func(n *node) bool { return n.born >= b.now-int64(ratelimit.YoungFor) }) {
		b.outage(ratelimit.YoungFor)
	}
	if b.envoys != nil {
		b.envoys.forgot()
	}
	f := loss{at: b.now, part: p, absent: map[ratelimit.Holder]bool{}}
	b.forgets = append(b.forgets, f)
	// A node that is away only later in the young epoch is added by miss.
	alive := map[ratelimit.Holder]bool{}
	for _, n := range b.nodes {
		if n.alive && !n.paused && slices.Max(n.cut) == 0 && n.deaf == 0 && p.down == 0 && p.hung == 0 {
			alive[n.name] = true
		}
	}
	for name := ratelimit.Holder(1); name <= b.names; name++ {
		if !alive[name] {
			f.absent[name] = true
		}
	}
}

// lossy reports whether the reports to the ledger can exceed the tokens that exist.
func (b *bound) lossy() bool {
	return len(b.forgets) > 0 || len(b.steps) > 0 || len(b.Changes) > 0 || b.evicts
}

// admitted keeps the usage of nodes, if the ledger may lose it. Usage that is too old to count is dropped. Without
// planned losses it does nothing, to save memory and time.
func (b *bound) admitted(n *node, k *key, cost ratelimit.Tokens) {
	if !b.losable {
		return
	}
	if k.spent == nil {
		k.spent = map[ratelimit.Holder]spending{}
	}
	s := k.spent[n.name]
	if b.now-s.at > b.lasts(k.rule) {
		s.n = 0
	}
	k.spent[n.name] = spending{b.now, s.n + cost}
}

// stepped counts the changes of the clock that divides a key's windows, as far as they matter.
func (b *bound) stepped(k *key, r *ratelimit.Rule) ratelimit.Tokens {
	n := ratelimit.Tokens(0)
	for _, s := range b.steps {
		if s.part == k.part && s.at >= b.now-b.lasts(r) {
			n++
		}
	}
	return n
}

// tokens is the current bound of a key; -1: there is none. It is the largest of the rule's versions, because nodes have
// different versions for a while. Extras of the key come on top of any version's bound.
func (b *bound) tokens(k *key) ratelimit.Tokens {
	most := ratelimit.Tokens(0)
	of := b.versions(k)
	if b.envoys != nil { // each event declares its own (mayPass)
		of = nil
	}
	for _, r := range of {
		t := b.of(k, r)
		if t < 0 {
			return -1
		}
		most = max(most, t)
	}
	for _, x := range k.extra {
		if x.to == 0 && x.at >= b.now-b.lasts(k.rule) || x.at <= b.now && b.now < x.to {
			most += x.n
		}
	}
	return most
}

// versions are the versions of a key's rule.
func (b *bound) versions(k *key) []*ratelimit.Rule {
	if b.Second != nil && k.rule.Path == b.Second.Path {
		return []*ratelimit.Rule{b.Second}
	}
	return b.rules
}

// of is the bound of one version of the rule. It adds the drift of the rule and a bucket's refill while an answer
// travels. Losses of data, steps of a clock and splits of a ring follow. Only if on_store_failure may have decided, the
// budgets of all nodes' outages follow.
//
// own is the version's coordination with the largest limit of any version: nodes with the older coordination may still
// spend tokens of the larger limit.
func (b *bound) of(k *key, r *ratelimit.Rule) ratelimit.Tokens {
	capacity := k.rule.Limit.Capacity()
	own := *r
	own.Limit = k.rule.Limit
	// The fewest nodes that any node has seen give the largest parts of a limit in an outage.
	declared := declare.Of(&own, b.fewest, declare.SharedStore)
	most := declared.Over.Drift + b.travels(&own)
	for i := range b.forgets {
		if b.forgets[i].at < b.now-b.lasts(&own) {
			continue
		}
		its := slices.Contains(k.parts, b.forgets[i].part)
		if its || b.moves() { // a lane has keys of several servers, and is young as a whole
			most += declared.OnLoss
		}
		if its {
			most += b.untold(k, &b.forgets[i])
		}
	}
	// After a step of the clock, another account may count in the same window of time.
	most += b.stepped(k, &own)*(capacity+declared.Over.Drift) + b.split(&own)
	if !b.out(&own) {
		return most
	}
	outage := declared.OnOutage
	if !outage.Node.Bounded() {
		return -1
	}
	share := outage.Node.At(0)
	// A change of the ledger's clock moves the edges of its windows, for good. A node's own budget uses its own
	// clock, so two of its windows can fall into one of the ledger's, and more while the clock is being set.
	share *= 1 + max(ratelimit.Tokens(min(1, len(b.steps))), b.stepped(k, &own))
	switch own.Limit.Algorithm { // declared for each window, and for each incarnation
	case ratelimit.SlidingWindow:
		share *= 2
	// For each time to fill the node's own bucket of the largest part, and its debt stays. A limit of 0 has no refill.
	case ratelimit.TokenBucket:
		alone := own.LocalShare(b.fewest).Limit
		share *= 2 + ratelimit.Tokens(b.now/max(1, int64(alone.Refill(alone.Burst))))
	}
	// A node divides windows by its own clock, which runs slightly faster or slower than the ledger's. That
	// close to an edge, it can spend two windows. Two nodes at once are too unlikely to count.
	if b.Net.Skew > 0 {
		most += outage.Node.At(0)
	}
	// A restarted node has a new budget, so every incarnation counts, and not only every node.
	return most + ratelimit.Tokens(b.names)*share
}

// travels is what a bucket refills while an answer travels. Tokens are spent at an instant between a request and its
// answer, and judged by the answer.
func (b *bound) travels(r *ratelimit.Rule) ratelimit.Tokens {
	if r.Limit.Algorithm != ratelimit.TokenBucket {
		return 0
	}
	refilled := float64(r.Coordination.Deadline()) / float64(r.Limit.Period()) * float64(r.Limit.Requests)
	return ratelimit.Tokens(math.Ceil(refilled))
}

// untold is the usage of a key by nodes that could not restate it after a loss. A node with a full table has dropped
// keys that the ledger had completely. The lost usage can be granted once more, and at most the limit is granted.
func (b *bound) untold(k *key, f *loss) ratelimit.Tokens {
	n := ratelimit.Tokens(0)
	for name, s := range k.spent {
		if b.Table > 0 || f.absent[name] {
			n += s.n
		}
	}
	return min(n, k.rule.Limit.Capacity())
}

// out reports whether on_store_failure may have decided in a window that matters. Nodes of a ring without a store have
// only their own memory. Keys without a place in a full table are decided by on_store_failure, too (FallbackTableFull).
func (b *bound) out(r *ratelimit.Rule) bool {
	if r.Coordination.Mode.Spec().Owned && b.Storeless || b.slow || b.store.slow > 0 || b.Table > 0 {
		return true
	}
	return slices.ContainsFunc(b.outages, func(s span) bool { return s.to >= b.now-b.lasts(r) })
}

// check ends the run if a key exceeded its bound. used shows how near histories come to the bound: a bound that no
// history approaches is too large.
func (b *bound) check(k *key, over ratelimit.Tokens) {
	most := b.tokens(k)
	if most > 0 {
		b.used = max(b.used, float64(over)/float64(most))
	}
	if most >= 0 && over > most {
		b.violate(-1, k.index, "%d tokens were admitted beyond the limit of %d, and at most %d may be", over, k.rule.Limit.Capacity(), most)
	}
}
