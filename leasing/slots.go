package leasing

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Slots of keys that this node alone decides about (account.Slots).

// slotAsk is an ask in the form of slots. A refund has no slot: it changes nothing.
func slotAsk(a *ask) account.SlotAsk {
	x := account.SlotAsk{Slot: int64(a.Window), Limit: a.Rule.Limit.Requests, TTL: a.Rule.Limit.Period()}
	switch {
	case a.Window == 0:
	case a.Kind == ratelimit.Spend:
		x.Op = account.SlotTake
	case a.Kind == ratelimit.Release:
		x.Op = account.SlotGive
	}
	return x
}

// heldBy is the table's entry of a key with these slots: a window that ends when all have returned.
func heldBy(all account.Slots) counter {
	return counter{sum: tokens(len(all)), state: 1, ends: all.Last()}
}

// slotsForKey is the room for slots, for each key that the node may track: 64 bytes each. A part of the table has
// room for at least one key's.
const slotsForKey = 4

// roomForSlots tells whether there is room for a slot. A full part drops its ended slots: once a second at most,
// because that visits all keys.
func (s *counterShard) roomForSlots(now ledgerTime) bool {
	most := max(slotsForKey*s.keys.Limit(), int(ratelimit.MaxConcurrency))
	if s.slots >= most && now.Sub(s.swept) >= time.Second {
		s.swept, s.slots = now, 0
		for _, k := range s.lent {
			k.slots.Decide(now, &account.SlotAsk{})
			s.slots += len(k.slots)
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
	s.decideSlots(now, s.beside(c), c, a, v)
	return true
}

// undoSlot gives back the slot that an ask took.
func (p *counters) undoSlot(a *ask) {
	back, v := *a, verdict{}
	back.Kind = ratelimit.Release
	s, _, c := p.locked(a.Key)
	defer s.mu.Unlock()
	if k := s.of(c); k != nil {
		s.decideSlots(math.MinInt64, k, c, &back, &v)
	}
}

func (s *counterShard) decideSlots(now ledgerTime, k *lent, c *counterCell, a *ask, v *verdict) {
	before, x := len(k.slots), slotAsk(a)
	answer, _ := k.slots.Decide(now, &x)
	s.slots += len(k.slots) - before
	has := ratelimit.SlotHeld(answer.Has && x.Op != account.SlotLook)
	c.Val, *v = heldBy(k.slots), a.DecideSlot(answer.Taken, has)
}

// forget drops the leases and slots of a key.
func (s *counterShard) forget(id keytable.ID) {
	if k := s.lent[id]; k != nil {
		s.slots -= len(k.slots)
		delete(s.lent, id)
	}
}

// lesseesOf are slots in the form of a handover.
func lesseesOf(all account.Slots) []Lessee {
	moved := make([]Lessee, len(all))
	for i, s := range all {
		moved[i] = Lessee{Holder: ratelimit.Holder(s.Number), Life: 1, Seq: 1, Until: s.Until}
	}
	return moved
}

// adoptSlots continues slots of another process, whose ledger clock is lag behind this one's. A slot that is here
// already counts once.
func (s *counterShard) adoptSlots(k *lent, c *counterCell, moved []Lessee, lag ledgerTime) {
	before := len(k.slots)
	for _, r := range moved {
		number := int64(r.Holder)
		known := slices.ContainsFunc(k.slots, func(s account.Slot) bool { return s.Number == number })
		if !known && len(k.slots) < int(ratelimit.MaxConcurrency) {
			k.slots = append(k.slots, account.Slot{Number: number, Until: r.Until + lag})
		}
	}
	s.slots += len(k.slots) - before
	c.Val = heldBy(k.slots)
	setAlgorithm(c, ratelimit.Concurrency)
}
