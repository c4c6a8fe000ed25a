package routing

import (
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/hot"
	"github.com/sluice-gate/sluice/routing/ring"
)

// outageKeys is the number of keys with a budget of their own while their owners do not answer.
const outageKeys = 10_000

// newCore makes a core that decides by fallback when an owner does not answer.
func newCore(o Options, clock ratelimit.Clock, fallback *local.Limiter) *core {
	c := &core{
		identity: identity{options: o, began: clock()}, env: env{clock: clock},
		deciders:   deciders{fallback: fallback},
		membership: membership{members: map[string]*member{}, changes: 1},
		hotKeys:    hotKeys{hot: hot.New(o.HotRate)},
		moving:     moving{fetches: map[string]*fetch{}, inboxes: map[uint64]*inbox{}},
	}
	c.view.Store(c.build(nil))
	return c
}

// storeless has budgets in this process, which move with their keys. It is called before the node runs. Without it, the
// accounts are in a store.
func (c *core) storeless(l *local.Limiter) {
	c.local = l
	c.mover.underway = map[uint64]string{}
}

// build makes the view of those who are alive; the caller holds mu, if others
// may look.
func (c *core) build(old *view) *view {
	var nodes []string
	v := &view{peers: make(map[string]*link, len(c.members)), mine: c.present, began: c.clock()}
	if c.present {
		nodes = append(nodes, c.options.Addr)
	}
	for addr, m := range c.members {
		v.peers[addr] = m.link
		if m.alive {
			nodes = append(nodes, addr)
		}
	}
	v.ring = ring.Of(nodes)
	// digest is a sum, and so the same on every node that sees the same members. Two nodes compare
	// it to tell whether they speak of the same ring.
	for _, addr := range v.ring.Members() {
		v.digest += xxhash.Sum64String(addr)
	}
	// A ring without this node gives it no key, so that nothing counts as kept. Beyond mostSince rings nothing is
	// remembered.
	switch {
	case old == nil:
	case old.stable.Load():
		v.since = []*ring.Ring{old.ring}
	case len(old.since) > 0 && len(old.since) < mostSince:
		v.since = append([]*ring.Ring{old.ring}, old.since...)
	}
	return v
}

// lessOnly reports whether other nodes have gone, without any other change: then this node keeps its keys. A ring with
// consistent hashing gives a node that stays only more keys then.
func lessOnly(old, next *view) bool {
	for _, addr := range next.ring.Members() {
		if !old.ring.Has(addr) {
			return false
		}
	}
	return old.mine == next.mine
}

// elsewhere is the other node that decides, "" if it is this one.
func (c *core) elsewhere(a *ask) string {
	// A settlement that an owner books late, or that its answer is lost of, would be booked twice or never. Where the
	// account is in a store, any node can book it.
	if a.Kind.Settles() && c.inStore() {
		return ""
	}
	// An empty ring has no owner, which reads as "this node" here. With a store that is right, for
	// the store decides. Without one, own looks at the ring itself and decides nothing.
	if owner := c.ownerOf(a.Key); owner != c.options.Addr {
		return owner
	}
	return ""
}

func (c *core) ownerOf(key []byte) string { return c.view.Load().ring.Owner(ring.HashOf(key)) }

// settle records that others have handed over, or are gone; the caller holds mu. It is called after each event that may
// be the last one that was missing: a done, a receipt, a death, another ring.
func (c *core) settle() {
	v := c.view.Load()
	if c.inStore() || v.stable.Load() {
		return
	}
	// What this node has sent away, and has no receipt for, may be its own again under this ring, and come back.
	if len(c.mover.underway) > 0 {
		return
	}
	for _, m := range c.members {
		if m.mayHave(v) {
			return
		}
	}
	// From here on a key without an account is a new key, without a search.
	v.stable.Store(true)
	c.wasStable = c.wasStable || v.mine
}

// mayHave reports whether the member may have accounts that are this node's own
// under a view.
func (m *member) mayHave(v *view) bool {
	// A node that has left may still have accounts to send. Its done counts only for this ring.
	return m.holds && m.done != v.digest
}

// lapsed reports whether the node did not run for so long that others may own its keys. The first decision after that
// notices. It costs one atomic read, because each decision without a store calls it.
func (c *core) lapsed(now instant) bool {
	ticked := instant(c.ticked.Load())
	// A node before its first tick has not joined either, so that no other can have taken its keys over.
	if ticked == 0 || now.Sub(ticked) <= lapseAfter {
		return false
	}
	c.unconfirmed.Store(true)
	c.driver.wake()
	return true
}

// report reports what went wrong with a peer.
func (c *core) report(addr string, err error) {
	if c.options.OnPeer != nil && err != nil {
		c.options.OnPeer(addr, err)
	}
}

// stamp is the ledger's time here, for messages.
func (c *core) stamp() int64 {
	// With a store no peer compares clocks, and 0 means that there is nothing to compare.
	if c.inStore() {
		return 0
	}
	return int64(c.local.LedgerNow(c.clock()))
}

// reject counts a rejected message.
func (c *core) reject(kind rejection) { c.stats.rejected[kind].Add(1) }

// malformed counts a message of a peer that makes no sense. It counts under its kind
// (sluice_rejected_total) and in the sum over all kinds of messages
// (sluice_peer_messages_malformed_total).
func (c *core) malformed(kind rejection) {
	c.reject(kind)
	c.stats.malformed.Add(1)
}

// sorted has every member, always in the same order; the caller holds mu.
func (c *core) sorted() []*member {
	return slices.SortedFunc(maps.Values(c.members), func(a, b *member) int { return strings.Compare(a.addr, b.addr) })
}
