package leasing

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Hits that an outage admitted are charged however many they are: sums of costs
// that a uint64 can say stop at a bound instead of starting again from below
// nothing, which would give the limit away.
func TestHugeCostsInAnOutageAreCharged(t *testing.T) {
	for algorithm := range ratelimit.Algorithms {
		t.Run(ratelimit.Algorithms[algorithm], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFleetWorld(t, 2, time.Millisecond)
				defer w.end()
				rule := testRule(ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Day, Requests: 100, Burst: 100})
				rule.Coordination.OnStoreFailure = ratelimit.FailOpen
				w.ask(0, rule, 1, 1) // so that a lease is there to book on
				w.ledger.set(func() { w.ledger.err = errors.New("gone") })
				for range 3 {
					for key := range uint64(2) {
						if v, _ := w.ask(0, rule, 1+key, 1<<62); v.OverLimit || v.Source != ratelimit.FromFallback {
							t.Fatalf("without a store, and open, 2^62 hits got %+v", v)
						}
					}
				}
				w.ledger.set(func() { w.ledger.err = nil })
				time.Sleep(5 * time.Second)
				for key := range uint64(2) {
					admitted := 0
					for range 300 {
						for node := range w.nodes {
							if v, _ := w.ask(node, rule, 1+key, 1); !v.OverLimit && v.Source != ratelimit.FromFallback {
								admitted++
							}
						}
						time.Sleep(10 * time.Millisecond)
					}
					// A bucket is not charged for ever what an outage's policy admitted.
					if most := 100; admitted > 0 && rule.Limit.Algorithm != ratelimit.TokenBucket || admitted > most+1 {
						t.Errorf("key %d: %d more were admitted of 100 a day, all of which were used up", key, admitted)
					}
				}
			})
		})
	}
}

// A request that another descriptor refused gets back what its own was charged
// without the ledger, and not a token that somebody else had paid.
func TestUndoOfAFallback(t *testing.T) {
	for _, policy := range []ratelimit.FailurePolicy{ratelimit.FailLocal, ratelimit.FailOpen, ratelimit.FailCached} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFleetWorld(t, 1, time.Millisecond)
				defer w.end()
				rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 10})
				rule.Coordination.OnStoreFailure, rule.Coordination.OnDeny = policy, ratelimit.DenyRefunds
				rule.Coordination.LocalCap, rule.Coordination.Lease.Fixed = 5, 1
				w.ask(0, rule, 1, 3) // 7 are left, in the ledger
				w.ledger.set(func() { w.ledger.err = errors.New("gone") })
				asks, v := []ask{{Rule: rule, Key: keyOf(1), Cost: 4}}, make([]verdict, 1)
				for range 20 {
					w.nodes[0].Decide(context.Background(), w.now(), asks, v)
					if v[0].OverLimit || v[0].Source != ratelimit.FromFallback {
						t.Fatalf("without a store: %+v", v[0])
					}
					w.nodes[0].Undo(w.now(), asks, v)
				}
				w.ledger.set(func() { w.ledger.err = nil })
				time.Sleep(5 * time.Second)
				admitted := 0
				for range 20 {
					if v, _ := w.ask(0, rule, 1, 1); !v.OverLimit {
						admitted++
					}
				}
				if admitted != 7 {
					t.Errorf("%d of the 7 that were left were admitted after all that an outage had charged was undone", admitted)
				}
			})
		})
	}
}

// What another limiter decided is not this one's to give back: a key's account
// would be credited with what it was never charged.
func TestLocalUndoesOnlyItsOwn(t *testing.T) {
	for _, source := range []ratelimit.Source{ratelimit.FromFallback, ratelimit.FromOwner, ratelimit.FromDrift} {
		l := NewLocal(100, 1, time.Unix(1_800_000_000, 0))
		a := ask{Rule: testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 10}), Key: keyOf(1), Cost: 5}
		v := decideOne(l, 1, a)
		v.Source = source
		l.Undo(1, []ask{a}, []verdict{v})
		if got := decideOne(l, 1, ask{Rule: a.Rule, Key: a.Key, Cost: 6}); !got.OverLimit {
			t.Errorf("5 of 10 had been spent, and 6 more were admitted after a verdict by %q was undone", ratelimit.Sources[source])
		}
	}
}
