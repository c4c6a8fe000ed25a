package declare

import "github.com/sluice-gate/sluice/ratelimit"

// slots states the bounds of a concurrency limit. A slot is taken and given back by an operation each. After a loss of
// data, requests in flight do not count: the limit once more.
func slots(r *ratelimit.Rule, nodes int, storage Storage) Bounds {
	limit := r.Limit.Requests
	b := Bounds{Under: Under{Slots: limit, Lasts: r.Limit.Period()}}
	if storage == OwnMemory {
		b.Over = overApart(r, nodes)
		if r.Coordination.Mode.Spec().Owned {
			b.Over = Over{EachOwner: limit, EachMove: limit}
			b.OnOutage = outage(r, OwnerOutage, nodes)
			b.Wait = Wait{For: OwnersAnswer, Longest: r.Coordination.Deadline()}
		}
		return b
	}
	b.Wait = wait(r)
	b.StoreOps = StoreOps{Nodes: nodes, EachSlot: 2}
	b.OnLoss = limit
	b.OnOutage = outage(r, StoreOutage, nodes)
	return b
}

// doubtSlots returns valid settings without an effect on a concurrency limit.
func doubtSlots(r *ratelimit.Rule) (doubts []string) {
	c, none := &r.Coordination, ratelimit.DefaultCoordination()
	if !c.Mode.Spec().Drifts {
		none.Mode = c.Mode
	}
	for _, field := range []string{"mode", "audit", "lease.size"} {
		if value := c.Get(field); value != none.Get(field) {
			doubts = append(doubts, field+" "+value+" has no effect under a concurrency limit: remove it")
		}
	}
	return doubts
}
