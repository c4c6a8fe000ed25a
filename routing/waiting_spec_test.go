package routing

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// scriptedBase is a limiter below a core, which records its asks and undos, and decides as scripted.
type scriptedBase struct {
	said    string
	verdict verdict
}

func (b *scriptedBase) decide(_ context.Context, _ instant, within time.Duration, asks []ask, verdicts []verdict) {
	b.said += fmt.Sprintf("asked %d within %v\n", len(asks), within)
	for i := range asks {
		verdicts[i] = b.verdict
	}
}

func (b *scriptedBase) Undo(_ instant, asks []ask, verdicts []verdict) {
	b.said += fmt.Sprintf("undo %d of source %d\n", len(asks), verdicts[0].Source)
}

// waits is a request with that many keys of an owner, not begun.
func (n *scriptNode) waits(owner string, asks int) *waiting {
	all := make([]ask, asks)
	for i := range all {
		all[i] = ask{Rule: n.rule, Key: n.ownedBy(owner), Cost: 5}
	}
	return n.newWaiting(context.Background(), n.now, all, make([]verdict, asks))
}

// withStore has a core lease from a store.
func (n *scriptNode) withStore() *scriptedBase {
	b := &scriptedBase{}
	n.core.local, n.base = nil, b
	return b
}

// A node decides on a key of its own if it has the account, or if no other node can have it. Then all have
// handed over, it was its own ever since that, or all have stated for this very view that they have none.
func TestWhoDecidesOnOwnKeys(t *testing.T) {
	s, a := newPair(t)
	c, now := a.core, a.core.view.Load().ring
	mine, theirs := a.ownedBy("a:1"), a.ownedBy("b:1")
	alone := ring.Of([]string{"a:1"})
	for _, x := range []struct {
		what   string
		key    []byte
		stable bool
		since  []*ring.Ring
		has    bool
		found  fetchState
		before bool // found under another view
		change func()
		want   owned
	}{
		{what: "all have handed over", key: mine, stable: true, want: ownDecided},
		{what: "it is another's", key: theirs, stable: true, want: another},
		{what: "others may have it", key: mine, want: unsure},
		{what: "it has it", key: mine, has: true, want: ownDecided},
		{what: "it was its own before", key: mine, since: []*ring.Ring{alone}, want: ownDecided},
		{what: "nobody has any", key: mine, found: fetchAbsent, want: ownDecided},
		{what: "nobody had any under another ring", key: mine, found: fetchAbsent, before: true, want: unsure},
		{what: "it is looked for again", key: mine, found: fetchAgain, want: unsure},
		{what: "not all have heard that it joined", key: mine, stable: true, change: func() { c.unconfirmed.Store(true) }, want: another},
		{what: "it did not run", key: mine, stable: true, change: func() { c.ticked.Store(int64(s.now.Add(-lapseAfter - 1))) }, want: another},
	} {
		v := &view{ring: now, mine: true, since: x.since}
		v.stable.Store(x.stable)
		c.view.Store(v)
		c.unconfirmed.Store(false)
		c.ticked.Store(int64(s.now))
		c.local.TakeOut(s.now, mine)
		if x.has {
			a.has(mine)
		}
		if x.change != nil {
			x.change()
		}
		var found *fetch
		if x.found != fetching {
			if found = (&fetch{state: x.found, view: v}); x.before {
				found.view = &view{}
			}
		}
		vs := make([]verdict, 1)
		got := c.own(context.Background(), s.now, []ask{{Rule: s.rule, Key: x.key, Cost: 1}}, vs, found, nil)
		if got != x.want || (vs[0].Charged == 1) != (got == ownDecided) {
			t.Errorf("%s: %v, want %v: %+v", x.what, got, x.want, vs[0])
		}
	}
}

// A charge of an owner after this node's refusal is taken back there, when its answer arrives. It is not if the
// owner refuses as well, or if the rule has admitted here.
func TestLateAnswerOfAnOwnerIsUndone(t *testing.T) {
	for _, x := range []struct {
		what   string
		policy ratelimit.FailurePolicy
		reply  *wire.Reply // nil: the way breaks
		undone bool
	}{
		{"it has admitted", ratelimit.FailClosed, &wire.Reply{Charged: 5, Window: 3}, true},
		{"it has refused", ratelimit.FailClosed, &wire.Reply{OverLimit: true, Charged: 5}, false},
		{"it makes no sense", ratelimit.FailClosed, &wire.Reply{Charged: 6}, false},
		{"its way breaks", ratelimit.FailClosed, nil, false},
		{"the rule admits here", ratelimit.FailOpen, &wire.Reply{Charged: 5}, false},
	} {
		s, a := newPair(t)
		s.rule.Coordination.OnStoreFailure = x.policy
		m := a.core.members["b:1"]
		w := a.waits("b:1", 1)
		m.take(0)
		if !w.advance(s.now) {
			t.Fatal("it is another's, and decided")
		}
		id := m.take(0).GetAsks()[0].GetId()
		if !w.advance(w.until-1) || w.advance(w.until) {
			t.Fatal("it waits for its time, and no longer")
		}
		if v := w.verdicts[0]; v.Source != ratelimit.FromFallback || v.Reason != ratelimit.FallbackPeer || v.OverLimit != (x.policy == ratelimit.FailClosed) {
			t.Errorf("%s: decided %+v", x.what, v)
		}
		clear(w.asks[0].Key) // its caller goes on
		if x.reply == nil {
			m.broke(errPeerGone)
			m.ready.Store(true)
		} else {
			x.reply.Id = id
			m.replied([]*wire.Reply{x.reply})
		}
		a.tick(s.now)
		var asks []*wire.Ask
		if f := m.take(0); f != nil {
			asks = f.GetAsks()
		}
		if (len(asks) == 1) != x.undone {
			t.Fatalf("%s: it is told %v", x.what, asks)
		}
		if x.undone {
			key := string(a.ownedBy("b:1"))
			u, totals := asks[0], asks[0].GetTotals()
			if u.GetKind() != uint32(ratelimit.Peek) || totals.GetSpent() != -5 || totals.GetTaken() != -5 || totals.GetWindow() != 3 || u.GetRule() == nil || string(u.GetKey()) != key {
				t.Errorf("%s: it is told %v", x.what, u)
			}
		}
	}
}

// With a store, a request whose owner is late, and not gone, is refused if the store does not answer either,
// unless the rule prefers to admit. If the owner is gone, the policy decides.
func TestNeitherOwnerNorStore(t *testing.T) {
	for _, x := range []struct {
		what   string
		policy ratelimit.FailurePolicy
		heard  time.Duration // ago
		over   bool
		kind   ratelimit.Kind
	}{
		{"late", ratelimit.FailLocal, aliveFor - 1, true, ratelimit.Spend},
		{"gone", ratelimit.FailLocal, aliveFor, false, ratelimit.Spend},
		{"late, and the rule admits", ratelimit.FailOpen, 0, false, ratelimit.Spend},
		{"late, and it only looks", ratelimit.FailLocal, 0, false, ratelimit.Peek},
	} {
		s, a := newPair(t)
		s.rule.Coordination.OnStoreFailure, s.rule.Coordination.MaxNodes = x.policy, 2
		a.withStore()
		w := a.waits("b:1", 1)
		w.asks[0].Kind, w.late = x.kind, true
		s.now = s.now.Add(time.Hour)
		w.view.Load().peers["b:1"].lastSeen.Store(int64(s.now.Add(-x.heard)))
		before := w.stats.fallbacks.Load()
		if w.failed(s.now, 0, nil) != stepDone {
			t.Fatal("its time is over")
		}
		v := w.verdicts[0]
		if v.OverLimit != x.over || v.Source != ratelimit.FromFallback || v.Reason != ratelimit.FallbackPeer || v.ResetAfter <= 0 || w.stats.fallbacks.Load() != before+1 {
			t.Errorf("%s: %+v, %d counted", x.what, v, w.stats.fallbacks.Load()-before)
		}
		if x.over && v.ResetAfter != s.rule.Limit.Period() {
			t.Errorf("%s: %+v", x.what, v)
		}
	}
}

// With a store, this node leases a key whose owner does not answer in half of the request's time, and at once
// while it is silent. It does so within the rest of the time, and a late charge of the owner is taken back.
func TestLeasingInsteadOfAnOwner(t *testing.T) {
	for _, reply := range []*wire.Reply{{Charged: 5}, {OverLimit: true, Charged: 1, Debt: 4}} {
		s, a := newPair(t)
		b, m := a.withStore(), a.core.members["b:1"]
		m.take(0)
		w := a.waits("b:1", 1)
		w.verdicts[0].OverLimit = true // of an earlier request
		if !w.advance(s.now) || b.said != "" {
			t.Fatalf("the owner is to be asked: %q", b.said)
		}
		reply.Id = m.take(0).GetAsks()[0].GetId()
		at := s.now.Add(ratelimit.StoreDeadline / 2)
		if w.advance(at - 1); b.said != "" {
			t.Errorf("it leases too early: %q", b.said)
		}
		if w.advance(at) || b.said != fmt.Sprintf("asked 1 within %v\n", ratelimit.StoreDeadline/2) || w.stats.instead.Load() != 1 || instant(m.missed.Load()) != at {
			t.Errorf("it says %q, %d were leased instead", b.said, w.stats.instead.Load())
		}
		m.replied([]*wire.Reply{reply})
		if asks := m.take(0).GetAsks(); len(asks) != 1 || asks[0].GetKind() != 3 {
			t.Errorf("the owner has charged it, and is told %v", asks)
		}
		s.now = at.Add(1)
		for kind := range ratelimit.Refund { // a request, and one that only looks
			b.said, w = "", a.waits("b:1", 1)
			w.asks[0].Kind = kind
			if w.advance(s.now); b.said == "" || m.take(0) != nil || w.stats.instead.Load() != 2+uint64(kind) {
				t.Errorf("the owner is silent, and to an ask of kind %d it says %q", kind, b.said)
			}
		}
	}
}

// With a store, a refund that cannot leave for the key's owner is booked by this node. One that may have arrived is
// not: it would count twice.
func TestRefundWithoutItsOwnerIsBooked(t *testing.T) {
	for _, sent := range []bool{false, true} {
		s, a := newPair(t)
		b, m := a.withStore(), a.core.members["b:1"]
		m.take(0)
		w := a.waits("b:1", 1)
		w.asks[0].Kind = ratelimit.Refund
		if sent {
			w.advance(s.now)
			m.take(0)
		}
		m.broke(errPeerGone)
		open := w.advance(s.now)
		if booked := b.said != ""; open || booked == sent || w.verdicts[0].OverLimit {
			t.Errorf("sent %v: waits %v, booked %v: %+v", sent, open, booked, w.verdicts[0])
		}
	}
}

// What a store's limiter admitted without an answer, of another's key, is refused after
// all, and taken back; unless the rule would rather admit, or the store is gone.
func TestAdmittedWithoutOwnerOrStore(t *testing.T) {
	late := verdict{Source: ratelimit.FromFallback, Reason: ratelimit.FallbackDeadline, Charged: 5, Booked: 5, Remaining: 3}
	for _, x := range []struct {
		what    string
		verdict verdict
		step    waitStep
		policy  ratelimit.FailurePolicy
		undone  bool
	}{
		{"in vain", late, inPlace, ratelimit.FailLocal, true},
		{"a key of its own", late, atBase, ratelimit.FailLocal, false},
		{"the rule admits", late, inPlace, ratelimit.FailOpen, false},
		{"refused", verdict{OverLimit: true, Source: late.Source, Reason: late.Reason}, inPlace, ratelimit.FailLocal, false},
		{"leased", verdict{Source: ratelimit.FromClaim, Charged: 5}, inPlace, ratelimit.FailLocal, false},
		{"the store is gone", verdict{Source: late.Source, Reason: ratelimit.FallbackBreaker, Charged: 5}, inPlace, ratelimit.FailLocal, false},
	} {
		s, a := newPair(t)
		s.rule.Coordination.OnStoreFailure = x.policy
		b := a.withStore()
		w := a.waits("b:1", 1)
		w.states[0].step, w.verdicts[0] = x.step, x.verdict
		w.decidedByBase(s.now, 0)
		want, said := x.verdict, ""
		if x.undone {
			want = verdict{OverLimit: true, Source: late.Source, Reason: late.Reason}
			said = fmt.Sprintf("undo 1 of source %d\n", late.Source)
		}
		if w.verdicts[0] != want || b.said != said || w.states[0].step != stepDone {
			t.Errorf("%s: %+v, %q", x.what, w.verdicts[0], b.said)
		}
	}
}

// An undo goes to the node that charged. That is the owner, the lease of a hot key, this node's own account if
// the key is its own by now, or its share of an outage.
func TestWhereAVerdictIsUndone(t *testing.T) {
	const owner, hand, base, nobody = "owner", "hand", "base", "nobody"
	for _, x := range []struct {
		what   string
		owner  string
		v      verdict
		source ratelimit.Source
		by     string
	}{
		{"charged by its owner", "b:1", verdict{Source: ratelimit.FromOwner}, 0, owner},
		{"debt at its owner", "b:1", verdict{Source: ratelimit.FromOwner, OverLimit: true, Debt: 1, Window: 3}, 0, owner},
		{"charged by its owner, and this node's by now", "a:1", verdict{Source: ratelimit.FromOwner}, ratelimit.FromLease, base},
		{"leased as a hot key", "b:1", verdict{Source: ratelimit.FromLease, Window: 3}, 0, hand},
		{"leased in another window", "b:1", verdict{Source: ratelimit.FromLease, Window: 2}, 0, owner},
		{"its own", "a:1", verdict{Source: ratelimit.FromLease}, ratelimit.FromLease, base},
		{"one key too many", "b:1", verdict{Source: ratelimit.FromOverflow}, ratelimit.FromOverflow, base},
		{"decided without its owner", "b:1", verdict{Source: ratelimit.FromFallback, Reason: ratelimit.FallbackPeer}, 0, nobody},
	} {
		s, a := newPair(t)
		c, below := a.core, &scriptedBase{}
		c.base = below
		c.hotHere.Start(s.now, a.ownedBy("b:1"))
		totals, _ := c.hotHere.Report(s.now, &ask{Rule: s.rule, Key: a.ownedBy("b:1")})
		x3 := leasing.Lease{Window: 3, Granted: 5, Keep: true, For: time.Second}
		c.hotHere.Apply(s.now, a.ownedBy("b:1"), totals.Seq, x3, &verdict{})
		spent := ask{Rule: s.rule, Key: a.ownedBy("b:1"), Cost: 4}
		c.hotHere.Take(s.now, &spent, new(verdict))
		m := c.members["b:1"]
		m.take(0)
		x.v.Charged = 4
		c.Undo(s.now, []ask{{Rule: s.rule, Key: a.ownedBy(x.owner), Cost: 5}}, []verdict{x.v})
		want := map[string]string{x.by: fmt.Sprintf("undo 1 of source %d\n", x.source)}
		asks := m.take(0).GetAsks()
		if below.said != want[base] || (len(asks) == 1) != (x.by == owner) {
			t.Errorf("%s: the base is told %q", x.what, below.said)
		}
		// Debt is beyond the limit, and is subtracted from that.
		if x.by == owner && (asks[0].GetOverLimit() != x.v.OverLimit || asks[0].GetCharged() != 4 || asks[0].GetDebt() != int64(x.v.Debt)) {
			t.Errorf("%s: the owner gets %v", x.what, asks)
		}
		spent.Cost = 5
		if ok := c.hotHere.Take(s.now, &spent, new(verdict)); ok != (x.by == hand) {
			t.Errorf("%s: it is in hand again %v", x.what, ok)
		}
	}
	s, a := newPair(t)
	b := a.withStore()
	v := verdict{Source: ratelimit.FromFallback, Reason: ratelimit.FallbackDeadline, Charged: 4}
	a.core.Undo(s.now, []ask{{Rule: s.rule, Key: a.ownedBy("b:1"), Cost: 5}}, []verdict{v})
	if want := fmt.Sprintf("undo 1 of source %d\n", ratelimit.FromFallback); b.said != want {
		t.Errorf("decided without a store: its limiter is told %q", b.said)
	}
}

// A peer's ask that its owner cannot answer in time is left to the peer; its policy decides, and not this node's.
func TestPeersAskThatTakesTooLong(t *testing.T) {
	_, a := newPair(t)
	w := a.waits("a:1", 1)
	w.remote = true
	w.states[0].fetch = &fetch{view: w.view.Load(), open: 1}
	if w.advance(w.until); w.states[0].status != notInTime || w.verdicts[0] != (verdict{}) || w.stats.fallbacks.Load() != 0 {
		t.Errorf("status %d, %+v", w.states[0].status, w.verdicts[0])
	}
}

// Of a run of asks, those for another's key are leased for the request alone; others by their rule.
func TestLeasesForOneRequest(t *testing.T) {
	s, a := newPair(t)
	a.withStore()
	w := a.waits("b:1", 4)
	w.states[0].step, w.states[2].step = inPlace, inPlace
	asks, within := w.baseTime(s.now, 1, 4)
	if within != ratelimit.StoreDeadline || len(asks) != 3 || asks[0].Rule != s.rule || asks[1].Rule == s.rule || asks[2].Rule != s.rule || w.asks[2].Rule != s.rule {
		t.Errorf("within %v: %+v", within, asks)
	}
	w.states[2].step = atBase
	if asks, within := w.baseTime(s.now, 1, 4); within != 0 || asks[1].Rule != s.rule {
		t.Errorf("within %v: %+v", within, asks)
	}
}

// With a store, what is all this node's own is the base's at once; with one ask for another's key, the request waits.
func TestDecidingWithAStore(t *testing.T) {
	s, a := newPair(t)
	b := a.withStore()
	decides := func(owners ...string) *waiting {
		b.said = ""
		asks := make([]ask, len(owners))
		for i, o := range owners {
			asks[i] = ask{Rule: s.rule, Key: a.ownedBy(o), Cost: 1}
		}
		return a.decide(context.Background(), s.now, asks, make([]verdict, len(asks)))
	}
	if w := decides("a:1", "a:1"); w != nil || b.said != "asked 2 within 0s\n" {
		t.Errorf("its own: waits %v, %q", w != nil, b.said)
	}
	if w := decides("a:1", "b:1"); w == nil || b.said != "asked 1 within 0s\n" {
		t.Errorf("one is another's: waits %v, %q", w != nil, b.said)
	}
	if w := decides("b:1"); w == nil || b.said != "" {
		t.Errorf("another's: waits %v, %q", w != nil, b.said)
	}
}
