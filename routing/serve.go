package routing

import (
	"context"
	"errors"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

var errMessage = errors.New("a message makes no sense")

// serve takes in a frame of a peer, on the stream that the peer opened. It
// returns what is answered at once. later is called with what may wait.
func (c *core) serve(now instant, from *inlet, f *wire.Frame, answer func(*wire.Frame), later func(asks []*wire.Ask, claims []*wire.Claim)) {
	var a wire.Frame
	reply := func(r *wire.Reply) { a.Replies = append(a.Replies, r) }
	if id := f.GetPing(); id != 0 {
		reply(&wire.Reply{Id: id})
	}
	if f.GetSent() > 0 && c.local != nil && from.incarnation != 0 {
		c.mu.Lock()
		in := c.inboxOf(now, from)
		c.unlock()
		in.compare(now, c.local.LedgerNow(now).Sub(ratelimit.LedgerTime(f.GetSent())))
	}
	if len(f.GetAsks()) > 0 || len(f.GetClaims()) > 0 {
		later(f.GetAsks(), f.GetClaims())
	}
	for _, p := range f.GetPresences() {
		r := &wire.Reply{Id: p.GetId()}
		if !c.presence(from.addr, p.GetHere()) && p.GetHere() {
			r.Status = notOwner
		}
		reply(r)
	}
	for _, m := range f.GetFetches() {
		if len(m.GetKey()) == 0 || len(m.GetKey()) > ratelimit.MaxKeyLen || c.local == nil {
			c.stats.malformed.Add(1)
			reply(&wire.Reply{Id: m.GetId(), Status: malformed})
			continue
		}
		reply(&wire.Reply{Id: m.GetId(), Found: c.asked(now, from.addr, m)})
	}
	if p := f.GetParcel(); p != nil {
		if r := c.adopt(now, from, p); r != nil {
			a.Receipts = append(a.Receipts, r)
		}
	}
	if ts := f.GetTransfers(); len(ts) > 0 {
		c.adoptLegacy(now, ts)
		for _, t := range ts {
			if t.GetId() != 0 {
				reply(&wire.Reply{Id: t.GetId()})
			}
		}
	}
	if f.GetDone() != 0 {
		c.saidDone(from.addr, f.GetDone())
	}
	if len(a.Replies) > 0 || len(a.Receipts) > 0 {
		answer(&a)
	}
	for _, p := range f.GetPulls() {
		c.mu.Lock()
		c.pull(pull{from, func() { answer(&wire.Frame{Replies: []*wire.Reply{{Id: p.GetId()}}}) }})
		c.unlock()
	}
}

// replied takes in a frame of a peer, on the stream that this node opened.
func (c *core) replied(now instant, m *member, f *wire.Frame) {
	m.heard.Store(int64(now))
	m.replied(f.GetReplies())
	for _, r := range f.GetReceipts() {
		c.received(m, r)
	}
}

// serving is a peer's asks while they are decided.
type serving struct {
	*waiting
	ids  []uint64
	sent []bool
}

// decideFor begins to decide what a peer asks. What made no sense is replied to
// at once, and what is to be undone is undone.
func (c *core) decideFor(ctx context.Context, now instant, msgs []*wire.Ask, b bell) (*serving, []*wire.Reply) {
	var replies []*wire.Reply
	s := &serving{ids: make([]uint64, 0, len(msgs))}
	asks := make([]ask, 0, len(msgs))
	final := make([]bool, 0, len(msgs))
	for _, m := range msgs {
		a, err := c.askOf(m)
		switch {
		case err != nil:
			c.stats.malformed.Add(1)
			replies = append(replies, &wire.Reply{Id: m.GetId(), Status: malformed})
		case m.GetKind() == undo:
			c.undoFor(now, &a, m)
			replies = append(replies, &wire.Reply{Id: m.GetId()})
		default:
			asks, s.ids, final = append(asks, a), append(s.ids, m.GetId()), append(final, m.GetHeld())
		}
	}
	if len(asks) == 0 {
		return nil, replies
	}
	s.waiting = c.newWaiting(ctx, now, asks, make([]verdict, len(asks)), b)
	s.remote, s.sent = true, make([]bool, len(asks))
	for i := range final {
		s.states[i].final = final[i]
	}
	return s, replies
}

func (c *core) undoFor(now instant, a *ask, m *wire.Ask) {
	v := verdict{OverLimit: m.GetOverLimit(), Charged: ratelimit.Tokens(m.GetCharged()), Window: ratelimit.Window(m.GetWindow())}
	c.base.Undo(now, []ask{*a}, []verdict{v})
	if c.observe != nil {
		c.observe.undone(a, &v)
	}
}

// replies are those to asks that were decided since the last ones.
func (s *serving) replies(now instant) []*wire.Reply {
	var all []*wire.Reply
	for i := range s.asks {
		if s.states[i].decided && !s.sent[i] {
			s.sent[i] = true
			all = append(all, s.reply(now, i))
		}
	}
	return all
}

func (s *serving) reply(now instant, i int) *wire.Reply {
	r := &wire.Reply{Id: s.ids[i], Status: s.states[i].status}
	switch v := &s.verdicts[i]; {
	case r.GetStatus() == notOwner:
		s.stats.notOwner.Add(1)
	case r.GetStatus() != answered:
	case v.Source == ratelimit.FromFallback || v.Err != nil:
		r.Status = notInTime // whoever asked has the rule's policy
	default:
		s.stats.received.Add(1)
		if s.observe != nil {
			s.observe.decided(&s.asks[i], v)
		}
		r.OverLimit, r.Remaining, r.Charged = v.OverLimit, int64(v.Remaining), int64(v.Charged)
		r.ResetUs, r.Window = v.ResetAfter.Microseconds(), int64(v.Window)
		r.Hot = s.hot.hit(now, s.asks[i].Key)
	}
	return r
}

// askOf reads an ask, which may hold anything.
func (c *core) askOf(m *wire.Ask) (ratelimit.Ask, error) {
	if len(m.GetKey()) == 0 || len(m.GetKey()) > ratelimit.MaxKeyLen || m.GetCost() < 0 || m.GetKind() > undo || m.GetCharged() < 0 {
		return ratelimit.Ask{}, errMessage
	}
	rule, err := c.rules.get(m.GetRule())
	if err != nil {
		return ratelimit.Ask{}, err
	}
	kind := ratelimit.Kind(m.GetKind())
	if m.GetKind() == undo {
		kind = ratelimit.Spend
	}
	if kind != ratelimit.Peek && m.GetCost() == 0 {
		return ratelimit.Ask{}, errMessage
	}
	return ratelimit.Ask{Rule: rule, Key: m.GetKey(), Cost: ratelimit.Tokens(m.GetCost()), Kind: kind}, nil
}
