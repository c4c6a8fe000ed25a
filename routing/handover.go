package routing

import (
	"bytes"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// How accounts move where there is no store. A view changes by one pointer; then
// the mover walks through this node's tables, a few keys at a time, and takes
// out what is another's now:
//
//	in the table --taken out--> in a parcel --receipt--> in the new owner's table
//	     ^-------- refused, or the new owner is dead --------'
//
// Guarantee: an account is at one node at a time, or in one parcel. A parcel is
// sent until there is a receipt for it, and counts once. Who refuses it, because
// it is not the owner in its own view, does not have it; the sender has.
//
// A node announces done when it has nothing that is not its own, and nothing of its
// is on its way. When all have, under the ring that a node sees, a key without
// an account has none anywhere.

const (
	walked  walk = iota
	stuck        // the round is over, and accounts could not be put on their way
	walking      // as the next state: an account may be where the walk has passed
)

// begin begins the first round.
func (m *mover) begin() {
	m.state = walking
	m.next = walked
	m.visit = local.Visit{}
	m.full = nil
}

// once has the walk go round once more: an account has come back, perhaps to a place that the walk has passed.
func (m *mover) once() {
	if m.state == walking {
		m.next = walking
	} else {
		m.begin()
	}
}

// end ends a round.
func (m *mover) end() {
	m.state = m.next
	if m.state == walking {
		m.begin()
	}
}

// clean reports whether this node has nothing that is not its own, as one with a
// store never has; the caller holds mu.
func (c *core) clean() bool { return c.mover.state == walked && len(c.mover.underway) == 0 }

// step moves a few accounts. It reports whether there is more to do at once. It holds mu for one segment of the table:
// requests that need mu wait for no more than that.
func (c *core) step(now instant) (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &c.mover
	// Accounts are left whose receiver was not ready.
	if m.state == stuck && now >= m.retry {
		m.begin()
	}
	// A walk that waits for room at one node stops as a whole. To pass that node's accounts over
	// would mean another round for them.
	if m.state != walking || m.full != nil && m.full.state(now) == noRoom {
		return false
	}
	m.full = nil
	before := m.visit
	c.gate.RLock()
	v := c.view.Load()
	var keys [][]byte
	// Visit holds a lock of the table, so that keys are only noted here and taken out afterwards.
	// They are copied, for they are the table's.
	done := c.local.Visit(&m.visit, func(key []byte) {
		if owner := v.ring.Owner(ring.HashOf(key)); owner != c.options.Addr && owner != "" {
			keys = append(keys, bytes.Clone(key))
		}
	})
	c.takeOut(now, v, keys)
	c.gate.RUnlock()
	switch {
	case m.full != nil: // these are shown again
		m.visit = before
	case done:
		m.end()
	}
	more = m.full == nil && m.state == walking
	if !more {
		// Nothing is to be added for now. Parcels that are not full go out as they are.
		for _, m := range c.members {
			m.flush()
		}
	}
	c.announceClean()
	return more
}

// takeOut puts accounts on their way that a visit has found, until a node has no room. Those that cannot go now make
// the round a stuck one, which is repeated. The caller holds mu and the gate.
func (c *core) takeOut(now instant, v *view, keys [][]byte) {
	m := &c.mover
	for _, key := range keys {
		to := c.members[v.ring.Owner(ring.HashOf(key))]
		switch way := to.state(now); {
		case way == noRoom:
			m.full = to
			return
		// The second has come back before the receipt of an earlier parcel, which would end the way of both.
		case way == wayLater, m.underway[xxhash.Sum64(key)] != "":
			m.next = max(m.next, stuck)
			m.retry = now.Add(tickSoon)
		default:
			c.send(now, to, key)
		}
	}
}

// way is whether a node may be sent accounts.
type way uint8

const (
	takes    way = iota
	noRoom       // until there are receipts
	wayLater     // no link is open, or it has refused some, and will see the ring as it is in a moment
)

func (m *member) state(now instant) way {
	// The ring may name a node that has been dropped since.
	if m == nil || !m.ready.Load() || now < m.paused {
		return wayLater
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.out.room() {
		return noRoom
	}
	return takes
}

// send puts a key's account on its way. It reports false where there is none. From here until the receipt, the key is
// in underway, and has no account in any table.
func (c *core) send(now instant, to *member, key []byte) bool {
	// The account may have ended since the walk saw it.
	a, ok := c.local.TakeOut(now, key)
	if !ok {
		return false
	}
	// The hash is of the whole key. HashOf is of its last value only, and is the same for many
	// keys.
	hash := xxhash.Sum64(key)
	c.mover.underway[hash] = to.addr
	to.mu.Lock()
	to.out.add(c.local.LedgerNow(now), hash, &moved.Entry{Key: key, Account: a})
	full := to.out.next() != nil
	to.mu.Unlock()
	if full {
		to.wake()
	}
	return true
}

// owes reports whether receipts of the node are missing.
func (m *member) owes() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out.open != nil || len(m.out.sealed) > 0
}

// flush sends the open parcel, with all additions until then. next seals it when the parcels before it have been sent.
func (m *member) flush() {
	m.mu.Lock()
	m.out.urgent = m.out.open != nil
	urgent := m.out.urgent
	m.mu.Unlock()
	if urgent {
		m.wake()
	}
}

// announceClean reports done to all, when the node has become clean; the caller holds mu.
func (c *core) announceClean() {
	if c.clean() {
		for _, m := range c.sorted() {
			c.announceDone(m)
		}
	}
}

// announceDone reports done to one node, if this one is clean; the caller holds mu.
func (c *core) announceDone(m *member) {
	if c.clean() && m.ready.Load() {
		m.announceDone(c.view.Load().digest, c.changes)
	}
}

// received handles a receipt: the accounts of its parcel are at the receiver, except those that it has refused. These
// are this node's again, to keep or to send to their owner.
func (c *core) received(from *member, r *wire.Receipt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from.mu.Lock()
	p := from.out.received(r.GetNumber())
	goes := from.out.next() != nil
	from.mu.Unlock()
	if goes { // there was no room for it before
		from.wake()
	}
	// The receipt has come twice, or the parcel's accounts have been taken back meanwhile (reclaim).
	if p == nil {
		return
	}
	refused := map[int]bool{}
	// Accounts that are not listed are at the receiver. Each index beyond the parcel's is ignored with all
	// after it.
	for _, i := range r.GetRefused() {
		if int(i) >= len(p.hashes) { // it has no such account
			c.malformed(rejectedReceipt)
			break
		}
		refused[int(i)] = true
	}
	now := c.clock()
	c.putBack(now, p, func(i int) bool { return refused[i] })
	if len(refused) > 0 {
		from.paused = now.Add(tickSoon) // it sees another ring yet
	}
	c.stats.handed.Add(uint64(len(p.hashes) - len(refused)))
	c.settle()
	c.announceClean()
	c.driver.wake()
}

// reclaim takes back accounts on their way to a dead node; the caller holds mu. Those that the node has
// received are lost with it. If it is not dead, they are charged twice: then its half of the nodes and this
// one's count apart.
func (c *core) reclaim(now instant, m *member) {
	m.mu.Lock()
	parcels := m.out.empties() // none with a store, where accounts do not travel
	m.mu.Unlock()
	for _, p := range parcels {
		c.putBack(now, p, func(int) bool { return true })
	}
	c.driver.wake()
}

// putBack takes accounts of a parcel back into the table, and drops the record of its way; the caller holds mu. The
// hash in underway is that of one key: two keys with one hash are never under way together (takeOut).
func (c *core) putBack(now instant, p *parcel, which func(i int) bool) {
	i, at := 0, c.local.LedgerNow(now)
	_ = moved.Read(p.w.B, func(m moved.Entry) { // this node wrote it
		if which(i) {
			c.local.Adopt(now, m.Key, m.Account, at)
			c.mover.once()
		}
		i++
	})
	// All of the parcel is at its place now, at the receiver or here again.
	for _, hash := range p.hashes {
		delete(c.mover.underway, hash)
	}
}

// turn puts a new ring in force. Keys that this node loses move from here on, and are decided elsewhere. The
// caller holds mu.
func (c *core) turn() {
	old := c.view.Load()
	next := c.build(old)
	if c.inStore() {
		next.stable.Store(true)
		c.wasStable = true
		c.view.Store(next) // the store has all leases
		return
	}
	// Where other nodes have only gone, no key of this node's went to another, and no table needs
	// to be walked through.
	if !lessOnly(old, next) {
		c.mover.begin()
	}
	// The swap is all that requests wait for. Accounts move afterwards, a few keys at a time.
	c.gate.Lock()
	c.view.Store(next)
	c.gate.Unlock()
	c.settle()
	c.announceClean() // done, under the new ring, where nothing moves
	c.driver.wake()
}
