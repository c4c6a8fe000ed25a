package routing

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// scriptedBase is a limiter below a core that has a store: it records its asks and undos, and decides as scripted.
type scriptedBase struct {
	said    []string
	verdict verdict
}

func (b *scriptedBase) decide(_ context.Context, _ instant, within time.Duration, asks []ask, verdicts []verdict) {
	b.said = append(b.said, fmt.Sprintf("asked %d within %v", len(asks), within))
	for i := range asks {
		verdicts[i] = b.verdict
		if asks[i].Rule.Coordination.Lease.Fixed == 1 {
			b.said = append(b.said, "per request")
		}
	}
}

func (b *scriptedBase) Undo(_ instant, asks []ask, verdicts []verdict) {
	b.said = append(b.said, fmt.Sprintf("undo %d of source %d", len(asks), verdicts[0].Source))
}

// spoken is what was said since the last call.
func (b *scriptedBase) spoken() string {
	said := strings.Join(b.said, ", ")
	b.said = nil
	return said
}

// withStore has a node lease from a store, which admits all.
func (n *scriptNode) withStore() *scriptedBase {
	b := &scriptedBase{verdict: verdict{Source: ratelimit.FromClaim, Charged: 5, Window: 3}}
	n.core.local, n.base = nil, b
	return b
}

// newStorePair is a pair of nodes with a store.
func newStorePair(t *testing.T) (s *script, a *scriptNode, ofA, ofB *scriptedBase) {
	s, a = newPair(t)
	return s, a, a.withStore(), s.nodes["b:1"].withStore()
}

// asks sends a request with a key of each owner, and returns the verdicts after a while.
func (n *scriptNode) asks(kind ratelimit.Kind, owners ...string) []verdict {
	asks, v := make([]ask, len(owners)), make([]verdict, len(owners))
	for i, owner := range owners {
		asks[i], v[i] = ask{Rule: n.rule, Key: n.ownedBy(owner), Cost: 5, Kind: kind}, verdict{OverLimit: true}
	}
	n.Ask(asks, v, nil, func() {})
	n.play(50 * time.Millisecond)
	return v
}

// All keys of this node's own are decided in one call. Others are decided by their owners.
func TestDecidingWithAStore(t *testing.T) {
	_, a, ofA, ofB := newStorePair(t)
	for _, x := range []struct {
		owners    []string
		here, off string
	}{
		{[]string{"a:1", "a:1"}, "asked 2 within 0s", ""},
		{[]string{"a:1", "b:1", "a:1"}, "asked 1 within 0s, asked 1 within 0s", "asked 1 within 0s"},
		{[]string{"b:1", "b:1"}, "", "asked 2 within 0s"},
	} {
		v := a.asks(ratelimit.Spend, x.owners...)
		if here, off := ofA.spoken(), ofB.spoken(); here != x.here || off != x.off {
			t.Errorf("%v: this node is asked %q, the other %q", x.owners, here, off)
		}
		for i, owner := range x.owners {
			if v[i].OverLimit || v[i].Charged != 5 || (v[i].Source == ratelimit.FromOwner) != (owner == "b:1") {
				t.Errorf("%v: %+v", x.owners, v[i])
			}
		}
	}
}

// A node leases a key for one request if its owner does not answer in half of the time, and at once while it is silent.
// What the owner charges late is taken back there.
func TestOwnerThatIsLateIsPassedBy(t *testing.T) {
	s, a, ofA, ofB := newStorePair(t)
	s.delay = 30 * time.Millisecond
	instead := fmt.Sprintf("asked 1 within %v, per request", ratelimit.StoreDeadline/2)
	if v := a.asks(ratelimit.Spend, "b:1"); v[0].OverLimit || v[0].Source != ratelimit.FromClaim || ofA.spoken() != instead {
		t.Errorf("%+v", v[0])
	}
	for _, kind := range []ratelimit.Kind{ratelimit.Spend, ratelimit.Peek} {
		a.core.members["b:1"].lastSeen.Store(0)
		if a.asks(kind, "b:1"); ofA.spoken() != fmt.Sprintf("asked 1 within %v, per request", ratelimit.StoreDeadline) {
			t.Error("the owner is silent, and is waited for")
		}
	}
	s.play(time.Second)
	if said := ofB.spoken(); said != "asked 1 within 0s, undo 1 of source 0" || a.stats.instead.Load() != 3 {
		t.Errorf("the owner is told %q", said)
	}
	a.stats.instead.Store(0)
	s.delay = 100 * time.Microsecond
	s.play(time.Second)
	if v := a.asks(ratelimit.Spend, "b:1"); v[0].Source != ratelimit.FromOwner || a.stats.instead.Load() != 0 {
		t.Errorf("the owner answers again: %+v", v[0])
	}
}

// A node that does not own a key refuses to decide, and the other node leases.
func TestOwnerThatIsNone(t *testing.T) {
	s, a, ofA, ofB := newStorePair(t)
	b := s.nodes["b:1"]
	b.view.Store(&view{ring: a.view.Load().ring, peers: b.view.Load().peers})
	b.options.Addr = "c:1"
	if v := a.asks(ratelimit.Spend, "b:1"); v[0].Source != ratelimit.FromClaim || ofB.spoken() != "" || ofA.spoken() == "" {
		t.Errorf("%+v", v[0])
	}
}

// A refund that cannot leave for the key's owner is booked by this node. One that may have arrived is not: it would
// count twice.
func TestRefundWithoutItsOwnerIsBooked(t *testing.T) {
	for _, sent := range []bool{false, true} {
		s, a, ofA, _ := newStorePair(t)
		if sent {
			s.delay = time.Second
		} else {
			a.core.members["b:1"].broke(errPeerGone)
		}
		v := a.asks(ratelimit.Refund, "b:1")
		if said := ofA.spoken(); v[0].OverLimit || (said != "") == sent {
			t.Errorf("sent %v: it says %q: %+v", sent, said, v[0])
		}
	}
}

// What a node admits without an answer, in place of an owner, is refused after all, and taken back. It stands if the
// rule would rather admit, or the store is gone.
func TestAdmittedWithoutOwnerOrStore(t *testing.T) {
	late := verdict{Source: ratelimit.FromFallback, Reason: ratelimit.FallbackDeadline, Charged: 5, Booked: 5, Remaining: 3}
	gone := late
	gone.Reason = ratelimit.FallbackBreaker
	for _, x := range []struct {
		what   string
		of     verdict
		owner  string
		policy ratelimit.FailurePolicy
		undone bool
	}{
		{"in vain", late, "b:1", ratelimit.FailLocal, true},
		{"a key of its own", late, "a:1", ratelimit.FailLocal, false},
		{"the rule admits", late, "b:1", ratelimit.FailOpen, false},
		{"leased", verdict{Source: ratelimit.FromClaim, Charged: 5}, "b:1", ratelimit.FailLocal, false},
		{"the store is gone", gone, "b:1", ratelimit.FailLocal, false},
	} {
		s, a, ofA, _ := newStorePair(t)
		s.rule.Coordination.OnStoreFailure, ofA.verdict = x.policy, x.of
		s.delay = time.Second
		v, want := a.asks(ratelimit.Spend, x.owner)[0], x.of
		if x.undone {
			want = verdict{OverLimit: true, Source: late.Source, Reason: late.Reason}
		}
		if v != want || strings.Contains(ofA.spoken(), "undo") != x.undone {
			t.Errorf("%s: %+v", x.what, v)
		}
	}
}

// A charge is taken back at the owner of the key now. This node takes back its own.
func TestUndoWithAStore(t *testing.T) {
	for _, x := range []struct {
		owner     string
		source    ratelimit.Source
		here, off string
	}{
		{"b:1", ratelimit.FromOwner, "", "undo 1 of source 0"},
		{"a:1", ratelimit.FromOwner, "undo 1 of source 0", ""},
		{"a:1", ratelimit.FromClaim, fmt.Sprint("undo 1 of source ", int(ratelimit.FromClaim)), ""},
		{"b:1", ratelimit.FromClaim, fmt.Sprint("undo 1 of source ", int(ratelimit.FromClaim)), ""},
	} {
		s, a, ofA, ofB := newStorePair(t)
		a.Undo([]ask{{Rule: s.rule, Key: a.ownedBy(x.owner), Cost: 5}}, []verdict{{Source: x.source, Charged: 5, Window: 3}})
		s.play(50 * time.Millisecond)
		if here, off := ofA.spoken(), ofB.spoken(); here != x.here || off != x.off {
			t.Errorf("%+v: this node takes back %q, the owner %q", x, here, off)
		}
	}
}
