package routing

import (
	"fmt"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/routing/wire"
)

// What a node of version 1 sends and is not this one's goes on from here: the sender
// does not take it back.
func TestTransfersGoOnFromHere(t *testing.T) {
	s, a := newPair(t)
	c := a.core
	w := &wakes{hands: c.hands}
	c.hands = w
	here := c.local.LedgerNow(s.now)
	mine, theirs := a.ownedBy("a:1"), a.ownedBy("b:1")
	transfer := func(key []byte) []*wire.Transfer {
		return []*wire.Transfer{{Key: key, Now: int64(here), Window: int64(s.rule.Limit.WindowAt(here)), Charged: 4, Dead: int64(here.Add(time.Hour))}}
	}
	if c.adoptLegacy(s.now, transfer(mine)); !c.local.Has(mine) || c.mover.left != 0 {
		t.Errorf("its own is here %v, %d parts are to be walked through", c.local.Has(mine), c.mover.left)
	}
	before := w.n
	if c.adoptLegacy(s.now, transfer(theirs)); !c.local.Has(theirs) || c.mover.parts[c.local.Part(theirs)] != dirty || c.mover.left != 1 || w.n == before {
		t.Errorf("another's is here %v, %d parts are to be walked through", c.local.Has(theirs), c.mover.left)
	}
	for c.step(s.now) {
	}
	if c.local.Has(theirs) || c.mover.underway[xxhash.Sum64(theirs)] != "b:1" {
		t.Error("another's is not on its way")
	}
}

// A pull is answered when nothing of the asking node's is here.
func TestWhenAPullIsAnswered(t *testing.T) {
	for i, x := range []struct {
		clean, knows, left, mine bool
		want                     bool
	}{
		{true, true, false, true, true},
		{true, true, false, false, true},
		{true, true, true, false, true}, // it has left, and has handed over
		{true, true, true, true, false}, // it leaves, and decides still
		{true, false, false, true, false},
		{false, true, false, true, false},
	} {
		_, a := newPair(t)
		c := a.core
		from := "b:1"
		if !x.knows {
			from = "x:1"
		}
		if !x.clean {
			c.mover.mark(0)
		}
		v := &view{ring: c.view.Load().ring, mine: x.mine}
		c.view.Store(v)
		c.left = x.left
		answered := map[uint64]int{}
		in := &inlet{addr: from, version: 1, say: func(f *wire.Frame) { answered[f.GetReplies()[0].GetId()]++ }}
		c.pulled(in, []*wire.Pull{{Id: 5}}, in.say)
		if (answered[5] == 1) != x.want || (len(c.pulls) == 0) != x.want {
			t.Errorf("case %d, %+v: answered %v, kept %d", i, x, answered, len(c.pulls))
		}
	}
	s := newScript(t, 1, 10)
	c := s.start("a:1").core
	c.local = nil
	if !c.handedOver(pull{from: &inlet{addr: "x:1"}}) {
		t.Error("with a store nothing is to be handed over")
	}
}

// Pulls that cannot be answered are kept, the last of each node, for so many nodes; each
// is answered once, by its number, when it can be.
func TestKeptPulls(t *testing.T) {
	s, a := newPair(t)
	c := a.core
	said := ""
	pulls := func(addr string, id uint64) {
		in := &inlet{addr: addr, version: 1, say: func(f *wire.Frame) { said += fmt.Sprintln(addr, f.GetReplies()[0].GetId()) }}
		c.pulled(in, []*wire.Pull{{Id: id}}, in.say)
	}
	c.mover.mark(0)
	pulls("b:1", 5)
	pulls("x:1", 6) // which is in no ring here
	pulls("b:1", 7)
	if said != "" || len(c.pulls) != 2 {
		t.Fatalf("said %q, %d are kept", said, len(c.pulls))
	}
	for c.step(s.now) {
	}
	if said != "b:1 7\n" || len(c.pulls) != 1 || c.pulls[0].id != 6 {
		t.Errorf("said %q, %d are kept", said, len(c.pulls))
	}
	c.mu.Lock()
	c.answerPulls()
	c.unlock()
	if said != "b:1 7\n" || len(c.pulls) != 1 {
		t.Errorf("said %q, %d are kept", said, len(c.pulls))
	}
	c.mover.mark(0)
	for i := range maxPeers + 10 {
		pulls(fmt.Sprint("y:", i), 1)
	}
	if len(c.pulls) != maxPeers {
		t.Errorf("%d pulls are kept", len(c.pulls))
	}
}

// A parcel goes to a node of version 1 as transfers, whose answer is the receipt. When
// the way breaks there is none, and it goes again.
func TestParcelToVersion1(t *testing.T) {
	s, a := newPair(t)
	c, m, key := a.core, a.core.members["b:1"], a.ownedBy("b:1")
	m.version, m.out.version = 1, 1
	a.has(key)
	c.mu.Lock()
	c.send(s.now, m, key)
	c.unlock()
	m.flush()
	f := m.take(9)
	ts := f.GetTransfers()
	if f.GetParcel() != nil || len(ts) != 1 || string(ts[0].GetKey()) != string(key) || ts[0].GetId() == 0 || m.pending[ts[0].GetId()] == nil {
		t.Fatalf("it is sent %v", f)
	}
	c.closed(m)
	if len(c.mover.underway) != 1 || m.out.next() != nil {
		t.Fatal("the way broke, and there is no other yet")
	}
	c.opened(s.now, m, &wire.Hello{Version: 1, Addr: "b:1", Incarnation: m.incarnation, Weight: 1})
	again := m.take(9).GetTransfers()
	if len(again) != 1 || again[0].GetId() == 0 {
		t.Fatalf("it is sent again as %v", again)
	}
	handed := c.stats.handed.Load()
	m.replied([]*wire.Reply{{Id: again[0].GetId()}})
	if c.stats.handed.Load() != handed+1 || len(c.mover.underway) != 0 || c.local.Has(key) || len(m.out.sealed) != 0 {
		t.Errorf("%d handed over, %d on their way", c.stats.handed.Load()-handed, len(c.mover.underway))
	}
	// The same to one of version 2 is a parcel, which says from which number on they are kept.
	m.version, m.out.version = 2, 2
	a.has(key)
	c.mu.Lock()
	c.send(s.now, m, key)
	c.unlock()
	m.flush()
	if p := m.take(9).GetParcel(); p.GetNumber() != m.out.number || p.GetFirst() != m.out.number || p.GetSent() != 9 || len(p.GetAccounts()) == 0 {
		t.Errorf("it is sent %v", p)
	}
}
