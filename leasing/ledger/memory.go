package ledger

import (
	"context"
	"slices"
	"sync"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Memory is a ledger in this process: the simulator's, and that of tests. It is safe for
// concurrent use, never blocks on anything but its own short locks, and holds at most as many
// accounts as it was made for. An account in use is never dropped to make room: a claim on a new key
// then fails with ErrLedgerFull, and its caller must limit the key some other
// way. An account is dropped without notice as soon as a new
// one would answer alike.
type Memory struct {
	clock  func() ratelimit.LedgerTime
	hash   keytable.Hasher
	shards []memoryShard
	// OnRecall, if set before the first claim, is told whom a claim has asked to
	// give back what they have of a key. It is called under a lock: it must not
	// block, nor use the ledger.
	OnRecall func(key string, holders []ratelimit.Holder)
}

type memoryShard struct {
	mu       sync.Mutex
	accounts slab[Account]   // guarded by mu
	floor    ratelimit.Fence // guarded by mu; at least every dropped account's fence
	_        [32]byte
}

// NewMemory makes a ledger of at most maxAccounts that reads clock, which must
// be the ledger's own (LedgerTime), when it is called through Settle.
func NewMemory(maxAccounts int, clock func() ratelimit.LedgerTime) *Memory {
	m := &Memory{
		clock: clock, hash: keytable.NewHasher(),
		shards: make([]memoryShard, keytable.ShardCount(maxAccounts)),
	}
	for i := range m.shards {
		m.shards[i].accounts = newSlab[Account](keytable.ShareOf(maxAccounts, i, len(m.shards)))
	}
	return m
}

// Settle implements [ratelimit.Ledger].
func (m *Memory) Settle(_ context.Context, claims []ratelimit.Claim, grants []ratelimit.Grant) {
	// One time for all: claims that travel together are settled at one instant, as a pipeline's nearly
	// are.
	now := m.clock()
	for i := range claims {
		key := []byte(claims[i].Key)
		grants[i] = m.settleAt(now, m.hash.Of(key), key, &claims[i])
	}
}

func (m *Memory) settleAt(now ledgerTime, hash uint64, key []byte, c *ratelimit.Claim) ratelimit.Grant {
	s := &m.shards[hash>>32%uint64(len(m.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	cell := s.accounts.get(hash, key)
	if cell == nil {
		if cell = s.admit(now, hash, key); cell == nil {
			// To drop an account in use would grant its limit once more. Its caller limits the key
			// in another way instead.
			return ratelimit.Grant{Seq: c.Seq, Err: ratelimit.ErrLedgerFull}
		}
		// The key may have had an account before, which was dropped. Fences of a key rise for ever
		// (docs/protocol.md, section 4.6): the new account begins at the highest fence of all that
		// were.
		cell.val.fence = s.floor
	}
	a := &cell.val
	g := a.Settle(now, c)
	if g.Recalled > 0 && m.OnRecall != nil {
		m.OnRecall(c.Key, a.recalledHolders(c))
	}
	return g
}

// admit makes room for a new account. It looks at a bounded number of others,
// so that no claim pays for a search through all of them.
func (s *memoryShard) admit(now ledgerTime, hash uint64, key []byte) *cell[Account] {
	if c := s.accounts.add(hash, key); c != nil {
		return c
	}
	dropped := s.accounts.evict(evictTries, func(c *cell[Account]) bool {
		// From dead on a new account would answer as this one does; only its fence must be kept.
		if now < c.val.dead {
			return false
		}
		s.floor = max(s.floor, c.val.fence)
		return true
	})
	if !dropped {
		return nil
	}
	return s.accounts.add(hash, key)
}

// evictTries bounds the search for room: enough to find it when one cell in
// ten is free to go, cheap enough for a flood of new keys.
const evictTries = 24

// LosableMemory is a Memory that can lose its data as a Redis can, and tells of it
// ([ratelimit.Epochal]): the simulator's ledger. Its methods are not to be called
// at the same time.
type LosableMemory struct {
	*Memory
	epoch ratelimit.Epoch
}

// NewLosable makes a ledger whose first epoch is not young.
func NewLosable(m *Memory) *LosableMemory {
	return &LosableMemory{m, ratelimit.Epoch{ID: 1}}
}

// SettleEpoch implements [ratelimit.Epochal].
func (l *LosableMemory) SettleEpoch(
	ctx context.Context, q ratelimit.EpochQuery, claims []ratelimit.Claim, grants []ratelimit.Grant,
) (ratelimit.Epoch, ledgerTime, error) {
	at := l.clock()
	l.epoch.Learning = min(l.epoch.Learning, at.Add(RelearnTime)) // the clock may have been set back
	// A holder still has accounts to tell: until it has, a key that looks new may have been spent
	// (docs/protocol.md, section 4.9).
	if q.Telling && l.epoch.Young(at) {
		l.epoch.Learning = max(l.epoch.Learning, at.Add(RelearnTime))
	}
	l.Settle(ctx, claims, grants)
	return l.epoch, at, nil
}

// Forget loses all accounts, as FLUSHALL would.
func (l *LosableMemory) Forget() {
	l.Memory.Forget()
	l.begin()
}

// Copy is the data as it is now: of a replica, or on a disk.
func (l *LosableMemory) Copy() *Memory {
	other := &Memory{clock: l.clock, hash: l.hash, OnRecall: l.OnRecall, shards: make([]memoryShard, len(l.shards))}
	for i := range l.shards {
		from, to := &l.shards[i], &other.shards[i]
		from.mu.Lock()
		to.floor, to.accounts = from.floor, newSlab[Account](from.accounts.limit)
		for j, tag := range from.accounts.tags {
			if c := &from.accounts.cells[j]; tag != 0 {
				into := to.accounts.add(c.fullHash(), c.key[:c.len])
				into.val = c.val
				// A copy of its own: claims that come after this instant change only the original.
				into.val.others, into.val.tills = slices.Clone(c.val.others), cloned(c.val.tills)
			}
		}
		from.mu.Unlock()
	}
	return other
}

// FailOver goes on with a copy, which may be older: another epoch begins.
func (l *LosableMemory) FailOver(copied *Memory) {
	l.shards = copied.shards
	l.begin()
}

// Evict loses one account, as a Redis with maxmemory does, and tells nobody.
func (l *LosableMemory) Evict(key string) {
	s, c := l.locked([]byte(key))
	defer s.mu.Unlock()
	if c != nil {
		// Its fence is kept, as that of an account that is dropped.
		s.floor = max(s.floor, c.val.fence)
		gone := false
		s.accounts.drop(func(other *cell[Account]) bool { // another moves to its place
			first := other == c && !gone
			gone = gone || first
			return first
		})
	}
}

// begin starts another epoch.
func (l *LosableMemory) begin() {
	at := l.clock()
	l.epoch = ratelimit.Epoch{ID: l.epoch.ID + 1, Began: at, Learning: at.Add(RelearnTime)}
}

// Accounts returns how many accounts the ledger holds now, dead ones included.
func (m *Memory) Accounts() int {
	n := 0
	for i := range m.shards {
		m.shards[i].mu.Lock()
		n += m.shards[i].accounts.size
		m.shards[i].mu.Unlock()
	}
	return n
}
