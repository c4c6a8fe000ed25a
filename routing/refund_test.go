package routing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A refund that cannot reach the key's owner counts in its own window, if it reaches the owner in the next one.
func TestLateRefundsCountInTheirWindow(t *testing.T) {
	for _, at := range []struct {
		refund   time.Duration // the window ends after a minute
		admitted ratelimit.Tokens
	}{{59700 * time.Millisecond, 10}, {60100 * time.Millisecond, 13}} {
		s, a := newPair(t)
		s.rule.Limit.Unit = ratelimit.Minute
		key, admitted := a.ownedBy("b:1"), ratelimit.Tokens(0)
		ask := func(addr string, kind ratelimit.Kind, cost ratelimit.Tokens) {
			asks, v := []ask{{Rule: s.rule, Key: key, Kind: kind, Cost: cost}}, make([]verdict, 1)
			s.nodes[addr].Ask(asks, v, nil, func() {
				if kind == ratelimit.Spend && !v[0].OverLimit {
					admitted += cost
				}
			})
		}
		until := func(instant time.Duration) { s.play(time.Second + instant - time.Duration(s.now)) }
		until(at.refund)
		a.cut = true
		s.breakAll("a:1", "b:1")
		s.play(100 * time.Millisecond)
		ask("a:1", ratelimit.Refund, 3)
		until(60300 * time.Millisecond)
		ask("b:1", ratelimit.Spend, 6)
		a.cut = false
		s.play(3 * time.Second)
		for range 10 {
			ask("b:1", ratelimit.Spend, 1)
			s.play(50 * time.Millisecond)
		}
		if admitted != at.admitted {
			t.Errorf("%d of 10 were admitted after a refund at %v, want %d", admitted, at.refund, at.admitted)
		}
	}
}

// A charge of an ended window counts nowhere, also if it cannot reach the key's owner at first.
func TestLateChargesCountInNoOtherWindow(t *testing.T) {
	s, a := newPair(t)
	s.rule.Limit.Unit = ratelimit.Minute
	key, admitted := a.ownedBy("b:1"), ratelimit.Tokens(0)
	ask := func(addr string, kind ratelimit.Kind, cost ratelimit.Tokens, w ratelimit.Window) *verdict {
		asks, v := []ask{{Rule: s.rule, Key: key, Kind: kind, Cost: cost, Window: w}}, make([]verdict, 1)
		s.nodes[addr].Ask(asks, v, nil, func() {
			if kind == ratelimit.Spend && !v[0].OverLimit {
				admitted += cost
			}
		})
		s.play(50 * time.Millisecond)
		return &v[0]
	}
	held := ask("a:1", ratelimit.Spend, 1, 0)
	if held.OverLimit || held.Window == 0 {
		t.Fatalf("%+v", held)
	}
	s.play(61*time.Second - time.Duration(s.now) + time.Second)
	a.cut, admitted = true, 0
	s.breakAll("a:1", "b:1")
	ask("a:1", ratelimit.Charge, 8, held.Window)
	a.cut = false
	s.play(3 * time.Second)
	for range 12 {
		ask("b:1", ratelimit.Spend, 1, 0)
	}
	if admitted != 10 {
		t.Errorf("%d of 10 are admitted in the window after that of a charge", admitted)
	}
}
