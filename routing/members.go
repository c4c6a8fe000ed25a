package routing

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/routing/wire"
)

// How long things take.
const (
	// TakeOver is how long a node may be out of reach before others own its keys.
	TakeOver = 2 * time.Second
	// lapseAfter is the time without running after which a node assumes that others own its keys: its last
	// message to them may be a ping older.
	lapseAfter = TakeOver - pingEvery
	// forgetAfter is how long a node that is gone is still looked for.
	forgetAfter = time.Minute
	// grace is the time after its start in which a node does not count an unreachable one as absent: nodes
	// that start together open their ports one after the other.
	grace = time.Second
	// readyAfter is when a node takes traffic although others have not confirmed their handover: they see
	// another ring, or cannot send.
	readyAfter = 5 * TakeOver

	// Four pings fit into TakeOver: a node counts as silent only when several in a row are lost or
	// late.
	pingEvery = 500 * time.Millisecond
	tickEvery = pingEvery / 2
	tickSoon  = 5 * time.Millisecond // while something is to be said again
	// For tellFast after it joined, a node repeats this each askAgain to nodes without an acknowledgement,
	// and then each tickSoon. Until all have acknowledged, no node decides on its new keys, and requests for
	// them wait.
	tellFast = 100 * time.Millisecond
	// leaveTells is how long a leaving node waits for all acknowledgements: one that does not answer must not
	// keep it.
	leaveTells = 500 * time.Millisecond

	redialLeast, redialMost = 100 * time.Millisecond, time.Second
)

// member is another node, as this one sees it.
//
//	found --dialled--> met (ready) --here--> in the ring (alive) --left, or silent--> out of it
//	                                                   |--------- done: has nothing of others
type member struct {
	*link
	reached
	bells

	// The node's own statements.
	incarnation uint64
	alive       bool // in the ring
	// holds says that the node has been in the ring, and has not stated since that it has no accounts of
	// others: it may have some of this node's. Invariant: a node that is alive holds.
	holds   bool
	changes uint64 // the number of its latest statement: each time it joins or leaves, it counts up
	// done is the ring under which it has nothing of others, since it last joined or left; 0: none.
	done uint64
}

// reached is the progress of this node's announcements to another.
type reached struct {
	found   instant
	greeted instant // when it last introduced itself
	// failures counts dials in a row. A node without a way to it and without failures may be there or not.
	failures   int
	acked      uint64  // the number of the announcement that the node has acknowledged last; 0: none
	announcing bool    // one is on its way
	repeat     instant // of the next announcement, at the earliest
	// Before paused, the node gets no parcels: it has refused some, and still sees another ring.
	paused instant
}

// bells wake the Router's goroutines of one way; Stepped has none of them.
type bells struct {
	stop  context.CancelFunc
	kick  bell // dial at once
	again bell // end this conversation
	words bell // a message is ready
}

// each calls f with every member, always in the same order; the caller holds mu.
func (c *core) each(f func(m *member)) {
	all := make([]*member, 0, len(c.members))
	for _, m := range c.members {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *member) int { return strings.Compare(a.addr, b.addr) })
	for _, m := range all {
		f(m)
	}
}

// hello introduces this node.
func (c *core) hello(nonce []byte) *wire.Hello {
	c.mu.Lock()
	defer c.unlock()
	return &wire.Hello{
		Version: version, Addr: c.options.Addr, Weight: weight, Nonce: nonce,
		Absent: !c.present, Incarnation: c.incarnation, Changes: c.changes,
	}
}

// looks takes in the nodes of discovery.
func (c *core) looks(now instant, addrs []string) {
	c.mu.Lock()
	defer c.unlock()
	c.looked = true
	for _, a := range addrs {
		if m := c.know(a); m != nil {
			// Nodes that discovery names are kept, even if they cannot be reached at present.
			m.found = now
		} else if a != c.options.Addr {
			c.reject(rejectedAddress) // beyond maxPeers
		}
	}
	c.hands.wake()
}

// know starts the way to a new node; the caller holds mu.
func (c *core) know(addr string) *member {
	m := c.members[addr]
	// Discovery and peers both name nodes; neither may make this one dial without a bound.
	if m != nil || addr == c.options.Addr || len(c.members) >= maxPeers {
		return m
	}
	m = &member{link: &link{addr: addr, pending: map[uint64]*call{}}, bells: bells{kick: make(bell, 1)}}
	m.out.number = c.numbered // it may return after it was dropped, with its records of this node's parcels
	c.members[addr] = m
	c.hands.dial(m)
	return m
}

// greeted takes in that a node has introduced itself: this one dials back.
func (c *core) greeted(now instant, h *wire.Hello) {
	c.mu.Lock()
	defer c.unlock()
	m := c.know(h.GetAddr())
	if m == nil {
		return
	}
	m.found, m.greeted = now, now
	c.introduced(now, m, h)
	if !m.ready.Load() {
		// The node has just spoken, so that it must not be taken for absent (join), and is dialled
		// at once.
		m.failures = 0 // it is there
		m.kick.ring()
	}
}

// introduced takes in the incarnation of a node. Messages to another incarnation are lost; the caller holds
// mu.
func (c *core) introduced(now instant, m *member, h *wire.Hello) {
	if m.incarnation != h.GetIncarnation() {
		m.incarnation, m.done, m.changes, m.holds = h.GetIncarnation(), 0, 0, m.alive
		c.reclaim(now, m)
	}
}

// opened takes in that the way to a node is open.
func (c *core) opened(now instant, m *member, h *wire.Hello) {
	c.mu.Lock()
	defer c.unlock()
	// The node was dropped while it was dialled; another member may stand in its place.
	if c.members[m.addr] != m {
		return
	}
	m.heard.Store(int64(now))
	c.introduced(now, m, h)
	m.failures, m.acked, m.announcing = 0, 0, false
	m.mu.Lock()
	// Parcels of the last stream may be lost, and are all sent again. The receiver detects by their numbers
	// which it has.
	m.out.again()
	m.mu.Unlock()
	// From here on others may post to it without mu, so that all the above has to be set.
	m.ready.Store(true)
	// The node may have announced a later change since it welcomed this one.
	if is := !h.GetAbsent(); m.supersedes(h.GetChanges()) && m.alive != is {
		c.enterOrLeave(m, is)
	}
	c.settle()
	// Announcements on the last stream may be lost, and a node of another incarnation has none.
	if c.clean() {
		c.sayDone(m)
	}
	if c.mover.state != walked {
		c.mover.once() // with what waits for this way
	}
	m.wake()
	c.hands.wake()
}

// closed takes in that the way to a node is not open, or no longer.
func (c *core) closed(m *member) {
	m.broke(errPeerGone)
	c.mu.Lock()
	defer c.unlock()
	m.announcing = false
	m.failures++
	c.hands.wake()
}

// pause is how long to wait before the next dial.
func (c *core) pause(now instant, m *member) time.Duration {
	c.mu.Lock()
	defer c.unlock()
	pause := redialLeast
	// In the first second all are dialled often. Nodes that start together open their ports one after the
	// other, and each joins after it has met or missed all others.
	if now.Sub(c.began) > grace {
		pause = min(redialMost, redialLeast<<min(8, max(0, m.failures-1)))
	}
	// The random part keeps nodes that lost each other at once from dialling all at once.
	return pause/2 + time.Duration(c.random()*float64(pause))
}

// presence takes in that a node owns keys from now on, or none any more. It reports false when the node must
// repeat this: the way to it is not open, or it has come and gone too often.
func (c *core) presence(now instant, from *inlet, is bool, changes uint64) bool {
	c.mu.Lock()
	defer c.unlock()
	m := c.members[from.addr]
	// An unreachable node would own keys that this one could not ask for. It repeats its announcement until
	// the way is open. A departure counts at once.
	if m == nil || is && !m.ready.Load() {
		return !is
	}
	if m.supersedes(changes) && m.alive != is {
		// Each turn of the ring walks through the tables, so that a peer which comes and goes without end
		// would keep this node busy.
		if !from.mayTurn(now) {
			c.malformed(rejectedPresence)
			return false
		}
		c.enterOrLeave(m, is)
	}
	return true
}

// supersedes notes the number of a node's statement. It reports false for an older one than was applied: statements
// travel on two streams, and may arrive in another order. The caller holds mu.
func (m *member) supersedes(changes uint64) bool {
	if changes > m.changes {
		m.changes, m.done = changes, 0
	}
	return changes == m.changes
}

// enterOrLeave puts another node into the ring, or takes it out; the caller holds mu.
func (c *core) enterOrLeave(m *member, is bool) {
	m.alive, m.holds = is, m.holds || is
	c.turn()
}

// saidDone takes in that a node has nothing of others under a ring.
func (c *core) saidDone(addr string, print, changes uint64) {
	c.mu.Lock()
	defer c.unlock()
	m := c.members[addr]
	if m == nil || !m.supersedes(changes) {
		return
	}
	m.done = print
	// A node that has left and has nothing of others under the ring that is in force cannot have
	// anything of this node's any more.
	if !m.alive && print == c.view.Load().print {
		m.holds = false
	}
	c.settle()
}

// tick does the work that time makes due. It returns when it must be called again, at the latest.
func (c *core) tick(now instant) (due instant) {
	due = c.lookAfter(now)
	if next := c.tellOwners(now); next != 0 {
		due = min(due, next)
	}
	return due
}

func (c *core) lookAfter(now instant) (due instant) {
	c.mu.Lock()
	defer c.unlock()
	// This comes first. What follows would otherwise bury all others for a silence that was this
	// node's own.
	if ticked := instant(c.ticked.Load()); ticked != 0 && now.Sub(ticked) > lapseAfter {
		c.lapse(now, now.Sub(ticked))
	}
	c.ticked.Store(int64(now))
	c.bury(now)
	c.join(now)
	unacked := c.announce(now)
	c.depart(now)
	// Own keys are decided here only once all have acknowledged that this node owns them. One that never
	// answers must not prevent that for ever. A node that has slept is in no ring by now.
	if !unacked || now.Sub(c.joined) > readyAfter {
		c.unconfirmed.Store(false)
	}
	// Retries need the node sooner than its next tick.
	switch {
	case unacked:
		return now.Add(c.repeatAfter(now))
	case !c.present && c.left == 0, c.mover.retry != 0:
		return now.Add(tickSoon)
	}
	return now.Add(tickEvery)
}

// lapse is for a node that did not run for so long that others may own its keys. It is an owner no more,
// hands its accounts to the owners, and joins again. Others may have been silent only because this node did
// not read.
func (c *core) lapse(now instant, slept time.Duration) {
	for _, m := range c.members {
		m.heard.Store(int64(now))
	}
	// With a store the leases end by themselves, and their fences keep the limit.
	if c.inStore() || !c.present {
		return
	}
	c.tell("", fmt.Errorf("this node did not run for %v: others may own its keys "+
		"by now, so that it joins the ring again", slept.Round(time.Millisecond)))
	// The accounts go to the present owners of their keys, and the node joins again when it has none (join).
	c.quitRing()
	c.turn()
}

// bury takes nodes out of the ring after too long a silence.
func (c *core) bury(now instant) {
	changed := false
	c.each(func(m *member) {
		heard := instant(m.heard.Load())
		// After this long, no node waits for its accounts: their keys count as new. A crash costs that
		// (docs/internals/peers.md).
		if m.holds && now.Sub(heard) > TakeOver {
			changed = changed || m.alive
			m.alive, m.holds = false, false
			c.reclaim(now, m)
			c.hands.redial(m) // if it is there after all, it is met again
			c.settle()
		}
		// A node that discovery still names is kept, and dialled, however long it is silent.
		if now.Sub(max(m.found, heard)) > forgetAfter {
			c.hands.hangUp(m)
			delete(c.members, m.addr)
			m.mu.Lock()
			// If the node comes back, it has this one's parcels by their numbers. If numbers began anew, it
			// would take new parcels for old ones, and their accounts would be lost.
			c.numbered = max(c.numbered, m.out.number)
			m.mu.Unlock()
		}
	})
	if changed {
		c.turn()
	}
}

// quitRing takes this node out of the ring; the caller holds mu.
func (c *core) quitRing() {
	if c.present {
		c.present = false
		c.changes++
	}
}

// join enters the ring once every found node has been met, or was unreachable for long enough. By then, this
// node has handed over the accounts of its earlier ownership.
func (c *core) join(now instant) {
	// A node that joins with accounts of others would count their keys in addition to the owners. After a
	// lapse it has such accounts, and hands them over first.
	if c.present || c.left != 0 || !c.looked || !c.clean() {
		return
	}
	for _, m := range c.members {
		switch {
		case m.ready.Load():
		// It may be there or not.
		case m.failures == 0, now.Sub(c.began) < grace:
			return
		case m.greeted != 0 && now.Sub(m.greeted) < TakeOver && now.Sub(c.began) < readyAfter: // it is there, and slow
			return
		}
	}
	c.present, c.joined = true, now
	c.changes++
	// With a store two nodes may decide for one key: the store's fences keep the limit.
	c.unconfirmed.Store(!c.inStore())
	c.turn()
}

// announce tells all others whether this node owns keys. It reports whether acknowledgements are missing.
func (c *core) announce(now instant) (unacked bool) {
	// They are read now, not when the frame is written: the answer counts for the present ring.
	is, changes := c.present, c.changes
	c.each(func(m *member) {
		if !m.ready.Load() || m.acked == changes {
			return
		}
		unacked = true
		// One at a time is on its way, so that an answer belongs to the last announcement.
		if m.announcing || now < m.repeat {
			return
		}
		m.announcing = true
		say := newCall(func(f *wire.Frame, id uint64) {
			f.Presences = append(f.Presences, &wire.Presence{Id: id, Here: is, Changes: changes})
		})
		say.after(func() {
			c.mu.Lock()
			defer c.unlock()
			m.announcing = false
			if say.err == nil && say.reply.GetStatus() == answered {
				m.acked = changes
			} else {
				now := c.clock()
				m.repeat = now.Add(c.repeatAfter(now)) // it dials back
			}
			c.hands.wake()
		})
		c.post(m.link, say)
	})
	return unacked
}

// repeatAfter is the time until this node repeats its announcement; the caller holds mu.
func (c *core) repeatAfter(now instant) time.Duration {
	if c.present && now.Sub(c.joined) < tellFast {
		return askAgain
	}
	return tickSoon
}

// leave announces that this node owns nothing any more. Until all others have acknowledged, it still decides.
func (c *core) leave(now instant) {
	c.mu.Lock()
	defer c.unlock()
	if c.left == 0 {
		c.quitRing()
		c.left = now
		c.hotHere.End()
		c.hands.wake()
	}
}

// depart takes a leaving node out of its own ring, when all others have acknowledged.
func (c *core) depart(now instant) {
	if c.left == 0 || !c.view.Load().mine {
		return
	}
	if now.Sub(c.left) < leaveTells {
		for _, m := range c.members {
			// Nodes without the announcement still ask this node. If it did not decide any more, their
			// requests would wait in vain.
			if m.alive && m.ready.Load() && m.acked != c.changes {
				return
			}
		}
	}
	c.turn()
}

// gone tells whether a leaving node has handed over all.
func (c *core) gone() bool {
	c.mu.Lock()
	defer c.unlock()
	v := c.view.Load()
	// In the last node, tokens in hand cannot be returned.
	return !v.mine && c.clean() && (len(v.ring.Members()) == 0 || c.hotHere.Open() == 0)
}

// rest is how many accounts a node in no ring still has, in parcels without a receipt and in the table, which is
// walked from end to end.
func (c *core) rest() int {
	c.mu.Lock()
	defer c.unlock()
	n := len(c.mover.underway)
	for visit := (leasing.Visit{}); !c.inStore() && !c.local.Visit(&visit, func([]byte) { n++ }); {
	}
	return n
}

// isReady tells whether this node has joined the ring, and has its keys.
func (c *core) isReady(now instant) bool {
	c.mu.Lock()
	defer c.unlock()
	if !c.present && c.left == 0 || c.unconfirmed.Load() {
		return false
	}
	return c.inStore() || c.wasStable || now.Sub(c.joined) > readyAfter
}
