package routing

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/wire"
)

// NewStepped makes a node without peers: see Found. It is New with the driver's means in place of sockets, goroutines
// and chance.
func NewStepped(o SteppedOptions) *Stepped {
	c := newCore(o.Options, o.Clock, local.New(outageKeys, o.Clock(), o.Wall))
	s := &Stepped{core: c, o: o, inlet: map[string]*inlet{}, open: map[string]bool{}}
	c.driver = s
	c.random = o.Random
	c.incarnation = o.Incarnation
	// Where tables choose at random, two runs of one seed would differ.
	c.fallback.Predictable()
	if o.Decided != nil {
		c.observe = &observer{watchAsked, o.Decided, o.Undone}
	}
	if o.Store != nil {
		c.base, c.fallback = stepping{o.Store, o.Clock}, o.Store.Alone()
	} else {
		c.base = baseOf{o.Local}
		c.storeless(o.Local)
	}
	s.ping()
	s.woken = true
	return s
}

// ping sends a ping to each node from now on, at each pingEvery.
func (s *Stepped) ping() {
	s.o.After(pingEvery, func() {
		if s.ended {
			return
		}
		for _, m := range s.members() {
			if m.ready.Load() {
				s.send(m.addr, isCall, m.ping(s.stamp()))
			}
		}
		s.Pump()
		s.ping()
	})
}

// members are all other nodes, in the order of their addresses.
func (s *Stepped) members() []*member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sorted()
}

const isCall, isAnswer = false, true // the side of a stream that sends a frame

// send sends a frame by this node's own stream, or an answer by the other's ([Wires]).
func (s *Stepped) send(to string, answer bool, f *wire.Frame) {
	// Two runs of one seed must send the same bytes.
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(f)
	if err != nil {
		panic(fmt.Sprintf("routing: a frame of this node cannot be encoded: %v", err))
	}
	s.o.Wires.Send(to, answer, b)
}

// dial implements driver. The core calls it under its lock, so the driver's wires are called later (sendAll).
func (s *Stepped) dial(m *member) {
	m.wake = func() { s.woken = true }
	s.dials = append(s.dials, m)
}

// hangUp implements driver.
func (s *Stepped) hangUp(m *member) { s.ends = append(s.ends, m) }

// redial implements driver.
func (s *Stepped) redial(m *member) { s.ends = append(s.ends, m) }

// wake implements driver.
func (s *Stepped) wake() { s.woken = true }

// Found records which nodes there may be.
func (s *Stepped) Found(addrs []string) {
	s.discovered(s.o.Clock(), addrs)
	s.Pump()
}

// Accept answers a node that opens a stream. It is an error where that is none.
func (s *Stepped) Accept(hello []byte) (welcome []byte, err error) {
	var h wire.Hello
	if err := proto.Unmarshal(hello, &h); err != nil {
		return nil, err
	}
	if err := check(&h, s.options.Region); err != nil {
		return nil, err
	}
	addr := h.GetAddr()
	s.inlet[addr] = &inlet{addr: addr, incarnation: h.GetIncarnation()}
	s.applyHello(s.o.Clock(), &h)
	welcome, err = proto.Marshal(s.hello(steppedNonce))
	s.Pump()
	return welcome, err
}

// steppedNonce is no secret: authentication is not played.
var steppedNonce = make([]byte, 16)

// Opened records that a stream to a node is open, and how it introduced itself.
func (s *Stepped) Opened(to string, welcome []byte) {
	var h wire.Hello
	if err := proto.Unmarshal(welcome, &h); err != nil || check(&h, s.options.Region) != nil {
		s.Closed(to)
		return
	}
	if m := s.member(to); m != nil {
		s.opened(s.o.Clock(), m, &h)
	}
	s.Pump()
}

// Closed records that a stream to a node could not be opened, or broke.
func (s *Stepped) Closed(to string) {
	// A stream that this node has hung up itself may be reported once more.
	if m := s.member(to); m != nil && s.open[to] {
		s.again(m)
	}
	s.Pump()
}

// again dials once more, after a while, as converse does.
func (s *Stepped) again(m *member) {
	delete(s.open, m.addr)
	s.closed(m)
	s.o.After(s.pause(s.o.Clock(), m), func() {
		// Meanwhile the node may have been dropped, or dialled again because it introduced itself.
		if !s.ended && s.member(m.addr) == m && !s.open[m.addr] {
			s.dials = append(s.dials, m)
			s.Pump()
		}
	})
}

func (s *Stepped) member(addr string) *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.members[addr]
}

// Receive handles a frame, or an answer on the stream that this node opened. Invalid bytes are left out: gRPC would
// have ended the stream.
func (s *Stepped) Receive(from string, answer bool, frame []byte) {
	var f wire.Frame
	if err := proto.Unmarshal(frame, &f); err != nil {
		return
	}
	now := s.o.Clock()
	// Frames may still arrive of streams that have broken since; a real one would have dropped
	// them.
	if m, in := s.member(from), s.inlet[from]; answer && m != nil && m.ready.Load() {
		s.replied(now, m, &f)
	} else if !answer && in != nil {
		s.core.serve(now, in, &f, func(a *wire.Frame) { s.send(from, isAnswer, a) },
			func(asks []*wire.Ask) { s.serve(in, asks) })
	}
	s.Pump()
}

func (s *Stepped) serve(from *inlet, asks []*wire.Ask) {
	s.begin(&task{done: func() {}}, func(ctx context.Context) {
		s.answerTo(ctx, asks, func(a *wire.Frame) { s.send(from.addr, isAnswer, a) })
	})
}

// Ask decides; decided is called when all is, perhaps at once. The slices are the node's until then. booked, if set, is
// called before, perhaps again and again, for each ask that this node has charged or credited. It is a task, which
// sleeps where a Router's request would block.
func (s *Stepped) Ask(asks []ratelimit.Ask, verdicts []ratelimit.Verdict, booked func(i int), decided func()) {
	s.begin(&task{done: decided, verdicts: verdicts, see: booked}, func(ctx context.Context) {
		s.Decide(ctx, s.o.Clock(), asks, verdicts)
	})
	s.Pump()
}

// Undo takes back what verdicts charged.
func (s *Stepped) Undo(asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	s.core.Undo(s.o.Clock(), asks, verdicts)
	s.Pump()
}

// Leave has this node hand all over; left is called when it has.
func (s *Stepped) Leave(left func()) {
	s.left = left
	s.leave(s.o.Clock())
	s.woken = true
	s.Pump()
}

// End has the node do nothing any more. Requests that wait end without a decision.
func (s *Stepped) End() {
	s.ended = true
	for _, t := range s.tasks {
		t.stop()
	}
	s.tasks = nil
}

// Pump does all that can be done now: it is a Router's goroutines, one after the other, until none of them has more to
// do. Then it sets an alarm for the next of its times.
func (s *Stepped) Pump() {
	if s.ended {
		return
	}
	now := s.o.Clock()
	// Work may wake other work of this node. Time does not go on until all is done.
	for again := true; again; {
		again = s.woken
		if s.woken || now >= s.due {
			s.woken = false
			s.due = s.tick(now)
		}
		// The mover does not rest: in virtual time its work takes none.
		for s.step(now) {
		}
		again = s.advance(now) || again
		s.sendAll()
		again = again && s.woken
	}
	if s.left != nil && s.gone() {
		left := s.left
		// left may call this node again.
		s.left = nil
		left()
	}
	s.wakeUp(now)
}

// advance goes on with all that is woken or due. It reports whether something ended.
func (s *Stepped) advance(now instant) (ended bool) {
	// A decided request may ask again at once, which adds to tasks.
	tasks := s.tasks
	s.tasks = nil
	for _, t := range tasks {
		if !s.ended && t.sleeps(now) {
			s.tasks = append(s.tasks, t)
			continue
		}
		ended = s.resume(t) || ended
	}
	return ended
}

// sendAll hands over to the wires all that waits.
func (s *Stepped) sendAll() {
	ends, dials := s.ends, s.dials
	s.ends, s.dials = nil, nil
	for _, m := range ends {
		if s.open[m.addr] {
			s.o.Wires.HangUp(m.addr)
			s.again(m)
		}
	}
	to := s.members()
	for _, m := range to {
		select {
		case <-m.kick: // it is there
			dials = append(dials, m)
		default:
		}
	}
	for _, m := range dials {
		if !s.open[m.addr] {
			s.open[m.addr] = true
			b, _ := proto.Marshal(s.hello(steppedNonce))
			s.o.Wires.Dial(m.addr, b)
		}
	}
	for _, m := range to {
		for m.ready.Load() {
			f := m.take(s.stamp())
			if f == nil {
				break
			}
			s.send(m.addr, isCall, f)
		}
	}
}

// wakeUp has the node pumped when the next of its times has come.
func (s *Stepped) wakeUp(now instant) {
	due := s.due
	for _, t := range s.tasks {
		due = min(due, t.due)
	}
	// Something that is due now and cannot go on would have the node pumped for ever at the same
	// instant.
	due = max(due, now.Add(time.Microsecond))
	// An earlier alarm sets the next one.
	if s.alarm != 0 && s.alarm <= due {
		return
	}
	s.alarm = due
	s.o.After(due.Sub(now), func() {
		// An alarm that was set for later, and overtaken by an earlier one, still comes. It must not make the
		// node drop the present one.
		if s.alarm == due {
			s.alarm = 0
		}
		s.Pump()
	})
}

// Describe describes a frame, for traces.
func Describe(frame []byte) string {
	var f wire.Frame
	if err := proto.Unmarshal(frame, &f); err != nil {
		return err.Error()
	}
	n := 0
	_ = moved.Read(f.GetParcel().GetAccounts(), func(moved.Entry) { n++ })
	return fmt.Sprintf("%d asks, %d fetches, presences %v, parcel %d with %d accounts, done %x", len(f.GetAsks()),
		len(f.GetFetches()), f.GetPresences(), f.GetParcel().GetNumber(), n, f.GetDone())
}
