package routing

import (
	"context"
	"fmt"
	"testing"
	"time"

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

// A node waits between dials: shortly while all start, and then twice as long each
// time, up to a second; half of that by chance.
func TestDialsPause(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
	m := c.members["b:1"]
	for _, x := range []struct {
		age      time.Duration
		failures int
		least    time.Duration
	}{
		{grace, 9, 50 * time.Millisecond},
		{grace + 1, 0, 50 * time.Millisecond},
		{grace + 1, 1, 50 * time.Millisecond},
		{grace + 1, 2, 100 * time.Millisecond},
		{grace + 1, 4, 400 * time.Millisecond},
		{grace + 1, 5, 500 * time.Millisecond},
		{grace + 1, 1 << 40, 500 * time.Millisecond},
	} {
		m.failures = x.failures
		for chance, want := range map[float64]time.Duration{0: x.least, 0.5: 2 * x.least, 1: 3 * x.least} {
			c.random = func() float64 { return chance }
			if got := c.pause(c.began.Add(x.age), m); got != want {
				t.Errorf("%d dials in a row have failed, %v after the start, by chance %v: it waits %v, want %v", x.failures, x.age, chance, got, want)
			}
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

// A parcel goes when it is full, or when somebody is in a hurry and nothing else is
// to be sent before; it is sent again on a new stream, until there is a receipt.
func TestOutbox(t *testing.T) {
	var o outbox
	add := func(k int) { o.add(1, uint64(k), &moved{key: keyOf(k)}) }
	add(1)
	if o.next() != nil {
		t.Error("nobody is in a hurry")
	}
	o.urgent = true
	first := o.next()
	if first == nil || first.number != 1 || o.urgent {
		t.Fatalf("%+v", o)
	}
	add(2)
	o.urgent = true
	if o.next() != first {
		t.Error("the first is not sent yet")
	}
	o.unsent++
	second := o.next()
	if second == nil || second.number != 2 {
		t.Fatalf("%+v", second)
	}
	o.unsent++
	if o.next() != nil {
		t.Error("all is sent")
	}
	if o.received(3) != nil || o.received(2) != second || o.received(2) != nil || o.unsent != 1 {
		t.Errorf("%+v", o)
	}
	o.again()
	if o.next() != first {
		t.Error("there is a new stream, and no receipt")
	}
	add(3)
	if got := o.empties(); len(got) != 2 || got[0] != first || got[1].number != 3 || o.unsent != 0 || o.urgent || o.next() != nil {
		t.Errorf("%+v", o)
	}
	for range parcelsAtOnce {
		add(4)
		o.seal()
	}
	if o.room() || o.roomForOne() {
		t.Error("it has no room")
	}
	add(5)
	if o.room() || !o.roomForOne() {
		t.Error("one that somebody waits for may be put to what is open")
	}
	if o.urgent = true; o.unsent != 0 {
		t.Fatal(o.unsent)
	}
	o.unsent = len(o.sealed)
	if o.next() != nil {
		t.Error("as many are on their way as may be")
	}
}

// An ask for another's key is counted as forwarded, once; a peek that is undone is
// nothing to undo there.
func TestForwardedAsksAreCounted(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	a := s.nodes["a:1"]
	key := a.ownedBy("b:1")
	for i := range uint64(3) {
		asks, v := []ask{{Rule: s.rule, Key: key, Cost: 1}}, make([]verdict, 1)
		a.Ask(asks, v, func() {})
		s.play(10 * time.Millisecond)
		if v[0].Source != ratelimit.FromOwner || a.core.stats.forwarded.Load() != i+1 {
			t.Errorf("%+v, and %d forwarded", v[0], a.core.stats.forwarded.Load())
		}
	}
	link := a.core.view.Load().peers["b:1"]
	a.core.Undo(s.now, []ask{{Rule: s.rule, Key: key, Kind: ratelimit.Peek}}, []verdict{{Source: ratelimit.FromOwner}})
	link.mu.Lock()
	if n := len(link.pending) + len(link.queue); n != 0 {
		t.Errorf("%d calls wait to undo what was not charged", n)
	}
	link.mu.Unlock()
	if undo != 3 {
		t.Error("an undo is the wire's fourth kind of ask, of all releases")
	}
}

// Two who ask for one key at the same time have its account looked for once.
func TestFetchIsJoined(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
	v := c.view.Load()
	m := c.members["b:1"]
	m.done = 0 // it may have some
	v.stable.Store(false)
	f := c.fetch(keyOf(1), make(bell, 1))
	if f == nil || f.state != fetching || f.open != 1 {
		t.Fatalf("%+v", f)
	}
	if c.fetch(keyOf(1), make(bell, 1)) != f || len(f.bells) != 2 {
		t.Error("it is looked for twice")
	}
}

// A leaving node that still has accounts says how many.
func TestLeavingNodeCountsWhatItHas(t *testing.T) {
	s := newScript(t, 40, 10)
	s.ring("a:1", "b:1")
	s.fill(1, "a:1")
	a := s.nodes["a:1"]
	had := 0
	for k := range s.admitted {
		if a.local.Has(keyOf(k)) {
			had++
		}
	}
	b := s.nodes["b:1"]
	b.cut = true // nothing can be handed over
	s.breakAll("a:1", "b:1")
	s.play(10 * time.Millisecond)
	a.Leave(func() {})
	s.play(leaveTells + 50*time.Millisecond)
	if done, n := a.core.gone(true); done || n != had {
		t.Errorf("gone: %v, and %d accounts are left of %d", done, n, had)
	}
	if done, n := a.core.gone(false); done || n != 0 {
		t.Errorf("gone: %v, and %d are on their way", done, n)
	}
}

// Without an owner the rule's policy decides, and nothing is charged for a
// question; what is undone was charged to this node's share, if to anything.
func TestDecidingWithoutAnOwner(t *testing.T) {
	for policy, want := range map[ratelimit.FailurePolicy]struct {
		admitted int // of five asks for one, undone from the fourth on
		charged  ratelimit.Tokens
	}{ratelimit.FailOpen: {5, 1}, ratelimit.FailClosed: {0, 0}, ratelimit.FailCached: {0, 0}, ratelimit.FailLocal: {4, 1}} {
		s := newScript(t, 1, 10)
		s.rule.Coordination.OnStoreFailure, s.rule.Coordination.LocalCap = policy, 3
		c := s.start("a:1").core
		admitted := 0
		for i := range 5 {
			a := ask{Rule: s.rule, Key: keyOf(1), Cost: 1}
			v := c.fail(context.Background(), s.now, &a)
			if v.Source != ratelimit.FromFallback || v.Reason != ratelimit.FallbackPeer || v.ResetAfter <= 0 || v.OverLimit == (v.Charged > 0) {
				t.Errorf("%v: %+v", policy, v)
			}
			if !v.OverLimit {
				admitted++
				if v.Charged != want.charged {
					t.Errorf("%v: %+v", policy, v)
				}
			}
			if i == 2 {
				c.undo(s.now, []ask{a}, []verdict{v})
			}
		}
		if admitted != want.admitted {
			t.Errorf("%v: %d were admitted, want %d", policy, admitted, want.admitted)
		}
		peek := ask{Rule: s.rule, Key: keyOf(1), Cost: 1, Kind: ratelimit.Peek}
		if v := c.fail(context.Background(), s.now, &peek); v.OverLimit || v.Charged != 0 {
			t.Errorf("%v: a peek: %+v", policy, v)
		}
	}
}

// What a peer says is taken where it can be meant.
func TestVerdictOfAPeer(t *testing.T) {
	s := newScript(t, 1, 10)
	c := s.start("a:1").core
	a := ask{Rule: s.rule, Key: keyOf(1), Cost: 2}
	for _, x := range []struct {
		reply *wire.Reply
		want  verdict
		ok    bool
		moved bool
	}{
		{&wire.Reply{}, verdict{Source: ratelimit.FromOwner}, true, false},
		{&wire.Reply{OverLimit: true, Remaining: 1, Charged: 2, ResetUs: 3, Window: 4}, verdict{OverLimit: true, Source: ratelimit.FromOwner, Remaining: 1, Charged: 2, ResetAfter: 3 * time.Microsecond, Window: 4}, true, false},
		{&wire.Reply{Remaining: -1, Charged: -2, ResetUs: -3}, verdict{Source: ratelimit.FromOwner}, true, false}, // nothing is negative
		{&wire.Reply{Status: notOwner}, verdict{}, false, true},
		{&wire.Reply{Status: malformed}, verdict{}, false, false},
		{&wire.Reply{Status: notInTime}, verdict{}, false, false},
		{nil, verdict{}, false, false},
	} {
		v, ok, moved := c.read(s.now, &a, &call{reply: x.reply})
		if v != x.want || ok != x.ok || moved != x.moved {
			t.Errorf("%v: %+v %v %v", x.reply, v, ok, moved)
		}
	}
	if _, ok, moved := c.read(s.now, &a, &call{err: errPeerGone}); ok || moved {
		t.Error("nobody has answered")
	}
}

// A node is ready when it has joined, all have heard, and it has its keys; or when
// that has taken too long. One that leaves stays ready, for it still decides.
func TestWhenANodeIsReady(t *testing.T) {
	for i, x := range []struct {
		present, left, unheard, stable bool
		since                          time.Duration
		want                           bool
	}{
		{true, false, false, true, 0, true},
		{false, false, false, true, 0, false},
		{false, true, false, true, 0, true},
		{true, true, false, true, 0, true},
		{true, false, true, true, time.Hour, false},
		{true, false, false, false, readyAfter, false},
		{true, false, false, false, readyAfter + 1, true},
	} {
		s := newScript(t, 1, 10)
		c := s.start("a:1").core
		c.present, c.left, c.wasStable, c.joined = x.present, x.left, x.stable, s.now
		c.unheard.Store(x.unheard)
		if got := c.isReady(s.now.Add(x.since)); got != x.want {
			t.Errorf("case %d, %+v: ready %v", i, x, got)
		}
	}
	s := newScript(t, 1, 10)
	c := s.start("a:1").core
	if c.local, c.present = nil, true; !c.isReady(s.now) {
		t.Error("with a store there is nothing to wait for")
	}
}

// Whom a node has met, it forgets a minute after it was last found or heard; whom
// it has not heard for longer than TakeOver owns nothing, and has nothing.
func TestWhoIsGone(t *testing.T) {
	const ever = 24 * time.Hour
	for i, x := range []struct {
		alive, holds  bool
		found, heard  time.Duration // ago
		known, holds2 bool
	}{
		{true, true, ever, TakeOver, true, true},
		{true, true, 0, TakeOver + 1, true, false},
		{false, true, 0, TakeOver, true, true},
		{false, true, 0, TakeOver + 1, true, false},
		{false, false, forgetAfter, ever, true, false},
		{false, false, forgetAfter + 1, ever, false, false},
		{false, false, ever, forgetAfter, true, false},
		{false, false, ever, forgetAfter + 1, false, false},
	} {
		s := newScript(t, 1, 10)
		s.now = s.now.Add(2 * ever)
		s.ring("a:1", "b:1")
		c := s.nodes["a:1"].core
		m := c.members["b:1"]
		m.alive, m.holds, m.found = x.alive, x.holds, s.now.Add(-x.found)
		m.heard.Store(int64(s.now.Add(-x.heard)))
		c.mu.Lock()
		c.bury(s.now)
		known := c.members["b:1"] == m
		c.unlock()
		if known != x.known || m.holds != x.holds2 || m.alive != (x.alive && x.holds2) {
			t.Errorf("case %d, %+v: known %v, holds %v, alive %v", i, x, known, m.holds, m.alive)
		}
	}
}

// A node joins when it has met everybody whom it found, or could not for long
// enough: at once are only those whom nobody has introduced.
func TestWhenANodeJoins(t *testing.T) {
	for i, x := range []struct {
		ready, tried, looked bool
		age                  time.Duration
		greeted              time.Duration // ago; 0: never
		joins                bool
	}{
		{true, true, true, 0, 0, true},
		{true, true, false, 0, 0, false},
		{false, true, true, grace - 1, 0, false},
		{false, true, true, grace, 0, true},
		{false, false, true, readyAfter, 0, false},
		{false, true, true, readyAfter - 1, TakeOver - 1, false},
		{false, true, true, readyAfter - 1, TakeOver, true},
		{false, true, true, readyAfter, 1, true},
	} {
		s := newScript(t, 1, 10)
		n := s.start("a:1")
		c := n.core
		c.looks(s.now, []string{"b:1"})
		m := c.members["b:1"]
		now := c.began.Add(x.age)
		m.ready.Store(x.ready)
		m.tried, c.looked, c.present = x.tried, x.looked, false
		if x.greeted != 0 {
			m.greeted = now.Add(-x.greeted)
		}
		c.mu.Lock()
		c.join(now)
		joined := c.present
		c.posts = nil
		c.mu.Unlock()
		if joined != x.joins {
			t.Errorf("case %d, %+v: joined %v", i, x, joined)
		}
	}
}

// A way that breaks was tried, and has failed once more; one that opens begins
// anew.
func TestWaysBreakAndOpen(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
	m := c.members["b:1"]
	for i := range 3 {
		m.tried, m.pulled, m.telling = false, true, true
		if c.closed(m); m.failures != i+1 || !m.tried || m.pulled || m.telling {
			t.Errorf("closed %d times: %+v", i+1, m)
		}
	}
	m.telling = true
	c.opened(s.now, m, &wire.Hello{Version: 2, Addr: "b:1", Incarnation: m.incarnation, Weight: 3})
	if m.failures != 0 || m.telling || m.told != unknown || !m.alive || m.weight != 3 || !m.holds {
		t.Errorf("%+v", m)
	}
	c.opened(s.now, m, &wire.Hello{Version: 2, Addr: "b:1", Incarnation: m.incarnation, Weight: 3, Absent: true})
	if m.alive || !m.holds {
		t.Errorf("it is not in the ring any more, and may have accounts still: %+v", m)
	}
	gone := &member{link: &link{addr: "x:1", pending: map[uint64]*call{}}}
	if c.opened(s.now, gone, &wire.Hello{Version: 2, Addr: "x:1"}); gone.ready.Load() {
		t.Error("a way opened to a node that was forgotten")
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

// A parcel that is full goes as it is.
func TestFullParcelGoes(t *testing.T) {
	var o outbox
	key := make([]byte, ratelimit.MaxKeyLen)
	n := 0
	for ; len(o.sealed) == 0 && n < parcelBytes; n++ {
		o.add(1, uint64(n), &moved{key: key})
	}
	if len(o.sealed) != 1 || o.open != nil || len(o.sealed[0].w.b) < parcelBytes || len(o.sealed[0].hashes) != n {
		t.Errorf("%d accounts, %d sealed", n, len(o.sealed))
	}
}

// A node looks after itself soon again while something is to be said, or to be
// joined, or to be tried; otherwise now and then.
func TestTicks(t *testing.T) {
	for name, x := range map[string]struct {
		change func(c *core)
		want   time.Duration
	}{
		"nothing is to be done":    {func(*core) {}, tickEvery},
		"somebody has not heard":   {func(c *core) { c.members["b:1"].told, c.members["b:1"].telling = unknown, true }, tickSoon},
		"it has not joined":        {func(c *core) { c.present, c.looked = false, false }, tickSoon},
		"accounts are tried again": {func(c *core) { c.mover.retry = c.clock().Add(time.Second) }, tickSoon},
		"it leaves": {func(c *core) {
			c.present, c.left, c.leftAt = false, true, c.clock()
			c.members["b:1"].telling = true
		}, tickSoon},
	} {
		s := newScript(t, 1, 10)
		s.ring("a:1", "b:1")
		c := s.nodes["a:1"].core
		x.change(c)
		if got := c.tick(s.now).Sub(s.now); got != x.want {
			t.Errorf("%s: looked after again in %v, want %v", name, got, x.want)
		}
	}
	if tickEvery*2 != pingEvery || lapseAfter+pingEvery != TakeOver {
		t.Error("a node that looks after itself less often than it is heard takes itself for one that slept")
	}
}

// Who has been an owner may have accounts, also when it is none any more.
func TestPresenceIsRemembered(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1", "b:1")
	c := s.nodes["a:1"].core
	m := c.members["b:1"]
	m.alive, m.holds = false, false
	says := func(addr string, is bool) bool { return c.presence(s.now, &inlet{addr: addr}, is, 0) }
	if !says("b:1", true) || !m.alive || !m.holds {
		t.Errorf("%+v", m)
	}
	if !says("b:1", false) || m.alive || !m.holds {
		t.Errorf("%+v", m)
	}
	m.ready.Store(false)
	if says("b:1", true) || says("x:1", true) || m.alive {
		t.Error("without a way to it, it is no owner yet")
	}
	c.saidDone("b:1", c.view.Load().print, 0)
	if m.holds {
		t.Error("it has said that it has nothing")
	}
	var names []string
	for _, a := range []string{"z:1", "c:1", "y:1", "d:1"} {
		c.know(a)
	}
	c.each(func(m *member) { names = append(names, m.addr) })
	if fmt.Sprint(names) != "[b:1 c:1 d:1 y:1 z:1]" {
		t.Errorf("always in the same order: %v", names)
	}
}

// A node says in its greeting whether it owns keys.
func TestGreetingSaysWhoOwnsKeys(t *testing.T) {
	s := newScript(t, 1, 10)
	c := s.start("a:1").core
	for _, present := range []bool{true, false} {
		c.present = present
		if h := c.hello(nonce); h.GetAbsent() == present || h.GetAddr() != "a:1" || h.GetIncarnation() != c.incarnation || h.GetVersion() != version {
			t.Errorf("present %v: %v", present, h)
		}
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

// A leaving node goes on to decide until all others have heard that it leaves, but
// no longer than half a second.
func TestWhenANodeDeparts(t *testing.T) {
	for _, x := range []struct {
		what         string
		after        time.Duration
		alive, ready bool
		told         presence
		leaves       bool
	}{
		{"it has not heard", leaveTells - 1, true, true, here, true},
		{"its time is over", leaveTells, true, true, here, false},
		{"it has heard", 0, true, true, away, false},
		{"it owns nothing", 0, false, true, here, false},
		{"it cannot be told", 0, true, false, here, false},
	} {
		s := newScript(t, 1, 10)
		s.ring("a:1", "b:1")
		c := s.nodes["a:1"].core
		c.leave(s.now)
		c.mu.Lock()
		m := c.members["b:1"]
		m.alive, m.told = x.alive, x.told
		m.ready.Store(x.ready)
		leaves := c.depart(s.now.Add(x.after))
		mine := c.view.Load().mine
		again := c.depart(s.now.Add(x.after))
		c.unlock()
		if leaves != x.leaves || mine != x.leaves || again != x.leaves {
			t.Errorf("%s: it leaves still %v, and is in its ring %v", x.what, leaves, mine)
		}
	}
}

// What an owner replies is believed within bounds.
func TestRepliesWithinBounds(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1")
	c := s.nodes["a:1"].core
	a := ask{Rule: s.rule, Key: keyOf(1), Cost: 5}
	for _, x := range []struct {
		reply *wire.Reply
		ok    bool
	}{
		{&wire.Reply{Charged: 5, Remaining: mostTokens, Window: 0}, true},
		{&wire.Reply{Charged: 6}, false},
		{&wire.Reply{Remaining: mostTokens + 1}, false},
		{&wire.Reply{Window: -1}, false},
		{&wire.Reply{Charged: -1, Remaining: -1}, true}, // nothing
	} {
		x.reply.Status = answered
		if v, ok, _ := c.read(s.now, &a, &call{reply: x.reply}); ok != x.ok || v.Charged < 0 || v.Remaining < 0 {
			t.Errorf("%v is taken for %+v, %v", x.reply, v, ok)
		}
	}
}

// The longest that a limit can take to be whole again: two periods, and for a bucket
// what it takes to fill.
func TestLongestReset(t *testing.T) {
	for _, x := range []struct {
		limit ratelimit.Limit
		want  time.Duration
	}{
		{ratelimit.Limit{Unit: ratelimit.Minute, Requests: 5}, 2 * time.Minute},
		{ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 1, Burst: 10}, 12 * time.Minute},
		{ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 4, Burst: 10}, 4*time.Minute + 30*time.Second},
	} {
		if got := longest(&x.limit); got != x.want {
			t.Errorf("%v: %v, want %v", x.limit, got, x.want)
		}
		if got := resetOf(&x.limit, x.want.Microseconds()+1); got != x.want {
			t.Errorf("%v: a reset in %v", x.limit, got)
		}
		if got := resetOf(&x.limit, 7); got != 7*time.Microsecond {
			t.Errorf("%v: a reset in %v, want 7 µs", x.limit, got)
		}
		if got := resetOf(&x.limit, -1); got != 0 {
			t.Errorf("%v: a reset %v ago", x.limit, got)
		}
	}
}

// A receipt for a parcel that is to be sent again, and was not yet, leaves the next
// one to be sent.
func TestReceiptBeforeItIsSentAgain(t *testing.T) {
	var o outbox
	for i := range uint64(2) {
		o.add(5, i, &moved{key: keyOf(int(i))})
		o.seal()
	}
	o.unsent = 2
	o.again()
	if p := o.received(1); p == nil || p.number != 1 {
		t.Fatalf("%+v", p)
	}
	if p := o.next(); p == nil || p.number != 2 {
		t.Errorf("to be sent is %+v", p)
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

// That a node has nothing of others counts as long as it has not joined or left
// since, whichever of its words said so.
func TestDoneOfBefore(t *testing.T) {
	for _, x := range []struct {
		changes, doneBy, said uint64
		counts                bool
	}{
		{5, 0, 4, false}, {5, 0, 5, true}, {3, 5, 4, false}, {3, 5, 5, true}, {5, 5, 0, true},
	} {
		s := newScript(t, 1, 10)
		s.ring("a:1", "b:1")
		c := s.nodes["a:1"].core
		m := c.members["b:1"]
		m.changes, m.doneBy, m.done = x.changes, x.doneBy, 7
		c.saidDone("b:1", 8, x.said)
		if (m.done == 8) != x.counts {
			t.Errorf("%+v: it is done under %d", x, m.done)
		}
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

// To a node of version 1, which knows of no holders, an account says that all is
// charged which its holders may spend in its window, or have spent beyond that.
func TestTransfersSayWhatHoldersHave(t *testing.T) {
	w := newWriter(1_800_000_000_000_000)
	w.account(keyOf(1), &leasing.Account{
		Now: 1_800_000_000_000_000, Fence: 77, Window: 30, Charged: 5, Previous: 6, Level: 7, Carry: 8, Dead: 9,
		Holders: []leasing.Holding{
			{Holder: 2, Seq: 1, Window: 30, Granted: 10, InFlight: 3, Returned: 2, Spent: 4},
			{Holder: 4, Seq: 1, Window: 30, Granted: 10, Spent: 12},
			{Holder: 6, Seq: 1, Window: 29, Granted: 100, Spent: 100},
		},
	})
	w.account(keyOf(2), &leasing.Account{Charged: -5, Window: 1})
	ts := (&parcel{w: w}).transfers()
	if len(ts) != 2 {
		t.Fatalf("%v", ts)
	}
	got, want := ts[0], &wire.Transfer{
		Key: keyOf(1), Now: 1_800_000_000_000_000, Fence: 77, Window: 30, Charged: 5 + 11 + 12, Previous: 6, Level: 7, Carry: 8, Dead: 9,
	}
	if got.String() != want.String() {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if ts[1].GetCharged() != 0 {
		t.Errorf("less than nothing is charged: %v", ts[1])
	}
}
