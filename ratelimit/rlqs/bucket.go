package rlqs

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// maxEntries is the most that a BucketId may have: so deep do rules go.
const maxEntries = 16

// service is how a bucket is served.
type service uint8

const (
	granted  service = iota // leases of its rule's budget
	allowAll                // no rule limits it
	denyAll                 // its rule has nothing, or cannot be served so
)

// bucket is one that a stream has subscribed to.
type bucket struct {
	of      string // the Envoy's name
	id      *rlqs.BucketId
	entries []config.Entry // in the rule's order
	how     service
	rule    *ratelimit.Rule // of the configuration; nil: none matches
	// asking is the rule as it is asked for: with the limit of sublease.Rule, and a denial takes
	// nothing.
	asking *ratelimit.Rule
	// exact is the same for a node that leases for single requests only, and keeps nothing between
	// them. It is asked where tokens are short, and nil before.
	exact   *ratelimit.Rule
	short   bool
	share   *share
	holding sublease.Holding
	shown   Holder // what the share has of it
	paid    payment
	// told is when a blanket rule was last sent; 0: none was.
	told instant
	// turnAt is when the window of holding is over, or is to be looked at again; 0: it has none.
	turnAt instant
	// due says that the bucket is to be looked at: it may want a lease.
	due     bool
	leaving leaving
}

// leaving is how far a bucket is that is to be abandoned.
type leaving uint8

const (
	staying   leaving = iota
	silenced          // it was told to let nothing pass
	abandoned         // it was told so, and has acknowledged and reported; now it is to be forgotten
)

// payment is what was charged for a holding: Undo takes it back in its window only.
type payment struct {
	verdict ratelimit.Verdict
	tokens  tokens
}

// canonical is a BucketId's name: the same for the same entries. It is an error if the
// BucketId has none, or is larger than the bounds.
func canonical(id *rlqs.BucketId, o *Options) (name string, entries []config.Entry, err error) {
	of := id.GetBucket()
	// A BucketId comes from a caller, and its entries are sorted and matched at each report.
	if len(of) == 0 || len(of) > maxEntries {
		return "", nil, fmt.Errorf("a BucketId has %d entries, must be 1 to %d", len(of), maxEntries)
	}
	size := 0
	for k, v := range of {
		size += len(k) + len(v)
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return "", nil, fmt.Errorf("a BucketId has an entry that is no UTF-8: %q", ratelimit.OneLine(k+"="+v))
		}
	}
	if size > o.BucketBytes {
		return "", nil, fmt.Errorf("a BucketId has %d bytes, the most is %d (RLQS_MAX_BUCKET_BYTES)", size,
			o.BucketBytes)
	}
	var b []byte
	// A map has no order, and the name must be the same for each report of the bucket.
	for _, k := range slices.Sorted(maps.Keys(of)) {
		entries = append(entries, config.Entry{Key: k, Value: of[k]})
		b = ratelimit.AppendEntry(b, k, of[k], ratelimit.OfRequest)
	}
	return string(b), entries, nil
}

// serve finds how a bucket is served by the rules in force, and joins the holders of its
// key. What it held of another key stays charged.
func (b *bucket) serve(n *Node, d *config.Domain) {
	var rule *ratelimit.Rule
	var key []byte
	if d != nil {
		rule, key = d.MatchUnordered(b.entries, nil)
	}
	// The rules are built anew only when they change, so that the same rule is the same pointer.
	if rule == b.rule && b.asking != nil {
		return
	}
	// A bucket that no rule ever matched is let through. One whose rule has gone is abandoned: its
	// Envoy then asks anew, and is told what holds by now.
	if rule == nil && b.rule != nil { // it was removed
		b.leaving, b.due = abandoned, true
		return
	}
	how := serviceOf(rule)
	// A rule that changed only its limit has the same key: what is held of it goes on.
	if how != granted || b.share == nil || b.share.key != string(key) {
		b.quit(n)
		b.holding = sublease.NewHolding()
		// The blanket that was sent last may say the opposite of the next.
		b.told = 0
		if how == granted {
			b.share = n.join(b, key)
		}
	}
	b.how, b.rule, b.asking, b.exact, b.short = how, rule, new(ratelimit.Rule), nil, false
	if rule != nil {
		// A lease that is refused must not drain what is left: it is asked for once more, with
		// less.
		b.asking = sublease.Rule(rule)
		b.asking.Coordination.OnDeny = ratelimit.DenyRefunds
	}
	b.due = true
}

func serviceOf(rule *ratelimit.Rule) service {
	switch {
	case rule == nil || rule.Unlimited || rule.Shadow:
		return allowAll
	// What cannot be divided safely is denied, not let through: a limit must not be lost because a
	// setting does not fit.
	case rule.Limit.Requests == 0 || sublease.Servable(rule) != nil:
		return denyAll
	default:
		return granted
	}
}

// quit leaves the holders of the bucket's key.
func (b *bucket) quit(n *Node) {
	// What was paid stays charged under the old key.
	b.paid = payment{}
	if b.share != nil {
		n.stats.Unproven.Add(-int64(b.shown.Unproven))
		n.leave(b, b.share)
		b.share, b.shown = nil, Holder{}
	}
}

// show brings what others see of the holding up to date.
func (b *bucket) show(n *Node) {
	if b.share == nil {
		return
	}
	h := &b.holding
	is := Holder{b.of, h.PerSecond(), h.Charged(), h.InUse(), h.Unproven()}
	// Most reports change nothing that others see, and must not take the share's lock.
	if is == b.shown {
		return
	}
	n.stats.Unproven.Add(int64(is.Unproven - b.shown.Unproven))
	b.shown = is
	b.share.set(b, is)
}

// refills tells whether the bucket's budget is one whose tokens come back with time alone.
func (b *bucket) refills() bool { return sublease.Refills(&b.asking.Limit) }

// exactBelow is which part of a limit must be left for leases to be taken from the node's own,
// which it is granted ahead. Below, what lies unspent at nodes is missed by the Envoys of
// others, and leases are claimed one by one; so are those of a token_bucket at any level, for
// what its nodes do not spend in time is lost.
const exactBelow = 4

// exactly tells how leases are to be asked for from now on.
func (b *bucket) exactly(left tokens) {
	b.short = b.refills() || left < b.asking.Limit.Capacity()/exactBelow
	if b.short && b.exact == nil {
		b.exact = b.asking.PerRequest()
	}
}

// ask is a question for the bucket's budget.
func (b *bucket) ask(kind ratelimit.Kind, cost tokens) ratelimit.Ask {
	rule := b.asking
	if b.short {
		rule = b.exact
	}
	return ratelimit.Ask{Rule: rule, Key: []byte(b.share.key), Kind: kind, Cost: cost}
}

// count books what a report says in the rule's statistics.
func (b *bucket) count(u sublease.Usage) {
	if b.rule == nil || b.rule.Counters == nil {
		return
	}
	c := b.rule.Counters
	if b.rule.MetricNames.FromRequest() {
		var name []byte
		for level, e := range b.entries {
			name = b.rule.AppendLevel(name, level, e.Key, e.Value)
		}
		c = c.Named(name)
	}
	allowed, denied := uint64(u.Allowed), uint64(u.Denied)
	c.TotalHits.Add(allowed + denied)
	c.WithinLimit.Add(allowed)
	c.OverLimit.Add(denied)
	// An Envoy has refused these by itself, as a local cache would have.
	c.OverLocally.Add(denied)
	c.Denied.Add(denied)
	c.Sources[ratelimit.FromLease].Add(allowed + denied)
}
