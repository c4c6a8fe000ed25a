package rlqs

import (
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// bucket is one that a stream has subscribed to. Ten thousand streams have a hundred thousand
// of them: what several of them share is kept once (subject, offer, pool).
type bucket struct {
	of      *Session
	subject *subject
	offer   *offer
	pool    *pool
	// levels are the entries in the rule's order, if its statistics name values of theirs.
	levels    []config.Entry
	holding   sublease.Holding
	published published // what the pool has of it
	index     int32     // among the pool's holders; guarded by its mu
	paid      payment
	// repeatedAt is the time of the last rule that lets all pass, or nothing; 0: none was.
	repeatedAt instant
	// windowEnd is when the window of holding is over, or is to be looked at again; 0: it has none.
	windowEnd instant
	// matched is the number of the rules by which it was last served (Session.generation). It keeps no old rules.
	matched uint32
	state
}

// state is the due work of a bucket.
type state struct {
	// due says that the bucket may need a lease.
	due bool
	// short says that its budget was below exactBelow when it was last looked at.
	short bool
	// scarce says that next to nothing was left of its budget when it was last looked at.
	scarce  bool
	leaving leaving
}

// published is what others see of a bucket, in its pool. Its own stream writes it, under the mu of the pool that the
// bucket has, and may read it without. It is a copy, because holding has no lock.
type published struct {
	perSecond                float64
	charged, inUse, unproven tokens
}

// leaving is how far a bucket is that is to be abandoned.
type leaving uint8

const (
	staying   leaving = iota
	silenced          // it got DENY_ALL
	abandoned         // it got DENY_ALL, and has acknowledged and reported; now it is dropped
)

// payment is the charge for a holding: Undo takes it back in its window only.
type payment struct {
	tokens tokens
	window ratelimit.Window
	source ratelimit.Source
}

// verdict is that of a payment of which a part is given back: it names the holder and the window for Undo.
func (p *payment) verdict(n tokens) ratelimit.Verdict {
	return ratelimit.Verdict{Source: p.source, Charged: n, Window: p.window}
}

// serve finds the rule in force for a bucket, and joins the holders of its key. Where the key or the kind of service
// changes, the holding begins anew, and tokens of before stay charged. Where only the limit changes, it goes on.
func (b *bucket) serve(n *Node, rules *config.Rules, d *config.Domain) {
	// Rules are built anew only when they change.
	if b.matched == b.of.generation {
		return
	}
	b.matched = b.of.generation
	var rule *ratelimit.Rule
	var key []byte
	// The match leaves them in the order in which the rule declares them.
	entries := slices.Clone(b.subject.entries)
	if d != nil {
		rule, key = d.MatchUnordered(entries, nil)
	}
	if b.offer != nil && rule == b.offer.rule {
		return
	}
	// A bucket that no rule ever matched gets ALLOW_ALL. One whose rule has gone is abandoned: its Envoy then
	// subscribes anew, and gets the present rule.
	if rule == nil && b.offer != nil { // it was removed
		b.leaving, b.due = abandoned, true
		return
	}
	t := n.offerOf(rules, rule)
	// A rule that changed only its limit has the same key: its holding continues.
	if t.how != granted || b.pool == nil || b.pool.key != string(key) {
		b.quit(n)
		b.holding, b.windowEnd = sublease.NewHolding(), 0
		// The rule that was sent last may say the opposite of the next.
		b.repeatedAt = 0
		if t.how == granted {
			b.pool = n.join(b, key)
		}
	}
	b.offer = t
	b.short = false
	b.levels = nil
	b.due = true
	if rule != nil && rule.MetricNames.FromRequest() {
		b.levels = entries
	}
}

// quit leaves the holders of the bucket's key.
func (b *bucket) quit(n *Node) {
	// Payments stay charged under the old key.
	b.paid = payment{}
	if b.pool != nil {
		n.stats.Unproven.Add(-int64(b.published.unproven))
		n.leave(b, b.pool)
		b.pool, b.published = nil, published{}
	}
}

// show brings what others see of the holding up to date.
func (b *bucket) show(n *Node) {
	h := &b.holding
	is := published{h.PerSecond(), h.Charged(), h.InUse(), h.Unproven()}
	// Most reports change nothing that others see, and must not take the pool's lock.
	if is == b.published {
		return
	}
	n.stats.Unproven.Add(int64(is.unproven - b.published.unproven))
	b.pool.set(b, is)
}

// refills reports whether the bucket's budget is one whose tokens come back with time alone.
func (b *bucket) refills() bool { return sublease.Refills(&b.offer.asking.Limit) }

// exactBelow is the part of a limit above which leases come from the node's own tokens, which are claimed
// ahead. Below it, tokens unspent at one node are missing at others, so leases are claimed one by one. So are
// those of a token_bucket at any level, because its nodes lose tokens that they do not spend in time.
const exactBelow = 4

// scarceBelow is the approximate part of a limit that all Envoys use of a minute from one report to the next: a
// used-up window ends with that much left.
const scarceBelow = 12

// idleAfter is the time without requests after which its Envoy must drop it.
func (b *bucket) idleAfter() time.Duration {
	if b.short {
		return IdleAfter
	}
	return ForgottenAfter
}

// canWait reports whether the bucket waits for its next report at the end of its window, and gets its next lease then.
// That holds if it is silent or idle. It also holds if its budget was used up: its first report in a window may include
// usage of the previous window and of the new lease. That would count in both windows, up to a report's worth of each
// Envoy's tokens. Tokens that may be spent in the next window must be charged to it at once.
func (b *bucket) canWait(now instant) bool {
	h := &b.holding
	return h.Crossing() == 0 && (b.scarce || h.Silent(now) || h.Idle() >= IdleAfter || b.leaving != staying)
}

// exactly notes how scarce its budget is, which selects how leases are requested from now on (ask).
func (b *bucket) exactly(of *budget) {
	limit := of.limit.Capacity()
	b.short = of.left < limit/exactBelow
	b.scarce = !b.refills() && of.left < limit/scarceBelow
}

// ask is a question for the bucket's budget. Where tokens are short, the rule is exact: the node's limiter then takes
// from the ledger only what this lease needs, and keeps none for the next.
func (b *bucket) ask(kind ratelimit.Kind, cost tokens) ratelimit.Ask {
	rule := b.offer.asking
	if b.short || b.refills() {
		rule = b.offer.exact
	}
	return ratelimit.Ask{Rule: rule, Key: b.pool.account, Kind: kind, Cost: cost}
}

// count books what a report says in the rule's statistics.
func (b *bucket) count(u sublease.Usage) {
	rule := b.offer.rule
	if rule == nil || rule.Counters == nil {
		return
	}
	c := rule.Counters
	if b.levels != nil {
		var name []byte
		for level, e := range b.levels {
			name = rule.AppendLevel(name, level, e.Key, e.Value)
		}
		c = c.Named(name)
	}
	allowed, denied := uint64(u.Allowed), uint64(u.Denied)
	// Sources first: who reads both finds no more denials than decisions.
	c.Sources[ratelimit.FromLease].Add(allowed + denied)
	c.TotalHits.Add(allowed + denied)
	c.WithinLimit.Add(allowed)
	c.OverLimit.Add(denied)
	c.Denied.Add(denied)
}
