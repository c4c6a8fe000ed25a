package account

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-gate/sluice/ratelimit"
)

// MemoryStore is a [Store] in this process, for tests and simulations. It drops ended records when their number has
// doubled.
type MemoryStore struct {
	clock func() ratelimit.LedgerTime

	mu   sync.Mutex
	life string // guarded by mu
	// version is the last one given. It is never given twice, also for a record that was dropped and made again:
	// otherwise a writer that read the dropped one would replace the new one. Guarded by mu.
	version uint64
	records map[string]memoryRecord // guarded by mu
	sweep   int                     // guarded by mu: number of records that starts the next sweep
}

type memoryRecord struct {
	Record
	until instant
}

// Memory is a ledger in this process, for tests and simulations. It is safe for concurrent use.
type Memory struct {
	*CAS
	*MemoryStore
}

// NewMemory makes an empty ledger. Its epoch began long ago.
func NewMemory(clock func() ratelimit.LedgerTime) *Memory {
	s := NewMemoryStore(clock)
	l := &Memory{NewCAS(s, ""), s}
	s.version = 1
	s.records[l.CAS.life().Name] = memoryRecord{Record{1, []byte("1 1 0 " + s.life)}, lastTime}
	return l
}

// Evict loses one account without a sign, like a Redis with maxmemory. Its holders find it by the total in the answer
// to their next draw.
func (m *Memory) Evict(key string, w ratelimit.Window) { m.MemoryStore.Evict(NameOf("", key, w)) }

// NewMemoryStore makes an empty store.
func NewMemoryStore(clock func() ratelimit.LedgerTime) *MemoryStore {
	return &MemoryStore{clock: clock, life: "1", records: map[string]memoryRecord{}}
}

// Read implements [Store].
func (s *MemoryStore) Read(_ context.Context, keys []StoreKey) (Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := Snapshot{Records: make([]Record, len(keys)), Now: s.clock(), Life: s.life}
	for i, k := range keys {
		x.Records[i] = s.records[k.Name].Record
	}
	return x, nil
}

// ErrLife means that a store's data is in another life than a change.
var ErrLife = errors.New("the store's data was lost, or an older copy is in use")

// Write implements [Store]. It checks the life and all versions under one lock, so that it has the atomicity that other
// stores get from transactions. Data is cloned: the caller may reuse it.
func (s *MemoryStore) Write(_ context.Context, life string, changes []Change) ([]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if life != s.life {
		return nil, ErrLife
	}
	made := make([]bool, len(changes))
	for i := range changes {
		c := &changes[i]
		made[i] = s.records[c.Name].Version == c.Version
		if made[i] {
			s.version++
			s.records[c.Name] = memoryRecord{Record{s.version, slices.Clone(c.Data)}, c.Until}
		}
	}
	if len(s.records) >= s.sweep {
		s.dropLocked(s.clock())
		s.sweep = max(64, 2*len(s.records))
	}
	return made, nil
}

// Drop implements [Store].
func (s *MemoryStore) Drop(_ context.Context, before ratelimit.LedgerTime) (n int, more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = len(s.records)
	s.dropLocked(before)
	return n - len(s.records), false, nil
}

func (s *MemoryStore) dropLocked(before instant) {
	maps.DeleteFunc(s.records, func(_ string, r memoryRecord) bool { return r.until <= before })
}

// Evict loses one record without a sign.
func (s *MemoryStore) Evict(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, name)
}

// Move moves all records of a key to another store, like a slot of a Cluster.
func (s *MemoryStore) Move(key string, to *MemoryStore) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	of := func(name string, _ memoryRecord) bool { return strings.HasPrefix(name, "{"+key+"}") }
	maps.DeleteFunc(to.records, of)
	for name, r := range s.records {
		if of(name, r) {
			to.version++
			r.Version = to.version
			to.records[name] = r
		}
	}
	maps.DeleteFunc(s.records, of)
}

// Copy is a copy of the data, as on a standby or a disk. It is another store.
func (s *MemoryStore) Copy() *MemoryStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &MemoryStore{clock: s.clock, life: s.life, version: s.version, records: maps.Clone(s.records)}
}

// Lose continues with an older copy of the data, or without data if it is nil, in another life. Versions go on from
// where they were.
func (s *MemoryStore) Lose(older *MemoryStore, life string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = map[string]memoryRecord{}
	if older != nil {
		s.records = maps.Clone(older.records)
	}
	s.life = life
}

var _ Store = (*MemoryStore)(nil)
