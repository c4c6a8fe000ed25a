package routing

import (
	"fmt"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// How far another's clock is behind is the least of what messages of the last ten
// to twenty seconds say; less than what a message may take counts as nothing, but
// a clock that is ahead always counts. After a long silence it begins anew.
func TestClocksAreCompared(t *testing.T) {
	const ms = time.Millisecond
	var in inbox
	at := instant(time.Hour)
	for i, c := range []struct {
		after       time.Duration
		later, want time.Duration
	}{
		{0, 30 * ms, 30 * ms},
		{0, 20 * ms, 20 * ms},
		{time.Second, 40 * ms, 20 * ms},
		{compareFor - time.Second, 25 * ms, 20 * ms}, // the first stretch goes on to here
		{1, 50 * ms, 20 * ms},                        // in the next one the last still counts
		{compareFor, 60 * ms, 20 * ms},
		{1, 70 * ms, 50 * ms}, // and now not
		{0, 6 * ms, 6 * ms},
		{0, 5 * ms, 0}, // as a message takes
		{0, 1, 0},
		{0, 0, 0},
		{0, -1, -1},
		{2 * compareFor, 40 * ms, -1},
		{2*compareFor + 1, 40 * ms, 40 * ms}, // it was silent for so long
	} {
		at = at.Add(c.after)
		if got := in.compare(at, c.later); got != c.want {
			t.Errorf("message %d, %v later than sent: %v, want %v", i, c.later, got, c.want)
		}
	}
}

// What was received of a node is remembered for so many nodes; then who was silent
// for longest is forgotten, and of those the least number.
func TestMostInboxes(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1")
	c := s.nodes["a:1"].core
	c.mu.Lock()
	defer c.mu.Unlock()
	at := s.now
	for id := range uint64(mostInboxes) {
		c.inboxOf(at.Add(time.Duration(id/3)), &inlet{incarnation: id + 10})
	}
	c.inboxOf(at.Add(time.Hour), &inlet{incarnation: 10}) // it is heard again
	for _, gone := range []uint64{11, 12, 13} {
		c.inboxOf(at.Add(time.Hour), &inlet{incarnation: 1_000_000 + gone})
		if c.inboxes[gone] != nil || len(c.inboxes) != mostInboxes {
			t.Errorf("%d was to be forgotten, and there are %d", gone, len(c.inboxes))
		}
	}
	if c.inboxes[10] == nil {
		t.Error("who was heard a moment ago is forgotten")
	}
}

// accounts are a parcel of so many keys' accounts.
func (s *script) accounts(keys ...[]byte) []byte {
	w := newWriter(ratelimit.LedgerTime(1_800_000_000_000_000))
	for _, k := range keys {
		w.account(k, &leasing.Account{Now: 1_800_000_000_000_000, Window: s.rule.Limit.WindowAt(1_800_000_000_000_000), Charged: 4})
	}
	return w.b
}

// A parcel that makes no sense is counted once, and not answered; one that comes
// again is answered as before, as long as its sender may ask.
func TestParcelsThatMakeNoSense(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1")
	n := s.nodes["a:1"]
	c := n.core
	from := &inlet{addr: "b:1", incarnation: 7, version: 2}
	bad, sent := uint64(0), int64(c.local.LedgerNow(s.now))
	for _, p := range []struct {
		from *inlet
		p    *wire.Parcel
	}{{&inlet{addr: "b:1"}, &wire.Parcel{Number: 1, Sent: sent}}, {from, &wire.Parcel{Sent: sent}}, {from, &wire.Parcel{Number: 1, Sent: -1}}} {
		bad++
		if r := c.adopt(s.now, p.from, p.p); r != nil || c.stats.malformed.Load() != bad {
			t.Errorf("%+v: answered %v, and %d of %d counted", p.p, r, c.stats.malformed.Load(), bad)
		}
	}
	for number := range uint64(4*parcelsAtOnce + 1) {
		if r := c.adopt(s.now, from, &wire.Parcel{Number: number + 1, First: 1, Sent: sent, Accounts: s.accounts(keyOf(int(number)))}); r == nil || len(r.GetRefused()) > 0 {
			t.Fatalf("parcel %d: %v", number+1, r)
		}
	}
	if r := c.adopt(s.now, from, &wire.Parcel{Number: 1, First: 1, Sent: sent}); r == nil {
		t.Error("a parcel that came again was not answered")
	}
	last := uint64(4*parcelsAtOnce + 2)
	c.adopt(s.now, from, &wire.Parcel{Number: last, First: 1, Sent: sent, Accounts: s.accounts(keyOf(1))})
	if r := c.adopt(s.now, from, &wire.Parcel{Number: 1, First: 1, Sent: sent}); r != nil || c.stats.malformed.Load() != bad+1 {
		t.Errorf("so many without a receipt are no node's of ours: %v, %d", r, c.stats.malformed.Load()-bad)
	}
	if r := c.adopt(s.now, from, &wire.Parcel{Number: last, First: 1, Sent: sent}); r == nil {
		t.Error("the last parcel came again, and was not answered")
	}
}

// An account of a node of version 1 is taken in as it was sent, whatever window or
// fence; what cannot be is counted, and left.
func TestTransfersOfVersion1(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1")
	c := s.nodes["a:1"].core
	for i, bad := range []*wire.Transfer{
		{},
		{Key: make([]byte, ratelimit.MaxKeyLen+1)},
		{Key: keyOf(1), Charged: -1},
		{Key: keyOf(1), Previous: -1},
		{Key: keyOf(1), Window: -1},
		{Key: keyOf(1), Level: -1},
		{Key: keyOf(1), Carry: -1},
		{Key: keyOf(1), Now: -1},
		{Key: keyOf(1), Fence: -1},
	} {
		if c.adoptLegacy(s.now, []*wire.Transfer{bad}); c.stats.malformed.Load() != uint64(i+1) || c.local.Has(keyOf(1)) {
			t.Errorf("%v: %d of %d counted", bad, c.stats.malformed.Load(), i+1)
		}
	}
	whole := &wire.Transfer{Key: keyOf(1), Now: 2, Fence: 3, Window: 4, Charged: 5, Previous: 6, Level: 7, Carry: 8, Dead: 9}
	if got, want := accountOf(whole), (leasing.Account{Now: 2, Fence: 3, Window: 4, Charged: 5, Previous: 6, Level: 7, Carry: 8, Dead: 9}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v", got)
	}
	c.adoptLegacy(s.now, []*wire.Transfer{{Key: keyOf(1)}})
	if !c.local.Has(keyOf(1)) || c.stats.malformed.Load() != 9 {
		t.Error("an account of nothing is one")
	}
	w := newWriter(2)
	w.account(keyOf(1), &leasing.Account{Now: 2, Fence: 3, Window: 4, Previous: 6, Level: 7, Carry: 8, Dead: 9})
	p := &parcel{w: w}
	if got := p.transfers(); len(got) != 1 || got[0].GetCharged() != 0 || got[0].GetLevel() != 7 || got[0].GetPrevious() != 6 || got[0].GetCarry() != 8 || got[0].GetDead() != 9 {
		t.Errorf("%v", got)
	}
}

// The walk goes through what is dirty, part by part and round again. What could not
// be put on its way is stuck until a way opens; what is marked behind the walk is
// walked through again.
func TestMover(t *testing.T) {
	m := newMover(3)
	if m.begin() {
		t.Error("all is clean")
	}
	m.retry = 1
	if m.all(); m.left != 3 || m.retry != 0 {
		t.Errorf("%+v", m)
	}
	for i, part := range []int{1, 2, 0} {
		first, again := m.begin(), m.begin()
		if !first || !again || m.visit.Part != part || !m.walking {
			t.Fatalf("%+v", m)
		}
		if m.end(); m.left != 2-i || m.walking {
			t.Errorf("%+v", m)
		}
	}
	m.mark(1)
	m.mark(1)
	if m.left != 1 || !m.begin() || m.visit.Part != 1 {
		t.Fatalf("%+v", m)
	}
	if m.mark(2); !m.walking || m.left != 2 {
		t.Error("another part is marked, and the walk goes on")
	}
	if m.mark(1); m.walking || m.left != 2 {
		t.Error("perhaps it is behind the walk")
	}
	m.begin()
	m.stuck = true
	m.end()
	part := m.visit.Part
	if m.left != 2 || m.parts[part] != stuck || !m.begin() || m.visit.Part == part {
		t.Fatalf("%+v", m)
	}
	if m.end(); m.left != 1 || m.begin() {
		t.Errorf("what is left is stuck: %+v", m)
	}
	m.mark(part)
	if m.left != 1 || m.parts[part] != dirty {
		t.Errorf("%+v", m)
	}
	m.parts[part], m.retry = stuck, 7
	if m.unstick(); m.retry != 0 || !m.begin() || m.visit.Part != part {
		t.Errorf("a way has opened: %+v", m)
	}
}

// Accounts whose owner has refused some wait until the first of such owners may
// have seen the ring as it is; without a way they wait for one; without room, no
// more are taken out.
func TestAccountsThatCannotGo(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1", "c:1")
	a := s.nodes["a:1"]
	c, v := a.core, a.core.view.Load()
	toB, toC := a.ownedBy("b:1"), a.ownedBy("c:1")
	b, other := c.members["b:1"], c.members["c:1"]
	takesOut := func(keys ...[]byte) *mover {
		for _, k := range keys {
			a.has(k)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		m := &c.mover
		m.keys, m.ends, m.stuck, m.retry, m.full = nil, nil, false, 0, nil
		for _, k := range keys {
			m.keys = append(m.keys, k...)
			m.ends = append(m.ends, len(m.keys))
		}
		c.takeOut(s.now, v)
		return m
	}
	b.paused, other.paused = s.now.Add(5*time.Millisecond), s.now.Add(3*time.Millisecond)
	for _, keys := range [][][]byte{{toB, toC}, {toC, toB}} {
		if m := takesOut(keys...); !m.stuck || m.retry != other.paused || !c.local.Has(toB) || !c.local.Has(toC) {
			t.Errorf("both have refused some a moment ago: %+v", m.retry.Sub(s.now))
		}
	}
	b.paused = s.now // it is over
	other.ready.Store(false)
	if m := takesOut(toB, toC); !m.stuck || m.retry != 0 || c.local.Has(toB) || !c.local.Has(toC) {
		t.Errorf("there is no way to one: %+v", m)
	}
	other.ready.Store(true)
	other.paused = 0
	for range parcelsAtOnce {
		b.out.sealed = append(b.out.sealed, &parcel{w: newWriter(1)})
	}
	if m := takesOut(toB, toC); m.full != b || m.stuck || !c.local.Has(toB) || !c.local.Has(toC) {
		t.Errorf("there is no room at one: %+v", m)
	}
}

// An account counts as handed over when there is a receipt that does not refuse it;
// one that is refused is here again, is looked for by the walk, and is not sent
// again at once.
func TestReceipts(t *testing.T) {
	for _, refused := range []bool{false, true} {
		s := newScript(t, 1, 10)
		s.ring("a:1", "b:1")
		a := s.nodes["a:1"]
		c, m := a.core, a.core.members["b:1"]
		key := a.ownedBy("b:1")
		a.has(key)
		c.mu.Lock()
		c.send(s.now, m, key)
		c.send(s.now, m, key) // which has gone
		c.unlock()
		m.mu.Lock()
		m.out.seal()
		n := len(m.out.sealed[0].hashes)
		m.mu.Unlock()
		if n != 1 || len(c.mover.underway) != 1 || c.clean() {
			t.Fatalf("%d accounts in the parcel, %d on their way", n, len(c.mover.underway))
		}
		before, r := c.stats.handed.Load(), &wire.Receipt{Number: m.out.sealed[0].number}
		want := before + 1
		if refused {
			r.Refused, want = []uint32{0}, before
		}
		c.received(m, r)
		if got := c.stats.handed.Load(); got != want || c.local.Has(key) != refused || len(c.mover.underway) != 0 || c.clean() == refused || (m.paused > s.now) != refused {
			t.Errorf("refused %v: %d handed over of %d, here %v, clean %v, paused %v", refused, got-before, want-before, c.local.Has(key), c.clean(), m.paused)
		}
		if c.received(m, r); c.stats.handed.Load() != want {
			t.Error("a receipt that came twice counts twice")
		}
	}
}

// The first message of a node says how far its clock is behind, also in the first
// seconds of this one.
func TestClocksAreComparedFromTheFirst(t *testing.T) {
	var in inbox
	if got := in.compare(instant(time.Second), 30*time.Millisecond); got != 30*time.Millisecond {
		t.Errorf("%v", got)
	}
}

// An account that is another's is not taken: its sender has it back.
func TestAccountOfAnotherIsNotTaken(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
	var mine, theirs []byte
	for k := 0; mine == nil || theirs == nil; k++ {
		if key := keyOf(k); c.view.Load().ring.Owner(HashOf(key)) == "a:1" {
			mine = key
		} else {
			theirs = key
		}
	}
	now := c.local.LedgerNow(s.now)
	account := leasing.Account{Now: now, Window: s.rule.Limit.WindowAt(now), Charged: 4, Dead: now.Add(time.Hour)}
	for _, x := range []struct {
		key  []byte
		mine bool
	}{{mine, true}, {theirs, false}} {
		taken := c.take(s.now, moved{x.key, account}, now)
		if _, has := c.local.TakeOut(s.now, x.key); taken != x.mine || has != x.mine {
			t.Errorf("its own %v: taken %v, and it has it %v", x.mine, taken, has)
		}
	}
}

// A receipt that refuses an account which its parcel does not have is counted, and
// what it does not refuse has been handed over.
func TestReceiptOfMoreThanWasSent(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	a := s.nodes["a:1"]
	c, m := a.core, a.core.members["b:1"]
	key := a.ownedBy("b:1")
	a.has(key)
	c.mu.Lock()
	c.send(s.now, m, key)
	c.unlock()
	m.mu.Lock()
	m.out.seal()
	m.mu.Unlock()
	handed, rejected := c.stats.handed.Load(), c.stats.rejected[rejectedReceipt].Load()
	c.received(m, &wire.Receipt{Number: m.out.sealed[0].number, Refused: []uint32{1, 2, 3}})
	if got := c.stats.handed.Load() - handed; got != 1 || c.local.Has(key) {
		t.Errorf("%d accounts were handed over, and it has it still: %v", got, c.local.Has(key))
	}
	if got := c.stats.rejected[rejectedReceipt].Load() - rejected; got != 1 {
		t.Errorf("%d were counted as rejected", got)
	}
}

// What a walk has found goes when the walk is over, with as much as a parcel holds,
// and not after each few keys.
func TestWalkSendsWhenItIsOver(t *testing.T) {
	s := newScript(t, 300, 10)
	s.ring("a:1", "b:1")
	a := s.nodes["a:1"]
	for k := range s.admitted {
		a.has(keyOf(k))
	}
	c, m := a.core, a.core.members["b:1"]
	c.mover.all()
	steps := 0
	for more := true; more; steps++ {
		if more = c.step(s.now); m.out.urgent == more || more && len(m.out.sealed) > 0 {
			t.Fatalf("step %d, more %v: to be sent now %v, %d parcels are full", steps, more, m.out.urgent, len(m.out.sealed))
		}
	}
	if p := m.out.next(); p == nil || len(p.hashes) < 100 || steps < 3 {
		t.Errorf("after %d steps it sends %+v", steps, p)
	}
}

// While a node has no room, nothing is taken out; once it has given a receipt the
// walk goes on where it was.
func TestWalkWaitsForRoom(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	a := s.nodes["a:1"]
	c, m, key := a.core, a.core.members["b:1"], a.ownedBy("b:1")
	w := &wakes{hands: c.hands}
	c.hands = w
	a.has(key)
	for i := range uint64(parcelsAtOnce) {
		m.out.add(1, i, &moved{key: keyOf(1000 + int(i))})
		m.out.seal()
	}
	c.mover.all()
	for range 2 * c.local.Parts() {
		if c.step(s.now) && c.mover.full != nil {
			t.Fatal("it has more to do at once, and no room")
		}
	}
	if c.mover.full != m || !c.local.Has(key) {
		t.Fatalf("it waits for %v", c.mover.full)
	}
	before := w.n
	if c.received(m, &wire.Receipt{Number: 1}); w.n == before {
		t.Error("there is room, and the walk was not told")
	}
	for c.step(s.now) {
	}
	if c.local.Has(key) || c.mover.full != nil || c.mover.left != 0 || c.mover.underway[xxhash.Sum64(key)] != "b:1" {
		t.Errorf("the account is here %v, %d parts are left", c.local.Has(key), c.mover.left)
	}
}

// What is on its way to one life of a node is not with the next one: it is here
// again, and the walk looks for who is to have it.
func TestAnotherLifeHasNoAccounts(t *testing.T) {
	for _, how := range []string{"it greets", "the way opens"} {
		s := newScript(t, 1, 10)
		s.ring("a:1", "b:1")
		a := s.nodes["a:1"]
		c, m, key := a.core, a.core.members["b:1"], a.ownedBy("b:1")
		a.has(key)
		c.mu.Lock()
		c.send(s.now, m, key)
		c.unlock()
		w := &wakes{hands: c.hands}
		c.hands = w
		h := &wire.Hello{Version: version, Addr: "b:1", Weight: m.weight, Incarnation: m.incarnation, Changes: m.changes}
		introduces := func() {
			if how == "it greets" {
				c.greeted(s.now, h)
			} else {
				c.opened(s.now, m, h)
			}
		}
		if introduces(); c.local.Has(key) || len(c.mover.underway) != 1 {
			t.Errorf("%s: it is the same life, and what was sent to it is here again", how)
		}
		h.Incarnation++
		before := w.n
		if introduces(); !c.local.Has(key) || len(c.mover.underway) != 0 || c.mover.left == 0 || w.n == before {
			t.Errorf("%s: the account is here %v, on its way %d, parts to walk through %d", how, c.local.Has(key), len(c.mover.underway), c.mover.left)
		}
	}
}

// With a store no accounts move: a parcel, or an account of version 1, is no node's
// of this ring.
func TestNothingMovesWithAStore(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
	c.local = nil
	if r := c.adopt(s.now, &inlet{addr: "b:1", incarnation: 7}, &wire.Parcel{Number: 1, Sent: 1}); r != nil || c.stats.rejected[rejectedParcel].Load() != 1 {
		t.Errorf("a parcel is answered %v, and %d were counted", r, c.stats.rejected[rejectedParcel].Load())
	}
	if c.adoptLegacy(s.now, make([]*wire.Transfer, 3)); c.stats.rejected[rejectedAccount].Load() != 3 {
		t.Errorf("%d of 3 accounts were counted", c.stats.rejected[rejectedAccount].Load())
	}
	if !c.clean() || c.step(s.now) {
		t.Error("there is nothing to walk through")
	}
	c.mu.Lock()
	c.reclaim(s.now, c.members["b:1"])
	c.unlock()
}
