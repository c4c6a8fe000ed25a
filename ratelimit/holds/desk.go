package holds

import (
	"bytes"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Desk makes and settles the holds of a node. The zero Desk has no keys: it makes no holds, and accepts none.
// It is safe for concurrent use.
type Desk struct {
	Keys
	settled memory
}

// Held is the part of a hold for one budget.
type Held struct {
	Amount ratelimit.Tokens
	// At is an instant in the window in which it was charged.
	At ratelimit.LedgerTime
	// Slot is the hold's number: the slot that it has under a concurrency limit.
	Slot uint64
}

// Settle takes a hold in, of a budget, to be settled now: in seconds since the Unix epoch. It is good for one
// settlement, and none after ttl. If it is not good, the result says why, and nothing may be booked. Only a slot may be
// given back, which changes nothing the second time: a long request may end after its node has dropped its hold.
func (d *Desk) Settle(s string, budget []byte, now int64, ttl time.Duration) (Held, ratelimit.Settled) {
	var h hold
	if !d.read(s, &h) {
		return Held{}, ratelimit.HoldForged
	}
	tag, result := h.key.tag(h.raw[:], budget), ratelimit.HoldForeign
	at := ratelimit.LedgerTime(time.Unix(h.at, 0).UnixMicro())
	for i := range h.parts {
		if !bytes.Equal(h.tags[i], tag) {
			continue
		}
		result = ratelimit.HoldExpired
		if now-h.at > int64(ttl/time.Second) {
			break
		}
		result = ratelimit.HoldReplayed
		// A request may hold of one budget twice: each part is for one settlement, and a used one leads to the next.
		switch d.settled.mark(h.id, i, h.at, now) {
		case marked:
			return Held{h.amounts[i], at, h.slot}, ratelimit.SettledCost
		case forgotten:
			return Held{Slot: h.slot}, ratelimit.HoldExpired
		case before:
		}
	}
	return Held{At: at}, result
}
