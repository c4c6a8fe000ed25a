// Package quantile keeps the last costs of a rule's requests, for holds that are learned.
package quantile

import (
	"hash/maphash"
	"math"
	"slices"
	"sync"
)

// Costs are the last costs of a rule's requests, in tokens. The zero Costs have none. They are safe for concurrent use.
//
// Where a rule has few keys, each has its own: a quantile over tenants whose requests differ a hundredfold would hold
// too little for some, and refuse others. There are at most costKeys of them, a kilobyte each; other keys go by the
// rule's.
type Costs struct {
	mu   sync.Mutex
	all  *lastCosts            // guarded by mu; nil: none yet
	keys map[uint64]*lastCosts // guarded by mu
}

const (
	// costsKept is how many costs count, and costsLeast from how many on there is a quantile.
	costsKept, costsLeast = 128, 16
	costKeys              = 64
	// costsAnew is after how many costs a quantile is reckoned again.
	costsAnew = 8
)

// lastCosts is a ring.
type lastCosts struct {
	costs    [costsKept]int64
	seen     uint64
	quantile int64
	of       float64 // that quantile is this one's
	at       uint64  // and was reckoned when so many had been seen
}

var costSeed = maphash.MakeSeed()

// Observe records the cost of a request of a key.
func (c *Costs) Observe(key []byte, cost int64) {
	hash := maphash.Bytes(costSeed, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all, c.keys = new(lastCosts), map[uint64]*lastCosts{}
	}
	c.all.add(cost)
	own := c.keys[hash]
	if own == nil && len(c.keys) < costKeys {
		own = new(lastCosts)
		c.keys[hash] = own
	}
	if own != nil {
		own.add(cost)
	}
}

// Quantile is the cost below which that part of the last costs was: of the key, where enough of its own are known, and
// else of the rule. It is false where there are too few.
func (c *Costs) Quantile(key []byte, q float64) (int64, bool) {
	hash := maphash.Bytes(costSeed, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	from := c.keys[hash]
	if from == nil || from.seen < costsLeast {
		from = c.all
	}
	if from == nil || from.seen < costsLeast {
		return 0, false
	}
	return from.get(q), true
}

func (r *lastCosts) add(cost int64) {
	r.costs[r.seen%costsKept] = cost
	r.seen++
}

func (r *lastCosts) get(q float64) int64 {
	if r.of == q && r.seen-r.at < costsAnew {
		return r.quantile
	}
	sorted := r.costs
	known := sorted[:min(r.seen, costsKept)]
	slices.Sort(known)
	r.quantile = known[min(len(known)-1, int(math.Ceil(q*float64(len(known)))))]
	r.of, r.at = q, r.seen
	return r.quantile
}
