package rlqs

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Holder is what one stream has of a key.
type Holder struct {
	Name      string           `json:"name"` // of its Envoy: as its operator calls it, or its address
	PerSecond float64          `json:"per_second"`
	Charged   ratelimit.Tokens `json:"charged"`  // for it, in this window
	InUse     ratelimit.Tokens `json:"in_use"`   // at most the rest of its last lease
	Unproven  ratelimit.Tokens `json:"unproven"` // charged, and neither known to be spent nor in the lease in use
}

// holder shows a bucket. Its pool's mu is held.
func (b *bucket) holder() Holder {
	return Holder{b.of.Name, b.shown.perSecond, b.shown.charged, b.shown.inUse, b.shown.unproven}
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
	s.mu.Lock()
	for _, b := range s.holders {
		holders = append(holders, b.holder())
	}
	s.mu.Unlock()
	// It is sorted without the locks: it is for people, and streams must not wait for that.
	slices.SortFunc(holders, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(a.Name, b.Name))
	})
	return holders[:min(mostShown, len(holders))], len(holders)
}

// Held is the holding of one stream for a key.
type Held struct {
	Holder
	Key []byte `json:"-"`
}

// Largest is what this node's streams have of all keys, for people: the most that are
// charged for first, so many of them, and how many there are. It takes each key's lock once,
// and its time grows with how many leases all streams have.
func (n *Node) Largest(most int) (held []Held, all int) {
	n.mu.Lock()
	pools := slices.Collect(maps.Values(n.pools))
	n.mu.Unlock()
	for _, s := range pools {
		s.mu.Lock()
		all += len(s.holders)
		for _, b := range s.holders {
			held = insert(held, most, Held{b.holder(), []byte(s.key)})
		}
		s.mu.Unlock()
	}
	return held, all
}

// insert puts one among the largest, in their order, and drops the excess.
func insert(held []Held, most int, h Held) []Held {
	at, _ := slices.BinarySearchFunc(held, h, func(a, b Held) int {
		return cmp.Or(
			cmp.Compare(b.Charged, a.Charged), cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(a.Name, b.Name),
			slices.Compare(a.Key, b.Key),
		)
	})
	if at >= most {
		return held
	}
	held = slices.Insert(held, at, h)
	return held[:min(most, len(held))]
}
