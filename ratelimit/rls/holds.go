// Holds: a request reserves an estimate when it starts, and its cost replaces it when it has ended
// (docs/guides/token-budgets.md). The two are calls of their own, perhaps at two nodes:
//
//	start, with an id   addHeld charges the estimate; concludeHolds puts it into the answer as sluice_hold
//	end, with an id     its descriptor ends with that entry; settleByID books the cost less the estimate
//	without an id       the number of hits says which call it is (hold.on); settle subtracts the rule's amount
//
// Slots of concurrency limits are holds of one token, whose end releases the slot of that number. Package holds makes
// and reads the text of sluice_hold.

package rls

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/holds"
	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
)

// Entries at the end of a descriptor that no rule matches.
const (
	// EntryHold brings a request's hold back, and is its name in the answer's dynamic metadata.
	EntryHold = "sluice_hold"
	// EntryEnd says that the request has ended and its cost is not known. Its descriptor's hits_addend is the status
	// of the response.
	EntryEnd = "sluice_end"
)

// failedFrom is the status from which a response is an error.
const failedFrom = 400

// held is a descriptor that takes a hold, or settles one.
//
//	taken --> in the answer's hold --> settled: its cost, or unknown
//	     '--> left out: it stays charged
type held struct {
	match *match
	// part is of one that is taken its place in the answer's hold, from 1. 0: it is in none, as it is not taken, its
	// window is not known, or its rule gives no id.
	part   int
	result ratelimit.Settled // of one that settles
	// amount is the estimate that is held, or was: 0 of one that settles if it is not known.
	amount ratelimit.Tokens
	cost   ratelimit.Tokens // for one that settles: its cost, or the status of its end
}

// reserve takes the reserved entries off the end of a descriptor. Rules never match them: they are not counted among
// the entries of the descriptor. In the middle of a descriptor they are ordinary entries.
func (r *request) reserve(d *descriptor) {
	for ; d.count > 0; d.count-- {
		switch e := &r.entries[d.first+d.count-1]; e.Key {
		case EntryHold:
			d.hold = cmp.Or(d.hold, e.Value)
		case EntryEnd:
			d.ends = true
		default:
			return
		}
		d.settles = true
	}
}

// addHeld has a descriptor take a hold, or settle one. It is called for rules with a hold, and for descriptors with
// reserved entries, whose rule may have no hold any more, or a limit of the request.
func (c *call) addHeld(s *Service, m *match, ask ratelimit.Ask) {
	h := held{match: m, cost: ask.Cost}
	hold := m.rule.Hold
	switch {
	// A refund is booked as any other: it is an operator's, or of a gateway without holds. It names no slot.
	case m.of.negative:
		c.ask(m, ask)
		return
	// Without an id, a call with other hits than those of hold.on is the end of a request. A second cost of the same
	// call is charged whole: the amount is subtracted once.
	case hold != nil && !hold.Identified() && (m.settles || !hold.Takes(ask.Cost)):
		m.settles = true
		if !c.replaced(m) {
			h.amount = hold.Amount
		}
		c.settle(&h, ask)
	case m.settles:
		if !c.settleByID(s, &h, ask) {
			return
		}
	default:
		// One number for the whole call: the hold's text has room for one, and each budget has its own slots.
		if c.slot == 0 {
			c.slot = holds.NewSlot()
		}
		h.amount = hold.Estimate(ask.Cost, ask.Key, &m.rule.Counters.Holds().Costs)
		ask.Cost, ask.Kind = h.amount, ratelimit.Spend
		// A Spend has a cost. A hold of 0 is refused where the limit is exceeded, as a peek is.
		if h.amount == 0 {
			ask.Kind = ratelimit.Peek
		}
		if ask.OfSlot() {
			ask.Window = ratelimit.Window(c.slot)
		}
		c.ask(m, ask)
	}
	c.holds = append(c.holds, h)
}

// settleByID books a cost in place of the hold. It returns whether the result is to be counted for the rule. The cases,
// in their order:
//
//   - The rule limits concurrency, and the hold has a number: its slot is released. That may happen twice, so an
//     expired hold will do.
//   - The hold is good, or an earlier descriptor of the call has settled it by a cost: the difference is booked in the
//     window of the hold. The second cost finds no amount, so it is charged whole.
//   - The rule has no hold: the cost is charged as if the entry were absent, and an end without a cost charges nothing.
//   - The hold was settled, and this is only its end: the usual case, in which the first descriptor brought the cost.
//
// Otherwise nothing is booked. An empty entry is not counted: a request that was refused, or that failed open, returns
// no hold.
func (c *call) settleByID(s *Service, h *held, ask ratelimit.Ask) bool {
	m, x, ttl := h.match, h.match.of, ratelimit.MaxHoldTTL
	if ask.Rule.Hold != nil {
		ttl = ask.Rule.Hold.TTL
	}
	var of holds.Held
	of, h.result = s.options.Holds.Settle(x.hold, ask.Key, s.wall().Unix(), ttl)
	switch {
	case of.Slot != 0 && ask.OfSlot():
		h.result = ratelimit.SettledCost
		h.amount = 1
		h.cost = 1
		ask.Kind = ratelimit.Release
		ask.Cost = 1
		ask.Window = ratelimit.Window(of.Slot)
		c.ask(m, ask)
	case h.result == ratelimit.SettledCost, h.result == ratelimit.HoldReplayed && !x.ends && c.replaced(m):
		h.amount, ask.Window = of.Amount, ask.Rule.Limit.WindowAt(of.At)
		c.settle(h, ask)
	case ask.Rule.Hold == nil && h.result != ratelimit.HoldReplayed:
		m.settles = x.ends
		if !x.ends {
			c.ask(m, ask)
		}
		return false
	case h.result == ratelimit.HoldReplayed && x.ends:
		return false
	}
	return x.hold != ""
}

// replaced reports whether the cost of an earlier descriptor of the call has replaced the same hold, as of input tokens
// before those of output. Then a further cost of the request is charged whole.
func (c *call) replaced(m *match) bool {
	return slices.ContainsFunc(c.holds, func(h held) bool {
		o := h.match
		return o.settles && h.result == ratelimit.SettledCost && o.rule == m.rule && o.of.hold == m.of.hold &&
			slices.Equal(c.request.entriesOf(o.of), c.request.entriesOf(m.of))
	})
}

// end sets the cost of a request without one, whose cost field is the status of its response. An error has no cost.
// Otherwise on_unknown decides; a rule that has no hold any more leaves it charged.
func (h *held) end(hold *ratelimit.Hold) {
	failed := h.cost >= failedFrom
	h.result, h.cost = ratelimit.SettledUnknown, h.amount
	if failed {
		h.result, h.cost = ratelimit.SettledFailed, 0
	} else if hold != nil && hold.OnUnknown == ratelimit.UnknownReleases {
		h.cost = 0
	}
}

// settle requests the difference between a cost and its hold: a Charge of what is missing, or a Release of the rest.
// Where both are the same, nothing is asked. A known cost is a sample for learned estimates; an end without one is
// none.
func (c *call) settle(h *held, ask ratelimit.Ask) {
	hold := ask.Rule.Hold
	h.result = ratelimit.SettledCost
	if h.match.of.ends {
		h.end(hold)
	} else if hold != nil && hold.From == ratelimit.HoldLearned {
		ask.Rule.Counters.Holds().Costs.Observe(ask.Key, int64(h.cost))
	}
	ask.Kind, ask.Cost = ratelimit.Charge, h.cost-h.amount
	if ask.Cost < 0 {
		ask.Kind, ask.Cost = ratelimit.Release, -ask.Cost
	}
	if ask.Cost > 0 {
		c.ask(h.match, ask)
	}
}

// concludeHolds counts what became of holds, and puts those that were taken into the answer's, with one instant for
// all.
//
// A hold that was refused or given back is in no answer. One that was taken and has no part in the answer cannot be
// settled, and stays charged: HoldLeftOut.
func (c *call) concludeHolds(s *Service) {
	c.hold, c.parts = c.hold[:0], c.parts[:0]
	// All instants that a hold's text can express, in seconds.
	in := instants{0, 1<<32 - 1}
	for i := range c.holds {
		h := &c.holds[i]
		m := h.match
		switch {
		case m.replaced:
		case m.settles && m.ask < 0:
			h.count(m.rule.Counters, nil)
		case m.settles:
			h.count(m.rule.Counters, &c.verdicts[m.ask])
		// A hold of 0 has an id, too: by that its cost is charged.
		case m.ask < 0, c.over && h.amount == 0, c.spared[m.ask], c.verdicts[m.ask].OverLimit:
		default:
			m.rule.Counters.Holds().Took(h.amount)
			if m.rule.Hold.Identified() && in.narrow(&m.rule.Limit, &c.verdicts[m.ask]) {
				c.parts = append(c.parts, holds.Part{Key: c.asks[m.ask].Key, Amount: h.amount})
				h.part = len(c.parts)
			}
		}
	}
	n := 0
	if len(c.parts) > 0 {
		c.hold, n = s.options.Holds.Append(c.hold, c.slot, in.nearest(s.wall().Unix()), c.parts)
	}
	for i := range c.holds {
		if h := &c.holds[i]; h.part > n {
			h.match.rule.Counters.Holds().Count(ratelimit.HoldLeftOut)
		}
	}
}

// count counts one that settles. v is nil if nothing was asked, because cost and hold are the same. A booking that
// changed nothing is late: its window has ended. Its cost counts all the same.
func (h *held) count(of *ratelimit.RuleCounters, v *ratelimit.Verdict) {
	counters := of.Holds()
	if h.result == ratelimit.SettledCost {
		counters.Settled(h.amount, h.cost, v)
	}
	if v != nil {
		if v.Charged+v.Debt == 0 {
			h.result = ratelimit.SettledLate
		}
		of.Debt.Add(uint64(v.Debt))
		of.Sources[v.Source].Add(1)
	}
	counters.Count(h.result)
}

// instants are seconds since the Unix epoch, from the first to the last.
type instants struct{ first, last int64 }

// narrow leaves those in the window that a verdict has charged. It reports whether there are any: if not, nothing is
// narrowed. They are none where on_store_failure has decided, and it is not known in which window that counts.
func (in *instants) narrow(l *ratelimit.Limit, v *ratelimit.Verdict) bool {
	w := v.Window
	// A hold names its slot also where on_store_failure has admitted: by that it is given back.
	if v.Source == ratelimit.FromFallback && l.Algorithm != ratelimit.Concurrency {
		w = v.Booked
	}
	if w == 0 || l.Algorithm >= ratelimit.TokenBucket {
		return w != 0
	}
	const second = int64(time.Second / time.Microsecond)
	of := instants{int64(l.WindowEnd(w-1)) / second, int64(l.WindowEnd(w))/second - 1}
	of.first, of.last = max(of.first, in.first), min(of.last, in.last)
	if of.first > of.last {
		return false
	}
	*in = of
	return true
}

// nearest is the instant closest to this node's time: a ttl is compared with it. The store's clock may be in another
// window than the node's.
func (in instants) nearest(at int64) int64 { return min(max(at, in.first), in.last) }

// appendHold writes dynamic_metadata with nothing but the hold.
func (c *call) appendHold() {
	c.out = wire.AppendMessage(c.out, 6, func(b []byte) []byte { // google.protobuf.Struct
		return wire.AppendMessage(b, 1, func(b []byte) []byte { // an entry of its map
			b = wire.AppendString(b, 1, EntryHold)
			return wire.AppendMessage(b, 2, func(b []byte) []byte { // google.protobuf.Value: a string
				return wire.AppendString(b, 3, c.hold)
			})
		})
	})
}
