package routing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// Without an owner the rule's policy decides, and nothing is charged for a
// question; what is undone was charged to this node's share, if to anything.
func TestDecidingWithoutAnOwner(t *testing.T) {
	for policy, want := range map[ratelimit.FailurePolicy]struct {
		admitted int // of five asks of one token, undone from the fourth on
		charged  ratelimit.Tokens
	}{ratelimit.FailOpen: {5, 1}, ratelimit.FailClosed: {0, 0}, ratelimit.FailLocal: {4, 1}} {
		s, n := newPair(t)
		s.rule.Coordination.OnStoreFailure, s.rule.Coordination.MaxNodes = policy, 3
		key, admitted := n.ownedBy("b:1"), 0
		s.crash("b:1")
		for i := range 5 {
			a := ask{Rule: s.rule, Key: key, Cost: 1}
			v := s.one("a:1", a)
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
				n.Undo([]ask{a}, []verdict{v})
			}
		}
		if admitted != want.admitted {
			t.Errorf("%v: %d were admitted, want %d", policy, admitted, want.admitted)
		}
		if v := s.one("a:1", ask{Key: key, Cost: 1, Kind: ratelimit.Peek}); v.OverLimit == (policy == ratelimit.FailOpen) || v.Charged != 0 {
			t.Errorf("%v: a peek after all of a node's own budget: %+v", policy, v)
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
	}{
		{&wire.Reply{}, verdict{Source: ratelimit.FromOwner}, true},
		{&wire.Reply{OverLimit: true, Remaining: 1, Charged: 2, ResetUs: 3, Window: 4}, verdict{OverLimit: true, Source: ratelimit.FromOwner, Remaining: 1, Charged: 2, ResetAfter: 3 * time.Microsecond, Window: 4}, true},
		{&wire.Reply{Remaining: -1, ResetUs: -3}, verdict{Source: ratelimit.FromOwner}, true}, // nothing is negative
		{&wire.Reply{OverLimit: true, Charged: 1, Debt: 1}, verdict{OverLimit: true, Source: ratelimit.FromOwner, Charged: 1, Debt: 1}, true},
		{&wire.Reply{Status: notOwner}, verdict{}, false},
		{&wire.Reply{Status: malformed}, verdict{}, false},
		{&wire.Reply{Status: notInTime}, verdict{}, false},
		{nil, verdict{}, false},
	} {
		call := newCall(nil)
		call.finish(x.reply, nil)
		v, ok := c.read(s.now, &a, call)
		if v != x.want || ok != x.ok {
			t.Errorf("%v: %+v %v", x.reply, v, ok)
		}
	}
	if _, ok := c.read(s.now, &a, failedCall(errPeerGone)); ok {
		t.Error("nobody has answered")
	}
}
