package routing

import (
	"context"
	"math"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/hot"
	"github.com/sluice-gate/sluice/routing/wire"
)

// Without a store, a hot key of another owner is leased from it. This node's totals of the key go with an ask
// that is forwarded anyway, or with a peek of its own. The answer leases more. Decisions in place of an owner
// are reported the same way.

// lessee is a node that leases the key of its ask.
type lessee struct {
	holder ratelimit.Holder
	totals leasing.Totals
	lease  leasing.Lease // the answer
}

// do implements errand.
func (x *lessee) do(now instant, l *leasing.Local, a *ask, v *verdict) {
	x.lease = l.DecideFor(now, x.holder, x.totals, a, v)
}

// reply implements errand.
func (x *lessee) reply(r *wire.Reply) {
	if l := &x.lease; l.Window != 0 {
		r.Lease = &wire.Lease{
			Window: int64(l.Window), Granted: int64(l.Granted), Keep: l.Keep, Void: l.Void, ForUs: l.For.Microseconds(),
		}
	}
}

// reportLeases sends the due messages to owners, and returns when more are due; 0: none.
func (c *core) reportLeases(now instant) (due instant) {
	all, due := c.hotHere.Due(now, func(key string) bool { return c.ownerOf([]byte(key)) == c.options.Addr })
	for i := range all {
		c.reportLease(now, &all[i])
	}
	return due
}

// reportLease sends a message to the owner of its key, or takes it in where that is this node by now.
func (c *core) reportLease(now instant, m *hot.Message) {
	a := ask{Rule: m.Rule, Key: []byte(m.Key), Kind: ratelimit.Peek}
	if owner := c.ownerOf(a.Key); owner != c.options.Addr {
		c.view.Load().peers[owner].post(c.callFor(&a, &wire.Ask{}, &m.Totals))
		return
	}
	var one [1]verdict
	x := lessee{holder: ratelimit.Holder(c.incarnation), totals: m.Totals}
	if applied := c.own(context.Background(), now, []ask{a}, one[:], nil, &x) == ownDecided; applied {
		c.leaseAnswered(now, &a, m.Totals.Seq, x.lease, &one[0])
	} else {
		c.hotHere.Lost(now, a.Key, m.Totals.Seq, applied)
	}
}

// callFor is an ask as a call to its owner. totals are those of a lease of its key; nil: there are none.
func (c *core) callFor(a *ask, m *wire.Ask, totals *leasing.Totals) *call {
	m.Key = append([]byte(nil), a.Key...) // it outlives the request, if that gives up
	m.Cost, m.Kind, m.Rule = int64(a.Cost), uint32(a.Kind), ruleBytes(a.Rule)
	if a.Kind.Settles() || a.OfSlot() {
		m.Window = int64(a.Window)
	}
	call := newCall(func(f *wire.Frame, id uint64) {
		m.Id = id
		f.Asks = append(f.Asks, m)
	})
	if totals == nil {
		return call
	}
	m.Totals = &wire.Totals{
		Life: totals.Life, Seq: totals.Seq, Window: int64(totals.Window), Taken: int64(totals.Taken),
		Spent: int64(totals.Spent), Want: int64(totals.Want), Booked: int64(totals.Booked),
	}
	sent := *a
	sent.Key = m.Key
	call.after(func() {
		now := c.clock()
		if v, ok := verdictOf(&sent, call); ok && call.reply.GetLease() != nil {
			if x, ok := leaseOf(&sent.Rule.Limit, totals, call.reply.GetLease()); ok {
				c.leaseAnswered(now, &sent, totals.Seq, x, &v)
				return
			}
			c.malformed(rejectedLease)
		}
		uncertain := call.sent && (call.reply == nil || call.reply.GetLease() != nil)
		c.hotHere.Lost(now, sent.Key, totals.Seq, uncertain)
	})
	return call
}

func (c *core) leaseAnswered(now instant, a *ask, seq uint64, x leasing.Lease, v *verdict) {
	if c.hotHere.Apply(now, a.Key, seq, x, v) {
		c.hands.wake()
	}
}

// totalsOf reads a peer's report of its lease, which may be anything; ok is false if it cannot be meant.
func totalsOf(m *wire.Totals) (leasing.Totals, bool) {
	const most = int64(leasing.MostTotal)
	ok := m.GetLife() > 0 && m.GetSeq() >= m.GetLife() && m.GetSeq() <= math.MaxInt64 &&
		min(m.GetWindow(), m.GetWant()) >= 0 && m.GetWindow() <= mostWindow &&
		min(m.GetTaken(), m.GetSpent(), m.GetBooked()) >= -most && m.GetBooked() <= 0 &&
		max(m.GetTaken(), m.GetSpent(), m.GetWant()) <= most
	return leasing.Totals{
		Life: m.GetLife(), Seq: m.GetSeq(), Window: ratelimit.Window(m.GetWindow()),
		Taken: ratelimit.Tokens(m.GetTaken()), Spent: ratelimit.Tokens(m.GetSpent()),
		Want: ratelimit.Tokens(m.GetWant()), Booked: ratelimit.Tokens(m.GetBooked()),
	}, ok
}

// mostWindow bounds the number of a window: there are less than 2^40 seconds.
const mostWindow = 1 << 40

// leaseOf reads an owner's answer, which may be anything; ok is false if it cannot be one to these totals.
func leaseOf(l *ratelimit.Limit, asked *leasing.Totals, m *wire.Lease) (x leasing.Lease, ok bool) {
	if m.GetWindow() < 1 || m.GetWindow() > mostWindow || m.GetGranted() < 0 || m.GetGranted() > int64(asked.Want) ||
		m.GetForUs() < 0 {
		return x, false
	}
	return leasing.Lease{
		Window: ratelimit.Window(m.GetWindow()), Granted: ratelimit.Tokens(m.GetGranted()), Keep: m.GetKeep(),
		Void: m.GetVoid(), For: resetOf(l, m.GetForUs()),
	}, true
}

// later reports to the owner what this node answered in its place, if the owner has not booked it itself. It
// waits for the owner's answer, or for the end of the call. call is the call to it; nil: there was none.
func (c *core) later(a *ask, v *verdict, call *call) {
	if c.inStore() || a.Kind == ratelimit.Peek || v.OverLimit || a.OfSlot() {
		return
	}
	report := *a
	report.Key = append([]byte(nil), a.Key...)
	w := c.windowHere(c.clock(), a)
	if call == nil {
		call = newCall(nil)
		call.finish(nil, errPeerGone)
	}
	call.after(func() {
		at, answered := verdictOf(&report, call)
		booked := answered && (report.Kind != ratelimit.Spend || at.Charged+at.Debt > 0)
		switch {
		case booked:
		case report.Window < w && !report.Books(w) && report.Kind == ratelimit.Charge: // its window has ended
		case report.Kind == ratelimit.Spend, report.Kind == ratelimit.Charge:
			c.hotHere.Admit(&report)
		// If it is unknown whether the owner has it, a charge is sent once more, and a refund is not.
		case !call.sent || call.reply != nil:
			if report.Window != 0 { // of a release: the owner's
				c.hotHere.Credit(&report, report.Window)
			} else {
				c.hotHere.Refund(&report, w)
			}
		}
		c.hands.wake()
	})
}

// windowHere is the window of an ask by this node's clock; 0: a bucket.
func (c *core) windowHere(now instant, a *ask) ratelimit.Window {
	if a.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		return 0
	}
	return a.Rule.Limit.WindowAt(c.fallback.LedgerNow(now))
}
