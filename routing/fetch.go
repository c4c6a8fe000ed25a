package routing

import (
	"maps"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/routing/wire"
)

const (
	fetching fetchState = iota
	fetchAbsent
	fetchAgain
)

// disagree is how long nodes may see different rings before each decides by its
// own: without a bound, one that others cannot reach would keep new keys waiting.
const disagree = 2 * TakeOver

// maxFetches bounds the keys that are looked for at once.
const maxFetches = 16 << 10

// fetch requests a key's account, or joins a fetch in progress. It returns nil if too many are in progress. The bell
// rings when it ends.
func (c *core) fetch(key []byte, b bell) *fetch {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.view.Load()
	f := c.fetches[string(key)]
	// Requests for the same key share one fetch: others are asked once, however many wait.
	if f != nil && f.view == v {
		f.bells = append(f.bells, b)
		return f
	}
	// Its answers would be about a ring that is not in force any more. Those who wait for it ask
	// again.
	if f != nil {
		c.fetched(f, fetchAgain)
	}
	if len(c.fetches) >= maxFetches {
		return nil
	}
	f = &fetch{key: string(key), view: v, began: c.clock(), bells: []bell{b}}
	c.fetches[f.key] = f
	var of []*member
	for _, m := range c.sorted() {
		if m.mayHave(v) {
			of = append(of, m)
		}
	}
	f.open = len(of)
	// This node has sent the account away, and there is no receipt: the ring has turned since, and the
	// receiver may refuse it. That others have none does not make it a new key.
	f.soon = c.mover.underway[xxhash.Sum64(key)] != ""
	for _, m := range of {
		c.ask(f, m)
	}
	// There may be no node to ask.
	c.concludeFetch(f)
	return f
}

// ask asks one node for a key's account; the caller holds mu.
func (c *core) ask(f *fetch, m *member) {
	call := newCall(func(fr *wire.Frame, id uint64) {
		fr.Fetches = append(fr.Fetches, &wire.Fetch{Id: id, Key: []byte(f.key), Ring: f.view.digest})
	})
	call.after(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		f.open--
		// Without a clear answer the account may be anywhere, so that the fetch asks again.
		found := wire.Found_ELSEWHERE
		if call.status() == answered {
			found = call.reply.GetFound()
		}
		switch found {
		case wire.Found_NONE:
		case wire.Found_OTHER_RING: // who goes on to see another counts apart
			f.soon = f.soon || c.clock().Sub(f.view.began) < disagree
		default:
			f.soon = true
		}
		c.concludeFetch(f)
	})
	if m.enqueue(call) != nil {
		// The node is not reachable: it may have the account.
		f.open--
		f.soon = true
	}
}

// concludeFetch ends a fetch that has its answers: the account is absent only if all have answered none under this
// ring. The caller holds mu.
func (c *core) concludeFetch(f *fetch) {
	switch {
	case f.state != fetching, f.open > 0:
	case f.soon:
		c.fetched(f, fetchAgain)
	default:
		c.fetched(f, fetchAbsent)
	}
}

// fetched ends a fetch; the caller holds mu.
func (c *core) fetched(f *fetch, how fetchState) {
	f.state = how
	if c.fetches[f.key] == f {
		delete(c.fetches, f.key)
	}
	for _, b := range f.bells {
		b.ring()
	}
}

// endFetches ends fetches without an answer, and lets go of those who wait for them; the caller holds mu.
func (c *core) endFetches(now instant) {
	for _, key := range slices.Sorted(maps.Keys(c.fetches)) {
		// Those who wait ask again, by the ring of then.
		if f := c.fetches[key]; now.Sub(f.began) >= fetchFor {
			c.fetched(f, fetchAgain)
		}
	}
}

// fetchFor is the longest time of a fetch.
const fetchFor = time.Second

// outcome is the state of a fetch.
func (c *core) outcome(f *fetch) fetchState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return f.state
}

// answerFetch answers a fetch of a peer. An account that is found is sent in a parcel, which is not lost when a
// stream breaks; the answer only has the peer look again.
func (c *core) answerFetch(now instant, from string, m *wire.Fetch) wire.Found {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := m.GetKey()
	c.gate.RLock()
	defer c.gate.RUnlock()
	v := c.view.Load()
	to := c.members[from]
	going := c.mover.underway[xxhash.Sum64(key)]
	switch {
	// The account is already in a parcel to the asking node. It is sent now, though the parcel is not full.
	case going == from:
		to.flush()
	case going != "":
	// This node will not get the account either, as long as it sees the ring of the asking node: it accepts only
	// its own accounts. In another ring, it may have sent the account to a node that is new to the asking one.
	case !c.local.Has(key) && v.digest == m.GetRing():
		return wire.Found_NONE
	// Under its own ring it might still be sent the account by a third node, or own the key.
	case v.digest != m.GetRing():
		return wire.Found_OTHER_RING
	// It may have ended since it was looked for: then the next look finds none.
	case to != nil && to.ready.Load() && to.roomForOne() && c.send(now, to, key):
		to.flush()
	}
	return wire.Found_ELSEWHERE
}

func (m *member) roomForOne() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out.roomForOne()
}
