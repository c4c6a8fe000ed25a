package routing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/wire"
)

// The lag of another's clock is the minimum over the messages of the last ten to twenty seconds. A lag below the travel
// time of a message counts as 0, but a clock that is ahead always counts. After a long silence it begins again.
func TestClocksAreCompared(t *testing.T) {
	const ms = time.Millisecond
	var in inbox
	at := instant(time.Second) // also in the first seconds of this node
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
		{2*compareFor + 1, 60 * ms, 60 * ms}, // it was silent for so long
	} {
		at = at.Add(c.after)
		if got := in.compare(at, c.later); got != c.want {
			t.Errorf("message %d, %v later than sent: %v, want %v", i, c.later, got, c.want)
		}
	}
}

// The receipts of a node are remembered for a bounded number of nodes: the one with the longest silence is dropped.
func TestMostInboxes(t *testing.T) {
	s, a := newPair(t)
	for i := range instant(mostInboxes + 1) {
		a.inboxOf(s.now+i, &inlet{incarnation: uint64(100 + i)})
	}
	if len(a.inboxes) != mostInboxes || a.inboxes[100] != nil {
		t.Errorf("%d nodes have inboxes, and the first is still there: %v", len(a.inboxes), a.inboxes[100] != nil)
	}
}

// accounts are a parcel of so many keys' accounts.
func (s *script) accounts(keys ...[]byte) []byte {
	w := moved.NewWriter(ratelimit.LedgerTime(1_800_000_000_000_000))
	for _, k := range keys {
		w.Account(k, &local.Account{State: int64(s.rule.Limit.WindowAt(1_800_000_000_000_000)), Sum: 4, Begins: 1_800_000_000_000_000, Ends: 1_800_000_060_000_000})
	}
	return w.B
}

// A parcel that makes no sense is counted once, and not answered; one that comes
// again is answered as before, as long as its sender may ask.
func TestParcelsThatMakeNoSense(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1")
	c := s.nodes["a:1"].core
	from := &inlet{addr: "b:1", incarnation: 7}
	bad, sent := uint64(0), int64(c.local.LedgerNow(s.now))
	for _, p := range []struct {
		from *inlet
		p    *wire.Parcel
	}{{from, &wire.Parcel{Sent: sent}}, {from, &wire.Parcel{Number: 1, Sent: -1}}} {
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

// An account counts as handed over when a receipt does not refuse it. A refused one is here again, the walk
// finds it, and it is not sent again at once.
func TestReceipts(t *testing.T) {
	for _, refused := range []bool{false, true} {
		s, a := newPair(t)
		c, m := a.core, a.core.members["b:1"]
		key := a.ownedBy("b:1")
		a.has(key)
		c.mu.Lock()
		c.send(s.now, m, key)
		c.send(s.now, m, key) // which has gone
		c.mu.Unlock()
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

// A window goes on by its sender's clock, where that is behind.
func TestAccountsGoOnByTheirSendersClock(t *testing.T) {
	const behind = 30 * time.Second
	s := newScript(t, 1, 10)
	s.ring("a:1")
	c := s.nodes["a:1"].core
	here := c.local.LedgerNow(s.now)
	window := s.rule.Limit.WindowAt(here)
	for i, x := range []struct {
		begins ratelimit.LedgerTime
		taken  bool
	}{{here, true}, {here.Add(moved.MostApart), true}, {here.Add(moved.MostApart) + 1, false}} {
		w := moved.NewWriter(here)
		w.Account(keyOf(i), &local.Account{State: int64(window), Sum: 4, Begins: x.begins, Ends: x.begins.Add(time.Minute)})
		rejected := c.stats.rejected[rejectedAccount].Load()
		r := c.adopt(s.now, &inlet{addr: "b:1", incarnation: uint64(7 + i)}, &wire.Parcel{Number: 1, Sent: int64(here.Add(-behind)), Accounts: w.B})
		a, ok := c.local.TakeOut(s.now, keyOf(i))
		begins := x.begins.Add(behind)
		if ok != x.taken || ok && (a.Begins != begins || a.Ends != begins.Add(time.Minute)) || r == nil || len(r.GetRefused()) > 0 {
			t.Errorf("from %d: taken %v, now from %d to %d, want from %d; receipt %v", x.begins, ok, a.Begins, a.Ends, begins, r)
		}
		if got := c.stats.rejected[rejectedAccount].Load() - rejected; (got == 0) != x.taken {
			t.Errorf("from %d: %d accounts were rejected", x.begins, got)
		}
	}
}

// Parcels to one life of a node do not reach the next one. Their accounts are here again, and the walk finds
// their owners.
func TestAnotherLifeHasNoAccounts(t *testing.T) {
	for _, how := range []string{"it greets", "the way opens"} {
		s, a := newPair(t)
		c, m, key := a.core, a.core.members["b:1"], a.ownedBy("b:1")
		a.has(key)
		c.mu.Lock()
		c.send(s.now, m, key)
		c.mu.Unlock()
		w := &wakes{driver: c.driver}
		c.driver = w
		h := &wire.Hello{Version: version, Addr: "b:1", Incarnation: m.incarnation, Changes: m.changes}
		introduces := func() {
			if how == "it greets" {
				c.applyHello(s.now, h)
			} else {
				c.opened(s.now, m, h)
			}
		}
		if introduces(); c.local.Has(key) || len(c.mover.underway) != 1 {
			t.Errorf("%s: it is the same life, and what was sent to it is here again", how)
		}
		h.Incarnation++
		before := w.n
		if introduces(); !c.local.Has(key) || len(c.mover.underway) != 0 || c.mover.state != walking || w.n == before {
			t.Errorf("%s: the account is here %v, on its way %d, the walk is %v", how, c.local.Has(key), len(c.mover.underway), c.mover.state)
		}
	}
}
