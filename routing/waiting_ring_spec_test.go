package routing

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// An owner that has let a request wait counts as silent for a tenth of a second, unless a message of it
// arrives. It is alive for a quarter after its last message.
func TestSilentOwners(t *testing.T) {
	const ms = time.Millisecond
	at := instant(time.Hour)
	for _, x := range []struct {
		missed, heard, now time.Duration
		silent, alive      bool
	}{
		{0, -ms, 0, true, true},
		{0, -ms, 100*ms - 1, true, true},
		{0, -ms, 100 * ms, false, true},
		{0, 0, ms, true, true},
		{0, 1, ms, false, true},
		{0, 0, 250*ms - 1, false, true},
		{0, 0, 250 * ms, false, false},
	} {
		l := &link{}
		l.missed.Store(int64(at.Add(x.missed)))
		l.lastSeen.Store(int64(at.Add(x.heard)))
		if now := at.Add(x.now); l.silent(now) != x.silent || l.alive(now) != x.alive {
			t.Errorf("%+v: silent %v, alive %v", x, l.silent(now), l.alive(now))
		}
	}
	never := &link{}
	if never.silent(5) || (*link)(nil).silent(5) || (*link)(nil).alive(5) {
		t.Error("nobody has let a request wait")
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

// While the ring changes, an ask is tried again in a moment, and not before; with a
// store, this node leases when half of the request's time is over.
func TestWaitingWhileTheRingChanges(t *testing.T) {
	s, a := newPair(t)
	b, m := a.withStore(), a.core.members["b:1"]
	m.take(0)
	w := a.waits("b:1", 1)
	w.states[0].again = w.until
	at := s.now.Add(ratelimit.StoreDeadline / 2)
	if w.advance(at - 1); b.said != "" || m.take(0) != nil {
		t.Errorf("it is not to be asked yet: %q", b.said)
	}
	if w.advance(at); b.said == "" || m.take(0) != nil {
		t.Error("nobody has answered for half of its time")
	}
	b.said = ""
	w = a.waits("a:1", 1)
	w.states[0].again = s.now.Add(askAgain)
	if w.advance(s.now); b.said != "" {
		t.Errorf("its own is decided too early: %q", b.said)
	}
	if w.advance(s.now.Add(askAgain)); b.said == "" {
		t.Error("it is to be asked again")
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
