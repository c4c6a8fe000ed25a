package routing

import (
	"context"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// serve handles a frame of a peer, on the stream that the peer opened. answer gets the immediate answers, and may
// block. later is called with the asks, which may wait.
//
// The order of a frame's parts matters:
//
//   - Its time comes before its parcel, whose accounts keep the sender's clock.
//   - Its replies leave before its parcel is read, because requests wait for them.
//   - Its done comes last, because it is true only once the parcel is here.
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
	// Before the parcel is accepted: its accounts keep the sender's clock where it is behind.
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

// replied handles a frame of a peer, on the stream that this node opened. A stream has answers of the other node alone:
// its own asks arrive on the stream that it opened (serve).
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

// serving is a peer's asks while they are decided. It runs in one goroutine for each frame, and only that changes it.
type serving struct {
	*request
	states []served
	ready  []*wire.Reply // to messages that need no decision
}

// served is a peer's ask.
type served struct {
	id      uint64
	status  uint32  // of the reply, if that is no verdict
	search  *fetch  // for the account; nil: there is none
	again   instant // of the next look, at the earliest
	decided bool
	replied bool
	seen    bool // by the observer, which has seen arrears before
}

// answerTo decides what a peer asks, and answers as it goes: an ask that waits holds up no other. It blocks until all
// is decided. No ask is forwarded again: two nodes that see different rings would send it to and fro. A caller that
// leaves makes until 0, so that all open asks end.
func (c *core) answerTo(ctx context.Context, asks []*wire.Ask, answer func(*wire.Frame)) {
	now := c.clock()
	s := c.serving(ctx, now, asks)
	send := func() {
		if replies := s.replies(now); len(replies) > 0 {
			answer(&wire.Frame{Replies: replies})
		}
	}
	if c.inStore() {
		s.decideInStore(now)
	} else {
		for s.decideStoreless(now) {
			send()
			now = s.sleep(s.due())
		}
	}
	send()
}

// serving reads a peer's asks. Invalid ones are refused, and undos are applied. An undo for a store comes as an ask,
// too. It needs no decision, so it is in no list.
func (c *core) serving(ctx context.Context, now instant, msgs []*wire.Ask) *serving {
	s := &serving{}
	asks := make([]ask, 0, len(msgs))
	for _, m := range msgs {
		a, err := c.askOf(m)
		switch {
		case err != nil:
			c.malformed(rejectedAsk)
			s.ready = append(s.ready, &wire.Reply{Id: m.GetId(), Status: malformed})
		// It is done at once, before any ask of the frame is decided: the tokens may serve these.
		case m.GetKind() == undo:
			c.undoFor(now, &a, m)
			s.ready = append(s.ready, &wire.Reply{Id: m.GetId()})
		default:
			asks = append(asks, a)
			s.states = append(s.states, served{id: m.GetId(), seen: m.GetArrears()})
		}
	}
	s.request = c.newRequest(ctx, now, asks, make([]verdict, len(asks)))
	if c.observe != nil {
		c.observe.asked(ctx, s.verdicts, s.see)
	}
	return s
}

// decideInStore decides all asks at once, so that the base can claim for them together. Asks of other owners' keys are
// answered notOwner: the peer then leases from the store itself.
func (s *serving) decideInStore(now instant) {
	mine := func(i int) bool { return s.elsewhere(&s.asks[i]) == "" }
	for i := range s.states {
		s.states[i].decided = true
		if !mine(i) {
			s.states[i].status = notOwner
		}
	}
	runs(len(s.asks), func(i int) bool { return s.states[i].status != notOwner }, func(from, to int) {
		s.base.decide(s.ctx, now, 0, s.asks[from:to], s.verdicts[from:to])
	})
}

// decideStoreless decides the asks that can be decided now. It reports whether others wait. It is called again after
// each event, and looks at all open asks.
func (s *serving) decideStoreless(now instant) (open bool) {
	for i := range s.states {
		if x := &s.states[i]; !x.decided {
			s.decideOne(now, i, x)
			open = open || !x.decided
		}
	}
	return open
}

// decideOne decides an ask, or searches its account: first the result of a search, if there is one, and then the ask
// itself.
func (s *serving) decideOne(now instant, i int, x *served) {
	if x.search != nil {
		switch s.outcome(x.search) {
		case fetching:
		// The ring changes, or the account is on its way.
		case fetchAgain:
			x.search, x.again = nil, now.Add(askAgain)
		case fetchAbsent:
			// own looks again: a node that joined since may have the account.
			x.decided = s.own(s.ctx, now, s.asks[i:i+1], s.verdicts[i:i+1], x.search) == ownDecided
			x.search = nil
		}
	}
	switch {
	case x.decided:
	case now >= s.until:
		// The peer has its own timer, and decides by its rule's policy.
		x.decided, x.status = true, notInTime
	case x.search == nil && now >= x.again:
		switch s.own(s.ctx, now, s.asks[i:i+1], s.verdicts[i:i+1], nil) {
		case ownDecided:
			x.decided = true
		case another: // the peer may see by then who decides
			x.decided, x.status = true, notOwner
		case unsure:
			x.search, x.again = s.fetch(s.asks[i].Key, s.bell), now.Add(askAgain)
		}
	}
}

// due is when it goes on at the latest. Asks with a search go on by its event.
func (s *serving) due() instant {
	due := s.until
	for i := range s.states {
		if x := &s.states[i]; !x.decided && x.search == nil {
			due = min(due, x.again)
		}
	}
	return due
}

// undoFor takes back a charge for a peer, which decided otherwise. askOf has checked that the charge is not above the
// cost.
func (c *core) undoFor(now instant, a *ask, m *wire.Ask) {
	v := verdict{
		OverLimit: m.GetOverLimit(), Charged: ratelimit.Tokens(m.GetCharged()), Debt: ratelimit.Tokens(m.GetDebt()),
		Window: ratelimit.Window(m.GetWindow()),
	}
	c.base.Undo(now, []ask{*a}, []verdict{v})
	c.undone(a, &v)
}

// replies are those to asks that were decided since the last ones.
func (s *serving) replies(now instant) []*wire.Reply {
	all := s.ready
	s.ready = nil
	for i := range s.states {
		if x := &s.states[i]; x.decided && !x.replied {
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
		r.OverLimit = v.OverLimit
		r.Remaining = int64(v.Remaining)
		r.Charged = int64(v.Charged)
		r.Debt = int64(v.Debt)
		r.ResetUs, r.Window = v.ResetAfter.Microseconds(), int64(v.Window)
		r.Hot = !s.asks[i].OfSlot() && s.hot.Hit(now, s.asks[i].Key)
	}
	return r
}

// see shows an ask that is decided to the observer, once. Simulations compare all admissions with the limit.
func (s *serving) see(i int) {
	if x := &s.states[i]; s.observe != nil && !x.seen {
		x.seen = true
		s.observe.decided(&s.asks[i], &s.verdicts[i])
	}
}

// askOf reads an ask, which may hold anything. Any error is a fault of the peer, or of a version with other rules. The
// ask's key is that of the message, without a copy.
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
	// An undo is about what a spend was charged. Without a store, a release says so.
	if m.GetKind() == undo {
		if !c.inStore() {
			return ratelimit.Ask{}, errMessage
		}
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
