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
