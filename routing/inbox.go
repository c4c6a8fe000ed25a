package routing

import (
	"cmp"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

const (
	// A node joins, leaves, and joins again when it was suspended. Each changes
	// all rings, and has the tables walked through.
	mostTurns = 20
	turnsIn   = 10 * time.Second
)

// mayTurn reports whether the peer may join or leave once more.
func (in *inlet) mayTurn(now instant) bool {
	// A stretch begins with the first turn in it, not at fixed times.
	if in.since == 0 || now.Sub(in.since) > turnsIn {
		in.since, in.turns = now, 0
	}
	in.turns++
	return in.turns <= mostTurns
}

const (
	compareFor = 10 * time.Second
	// clockNoise is by how much clocks may seem to differ that do not: a message
	// takes its time.
	clockNoise = 5 * time.Millisecond
)

// compare records how much later it was here than there, and returns how far
// the sender's clock is behind this node's.
func (in *inbox) compare(now instant, later time.Duration) time.Duration {
	in.mu.Lock()
	defer in.mu.Unlock()
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
	// positive difference shows nothing, but any negative one shows that the clock is ahead.
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
			// Of inboxes with the same last instant, the lowest number goes, so that a simulation does
			// the same in every run.
			delete(c.inboxes, slices.MinFunc(slices.Sorted(maps.Keys(c.inboxes)), func(a, b uint64) int {
				return cmp.Compare(c.inboxes[a].lastSeen, c.inboxes[b].lastSeen)
			}))
		}
		in = &inbox{answers: map[uint64]*wire.Receipt{}}
		c.inboxes[from.incarnation] = in
	}
	in.lastSeen = now
	return in
}

// compareClocks applies what a peer's ledger clock shows, and returns the inbox of the peer and the time there, as far
// as that can be known. ok is false if no clock can show that.
func (c *core) compareClocks(now instant, from *inlet, sent int64) (in *inbox, there ratelimit.LedgerTime, ok bool) {
	here := c.local.LedgerNow(now)
	if !moved.Current(here, sent) {
		c.malformed(rejectedSent)
		return nil, 0, false
	}
	c.mu.Lock()
	in = c.inboxOf(now, from)
	c.mu.Unlock()
	return in, here.Add(-in.compare(now, here.Sub(ratelimit.LedgerTime(sent)))), true
}

// adoptedAtOnce is the number of accounts of a parcel that are adopted before a waiting request goes first. The
// memory of a table that is filled for the first time is slow, most of all on virtual machines. A parcel took
// up to 11 ms there, and many come one after the other.
const adoptedAtOnce = 16

// adopt applies a parcel, once. It returns nil, and so no receipt, for a parcel that makes no sense: its sender sends
// it again on the next stream.
func (c *core) adopt(now instant, from *inlet, p *wire.Parcel) *wire.Receipt {
	// Without a number it cannot be distinguished from its repetition.
	if c.inStore() || p.GetNumber() == 0 || len(p.GetAccounts()) > mostParcel {
		c.malformed(rejectedParcel)
		c.report(from.addr, errParcel)
		return nil
	}
	in, sent, ok := c.compareClocks(now, from, p.GetSent())
	if !ok {
		return nil
	}
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
	// been accepted, and must not be once more.
	in.last, in.answers[r.Number] = r.Number, r
	here, i := c.local.LedgerNow(now), uint32(0)
	if err := moved.Read(p.GetAccounts(), func(m moved.Entry) {
		if !m.Plausible(here) {
			c.malformed(rejectedAccount) // no node has it: the sender does not get it back either
		} else if !c.take(now, m, sent) {
			r.Refused = append(r.Refused, i)
		}
		i++
		if i%adoptedAtOnce == 0 {
			runtime.Gosched()
		}
	}); err != nil {
		c.malformed(rejectedParcel)
		c.report(from.addr, err)
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

// Bounds of one frame. A node puts at most frameCalls calls into one, and one
// parcel, which is sealed by the account that fills it.
const (
	mostCalls  = 4 * frameCalls
	mostParcel = 16 * parcelBytes
)
