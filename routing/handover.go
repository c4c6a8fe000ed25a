package routing

import (
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
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
// A node says done when it has nothing that is not its own, and nothing of its
// is on its way. When all have, under the ring that a node sees, a key without
// an account has none anywhere.

// mover is the walk through this node's tables. It goes round until a round has left nothing of others behind.
type mover struct {
	// dirty says that there may be accounts of others: this node must not say done.
	dirty bool
	visit leasing.Visit
	again bool // an account may be where the walk has passed: this round is not the last
	stuck bool // in this round, an account could not be put on its way
	waits bool // the round is over, and what is left is stuck
	// full is the node whose room the walk waits for; nil: none.
	full *member
	// retry is when a walk that is stuck begins anew. 0 means: when a way opens.
	retry instant
	// underway has the receivers of accounts that are on their way, by the hashes of their whole keys. A key
	// in it has no account here and is not new: it must not start anew.
	underway map[uint64]string
	keys     []byte // of accounts to take out next
	ends     []int
}

// begin begins the first round.
func (m *mover) begin() {
	m.dirty, m.visit, m.again, m.stuck, m.waits, m.full, m.retry = true, leasing.Visit{}, false, false, false, nil, 0
}

// once has the walk go round once more: an account has come back, or a way has opened.
func (m *mover) once() {
	if m.walks() {
		m.again = true
	} else {
		m.begin()
	}
}

// end takes in that a round has ended.
func (m *mover) end() {
	switch {
	case m.again:
		m.begin()
	case m.stuck:
		m.waits = true
	default:
		m.dirty = false
	}
}

// walks tells whether the walk has more to see.
func (m *mover) walks() bool { return m.dirty && !m.waits }

// clean tells whether this node has nothing that is not its own, as one with a
// store never has; the caller holds mu.
func (c *core) clean() bool { return !c.mover.dirty && len(c.mover.underway) == 0 }

// step moves a few accounts. It reports whether there is more to do at once.
func (c *core) step(now instant) (more bool) {
	c.mu.Lock()
	defer c.unlock()
	m := &c.mover
	if m.retry != 0 && now >= m.retry {
		m.retry = 0
		m.once()
	}
	// A walk that waits for room at one node stops as a whole. To pass that node's accounts over
	// would mean another round for them.
	if !m.walks() || m.full != nil && m.full.state(now) == noRoom {
		return false
	}
	m.full = nil
	before := m.visit
	c.gate.RLock()
	v := c.view.Load()
	m.keys, m.ends = m.keys[:0], m.ends[:0]
	// Visit holds a lock of the table, so that keys are only noted here and taken out afterwards.
	// They are copied, for they are the table's.
	done := c.local.Visit(&m.visit, func(key []byte) {
		if owner := v.ring.Owner(ring.HashOf(key)); owner != c.options.Addr && owner != "" {
			m.keys = append(m.keys, key...)
			m.ends = append(m.ends, len(m.keys))
		}
	})
	c.takeOut(now, v)
	c.gate.RUnlock()
	switch {
	case m.full != nil: // these are shown again
		m.visit = before
	case done:
		m.end()
	}
	more = m.full == nil && m.walks()
	if !more {
		// Nothing is to be added for now. Parcels that are not full go out as they are.
		c.sealAll()
	}
	c.settled()
	return more
}

// takeOut puts accounts on their way that a visit has found; the caller holds mu
// and the gate.
func (c *core) takeOut(now instant, v *view) {
	m, from := &c.mover, 0
	for _, end := range m.ends {
		key := m.keys[from:end]
		from = end
		to := c.members[v.ring.Owner(ring.HashOf(key))]
		switch to.state(now) {
		case takes:
			c.send(now, to, key)
		case noRoom:
			m.full = to
			return
		case noWay:
			m.stuck = true
		case later:
			m.stuck = true
			// The earliest of the refusing nodes says when to try again.
			if m.retry == 0 || to.paused < m.retry {
				m.retry = to.paused
			}
		}
	}
}

// way is whether a node may be sent accounts.
type way uint8

const (
	takes  way = iota
	noRoom     // until there are receipts
	noWay      // until its link opens
	later      // it has refused some, and will see the ring as it is in a moment
)

func (m *member) state(now instant) way {
	switch {
	// The ring may name a node that has been dropped since.
	case m == nil || !m.ready.Load():
		return noWay
	case now < m.paused:
		return later
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.out.room() {
		return noRoom
	}
	return takes
}

// send puts a key's account on its way. It reports false where there is none.
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

// sealAll has what there is sent.
func (c *core) sealAll() {
	for _, m := range c.members {
		m.flush()
	}
}

// flush sends the open parcel, with all additions until then.
func (m *member) flush() {
	m.mu.Lock()
	m.out.urgent = m.out.open != nil
	urgent := m.out.urgent
	m.mu.Unlock()
	if urgent {
		m.wake()
	}
}

// settled says done, when the node has become clean; the caller holds mu.
func (c *core) settled() {
	if !c.clean() {
		return
	}
	c.each(c.sayDone)
}

func (c *core) sayDone(m *member) {
	if m.ready.Load() {
		// In messages, counts of changes begin at 1: 0 is not said.
		m.sayDone(c.view.Load().print, c.changes+1)
	}
}

// received takes in a receipt. Refused accounts are this node's again, to keep or to send to their owner.
func (c *core) received(from *member, r *wire.Receipt) {
	c.mu.Lock()
	defer c.unlock()
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
	c.settled()
	c.hands.wake()
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
	c.hands.wake()
}

// putBack takes accounts of a parcel back into the table, and drops the record of its way; the caller holds
// mu.
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

// inbox has the parcels of one incarnation of a node.
type inbox struct {
	heard instant // guarded by core.mu

	mu      sync.Mutex // held while a parcel is taken in: streams of one node may overlap
	last    uint64     // guarded by mu: the number of the last parcel
	answers map[uint64]*wire.Receipt
	// How much later it was here than there when a message came, at least: in the
	// last stretch of time, and the one before. The least of many messages is what
	// the clocks differ by, and the shortest way.
	behind [2]time.Duration
	since  instant
}

const (
	compareFor = 10 * time.Second
	// clockNoise is by how much clocks may seem to differ that do not: a message
	// takes its time.
	clockNoise = 5 * time.Millisecond
)

// compare takes in how much later it was here than there, and returns how far
// the sender's clock is behind this node's.
func (in *inbox) compare(now instant, later time.Duration) time.Duration {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.compareLocked(now, later)
}

func (in *inbox) compareLocked(now instant, later time.Duration) time.Duration {
	// Two stretches are kept, so that the least of one is known while the next begins. After a
	// longer silence both are too old: clocks may have drifted.
	switch {
	case in.since == 0 || now.Sub(in.since) > 2*compareFor:
		in.since, in.behind = now, [2]time.Duration{later, later}
	case now.Sub(in.since) > compareFor:
		in.since, in.behind = now, [2]time.Duration{later, in.behind[0]}
	default:
		in.behind[0] = min(in.behind[0], later)
	}
	// A message takes time, which makes the sender's clock look as if it were behind. So a small
	// positive difference says nothing, but any negative one says that the clock is ahead.
	if by := min(in.behind[0], in.behind[1]); by > clockNoise || by < 0 {
		return by
	}
	return 0
}

// mostInboxes is how many there may be: of all peers, and of their last lives.
const mostInboxes = 2 * maxPeers

// inboxOf finds or makes an inbox; the caller holds mu.
func (c *core) inboxOf(now instant, from *inlet) *inbox {
	in := c.inboxes[from.incarnation]
	if in == nil {
		if len(c.inboxes) >= mostInboxes {
			oldest := from.incarnation
			least := now
			for id, other := range c.inboxes {
				// Of inboxes with the same last instant, the lowest number goes, so that a simulation does
				// the same in every run.
				if other.heard < least || other.heard == least && id < oldest {
					oldest, least = id, other.heard
				}
			}
			delete(c.inboxes, oldest)
		}
		in = &inbox{answers: map[uint64]*wire.Receipt{}}
		c.inboxes[from.incarnation] = in
	}
	in.heard = now
	return in
}

// adoptedAtOnce is the number of accounts of a parcel that are adopted before a waiting request goes first. The
// memory of a table that is filled for the first time is slow, most of all on virtual machines. A parcel took
// up to 11 ms there, and many come one after the other.
const adoptedAtOnce = 16

// adopt takes in a parcel, once.
func (c *core) adopt(now instant, from *inlet, p *wire.Parcel) *wire.Receipt {
	// Without a number it cannot be told from its repetition.
	if c.inStore() || p.GetNumber() == 0 || len(p.GetAccounts()) > mostParcel {
		c.malformed(rejectedParcel) // a store has the accounts
		return nil
	}
	here := c.local.LedgerNow(now)
	if !moved.Current(here, p.GetSent()) {
		c.malformed(rejectedSent)
		return nil
	}
	c.mu.Lock()
	in := c.inboxOf(now, from)
	c.unlock()
	in.mu.Lock()
	defer in.mu.Unlock()
	// The parcel has come before, and its receipt was lost. Its accounts must not count twice; the
	// same receipt is sent again.
	if p.GetNumber() <= in.last {
		if r := in.answers[p.GetNumber()]; r != nil {
			return r
		}
		c.malformed(rejectedParcel)
		return nil
	}
	// The sender keeps parcels from First on only: it has the receipts of those before.
	for n := range in.answers {
		if n < p.GetFirst() {
			delete(in.answers, n)
		}
	}
	if len(in.answers) > 4*parcelsAtOnce { // no node of ours has so many without a receipt
		clear(in.answers)
	}
	r := &wire.Receipt{Number: p.GetNumber()}
	// This comes before the accounts are read: if they end in nonsense, what came before it has
	// been taken in, and must not be once more.
	in.last, in.answers[r.Number] = r.Number, r
	// What the sender's clock shows now, as far as that can be told.
	sent := here.Add(-in.compareLocked(now, here.Sub(ratelimit.LedgerTime(p.GetSent()))))
	i := uint32(0)
	if err := moved.Read(p.GetAccounts(), func(m moved.Entry) {
		if !m.Plausible(here) {
			c.malformed(rejectedAccount) // no node has it: the sender does not get it back either
		} else if !c.take(now, m, sent) {
			r.Refused = append(r.Refused, i)
		}
		if i++; i%adoptedAtOnce == 0 {
			c.hands.yield()
		}
	}); err != nil {
		c.malformed(rejectedParcel)
		c.tell(from.addr, err)
	}
	return r
}

// take goes on with an account, if the key is this node's own.
func (c *core) take(now instant, m moved.Entry, sent ratelimit.LedgerTime) bool {
	c.gate.RLock()
	defer c.gate.RUnlock()
	// The gate is held until the account is in the table. If the ring turned in between, the mover
	// might already have walked past its place.
	mine := c.view.Load().ring.Owner(ring.HashOf(m.Key)) == c.options.Addr
	if mine { // without room, it shares a budget with others, as any key beyond the most
		c.local.Adopt(now, m.Key, m.Account, sent)
	}
	return mine
}
