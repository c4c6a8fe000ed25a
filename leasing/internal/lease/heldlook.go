package lease

import (
	"math"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Hot is the key as one of the hottest.
func (h *Held) Hot(name string, rate float64) ratelimit.HotKey {
	l := &h.Lease
	return ratelimit.HotKey{
		Account: name, Rule: h.Rule.Domain + "." + h.Rule.Path, PerSecond: math.Round(rate*10) / 10,
		Spent: l.Spent, Unspent: l.Unspent(), Limit: h.Rule.Remaining(l.Limit().Capacity()), Fence: l.Fence,
	}
}
