package routing

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/routing/wire"
)

// Whether this node is in the ring:
//
//	out --join: all others are met or missed--> unconfirmed --announce: all have acknowledged--> owner of its keys
//	 ^--------------------- lapse: it did not run for long ----------------------------------------'  |
//	                                                      out for good <--depart: all know-- leave --'

// tick does the work that time makes due. It returns when it must be called again, at the latest.
func (c *core) tick(now instant) (due instant) {
	due = c.lookAfter(now)
	if next := c.book(now); next != 0 {
		due = min(due, next)
	}
	return due
}

// lookAfter does the work of a tick under mu: a lapse first, then deaths, this node's entry, its announcements and its
// departure. It returns the instant of the next tick, at the latest.
func (c *core) lookAfter(now instant) (due instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// This comes first. What follows would otherwise bury all others for a silence that was this
	// node's own.
	if ticked := instant(c.ticked.Load()); ticked != 0 && now.Sub(ticked) > lapseAfter {
		c.lapse(now, now.Sub(ticked))
	}
	c.ticked.Store(int64(now))
	c.endFetches(now)
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
	if unacked || !c.present && c.left == 0 || c.mover.state == stuck {
		return now.Add(tickSoon)
	}
	return now.Add(tickEvery)
}

// lapse is for a node that did not run for so long that others may own its keys. It is an owner no more,
// hands its accounts to the owners, and joins again. Others may have been silent only because this node did
// not read.
func (c *core) lapse(now instant, slept time.Duration) {
	for _, m := range c.members {
		m.lastSeen.Store(int64(now))
	}
	// With a store the leases end by themselves, and their fences keep the limit.
	if c.inStore() || !c.present {
		return
	}
	c.report("", fmt.Errorf("this node did not run for %v, and joins the ring again: %w",
		slept.Round(time.Millisecond), ErrLost))
	// The accounts go to the present owners of their keys, and the node joins again when it has none (join).
	c.quitRing()
	c.turn()
}

// bury takes nodes out of the ring after too long a silence.
func (c *core) bury(now instant) {
	changed := false
	for _, m := range c.sorted() {
		lastSeen := instant(m.lastSeen.Load())
		// After this long, no node waits for its accounts: their keys count as new. A crash costs that
		// (docs/explain/routing.md). A node that has left may end before it has accepted all that was sent to it.
		if (m.holds || m.owes()) && now.Sub(lastSeen) > TakeOver {
			changed = changed || m.alive
			m.alive = false
			m.holds = false
			m.done = 0 // its last report is from before
			// Its accounts on their way there are this node's again, and go to the next owner.
			c.reclaim(now, m)
			c.driver.redial(m) // if it is there after all, it is met again
			c.settle()
		}
		// A node that discovery still names is kept, and dialled, however long it is silent.
		if now.Sub(max(m.found, lastSeen)) > forgetAfter {
			c.driver.hangUp(m)
			delete(c.members, m.addr)
		}
	}
	if changed {
		c.turn()
	}
}

// quitRing takes this node out of the ring, if it is in it; the caller holds mu.
func (c *core) quitRing() {
	c.present = false
	c.changes++
}

// join enters the ring once every found node has been met, or was unreachable for long enough. By then, this node has
// handed over the accounts of its earlier ownership. Two nodes that start at once may each join without the other.
// unconfirmed then keeps both from decisions until they have acknowledged each other.
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
		case m.helloAt != 0 && now.Sub(m.helloAt) < TakeOver && now.Sub(c.began) < readyAfter: // it is there, and slow
			return
		}
	}
	// Statements about a ring with this node are from before it was away: others may have begun accounts of its keys.
	for _, m := range c.members {
		m.done = 0
	}
	c.present, c.joined = true, now
	c.changes++
	// With a store two nodes may decide for one key: the store's fences keep the limit.
	c.unconfirmed.Store(!c.inStore())
	c.turn()
}

// announce announces to all others whether this node owns keys. It reports whether acknowledgements are missing.
func (c *core) announce(now instant) (unacked bool) {
	// They are read now, not when the frame is written: the answer counts for the present ring.
	is, changes := c.present, c.changes
	for _, m := range c.sorted() {
		if !m.ready.Load() || m.acked == changes {
			continue
		}
		unacked = true
		// One at a time is on its way, so that an answer belongs to the last announcement.
		if m.announcing || now < m.repeat {
			continue
		}
		call := newCall(func(f *wire.Frame, id uint64) {
			f.Presences = append(f.Presences, &wire.Presence{Id: id, Here: is, Changes: changes})
		})
		call.after(func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			m.announcing = false
			if call.status() == answered {
				m.acked = changes
			} else {
				m.repeat = c.clock().Add(tickSoon) // it dials back
			}
			c.driver.wake()
		})
		m.announcing = m.enqueue(call) == nil
		if !m.announcing {
			m.repeat = now.Add(tickSoon) // it is too busy
		}
	}
	return unacked
}

// leave announces that this node owns nothing any more. Until all others have acknowledged, it still decides. Its
// announcement is sent by the next ticks, and depart takes it out of its own ring.
func (c *core) leave(now instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		c.quitRing()
		c.left = now
		c.driver.wake()
	}
}

// depart takes a leaving node out of its own ring, when all others have acknowledged.
func (c *core) depart(now instant) {
	if c.left == 0 || !c.view.Load().mine {
		return
	}
	if now.Sub(c.left) < leaveWait {
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

// gone reports whether a leaving node has handed over all. Arrears count as something left: without this node, no other
// would have them booked.
func (c *core) gone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.view.Load()
	// The last node has no owner for its arrears.
	return !v.mine && c.clean() && (len(v.ring.Members()) == 0 || c.arrears.len() == 0)
}

// rest is how many accounts a node in no ring still has: in parcels without a receipt, with arrears, and in the table,
// which is walked from end to end.
func (c *core) rest() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.mover.underway) + c.arrears.len()
	for visit := (local.Visit{}); !c.inStore() && !c.local.Visit(&visit, func([]byte) { n++ }); {
	}
	return n
}

// Ready reports whether this node has joined the ring, and has its keys.
func (c *core) Ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.present && c.left == 0 || c.unconfirmed.Load() {
		return false
	}
	return c.wasStable || c.clock().Sub(c.joined) > readyAfter
}
