// Package hot finds keys with far more requests than others, and keeps the leases of this node from their
// owners.
//
// Guarantee: memory is bounded for any requests: some hundred counted keys, at most [Most] leased ones, and
// at most [MostReported] with a message for their owner. It does not promise to find every hot key at once. A key
// that stays hot is found within two seconds (TestHotKeysAreFound).
package hot

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Finder finds keys with far more requests than others, in bounded memory: the Space-Saving algorithm
// (Metwally, Agrawal and El Abbadi, 2005) over a second at a time. It is safe for concurrent use.
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
	// factor is times the mean of all keys. Counts of more keys than slots are estimates, and the mean is that of the
	// slots: a key is hot from 4 % of all hits on.
	factor = 10
	// least is the least rate of a hot key, in hits a second. Below it a hop costs less than a
	// lease.
	least  = 200
	period = time.Second
)

// New makes one; rate is the hits a second from which on a key is hot, 0 for ten times the mean.
func New(rate float64) *Finder {
	return &Finder{rate: rate, keys: map[uint64]int{}, current: map[uint64]string{}}
}

// Hit counts one, and reports whether its key was hot in the last second.
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
	// The count continues from that of the previous key, so that it is never too low. A hot key is not missed,
	// though a rare one may count as hot for a second.
	*s = slot{hash: hash, count: s.count + 1, name: string(key)}
}

// turn ends a second: who was hot is known now.
func (h *Finder) turn(now ratelimit.Instant) {
	// Without requests for a while, the "second" was longer.
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
	h.slots = h.slots[:0]
	h.total = 0
	h.since = now
}

// Names are the keys that are hot now.
func (h *Finder) Names(now ratelimit.Instant) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	// There were no requests since, so that the last second's keys are old.
	if now.Sub(h.since) >= 2*period {
		return nil
	}
	return slices.Collect(maps.Values(h.current))
}
