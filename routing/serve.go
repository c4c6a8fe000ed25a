package routing

import (
	"context"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// serve takes in a frame of a peer, on the stream that the peer opened. answer gets the immediate answers,
// and may block. later is called with the parts that may wait.
func (c *core) serve(now instant, from *inlet, f *wire.Frame, answer func(*wire.Frame),
	later func(asks []*wire.Ask),
) {
	// The frame as a whole is left out. Its asks are decided at the asking node when their time is over.
	if len(f.GetAsks())+len(f.GetFetches())+len(f.GetPresences()) > mostCalls {
		c.malformed(rejectedFrame)
		return
	}
	var a wire.Frame
	reply := func(r *wire.Reply) { a.Replies = append(a.Replies, r) }
	if id := f.GetPing(); id != 0 {
		reply(&wire.Reply{Id: id})
	}
	// Before the parcel is taken in: its accounts keep the sender's clock where it is behind.
	// With a store, no accounts are kept here.
	if f.GetSent() != 0 && !c.inStore() {
		c.compareClocks(now, from, f.GetSent())
	}
	// Asks may have to wait for a store, and the stream is read on meanwhile.
	if len(f.GetAsks()) > 0 {
		later(f.GetAsks())
	}
	for _, p := range f.GetPresences() {
		r := &wire.Reply{Id: p.GetId()}
		if !c.applyPresence(now, from, p.GetHere(), p.GetChanges()) {
			r.Status = notOwner // it is to be repeated
		}
		reply(r)
	}
	for _, m := range f.GetFetches() {
		if len(m.GetKey()) == 0 || len(m.GetKey()) > ratelimit.MaxKeyLen || c.inStore() {
			c.malformed(rejectedFetch)
			reply(&wire.Reply{Id: m.GetId(), Status: malformed})
			continue
		}
		reply(&wire.Reply{Id: m.GetId(), Found: c.answerFetch(now, from.addr, m)})
	}
	if m := f.GetTable(); len(m) > 0 && !c.receiveTable(now, m) {
		c.malformed(rejectedFrame)
	}
	if p := f.GetParcel(); p != nil {
		// Requests wait for these, and a parcel takes a while.
		if len(a.Replies) > 0 {
			answer(&wire.Frame{Replies: a.Replies})
			a.Replies = nil
		}
		if r := c.adopt(now, from, p); r != nil {
			a.Receipts = append(a.Receipts, r)
		}
	}
	// After the parcel of the same frame, which may be the last: a node that is done is asked no more.
	if f.GetDone() != 0 {
		c.applyDone(from, f.GetDone(), f.GetDoneChanges())
	}
	if len(a.Replies) > 0 || len(a.Receipts) > 0 {
		answer(&a)
	}
}

// replied takes in a frame of a peer, on the stream that this node opened.
func (c *core) replied(now instant, m *member, f *wire.Frame) {
	// Any frame shows that the peer is alive.
	m.lastSeen.Store(int64(now))
	if len(f.GetReplies()) > peerPending || len(f.GetReceipts()) > 4*parcelsAtOnce {
		c.malformed(rejectedFrame)
		return
	}
	m.replied(f.GetReplies())
	for _, r := range f.GetReceipts() {
		c.received(m, r)
	}
}

// serving is a peer's asks while they are decided. Each is replied to when it is, so that
// one which waits for the store does not hold up those that came in the same frame.
type serving struct {
	*waiting
	ready []*wire.Reply // to messages that are no asks
}

// answerTo decides what a peer asks, and answers as it goes. It blocks until all is decided.
func (c *core) answerTo(ctx context.Context, from *inlet, asks []*wire.Ask, answer func(*wire.Frame)) {
	now := c.clock()
	s := c.decideFor(ctx, now, from, asks)
	for open := true; open; {
		open = s.advance(now)
		if replies := s.replies(now); len(replies) > 0 {
			answer(&wire.Frame{Replies: replies})
		}
		if open {
			c.hands.sleep(s.waiting)
			now = c.clock()
		}
	}
}

// decideFor begins to decide a peer's asks. Invalid ones are refused, and undos are applied.
func (c *core) decideFor(ctx context.Context, now instant, from *inlet, msgs []*wire.Ask) *serving {
	s := &serving{}
	asks := make([]ask, 0, len(msgs))
	states := make([]askState, 0, len(msgs))
	for _, m := range msgs {
		a, err := c.askOf(m)
		switch {
		case err != nil:
			c.malformed(rejectedAsk)
			s.ready = append(s.ready, &wire.Reply{Id: m.GetId(), Status: malformed})
		// It is done at once, before any ask of the frame is decided: the tokens may serve these.
		case m.GetKind() == undo:
			s.ready = append(s.ready, &wire.Reply{Id: m.GetId(), Status: c.undoFor(now, &a, m)})
		default:
			asks = append(asks, a)
			states = append(states, askState{id: m.GetId(), errand: c.errandOf(from, m)})
		}
	}
	s.waiting = c.newWaiting(ctx, now, asks, make([]verdict, len(asks)))
	s.remote, s.states = true, states
	if c.observe != nil {
		c.observe.asked(ctx, s.verdicts, s.see)
	}
	return s
}

// errandOf is what is done for an ask of a peer that leases the key; nil: nothing.
func (c *core) errandOf(from *inlet, m *wire.Ask) errand {
	if m.GetTotals() == nil || c.inStore() {
		return nil
	}
	totals, ok := totalsOf(m.GetTotals())
	if !ok {
		c.malformed(rejectedLease)
		return nil
	}
	return &lessee{holder: ratelimit.Holder(from.incarnation), totals: totals}
}

// undoFor takes back what this node had decided for a peer that did not wait for it: the
// caller of that peer was answered otherwise, or not at all. It returns the status of the reply.
func (c *core) undoFor(now instant, a *ask, m *wire.Ask) uint32 {
	if c.onItsWay(a.Key) {
		return notOwner
	}
	v := verdict{
		OverLimit: m.GetOverLimit(), Charged: ratelimit.Tokens(m.GetCharged()), Debt: ratelimit.Tokens(m.GetDebt()),
		Window: ratelimit.Window(m.GetWindow()),
	}
	if !c.inStore() && !c.local.Has(a.Key) { // the table was full
		v.Source = ratelimit.FromOverflow
	}
	c.base.Undo(now, []ask{*a}, []verdict{v})
	if c.observe != nil {
		c.observe.undone(a, &v)
	}
	return answered
}

// replies are those to asks that were decided since the last ones.
func (s *serving) replies(now instant) []*wire.Reply {
	all := s.ready
	s.ready = nil
	for i := range s.states {
		if x := &s.states[i]; x.step == stepDone && !x.replied {
			x.replied = true
			all = append(all, s.reply(now, i))
		}
	}
	return all
}

// reply is to one ask. What this node could only decide by a policy it does not decide: the
// rule's policy is that of the node that was asked, which also counts it.
func (s *serving) reply(now instant, i int) *wire.Reply {
	r := &wire.Reply{Id: s.states[i].id, Status: s.states[i].status}
	switch v := &s.verdicts[i]; {
	case r.GetStatus() == notOwner:
		s.stats.notOwner.Add(1)
	case r.GetStatus() != answered:
	case v.Source == ratelimit.FromFallback:
		r.Status = notInTime // the asking node has the rule's policy
		if s.asks[i].Kind == ratelimit.Refund {
			s.see(i) // it is credited here all the same
		}
	default:
		s.stats.received.Add(1)
		s.see(i)
		r.OverLimit, r.Remaining, r.Charged, r.Debt = v.OverLimit, int64(v.Remaining), int64(v.Charged), int64(v.Debt)
		r.ResetUs, r.Window = v.ResetAfter.Microseconds(), int64(v.Window)
		r.Hot = !s.asks[i].OfSlot() && s.hot.Hit(now, s.asks[i].Key)
		if x := s.states[i].errand; x != nil {
			x.reply(r)
		}
	}
	return r
}

// see shows an ask that is decided to the observer, once.
func (s *serving) see(i int) {
	if x := &s.states[i]; s.observe != nil && !x.seen {
		x.seen = true
		s.observe.decided(&s.asks[i], &s.verdicts[i])
	}
}

// askOf reads an ask, which may hold anything.
func (c *core) askOf(m *wire.Ask) (ratelimit.Ask, error) {
	switch {
	case len(m.GetKey()) == 0, len(m.GetKey()) > ratelimit.MaxKeyLen, m.GetCost() < 0,
		m.GetKind() > uint32(ratelimit.Release), m.GetWindow() < 0:
		return ratelimit.Ask{}, errMessage
	case !charges(m, ratelimit.Tokens(m.GetCost())): // no ask was charged more than its cost
		return ratelimit.Ask{}, errMessage
	}
	rule, err := c.rules.get(m.GetRule())
	if err != nil {
		return ratelimit.Ask{}, err
	}
	kind := ratelimit.Kind(m.GetKind())
	// An undo is about what a spend was charged.
	if m.GetKind() == undo {
		kind = ratelimit.Spend
	}
	// Only a peek costs nothing (ratelimit.Ask).
	if kind != ratelimit.Peek && m.GetCost() == 0 {
		return ratelimit.Ask{}, errMessage
	}
	a := ratelimit.Ask{Rule: rule, Key: m.GetKey(), Cost: ratelimit.Tokens(m.GetCost()), Kind: kind}
	if kind.Settles() || a.OfSlot() {
		a.Window = ratelimit.Window(m.GetWindow())
	}
	return a, nil
}
