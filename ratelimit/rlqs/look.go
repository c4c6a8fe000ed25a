package rlqs

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Holder is what one stream has of a key.
type Holder struct {
	Key       []byte           `json:"-"`
	Name      string           `json:"name"` // of its Envoy: as its operator calls it, or its address
	PerSecond float64          `json:"per_second"`
	Charged   ratelimit.Tokens `json:"charged"`  // for it, in this window
	InUse     ratelimit.Tokens `json:"in_use"`   // at most the rest of its last lease
	Unproven  ratelimit.Tokens `json:"unproven"` // charged, and neither known to be spent nor in the lease in use
}

// mostShown is how many holders Look returns.
const mostShown = 100

// Look is what this node's streams have of a key, for people: those with most requests
// first, the first hundred, and how many there are.
func (n *Node) Look(key []byte) (holders []Holder, all int) {
	n.mu.Lock()
	s := n.pools[string(key)]
	n.mu.Unlock()
	if s == nil {
		return nil, 0
	}
	return first(mostShown, []*pool{s}, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(a.Name, b.Name))
	})
}

// Largest is what this node's streams have of all keys, for people: the most that are
// charged for first, so many of them, and how many there are.
func (n *Node) Largest(most int) (holders []Holder, all int) {
	n.mu.Lock()
	pools := slices.Collect(maps.Values(n.pools))
	n.mu.Unlock()
	return first(most, pools, func(a, b Holder) int {
		return cmp.Or(
			cmp.Compare(b.Charged, a.Charged), cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(a.Name, b.Name),
			slices.Compare(a.Key, b.Key),
		)
	})
}

// first are the first holders in an order, and how many there are. It takes each key's lock once, and its time grows
// with how many leases all streams have.
func first(most int, pools []*pool, order func(a, b Holder) int) (holders []Holder, all int) {
	for _, s := range pools {
		s.mu.Lock()
		all += len(s.holders)
		for _, b := range s.holders {
			is := &b.published
			h := Holder{s.account, b.of.Name, is.perSecond, is.charged, is.inUse, is.unproven}
			if at, _ := slices.BinarySearchFunc(holders, h, order); at < most {
				holders = slices.Insert(holders, at, h)[:min(most, len(holders)+1)]
			}
		}
		s.mu.Unlock()
	}
	return holders, all
}
