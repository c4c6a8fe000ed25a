package routing

import (
	"context"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// ownedBy is a key whose owner is a node, as another sees it.
func (n *scriptNode) ownedBy(addr string) []byte {
	for k := 0; ; k++ {
		if key := keyOf(k); n.view.Load().ring.Owner(ring.HashOf(key)) == addr {
			return key
		}
	}
}

// has gives a node an account, wherever it belongs.
func (n *scriptNode) has(key []byte) {
	n.local.Decide(context.Background(), n.now, []ask{{Rule: n.rule, Key: key, Cost: 1}}, make([]verdict, 1))
}

// mayHave makes it unknown whether another node has accounts of a node's keys, with no further message for it.
func (n *scriptNode) mayHave(other string) *member {
	n.unsettled()
	m := n.core.members[other]
	m.done = 0
	m.take(0)
	return m
}

// What a node says of an account that another looks for. A key counts as new when all have said none: so that is said
// only of what certainly is not here, and not on its way.
func TestWhereAnAccountIs(t *testing.T) {
	s, a := newPair(t, "c:1")
	c := a.core
	own, other := a.ownedBy("a:1"), a.ownedBy("b:1")
	digest := c.view.Load().digest
	expect := func(why string, from string, key []byte, ring uint64, want wire.Found) {
		t.Helper()
		if got := c.answerFetch(s.now, from, &wire.Fetch{Key: key, Ring: ring}); got != want {
			t.Errorf("%s: it says %v and should say %v", why, got, want)
		}
	}
	expect("it is the owner, and the other sees another ring", "b:1", own, digest+1, wire.Found_OTHER_RING)
	expect("it has none", "b:1", other, digest, wire.Found_NONE)
	expect("it has none now, but may take some in under the ring that it sees", "b:1", other, digest+1, wire.Found_OTHER_RING)
	hash := xxhash.Sum64(other)
	c.mover.underway[hash] = "c:1"
	expect("it is on its way to another", "b:1", other, digest, wire.Found_ELSEWHERE)
	c.mover.underway[hash] = "b:1"
	expect("it is on its way to who asks", "b:1", other, digest, wire.Found_ELSEWHERE)
	delete(c.mover.underway, hash)
	a.has(other)
	expect("it has it, and the other sees another ring", "b:1", other, digest+1, wire.Found_OTHER_RING)
	expect("it has it, and knows no way to who asks", "x:1", other, digest, wire.Found_ELSEWHERE)
	expect("it has it", "b:1", other, digest, wire.Found_ELSEWHERE)
	if c.local.Has(other) || c.mover.underway[hash] != "b:1" {
		t.Error("it was said to be on its way, and is not")
	}
	s.play(10 * time.Millisecond)
	expect("it is there", "b:1", other, digest, wire.Found_NONE)
}

// What is made of the answers: a key is new when all have said that they have none, and not before; everything else is
// asked again. Who sees another ring for longer than others need to see it counts no more.
func TestAnswersToAFetch(t *testing.T) {
	for _, c := range []struct {
		why   string
		b, c  wire.Found // NOT_SAID: nothing yet
		age   time.Duration
		state fetchState
	}{
		{"one has not answered", wire.Found_NONE, wire.Found_NOT_SAID, 0, fetching},
		{"nobody has any", wire.Found_NONE, wire.Found_NONE, 0, fetchAbsent},
		{"one is on its way", wire.Found_ELSEWHERE, wire.Found_NONE, 0, fetchAgain},
		{"one says what this node does not know", 4, wire.Found_NONE, 0, fetchAgain},
		{"one sees another ring", wire.Found_OTHER_RING, wire.Found_NONE, disagree - time.Millisecond, fetchAgain},
		{"and goes on to", wire.Found_OTHER_RING, wire.Found_NONE, disagree, fetchAbsent},
		{"and another has some", wire.Found_OTHER_RING, wire.Found_ELSEWHERE, disagree, fetchAgain},
	} {
		s, a := newPair(t, "c:1")
		core := a.core
		v := core.view.Load()
		v.began = s.now
		s.now = s.now.Add(c.age)
		f := &fetch{key: string(a.ownedBy("a:1")), view: v, open: 2}
		core.mu.Lock()
		for _, addr := range []string{"b:1", "c:1"} {
			core.ask(f, core.members[addr])
		}
		core.mu.Unlock()
		for addr, found := range map[string]wire.Found{"b:1": c.b, "c:1": c.c} {
			m := core.members[addr]
			frame := m.take(0)
			if frame == nil || len(frame.GetFetches()) != 1 || frame.GetFetches()[0].GetRing() != v.digest || string(frame.GetFetches()[0].GetKey()) != f.key {
				t.Fatalf("%s was asked %v", addr, frame)
			}
			if found != wire.Found_NOT_SAID {
				core.replied(s.now, m, &wire.Frame{Replies: []*wire.Reply{{Id: frame.GetFetches()[0].GetId(), Found: found}}})
			}
		}
		if f.state != c.state {
			t.Errorf("%s: the fetch is %v, and should be %v", c.why, f.state, c.state)
		}
	}
}

// Waiting requests are answered before a parcel of the same message is adopted.
func TestAnswersBeforeAParcel(t *testing.T) {
	s, a := newPair(t)
	c := a.core
	key := a.ownedBy("a:1")
	w := moved.NewWriter(c.local.LedgerNow(s.now))
	here := c.local.LedgerNow(s.now)
	w.Account(key, &local.Account{State: int64(s.rule.Limit.WindowAt(here)), Sum: 1, Begins: here, Ends: here.Add(time.Minute)})
	var said []*wire.Frame
	c.serve(s.now, &inlet{addr: "b:1", incarnation: 7}, &wire.Frame{
		Fetches: []*wire.Fetch{{Id: 3, Key: a.ownedBy("b:1"), Ring: c.view.Load().digest}},
		Parcel:  &wire.Parcel{Number: 1, First: 1, Sent: int64(here), Accounts: w.B},
	}, func(f *wire.Frame) {
		if len(said) == 0 && c.local.Has(key) {
			t.Error("the parcel was accepted first")
		}
		said = append(said, f)
	}, nil)
	if len(said) != 2 || len(said[0].GetReplies()) != 1 || said[0].GetReplies()[0].GetId() != 3 || len(said[1].GetReceipts()) != 1 || len(said[1].GetReplies()) != 0 || !c.local.Has(key) {
		t.Errorf("it says %v", said)
	}
}

// What another node asks is decided here or not at all: two nodes that take each
// other for the owner must not send an ask to and fro.
func TestForwardedAskIsNotForwarded(t *testing.T) {
	s, a := newPair(t, "c:1")
	for _, c := range []struct {
		owner  string
		status uint32
	}{{"a:1", answered}, {"b:1", notOwner}} {
		serving := a.serving(context.Background(), s.now, []*wire.Ask{{Id: 7, Key: a.ownedBy(c.owner), Cost: 1, Rule: ruleBytes(s.rule)}})
		open, replies := serving.decideStoreless(s.now), serving.replies(s.now)
		if open || len(replies) != 1 || replies[0].GetId() != 7 || replies[0].GetStatus() != c.status || replies[0].GetOverLimit() {
			t.Errorf("an ask for a key of %s, asked of a:1: open %v, %v", c.owner, open, replies)
		}
	}
	if n := a.stats.forwarded.Load(); n != 0 {
		t.Errorf("%d asks were forwarded", n)
	}
}

// A fetched account leaves at once, or stays if there is no room for it.
func TestAccountThatIsAskedForGoesAtOnce(t *testing.T) {
	s, a := newPair(t)
	c, m, key := a.core, a.core.members["b:1"], a.ownedBy("b:1")
	asks := &wire.Fetch{Key: key, Ring: c.view.Load().digest}
	a.has(key)
	for range parcelsAtOnce + 1 {
		m.out.sealed = append(m.out.sealed, &parcel{w: moved.NewWriter(1)})
	}
	if got := c.answerFetch(s.now, "b:1", asks); got != wire.Found_ELSEWHERE || !c.local.Has(key) {
		t.Errorf("there is no room, and it says %v", got)
	}
	m.out.sealed = nil
	m.ready.Store(false)
	if got := c.answerFetch(s.now, "b:1", asks); got != wire.Found_ELSEWHERE || !c.local.Has(key) {
		t.Errorf("there is no way, and it says %v", got)
	}
	m.ready.Store(true)
	for range 2 { // the second time it is on its way already
		m.out.urgent = false
		if got := c.answerFetch(s.now, "b:1", asks); got != wire.Found_ELSEWHERE || !m.out.urgent || c.local.Has(key) {
			t.Errorf("it says %v, and it is to go at once: %v", got, m.out.urgent)
		}
	}
}

// A leaving node decides until all others have read its departure, so that each request finds a node. It does
// not wait for ever for a silent one.
func TestLeavingNodeTellsFirst(t *testing.T) {
	s, a := newPair(t, "c:1")
	mine := func() bool { return a.core.view.Load().mine }
	s.nodes["b:1"].paused = true
	a.Leave(func() {})
	s.play(leaveWait - 20*time.Millisecond)
	if !mine() {
		t.Error("one node has not heard that this one leaves, and it owns nothing any more")
	}
	s.play(40 * time.Millisecond)
	if mine() {
		t.Error("it still waits for a node that is silent")
	}

	s, a = newPair(t, "c:1")
	a.Leave(func() {})
	if !mine() {
		t.Error("nobody has heard that it leaves")
	}
	s.play(20 * time.Millisecond)
	if mine() {
		t.Error("all have heard")
	}
}

// So many accounts are looked for at a time, each once for all who wait. A search under another view ends, and is begun
// again.
func TestMostFetches(t *testing.T) {
	_, a := newPair(t)
	c := a.core
	a.mayHave("b:1")
	waits := make(bell, 1)
	f := c.fetch(keyOf(1), waits)
	if c.fetch(keyOf(1), waits) != f || f.state != fetching || f.open != 1 || len(f.bells) != 2 {
		t.Errorf("it is looked for twice: %+v", f)
	}
	next := &view{ring: f.view.ring, digest: f.view.digest, mine: true}
	c.view.Store(next)
	if again := c.fetch(keyOf(1), make(bell, 1)); again == f || f.state != fetchAgain || len(waits) != 1 || again.view != next {
		t.Errorf("under another view: the first %v, the second %v", f.state, again.state)
	}
	for i := len(c.fetches); i < maxFetches; i++ {
		c.fetches[string(keyOf(i+2))] = &fetch{view: next}
	}
	if c.fetch(keyOf(0), nil) != nil {
		t.Error("there are too many")
	}
}
