package local

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Slots of keys that this node alone decides about (account.Slots).

// heldBy is the table's entry of a key with these slots: a window that ends when all have returned.
func heldBy(all account.Slots) counter {
	return counter{sum: tokens(len(all)), state: 1, ends: all.Last()}
}

// slotsForKey is the room for slots, for each key that the node may track: 64 bytes each. A part of the table has
// room for at least one key's.
const slotsForKey = 4

// roomForSlots reports whether there is room for a slot. A full part drops its ended slots: once a second at most,
// because that visits all keys.
func (s *counterShard) roomForSlots(now ledgerTime) bool {
	// A single key can have MaxConcurrency slots, also in a small table.
	most := max(slotsForKey*s.keys.Limit(), int(ratelimit.MaxConcurrency))
	if s.slots >= most && now.Sub(s.swept) >= time.Second {
		s.swept, s.slots = now, 0
		for _, taken := range s.taken {
			taken.Decide(now, &account.SlotAsk{})
			s.slots += len(*taken)
		}
	}
	return s.slots < most
}

// decideSlot answers an ask under a concurrency limit, or reports that there is no room for the key.
func (p *counters) decideSlot(now ledgerTime, a *ask, v *verdict) bool {
	s, id, c := p.locked(a.Key)
	defer s.mu.Unlock()
	if c == nil && a.Kind != ratelimit.Spend {
		*v = a.DecideSlot(0, ratelimit.NoSlot)
		return true
	}
	if a.Kind == ratelimit.Spend && !s.roomForSlots(now) {
		return false
	}
	now, c = p.enter(s, now, id, c, a)
	if c == nil {
		return false
	}
	s.decideSlots(now, c, a, v)
	return true
}

// undoSlot gives back the slot that an ask took. math.MinInt64 as the time: an undo must not drop ended slots, because
// it has no time.
func (p *counters) undoSlot(a *ask) {
	back, v := *a, verdict{}
	back.Kind = ratelimit.Release
	s, _, c := p.locked(a.Key)
	defer s.mu.Unlock()
	if c != nil && algorithmOf(c) == ratelimit.Concurrency {
		s.decideSlots(math.MinInt64, c, &back, &v)
	}
}

// decideSlots answers an ask by the slots of its key, and has the table keep the key until all have ended.
func (s *counterShard) decideSlots(now ledgerTime, c *counterCell, a *ask, v *verdict) {
	taken := s.taken[c.ID()]
	if taken == nil {
		taken = &account.Slots{}
		s.taken[c.ID()] = taken
	}
	before, x := len(*taken), account.SlotAskOf(a)
	answer, _ := taken.Decide(now, &x)
	s.slots += len(*taken) - before
	has := ratelimit.SlotHeld(answer.Has && x.Op != account.SlotLook)
	c.Val, *v = heldBy(*taken), a.DecideSlot(answer.Taken, has)
}

// forget drops the slots of a key.
func (s *counterShard) forget(id keytable.ID) {
	if taken := s.taken[id]; taken != nil {
		s.slots -= len(*taken)
		delete(s.taken, id)
	}
}
