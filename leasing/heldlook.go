package leasing

import (
	"math"

	"github.com/sluice-gate/sluice/ratelimit"
)

// hot is the key as one of the hottest.
func (h *Held) hot(name string, rate float64) ratelimit.HotKey {
	l := &h.lease
	return ratelimit.HotKey{
		Account: name, Rule: h.rule.Domain + "." + h.rule.Path, PerSecond: math.Round(rate*10) / 10,
		Spent: l.Spent, Unspent: l.Unspent(), Limit: l.Limit().Capacity(), Fence: l.Fence,
	}
}
