package fleet

import (
	"sync"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// shard is a part of the keys.
type shard struct {
	mu     sync.Mutex
	keys   map[keytable.ID]*key // guarded by mu. Invariant: at most most
	most   int
	seq    uint64 // guarded by mu: of claims
	number uint32 // guarded by mu: of messages
	_      [40]byte
}

// key is a key of the table.
type key struct {
	hold.Key
	name   string // at the ledger
	rule   *ratelimit.Rule
	as     ratelimit.Holder
	flight *flight // under way, or to be sent; nil: there is none
	told   uint64  // the epoch in which the ledger was told of it
}

func (s *shard) nextLocked() uint64 {
	s.seq++
	return s.seq
}

// tries bounds the search for a key that may be forgotten.
const tries = 16

// addLocked tracks a key; nil: there is no room.
func (f *Fleet) addLocked(s *shard, id keytable.ID, a *ratelimit.Ask, now instant) *key {
	if len(s.keys) >= s.most && !f.forgetOneLocked(s, now) {
		return nil
	}
	k := &key{name: leasing.KeyName(a.Key), rule: a.Rule, as: f.name + ratelimit.Holder(f.forgotten.Load()&(1<<28-1))}
	s.keys[id] = k
	return k
}

// forgetOneLocked forgets a key of which the ledger knows all.
func (f *Fleet) forgetOneLocked(s *shard, now instant) bool {
	n := 0
	for id, k := range s.keys { // in no order
		if n++; n > tries {
			return false
		}
		if k.mayGo(now) {
			f.forgetLocked(s, id)
			return true
		}
	}
	return false
}

// forgetLocked forgets a key. If it comes back it has another name: under the old one it would take back what it has
// spent.
func (f *Fleet) forgetLocked(s *shard, id keytable.ID) {
	delete(s.keys, id)
	f.forgotten.Add(1)
}

// mayGo tells whether nothing is lost with the key: the ledger knows all of it, and nothing is in hand.
func (k *key) mayGo(now instant) bool {
	return k.flight == nil && !k.Asked() && !k.Untold() && (k.Taken <= k.Spent || now >= k.Till) && k.Drift() == 0
}

// Settled tells whether the ledger was heard of, and knows all that nodes have to tell.
func (f *Fleet) Settled() bool {
	there, epoch := f.lane.known()
	early, _ := there.Between(f.clock())
	return epoch.ID != 0 && !epoch.Young(early)
}

// Telling tells whether the ledger may have lost its data, and has not been told all that this node has.
func (f *Fleet) Telling() bool {
	there, epoch := f.lane.known()
	if early, _ := there.Between(f.clock()); epoch.ID == 0 || !epoch.Young(early) {
		return false
	}
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		for _, k := range s.keys {
			if k.told != epoch.ID && k.Heard != 0 && max(k.Taken, k.Spent) > 0 {
				s.mu.Unlock()
				return true
			}
		}
		s.mu.Unlock()
	}
	return false
}

// A sweep looks at a part of the shards of a large table, so that no request waits for long.
const (
	large = 1000 // keys of a shard
	part  = 10
)

// sweep looks after keys: windows that are over, what is idle, what is to be told. n counts the sweeps.
func (f *Fleet) sweep(now instant, n int) {
	there, epoch := f.lane.known()
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		if len(s.keys) > large && i%part != n%part {
			s.mu.Unlock()
			continue
		}
		for id, k := range s.keys {
			f.sweepLocked(now, &there, epoch, s, id, k)
		}
		s.mu.Unlock()
	}
}

func (f *Fleet) sweepLocked(
	now instant, there *hold.LedgerClock, epoch ratelimit.Epoch, s *shard, id keytable.ID, k *key,
) {
	if k.flight != nil || k.Deadline == 0 {
		return
	}
	if now >= k.Till {
		// Nobody asks for it: what is over is told, and the key goes.
		if f.enterLocked(now, there, id, k) && now.Sub(k.Demand.LastUse) > k.rule.Limit.Period() {
			f.forgetLocked(s, id)
		}
		return
	}
	switch {
	case k.told != epoch.ID && epoch.ID != 0:
		// After a loss the ledger is told what it may have lost; of a key that is new there is nothing to tell.
		if k.told = epoch.ID; max(k.Taken, k.Spent) != 0 && k.Heard != 0 {
			k.Doubt()
			f.launchLocked(s, id, k)
		}
	case k.Due(now, &k.rule.Limit):
		f.launchLocked(s, id, k)
	case k.Idle(now) && !f.keptIdle(k):
		k.GiveBack(0)
		f.launchLocked(s, id, k)
	}
}

// keptIdle tells whether a lease stays with its node though nobody asks for the key: one of plenty, which others recall
// when they need it, and which no time ends.
func (f *Fleet) keptIdle(k *key) bool {
	return k.Deadline == hold.Never && k.Sum <= k.rule.Limit.Capacity()*7/8
}

// leave gives back all that is in hand, at the node's end, in a few rounds: a message may be under way.
func (f *Fleet) leave() {
	for range leaveRounds {
		var last []*flight
		for i := range f.shards {
			last = append(last, f.leaveShard(&f.shards[i])...)
		}
		if len(last) == 0 {
			return
		}
		for _, fl := range last {
			<-fl.done
		}
	}
}

const leaveRounds = 3

func (f *Fleet) leaveShard(s *shard) (last []*flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, k := range s.keys {
		if k.Taken <= k.Spent && !k.Untold() && !k.Asked() {
			continue
		}
		k.GiveBack(0)
		if fl, _ := f.joinLocked(s, id, k); fl != nil {
			last = append(last, fl)
		}
	}
	return last
}
