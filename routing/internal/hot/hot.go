// Package hot finds the keys that are asked for much more often than others, and keeps
// which of them this node leases from their owners.
//
// Guarantee: memory is bounded, whatever is asked for: some hundred keys that are counted, and
// at most [Most] that are leased. It does not promise to find every hot key at once; one that
// stays hot is found within two seconds (TestHotKeysAreFound).
package hot

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Finder finds the keys that are asked for much more often than others, in
// bounded memory: the Space-Saving algorithm (Metwally, Agrawal and El Abbadi,
// 2005) over a second at a time. It is safe for concurrent use.
type Finder struct {
	mu      sync.Mutex
	rate    float64           // guarded by mu: hits a second from which on a key is hot; 0: ten times the mean
	since   ratelimit.Instant // guarded by mu: when this second began
	total   uint64            // guarded by mu
	keys    map[uint64]int    // guarded by mu: hash to slot
	slots   []slot            // guarded by mu
	current map[uint64]string // guarded by mu: keys that were hot in the last second, by hash
}

type slot struct {
	hash  uint64
	count uint64
	name  string
}

const (
	mostSlots = 256
	factor    = 10 // times the mean of all keys
	// least is the least rate of a hot key, in hits a second. Below it a hop costs less than a
	// lease.
	least  = 200
	period = time.Second
)

// New makes one; rate is the hits a second from which on a key is hot, 0 for ten times the mean.
func New(rate float64) *Finder {
	return &Finder{rate: rate, keys: map[uint64]int{}, current: map[uint64]string{}}
}

// Hit counts one, and tells whether its key was hot in the last second.
func (h *Finder) Hit(now ratelimit.Instant, key []byte) bool {
	hash := xxhash.Sum64(key)
	h.mu.Lock()
	defer h.mu.Unlock()
	// There is no timer: the first hit after a second ends it.
	if now.Sub(h.since) >= period {
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
func (h *Finder) take(hash uint64, key []byte) {
	// While there is room, each key has a count of its own, which is exact.
	if len(h.slots) < mostSlots {
		h.keys[hash] = len(h.slots)
		h.slots = append(h.slots, slot{hash: hash, count: 1, name: string(key)})
		return
	}
	// One of a few is rare enough: a search for the rarest would cost each new key 256 steps.
	least := int(hash % mostSlots)
	for i := uint64(1); i < 8; i++ {
		if other := int((hash + i*37) % mostSlots); h.slots[other].count < h.slots[least].count {
			least = other
		}
	}
	s := &h.slots[least]
	delete(h.keys, s.hash)
	h.keys[hash] = least
	// The count goes on from that of the key before, so that it is never too low: a key that is hot
	// is not missed, though a rare one may be taken for hot for a second.
	*s = slot{hash: hash, count: s.count + 1, name: string(key)}
}

// turn ends a second: who was hot is known now.
func (h *Finder) turn(now ratelimit.Instant) {
	// Where nobody asked for a while, the "second" was longer.
	seconds := now.Sub(h.since).Seconds()
	threshold := h.rate * seconds
	if h.rate == 0 {
		threshold = least * seconds
		if len(h.slots) >= factor { // fewer keys have no mean to speak of
			threshold = max(threshold, factor*float64(h.total)/float64(len(h.slots)))
		}
	}
	// Each second is judged by itself: a key that was hot before and is not now goes back to its
	// owner within two.
	clear(h.current)
	for i := range h.slots {
		if s := &h.slots[i]; float64(s.count) > threshold {
			h.current[s.hash] = s.name
		}
	}
	clear(h.keys)
	h.slots, h.total, h.since = h.slots[:0], 0, now
}

// Names are the keys that are hot now.
func (h *Finder) Names(now ratelimit.Instant) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Nobody has asked for anything since, so that the last second's keys are old.
	if now.Sub(h.since) >= 2*period {
		return nil
	}
	var all []string
	for _, name := range h.current {
		all = append(all, name)
	}
	return all
}

// Leases are the keys of other owners that this node leases for itself.
type Leases struct {
	n  atomic.Int64
	mu sync.Mutex
	m  map[uint64]*leased // guarded by mu
}

type leased struct {
	name  string
	since ratelimit.Instant
	uses  int
}

// Most is how many keys may be leased here: one more is asked of its owner, as any other.
const Most = 1024

const (
	// lookedAt is for how long a key is leased here before it is looked at again.
	lookedAt = 2 * time.Second
	// cool is the rate of uses here, in a second, below which the key goes back to its owner.
	cool = least / 4
)

// Start leases a key here, if there is room for one more.
func (h *Leases) Start(now ratelimit.Instant, key []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Most nodes never lease one: the map is made when the first key is hot.
	if h.m == nil {
		h.m = map[uint64]*leased{}
	}
	if len(h.m) >= Most {
		return
	}
	// Of two keys with one hash the second is taken for leased, too: it then has a lease of its own,
	// which is right for any key.
	hash := xxhash.Sum64(key)
	if h.m[hash] == nil {
		h.m[hash] = &leased{name: string(key), since: now}
		h.n.Store(int64(len(h.m)))
	}
}

// Names are the keys that are leased here.
func (h *Leases) Names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, l := range h.m {
		all = append(all, l.name)
	}
	return all
}

// Use tells whether a key is hot here, and counts that it was asked for.
func (h *Leases) Use(now ratelimit.Instant, key []byte) bool {
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
	if age := now.Sub(l.since); age >= lookedAt {
		// The key is left to its owner well below the rate at which it becomes hot, so that one
		// near that rate does not go to and fro.
		if float64(l.uses) < cool*age.Seconds() {
			delete(h.m, hash)
			h.n.Store(int64(len(h.m)))
			return false
		}
		l.since, l.uses = now, 0
	}
	return true
}
