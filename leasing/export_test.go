package leasing

import "github.com/sluice-gate/sluice/ratelimit"

// Views of the parts of a ledger, for tests with real Clusters: from outside a fleet shows all parts together.

// Greet asks a part for its time and epoch. The channel is closed when it has answered; nil: it cannot be asked now.
func (f *Fleet) Greet(part int) <-chan struct{} {
	if fl, _ := f.beat(&f.lanes[part]); fl != nil {
		return fl.done
	}
	return nil
}

// ClaimAndGreet has a claim on a key and a greeting of its part travel in one batch.
func (f *Fleet) ClaimAndGreet(key string, part int) error {
	claim, greets := &keyMessage{flight: newFlight()}, &beat{flight: newFlight()}
	claim.shard, claim.id, _ = f.find([]byte(key))
	claim.shard.mu.Unlock()
	f.settle(&f.lanes[part], []message{claim, greets})
	return claim.err
}

// PartTime bounds the time of a part's clock now, and has the instant of the last answer.
func (f *Fleet) PartTime(part int) (early, late ratelimit.LedgerTime, heard ratelimit.Instant) {
	clock := f.lanes[part].time()
	early, late = clock.Between(f.clock())
	return early, late, clock.At
}

// PartState is whether a part's breaker is open, and whether it counts as alive.
func (f *Fleet) PartState(part int) (open, alive bool) {
	return f.lanes[part].Open(), f.lanes[part].alive(f.clock())
}
