package routing

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// A node of version 1 hands over in messages without numbers, asks by a pull
// whether all has been handed over, and is answered as it expects.
func TestStepsVersion1(t *testing.T) {
	s := newScript(t, 200, 10)
	s.ring("a:1")
	s.fill(5, "a:1")
	a := s.nodes["a:1"]
	// The old node's side of both streams.
	sent := map[string]ratelimitCharge{}
	var pulled, replied []uint64
	old := &legacy{}
	a.o.Wires = old
	old.send = func(answer bool, f *wire.Frame) {
		var replies []*wire.Reply
		for _, m := range f.GetTransfers() {
			sent[string(m.GetKey())] = ratelimitCharge(m.GetCharged())
		}
		if ts := f.GetTransfers(); len(ts) > 0 {
			replies = append(replies, &wire.Reply{Id: ts[0].GetId()})
		}
		for _, p := range f.GetPresences() {
			replies = append(replies, &wire.Reply{Id: p.GetId()})
		}
		for _, p := range f.GetPulls() {
			pulled = append(pulled, p.GetId())
			replies = append(replies, &wire.Reply{Id: p.GetId()})
		}
		if f.GetParcel() != nil || len(f.GetFetches()) > 0 || f.GetDone() != 0 {
			t.Errorf("version 1 was told %v", f)
		}
		for _, r := range f.GetReplies() {
			replied = append(replied, r.GetId())
		}
		if len(replies) > 0 {
			s.in(time.Millisecond, func() { a.Receive("old:1", true, bytesOf(t, &wire.Frame{Replies: replies})) })
		}
	}
	hello := &wire.Hello{Version: 1, Addr: "old:1", Nonce: nonce, Absent: true}
	old.opened = func() { s.in(time.Millisecond, func() { a.Opened("old:1", bytesOf(t, hello)) }) }
	if _, err := a.Accept(bytesOf(t, hello)); err != nil {
		t.Fatal(err)
	}
	s.play(100 * time.Millisecond)
	say := func(f *wire.Frame) { a.Receive("old:1", false, bytesOf(t, f)) }
	say(&wire.Frame{Presences: []*wire.Presence{{Id: 7, Here: true}}, Pulls: []*wire.Pull{{Id: 8}}})
	s.until("its pull is answered", func() bool {
		for _, id := range replied {
			if id == 8 {
				return true
			}
		}
		return false
	})
	now := a.core.view.Load().ring
	theirs := 0
	for k := range s.admitted {
		if now.Owner(ring.HashOf(keyOf(k))) == "old:1" {
			theirs++
			if sent[string(keyOf(k))] != 5 {
				t.Errorf("key %d was handed over with %d charged, not 5", k, sent[string(keyOf(k))])
			}
		}
	}
	if theirs == 0 || len(pulled) == 0 || !a.core.view.Load().stable.Load() {
		t.Errorf("%d keys are the old node's; %d pulls; stable %v", theirs, len(pulled), a.core.view.Load().stable.Load())
	}
	// It leaves, and hands back.
	var back []*wire.Transfer
	for key, charged := range sent {
		back = append(back, &wire.Transfer{
			Key: []byte(key), Charged: int64(charged) + 2, Window: int64(s.rule.Limit.WindowAt(a.local.LedgerNow(s.now))),
			Now: int64(a.local.LedgerNow(s.now)), Dead: 1 << 60, Fence: 5,
		})
	}
	back[0].Id = 9
	say(&wire.Frame{Presences: []*wire.Presence{{Id: 10}}})
	say(&wire.Frame{Transfers: back})
	s.play(100 * time.Millisecond)
	for k := range s.admitted {
		if sent[string(keyOf(k))] > 0 {
			s.admitted[k] += 2
		}
	}
	s.exact(0, "a:1")
}

type ratelimitCharge int64

type legacy struct {
	send   func(answer bool, f *wire.Frame)
	opened func()
}

func (l *legacy) Dial(string, []byte) { l.opened() }
func (l *legacy) HangUp(string)       {}
func (l *legacy) Send(_ string, answer bool, frame []byte) {
	var f wire.Frame
	_ = proto.Unmarshal(frame, &f)
	l.send(answer, &f)
}

func bytesOf(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A bucket that is leased to a node as a hot key, and handed over, is not
// granted again: what is out with holders travels with the account.
func TestStepsHotBucketIsHandedOver(t *testing.T) {
	s := newScript(t, 1, 1000)
	s.rule.Limit.Algorithm, s.rule.Limit.Burst = 2, 1000
	s.hotRate = 50
	s.ring("a:1", "b:1")
	for at := time.Duration(0); at < 2*time.Second; at += 4 * time.Millisecond {
		s.in(at, func() { s.ask("a:1", 0, 1) })
		s.in(at, func() { s.ask("b:1", 0, 1) })
	}
	s.play(1900 * time.Millisecond)
	if s.nodes["a:1"].Stats().Hot+s.nodes["b:1"].Stats().Hot == 0 {
		t.Fatal("the key is not hot")
	}
	owner := s.nodes["a:1"].core.view.Load().ring.Owner(ring.HashOf(keyOf(0)))
	other := map[string]string{"a:1": "b:1", "b:1": "a:1"}[owner]
	// Nodes join until one of them owns the key, and all asks go on.
	live := []string{owner, other}
	for i := 0; s.nodes[owner].core.view.Load().ring.Owner(ring.HashOf(keyOf(0))) == owner && i < 20; i++ {
		addr := string(rune('c'+i)) + ":1"
		s.addrs = append(s.addrs, addr)
		n := s.start(addr)
		live = append(live, addr)
		s.until("it is ready", n.Ready)
	}
	for range 3000 {
		s.ask(live[s.rnd.IntN(len(live))], 0, 1)
		s.play(50 * time.Microsecond)
	}
	s.play(100 * time.Millisecond)
	if s.admitted[0] > 1000 {
		t.Errorf("%d of 1000 were admitted from a bucket", s.admitted[0])
	}
	if s.admitted[0] < 990 {
		t.Errorf("%d of 1000 were admitted from a bucket: leases were charged twice", s.admitted[0])
	}
}
