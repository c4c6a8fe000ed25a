package routing

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/ratelimit"
)

// hot finds the keys that are asked for much more often than others, in
// bounded memory: the Space-Saving algorithm (Metwally, Agrawal and El Abbadi,
// 2005) over a second at a time. It is safe for concurrent use.
type hot struct {
	mu      sync.Mutex
	rate    float64           // guarded by mu: hits a second from which on a key is hot; 0: ten times the mean
	since   ratelimit.Instant // guarded by mu: when this second began
	total   uint64            // guarded by mu
	keys    map[uint64]int    // guarded by mu: hash to slot
	slots   []hotSlot         // guarded by mu
	current map[uint64]string // guarded by mu: keys that were hot in the last second, by hash
}

type hotSlot struct {
	hash  uint64
	count uint64
	name  string
}

const (
	hotSlots  = 256
	hotFactor = 10 // times the mean of all keys
	// hotLeast is the least rate of a hot key, in hits a second. Below it a hop costs less than a
	// lease.
	hotLeast  = 200
	hotPeriod = time.Second
)

func newHot(rate float64) *hot {
	return &hot{rate: rate, keys: map[uint64]int{}, current: map[uint64]string{}}
}

// hit counts one, and tells whether its key was hot in the last second.
func (h *hot) hit(now ratelimit.Instant, key []byte) bool {
	hash := xxhash.Sum64(key)
	h.mu.Lock()
	defer h.mu.Unlock()
	// There is no timer: the first hit after a second ends it.
	if now.Sub(h.since) >= hotPeriod {
		h.turn(now)
	}
	h.total++
	if i, ok := h.keys[hash]; ok {
		h.slots[i].count++
	} else {
		h.take(hash, key)
	}
	_, ok := h.current[hash]
	return ok
}

// take gives a key the slot of the rarest; its count goes on from there.
func (h *hot) take(hash uint64, key []byte) {
	if len(h.slots) < hotSlots {
		h.keys[hash] = len(h.slots)
		h.slots = append(h.slots, hotSlot{hash: hash, count: 1, name: string(key)})
		return
	}
	// One of a few is rare enough: a search for the rarest would cost each new key 256 steps.
	least := int(hash % hotSlots)
	for i := uint64(1); i < 8; i++ {
		if other := int((hash + i*37) % hotSlots); h.slots[other].count < h.slots[least].count {
			least = other
		}
	}
	s := &h.slots[least]
	delete(h.keys, s.hash)
	h.keys[hash] = least
	// The count goes on from that of the key before, so that it is never too low: a key that is hot
	// is not missed, though a rare one may be taken for hot for a second.
	*s = hotSlot{hash: hash, count: s.count + 1, name: string(key)}
}

// turn ends a second: who was hot is known now.
func (h *hot) turn(now ratelimit.Instant) {
	// Where nobody asked for a while, the "second" was longer.
	seconds := max(1, now.Sub(h.since).Seconds())
	threshold := h.rate * seconds
	if h.rate == 0 {
		threshold = max(hotFactor*float64(h.total)/float64(max(1, len(h.slots))), hotLeast*seconds)
		if len(h.slots) < hotFactor { // so few keys have no mean to speak of
			threshold = hotLeast * seconds
		}
	}
	clear(h.current)
	for i := range h.slots {
		if s := &h.slots[i]; float64(s.count) > threshold {
			h.current[s.hash] = s.name
		}
	}
	clear(h.keys)
	h.slots, h.total, h.since = h.slots[:0], 0, now
}

// names are the keys that are hot now.
func (h *hot) names(now ratelimit.Instant) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Nobody has asked for anything since, so that the last second's keys are old.
	if now.Sub(h.since) >= 2*hotPeriod {
		return nil
	}
	var all []string
	for _, name := range h.current {
		all = append(all, name)
	}
	return all
}

// hotLeases are the keys of other owners that this node leases for itself.
type hotLeases struct {
	n  atomic.Int64
	mu sync.Mutex
	m  map[uint64]*hotLease // guarded by mu
}

type hotLease struct {
	name  string
	since instant
	uses  int
}

const (
	// hotFor is for how long a key is leased here before it is looked at again, and hotMost how
	// many keys may be: one more is asked of its owner, as any other.
	hotFor  = 2 * time.Second
	hotMost = 1024
	// hotCool is the rate of uses here, in a second, below which the key goes back to its owner.
	hotCool = hotLeast / 4
)

func (h *hotLeases) start(now instant, key []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m == nil {
		h.m = map[uint64]*hotLease{}
	}
	if len(h.m) >= hotMost {
		return
	}
	hash := xxhash.Sum64(key)
	if h.m[hash] == nil {
		h.m[hash] = &hotLease{name: string(key), since: now}
		h.n.Store(int64(len(h.m)))
	}
}

// names are the keys that are leased here.
func (h *hotLeases) names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, l := range h.m {
		all = append(all, l.name)
	}
	return all
}

// use tells whether a key is hot here, and counts that it was asked for.
func (h *hotLeases) use(now instant, key []byte) bool {
	// Most nodes lease no hot key at most times, and must not take a lock for each request.
	if h.n.Load() == 0 {
		return false
	}
	hash := xxhash.Sum64(key)
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.m[hash]
	if l == nil {
		return false
	}
	l.uses++
	if age := now.Sub(l.since); age >= hotFor {
		// The key is left to its owner well below the rate at which it becomes hot, so that one
		// near that rate does not go to and fro.
		if float64(l.uses) < hotCool*age.Seconds() {
			delete(h.m, hash)
			h.n.Store(int64(len(h.m)))
			return false
		}
		l.since, l.uses = now, 0
	}
	return true
}
