package store

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Promise is the worst case of a kind of store, and its price, as `sluice check --store` declares them.
type Promise struct {
	Kind string `json:"kind"` // as people call it
	// Keeps says that a crash or a failover loses no grant, under the conditions of Loss. Otherwise nodes
	// restore their totals, and a rule's data_loss_tokens may be admitted beyond its limit.
	Keeps bool   `json:"keeps_grants"`
	Loss  string `json:"data_loss"`
	// Failover says what decides how long no server takes writes. Found is after what time, at most, a node uses one
	// that takes writes again. Young is for how long few requests of keys without a lease pass then.
	Failover string        `json:"failover"`
	Found    time.Duration `json:"found_ns"`
	Young    time.Duration `json:"young_ns"`
	// Trips is the number of round trips of a message with any number of claims. Claim says what the store
	// does for them.
	Trips int    `json:"claim_round_trips"`
	Claim string `json:"claim"`
}

// PromiseOf is that of a kind of store, by the scheme of its URLs, or an error that names all kinds.
func PromiseOf(name string) (*Promise, error) {
	s, known := find(name)
	if s == nil {
		return nil, fmt.Errorf("--store is %q, must be memory or one of %s", name, known)
	}
	// The copy keeps schemes unchanged. Found is filled in here because it is the breaker's, the same for every store.
	p := s.promise
	p.Found = leasing.FoundWithin
	return &p, nil
}

// Lines are for people.
func (p *Promise) Lines() []string {
	young := "Keys without a lease continue at once."
	if p.Young > 0 {
		most := ratelimit.YoungMost + ratelimit.YoungFor
		young = fmt.Sprintf("Few requests of keys without a lease pass for %v more, and up to %v while nodes have "+
			"totals to state: at most a twentieth of each limit.", p.Young, most)
	}
	return []string{
		"data loss: " + p.Loss,
		fmt.Sprintf("failover: %s When a server takes writes again, nodes use it within %v. %s", p.Failover, p.Found, young),
		fmt.Sprintf("a claim: round trips: %d, shared by all claims that a node sends together. %s", p.Trips, p.Claim),
	}
}
