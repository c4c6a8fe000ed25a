package sim

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// books are a second ledger. A model that has only the definition of an account adds up what each account must contain
// after the settled messages, and nodes' decisions add up their bookings. At the end of a run, after the last reports
// of nodes, both must be equal. A message reaches the books through settled, in the order in which the ledger applied
// it. A decision reaches them through decided, and its reversal through undo. Losses change the model like the ledger
// (failOver and its neighbours). At the end, settleUp has the nodes leave, and closed compares.
//
// Windows are checked exactly, and buckets only by their invariant (bucket): the level depends on rounding of the time
// of each message.
type books struct {
	*world
	accounts map[name]*book
	booked   map[booking]*tally
}

// name names an account. Of a bucket, the window is 0.
type name struct {
	key    *key
	window ratelimit.Window
}

// book is an account of the model. It has the sum of all totals and each holder's own, which the ledger also keeps. A
// claim replaces the total of its holder, and a draw adds to it.
type book struct {
	holders map[ratelimit.Holder]*entry
	sum     ratelimit.Tokens
	fence   ratelimit.Fence
	lost    bool // it was lost, or is an older copy: refunds can take it below 0
}

// entry is the model's record of a holder.
type entry struct {
	total ratelimit.Tokens
	seq   uint64
	loose ratelimit.Tokens // of draws that may have arrived twice
}

// booking is what one node booked in an account.
type booking struct {
	node ratelimit.Holder
	name
}

// tally is the sum of a node's bookings. Admissions during an outage can have no window yet: the node has never seen
// the ledger's clock. Then n is not all of the node's usage, and closed leaves it out.
type tally struct {
	n     ratelimit.Tokens
	cut   ratelimit.Tokens // of refunds, which were not credited
	vague bool             // it was booked before its window was certain
}

func (b *books) open(w *world) {
	b.world = w
	b.accounts, b.booked = map[name]*book{}, map[booking]*tally{}
}

func (b *books) of(k *key, w ratelimit.Window) *book {
	a := name{k, w}
	if b.accounts[a] == nil {
		b.accounts[a] = &book{holders: map[ratelimit.Holder]*entry{}}
	}
	return b.accounts[a]
}

func (b *book) entry(h ratelimit.Holder) *entry {
	if b.holders[h] == nil {
		b.holders[h] = &entry{}
	}
	return b.holders[h]
}

// settled books a message, and compares the ledger's answer with the model. It computes the new total and sum from the
// claim alone, and takes only the grant and the cut from the answer.
func (b *books) settled(p *part, c *account.Claim, g *account.Grant) {
	k := b.named[c.Key]
	switch {
	case errors.Is(g.Err, account.ErrOver):
		return
	// Only a claim with a number that is not above the last one may be overtaken. A ledger that rejected others would
	// lose totals.
	case errors.Is(g.Err, account.ErrOvertaken):
		if book := b.of(k, c.Window); !b.stepped(p) && c.Seq > book.entry(c.Holder).seq {
			b.violate(-1, k.index, "claim %d of holder %x was answered as if it were overtaken", c.Seq, c.Holder)
		}
		return
	case g.Err != nil:
		b.violate(-1, k.index, "the ledger refused %+v: %v", *c, g.Err)
		return
	case c.Limit.Algorithm == ratelimit.TokenBucket:
		b.bucket(k, c, g)
		return
	}
	book, before := b.of(k, c.Window), b.before(p, k, c)
	e := book.entry(c.Holder)
	if c.Draws() {
		e.total, book.sum = e.total+c.Want, book.sum+c.Want
		e.loose += c.Want
	} else {
		book.claimed(p, c, g, e)
		b.tallyOf(c.Holder>>nameBits, k, c.Window).cut += g.Cut(c)
		if g.Fence <= book.fence && !b.stepped(p) {
			b.violate(-1, k.index, "fence %d came after %d", g.Fence, book.fence)
		}
		book.fence = g.Fence
	}
	b.compare(p, k, c, g, book, e, before)
}

// before is the part of the previous window that a sliding window counts: the part of its sum that the last period
// still covers, in millionths, rounded up twice. Both roundings are upwards, so that the sum is never below the usage
// that counts.
func (b *books) before(p *part, k *key, c *account.Claim) ratelimit.Tokens {
	now, begins, ends := p.time(), c.Limit.WindowEnd(c.Window-1), c.Limit.WindowEnd(c.Window)
	if c.Limit.Algorithm != ratelimit.SlidingWindow || now >= ends {
		return 0
	}
	sum := b.of(k, c.Window-1).sum
	const parts = 1_000_000
	unit := (ends - begins) / parts
	covered := ratelimit.Tokens((ends - now + unit - 1) / unit)
	return (max(0, sum)*covered + parts - 1) / parts
}

// stepped reports whether a clock of the part was set. Then it may have dropped accounts that are still in use. From
// then on, the model only follows the answers of this part.
func (b *books) stepped(p *part) bool {
	return slices.ContainsFunc(b.bound.steps, func(s step) bool { return s.part == p })
}

// claimed books a claim. It replaces the holder's record by the stated total, so earlier draws that arrived twice no
// longer count.
func (b *book) claimed(p *part, c *account.Claim, g *account.Grant, e *entry) {
	total := max(c.Taken, c.Spent) + g.Cut(c)
	b.sum += total - e.total
	e.total, e.seq, e.loose = total, c.Seq, 0
	free := c.Limit.Capacity() - max(0, b.sum)
	if g.Granted > max(0, free) && !p.books.stepped(p) || g.Granted > max(c.Need, c.Want) {
		p.violate(-1, p.named[c.Key].index, "%d were granted of %d that are free, for a need of %d", g.Granted, free, c.Need)
	}
	e.total, b.sum = e.total+g.Granted, b.sum+g.Granted
}

// compare compares an answer with the model. The sum of a sliding window includes a part of the previous one. A draw is
// added without a check, so it may bring the sum beyond the limit. A grant never does.
func (b *books) compare(
	p *part, k *key, c *account.Claim, g *account.Grant, book *book, e *entry, before ratelimit.Tokens,
) {
	if b.stepped(p) {
		e.total, book.sum = g.Total, book.sum+g.Total-e.total // as far as the model can tell
		return
	}
	b.result.Debt, b.result.Cut = max(b.result.Debt, g.Sum-c.Limit.Capacity()), b.result.Cut+g.Cut(c)
	if sum := book.sum + before; g.Total != e.total || g.Sum != sum {
		b.violate(-1, k.index, "window %d has %d of %d for holder %x, and must have %d of %d", c.Window, g.Total, g.Sum, c.Holder, e.total, sum)
	}
	if g.Granted > 0 && g.Sum > c.Limit.Capacity() {
		b.violate(-1, k.index, "%d were granted beyond the limit: the sum is %d", g.Granted, g.Sum)
	}
	if book.sum < 0 && !book.lost {
		b.violate(-1, k.index, "window %d has %d: below nothing", c.Window, book.sum)
	}
}

// bucket checks the invariant of the answer to a claim of a bucket: the tokens in hand fit.
func (b *books) bucket(k *key, c *account.Claim, g *account.Grant) {
	book := b.of(k, 0)
	if g.Fence <= book.fence && !b.stepped(k.part) && !book.lost {
		b.violate(-1, k.index, "fence %d came after %d", g.Fence, book.fence)
	}
	book.fence = g.Fence
	if g.Granted > 0 && g.Granted > c.Want || g.Granted > 0 && g.Sum > c.Limit.Burst {
		b.violate(-1, k.index, "%d were granted, %d are wanted, and the bucket has %d of %d", g.Granted, c.Want, c.Limit.Burst-g.Sum, c.Limit.Burst)
	}
	// A bucket fills at most to its burst less all tokens in hand: else both together could spend more than the burst.
	// A change of the rule may shrink the burst below them.
	hand := g.InHand + g.Total
	if hand > g.Sum && len(b.Changes) == 0 {
		b.violate(-1, k.index, "%d are in hand, and the bucket has %d of %d", hand, c.Limit.Burst-g.Sum, c.Limit.Burst)
	}
}

// kept copies the model of a part. It is a deep copy: the accounts in use go on changing until the failover.
func (b *books) kept(p *part) map[name]*book {
	kept := map[name]*book{}
	for a, is := range b.accounts {
		if a.key.part == p {
			c := *is
			c.holders = map[ratelimit.Holder]*entry{}
			for h, e := range is.holders {
				own := *e
				c.holders[h] = &own
			}
			kept[a] = &c
		}
	}
	return kept
}

// failOver and its neighbours change the model like a part. Accounts with lost claims miss a part of the usage. A
// refund of that part then takes the sum below 0, so all accounts of the part are marked as lost.
func (b *books) failOver(p *part, older map[name]*book) {
	b.forget(p)
	maps.DeleteFunc(older, func(a name, _ *book) bool { return a.key.part != p }) // it has moved since
	maps.Copy(b.accounts, older)
	for a, is := range b.accounts {
		is.lost = is.lost || a.key.part == p
	}
}

func (b *books) forget(p *part) {
	for a := range b.accounts {
		if a.key.part == p {
			b.evict(a.key, a.window)
		}
	}
}

func (b *books) evict(k *key, w ratelimit.Window) {
	b.accounts[name{k, w}] = &book{holders: map[ratelimit.Holder]*entry{}, lost: true}
}

// known is a node's last answer about an account. It is the evidence for refuses. Window -1 stands for none: the node
// may have newer knowledge than its last answer.
type known struct {
	window ratelimit.Window
	sum    ratelimit.Tokens
	hand   ratelimit.Tokens // its own at that time
	taken  int64            // time of its last refund: earlier answers no longer count
}

// heard notes an answer to a node. Only claims of fixed windows count. The sum of another algorithm falls by itself as
// time passes, and a node may admit again without an answer.
func (n *node) heard(sent int64, claims []account.Claim, grants []account.Grant) {
	if n.bound.lossy() { // an answer may not count
		clear(n.known)
		return
	}
	for i := range claims {
		c, g := &claims[i], &grants[i]
		k := n.named[c.Key]
		if c.Draws() && g.Err == nil { // it may be below an earlier answer if others have given back
			n.known[k] = known{window: -1, taken: n.known[k].taken}
		}
		if is := n.known[k]; !c.Draws() && g.Err == nil && c.Limit.Algorithm == ratelimit.FixedWindow && sent > is.taken {
			n.known[k] = known{c.Window, g.Sum, max(0, g.Total-c.Spent), is.taken}
		}
	}
}

// takesBack notes that a node refunds its own charge, or one of another node. After it the node may admit again,
// although no answer has said so. Window -1 matches no decision.
func (n *node) takesBack(k *key) { n.known[k] = known{window: -1, taken: n.now} }

// decided notes a decision of a node, and books its charge. A refund counts as a whole, and a release as far as the
// node has credited it.
func (b *books) decided(n *node, k *key, a *ratelimit.Ask, v *ratelimit.Verdict) {
	b.refuses(n, k, a, v)
	t := b.tallyOf(n.name, k, chargedIn(v))
	t.vague = t.vague || v.Source == ratelimit.FromFallback && v.Booked == 0 && a.Kind != ratelimit.Peek
	switch a.Kind {
	case ratelimit.Peek:
	case ratelimit.Refund:
		t.n -= a.Cost
		n.takesBack(k)
	case ratelimit.Release:
		t.n -= v.Charged
		n.takesBack(k)
	default:
		t.n += v.Charged + v.Debt
	}
}

// refuses reports whether a node refuses because its last answer shows no tokens. After an answer that all is used, a
// node must refuse until another answer. An admission without a store, or with a drift budget, is no breach.
func (b *books) refuses(n *node, k *key, a *ratelimit.Ask, v *ratelimit.Verdict) {
	is, ok := n.known[k]
	if !ok || v.Window != is.window || v.OverLimit || v.Source != ratelimit.FromLease && v.Source != ratelimit.FromClaim {
		return
	}
	limit := a.Rule.Limit.Capacity()
	granted := v.Source == ratelimit.FromClaim && a.Cost <= is.hand // to this request, before others charged
	if a.Kind == ratelimit.Spend && is.sum > limit && !granted || a.Kind == ratelimit.Peek && is.sum-is.hand > limit {
		b.violate(n.slot, k.index, "it admits %d, and was told that %d of %d are used", a.Cost, is.sum, limit)
	}
}

// chargedIn is the window of a decision's charge.
func chargedIn(v *ratelimit.Verdict) ratelimit.Window {
	if v.Source == ratelimit.FromFallback {
		return v.Booked
	}
	return v.Window
}

// tallyOf is a node's tally of an account. It is by node and not by name: a node that has dropped an account returns to
// it under another name.
func (b *books) tallyOf(node ratelimit.Holder, k *key, w ratelimit.Window) *tally {
	at := booking{node, name{k, w}}
	if b.booked[at] == nil {
		b.booked[at] = &tally{}
	}
	return b.booked[at]
}

// undo notes that a node takes a charge back, unless the window is over. In a later window the charge is history for
// the ledger, and the node does not take it back either.
func (b *books) undo(n *node, k *key, a *ratelimit.Ask, v *ratelimit.Verdict) {
	if !b.Check || b.Storeless {
		return
	}
	n.takesBack(k)
	t, l := b.tallyOf(n.name, k, chargedIn(v)), n.stepped.Look(b.store.ctx, n.clock(), a).Lease
	if l != nil && l.Window == chargedIn(v) {
		t.n -= v.Charged + v.Debt
	}
}

// Times at the end of a checked run.
const (
	tellTime  = 3 * time.Second // for nodes to state their totals, over lossless wires
	leaveSoon = 1500 * time.Millisecond
	sinceTurn = 500 * time.Millisecond // all nodes agree on a window that began this long ago, and ends at least as late
)

// settleUp lets nodes state their totals and leave, then closes the books. It returns at the end. A store that has lost
// single accounts reports that by then (DoubtEvicted). Losses and repetitions of messages end with the load, and faults
// may go on: nodes that they reach are left out.
func (w *world) settleUp() int64 {
	at := int64(w.Load.Length)
	w.queue.Push(at, func() {
		// With losses, the last messages of nodes might not arrive, and the books would differ without a bug.
		w.Net.Loss, w.Net.Dup = 0, 0
		for _, n := range w.nodes {
			if w.bound.evicts {
				n.stepped.RestateEvicted()
			}
		}
	})
	at += int64(tellTime)
	w.queue.Push(at, w.books.leave)
	return at + int64(leaveSoon) + 1
}

// leave ends all nodes that reach the store. Only nodes whose messages surely arrive are compared. A window counts only
// if all clocks agree on it: near a turn, nodes book in different windows.
func (b *books) leave() {
	whole := !slices.ContainsFunc(b.store.parts, func(p *part) bool { return p.down > 0 || p.hung > 0 })
	var told []*node
	for _, n := range b.nodes {
		if n.alive && !n.paused && slices.Max(n.cut) == 0 && n.deaf == 0 && n.late == 0 && whole && !n.stepped.Stats().BreakerOpen {
			told = append(told, n)
		}
	}
	windows := map[*key]ratelimit.Window{}
	for _, k := range b.keys {
		w, at := k.window(), k.part.time()
		if l := &k.rule.Limit; w != 0 && at >= l.WindowEnd(w-1).Add(sinceTurn) && at.Add(sinceTurn) < l.WindowEnd(w) {
			windows[k] = w
		}
	}
	for _, n := range told { // at once, also in a ring: there are no more requests, and no heirs of leases
		n.goodbye()
	}
	b.in(leaveSoon, func() { b.closed(told, windows) })
}

// closed compares the books of nodes that have stated all totals with the accounts. An account may have more than the
// node has booked only by what was cut from refunds, and by draws that arrived twice. It must never have less: that
// usage would be granted again.
func (b *books) closed(told []*node, windows map[*key]ratelimit.Window) {
	for _, n := range told {
		for _, k := range b.keys {
			t, book := b.booked[booking{n.name, name{k, windows[k]}}], b.accounts[name{k, windows[k]}]
			early := b.booked[booking{n.name, name{k, 0}}]
			if windows[k] == 0 || t == nil || early != nil && early.vague || book == nil || b.stepped(k.part) || book.lost && b.Table > 0 {
				continue
			}
			total, loose := book.has(n.name)
			if total < t.n || total > t.n+t.cut+loose && b.Table == 0 {
				b.violate(n.slot, k.index, "window %d has %d of this node, which has booked %d", windows[k], total, t.n)
			}
			b.result.Settled++
		}
	}
}

// has is the total of a node in an account, over all its names, and the part of it that may be repeated draws. The high
// bits of a holder's name are the node.
func (b *book) has(node ratelimit.Holder) (total, loose ratelimit.Tokens) {
	for h, e := range b.holders {
		if h>>nameBits == node {
			total, loose = total+e.total, loose+e.loose
		}
	}
	return total, loose
}
