package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A node that refuses by itself, and is told again and again at a glance that it still is so, believes the ledger's
// clock each time: when the ledger's window has turned, so has the node's, although the ledger's clock was set ahead
// meanwhile by a little or more, or runs faster than the node's.
func TestGlanceTellsWhenTheWindowEnds(t *testing.T) {
	perDay := ratelimit.Limit{Unit: ratelimit.Day, Requests: 100}
	for name, c := range map[string]struct {
		limit       ratelimit.Limit
		ahead       func(passed time.Duration) time.Duration // by which the ledger's clock is ahead of the node's
		from, every time.Duration
	}{
		"set by 95 ms": {perMinute100, func(passed time.Duration) time.Duration {
			if passed > 4*time.Second {
				return 95 * time.Millisecond
			}
			return 0
		}, 0, 10 * time.Millisecond},
		"set by 15 s": {perMinute100, func(passed time.Duration) time.Duration {
			if passed > 4*time.Second {
				return 15 * time.Second
			}
			return 0
		}, 0, 10 * time.Millisecond},
		"60 ppm faster": {perDay, func(passed time.Duration) time.Duration { return passed * 60 / 1_000_000 }, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s := newNodeScript(t, c.limit)
			s.Recalls()
			begins := s.now
			at := func() ledgerTime {
				passed := s.now.Sub(begins)
				return ledgertest.Epoch.Add(passed + c.ahead(passed))
			}
			s.ledger = ledger.NewMemory(100, at)
			for _, cost := range []tokens{100, 1} {
				r := s.asks(cost)
				s.exchange()
				r.decided()
			}
			window, glances, every := c.limit.WindowAt(at()), 0, c.every
			for turned := instant(0); ; {
				s.passes(every)
				if turned == 0 && c.limit.WindowAt(at()) != window {
					turned, every = s.now, 10*time.Millisecond
				}
				r := s.asks(1)
				if b := s.Batch(); b != nil {
					if g := s.settled(b, 0); g.Drawn && b.Claims()[0].Glance {
						glances++
					}
				}
				late := s.now.Sub(turned)
				if r.decided() && !r.v[0].OverLimit || turned > 0 && late > 30*time.Second {
					if turned == 0 || late > 50*time.Millisecond || glances == 0 {
						t.Errorf("admitted %v after the ledger's window had turned, with %d glances", late, glances)
					}
					return
				}
			}
		})
	}
}
