package routing

import (
	"time"

	"github.com/sluice-gate/sluice/routing/wire"
)

const redialLeast, redialMost = 100 * time.Millisecond, time.Second

// hello introduces this node.
func (c *core) hello(nonce []byte) *wire.Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &wire.Hello{
		Version: version, Addr: c.options.Addr, Nonce: nonce,
		Absent: !c.present, Incarnation: c.incarnation, Changes: c.changes, Region: c.options.Region,
	}
}

// discovered applies the nodes of discovery.
func (c *core) discovered(now instant, addrs []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked = true
	for _, a := range addrs {
		if m := c.track(a); m != nil {
			// Nodes that discovery names are kept, even if they cannot be reached at present.
			m.found = now
		} else if a != c.options.Addr {
			c.reject(rejectedAddress) // beyond maxPeers
		}
	}
	c.driver.wake()
}

// track starts the way to a new node; the caller holds mu.
func (c *core) track(addr string) *member {
	m := c.members[addr]
	// Discovery and peers both name nodes; neither may make this one dial without a bound.
	if m != nil || addr == c.options.Addr || len(c.members) >= maxPeers {
		return m
	}
	m = &member{link: &link{addr: addr, pending: map[uint64]*call{}}, wakeups: wakeups{kick: make(bell, 1)}}
	m.out.numbers = &c.parcels
	c.members[addr] = m
	c.driver.dial(m)
	return m
}

// applyHello records that a node has introduced itself: this one dials back. So two nodes have a way in each direction,
// though discovery may name only one of them.
func (c *core) applyHello(now instant, h *wire.Hello) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.track(h.GetAddr())
	if m == nil {
		return
	}
	m.found, m.helloAt = now, now
	c.applyIncarnation(now, m, h)
	if !m.ready.Load() {
		// The node is there: it must not be taken for absent (join), and is dialled at once.
		m.failures = 0
		m.kick.ring()
	}
}

// applyIncarnation records the incarnation of a node. Messages to another incarnation are lost; the caller holds
// mu.
func (c *core) applyIncarnation(now instant, m *member, h *wire.Hello) {
	if m.incarnation != h.GetIncarnation() {
		m.incarnation = h.GetIncarnation()
		m.done = 0
		m.changes = 0
		m.holds = m.alive
		c.reclaim(now, m)
	}
}

// opened records that the way to a node is open. It is called before the first frame of the new stream is sent.
func (c *core) opened(now instant, m *member, h *wire.Hello) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The node was dropped while it was dialled; another member may stand in its place.
	if c.members[m.addr] != m {
		return
	}
	m.lastSeen.Store(int64(now))
	c.applyIncarnation(now, m, h)
	m.failures = 0
	m.acked = 0
	m.announcing = false
	m.mu.Lock()
	// Parcels of the last stream may be lost, and are all sent again. The receiver detects by their numbers
	// which it has.
	m.out.again()
	m.mu.Unlock()
	// From here on others may post to it without mu, so that all the above has to be set.
	m.ready.Store(true)
	// The node may have announced a later change since it welcomed this one.
	if is, v := !h.GetAbsent(), c.view.Load(); m.supersedes(h.GetIncarnation(), h.GetChanges()) && m.alive != is {
		c.gate.Lock() // it may have counted apart until now, in a ring of its own
		v.since = nil
		v.stable.Store(c.inStore())
		c.gate.Unlock()
		c.enterOrLeave(m, is)
	}
	c.settle()
	// Announcements on the last stream may be lost, and a node of another incarnation has none.
	c.announceDone(m)
	m.wake()
	c.driver.wake()
}

// closed records that the way to a node is not open, or no longer. Its calls end first, because their functions lock
// mu.
func (c *core) closed(m *member) {
	m.broke(errPeerGone)
	c.mu.Lock()
	defer c.mu.Unlock()
	m.announcing = false
	m.failures++
	c.driver.wake()
}

// pause is how long to wait before the next dial.
func (c *core) pause(now instant, m *member) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	pause := redialLeast
	// In the first second all are dialled often. Nodes that start together open their ports one after the
	// other, and each joins after it has met or missed all others.
	if now.Sub(c.began) > grace {
		pause = min(redialMost, redialLeast<<min(8, max(0, m.failures-1)))
	}
	// The random part keeps nodes that lost each other at once from dialling all at once.
	return pause/2 + time.Duration(c.random()*float64(pause))
}

// applyPresence records that a node owns keys from now on, or none any more. It reports false when the node must
// repeat this: the way to it is not open, or it has come and gone too often.
func (c *core) applyPresence(now instant, from *inlet, is bool, changes uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[from.addr]
	// An unreachable node would own keys that this one could not ask for. It repeats its announcement until
	// the way is open. A departure counts at once.
	if m == nil || is && !m.ready.Load() {
		return !is
	}
	if m.supersedes(from.incarnation, changes) && m.alive != is {
		// Each turn of the ring walks through the tables, so that a peer which comes and goes without end
		// would keep this node busy.
		if !from.mayTurn(now) {
			c.malformed(rejectedPresence)
			return false
		}
		c.enterOrLeave(m, is)
	}
	c.announceDone(m) // if this node has not noticed that it was away, the ring does not turn
	return true
}

// supersedes notes the number of a node's announcement. It reports false for an older one than was applied, also of
// an earlier life: announcements travel on several streams, and may arrive in another order. The caller holds mu.
//
// A node that has joined or left since may have accounts, also one that this node first meets after it has left.
func (m *member) supersedes(life, changes uint64) bool {
	if life == m.incarnation && changes > m.changes {
		m.changes, m.done = changes, 0
		m.holds = true
	}
	return life == m.incarnation && changes == m.changes
}

// enterOrLeave puts another node into the ring, or takes it out; the caller holds mu.
func (c *core) enterOrLeave(m *member, is bool) {
	m.alive, m.holds = is, m.holds || is
	c.turn()
}

// applyDone records that a node has nothing of others under a ring. The digest is that of the sender's ring. It counts
// while this node sees the same one.
func (c *core) applyDone(from *inlet, digest, changes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[from.addr]
	if m == nil || !m.supersedes(from.incarnation, changes) {
		return
	}
	m.done = digest
	// A node that has left and has nothing of others under the ring that is in force cannot have
	// anything of this node's any more.
	if !m.alive && digest == c.view.Load().digest {
		m.holds = false
	}
	c.settle()
}
