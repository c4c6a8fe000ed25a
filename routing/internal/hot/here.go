package hot

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Here has the keys of other owners that this node leases from the store, because they are hot. It is safe for
// concurrent use. The zero Here has no keys.
type Here struct {
	n    atomic.Int64 // keys
	mu   sync.Mutex
	keys map[string]*use // guarded by mu
}

// use is the requests of a key since an instant.
type use struct {
	since    ratelimit.Instant
	requests int
}

// Most is the number of keys that may be leased here. The owner decides about any other.
const Most = 1024

const (
	// checkEvery is the time for which a key is leased here before its rate is checked.
	checkEvery = 2 * time.Second
	// cool is the rate of requests here, in a second, below which the key goes back to its owner. It is well below the
	// rate at which a key becomes hot, so that a key near that rate does not go to and fro.
	cool = least / 4
)

// Start leases a key here, if there is room for one more.
func (h *Here) Start(now ratelimit.Instant, key []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys == nil {
		h.keys = map[string]*use{}
	}
	if len(h.keys) >= Most {
		h.drop(now)
	}
	if len(h.keys) < Most && h.keys[string(key)] == nil {
		h.keys[string(key)] = &use{since: now}
	}
	h.n.Store(int64(len(h.keys)))
}

// Use counts a request of a key, and reports whether the key is hot here.
func (h *Here) Use(now ratelimit.Instant, key []byte) bool {
	// Most nodes lease no hot key at most times, and must not take a lock for each request.
	if h.n.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.keys[string(key)]
	if u == nil {
		return false
	}
	u.requests++
	if u.cold(now) {
		delete(h.keys, string(key))
		h.n.Store(int64(len(h.keys)))
		return false
	}
	return true
}

// cold reports whether a key had too few requests. A key with enough of them is counted anew.
func (u *use) cold(now ratelimit.Instant) bool {
	age := now.Sub(u.since)
	if age < checkEvery {
		return false
	}
	cold := float64(u.requests) < cool*age.Seconds()
	*u = use{since: now}
	return cold
}

// drop drops the keys that are no longer hot, also those without requests. The caller holds mu.
func (h *Here) drop(now ratelimit.Instant) {
	maps.DeleteFunc(h.keys, func(_ string, u *use) bool { return u.cold(now) })
}

// Names are the keys that are leased here.
func (h *Here) Names(now ratelimit.Instant) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(now)
	h.n.Store(int64(len(h.keys)))
	return slices.Collect(maps.Keys(h.keys))
}
