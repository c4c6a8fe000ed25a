package table

import (
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

// Table is the records at one place, in the order in which they changed there. It is safe for concurrent use. Its
// methods do not block, except for each other.
type Table struct {
	read func(*Record) (any, error)
	// Rejected counts records that arrived and are invalid, or beyond the bounds.
	Rejected atomic.Uint64
	size     atomic.Int64

	mu      sync.RWMutex
	records map[string]*entry // guarded by mu
	// feed has each change, by place. A record that changed again has a later one: the earlier counts no more, and is
	// dropped when half of the feed is. Guarded by mu.
	feed  []*entry
	place int64 // guarded by mu: of the last change
	// top is the highest version that was ever here, also of records that are dropped (rule 2). Guarded by mu.
	top  instant
	live int // guarded by mu: records that were not removed
	// round counts the times that a node reads the whole store. A record that has not arrived in this round is one that
	// the store lacks. Guarded by mu.
	round uint32
}

// entry is a record at a place. Invariant: only arrived and round change.
type entry struct {
	Record
	made    any
	arrived instant // last, by the place's clock
	place   int64
	round   uint32 // in which it last arrived
}

// New makes an empty table. read, if set, makes of each value what Get returns, or refuses it: the record is then not
// accepted. It is not called for removals.
func New(read func(*Record) (any, error)) *Table {
	if read == nil {
		read = func(*Record) (any, error) { return nil, nil }
	}
	return &Table{read: read, records: map[string]*entry{}}
}

// Get is what was made of a key's value; nil: there is none. It does not allocate, and costs one atomic load if the
// table is empty.
func (t *Table) Get(key []byte) any {
	if t.size.Load() == 0 {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.records[string(key)]; e != nil {
		return e.made
	}
	return nil
}

// Empty reports whether there is no record, not even a removal.
func (t *Table) Empty() bool { return t.size.Load() == 0 }

// Record is that of a key. The zero Record is none.
func (t *Table) Record(key string) Record {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.lookLocked(key)
}

// lookLocked is Record.
func (t *Table) lookLocked(key string) Record {
	if e := t.records[key]; e != nil {
		return e.Record
	}
	return Record{}
}

// After is all records that were not removed and whose keys come after one, in the order of their keys.
func (t *Table) After(key string) (all []*Record) {
	t.mu.RLock()
	for is, e := range t.records {
		if is > key && e.Value != "" {
			all = append(all, &e.Record)
		}
	}
	t.mu.RUnlock()
	slices.SortFunc(all, func(a, b *Record) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// Since is up to n records that changed after a place of the feed, in its order, and the place to go on from.
func (t *Table) Since(after int64, n int) (all []Record, place int64, more bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	place = after
	from := sort.Search(len(t.feed), func(i int) bool { return t.feed[i].place > after })
	for _, e := range t.feed[from:] {
		if len(all) == n {
			return all, place, true
		}
		place = e.place
		if t.records[e.Key] == e {
			all = append(all, e.Record)
		}
	}
	return all, place, false
}

// Merge takes records in: of two of a key, the greater one counts.
func (t *Table) Merge(records []Record, now instant) { t.take(records, now, false) }

// take merges records. With replace, they replace greater ones, too: a table in doubt (rule 6) takes what the store
// has.
func (t *Table) take(records []Record, now instant, replace bool) {
	all := make([]*entry, len(records))
	for i := range records {
		all[i] = t.enter(records[i]) // before the lock, which requests wait for
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, next := range all {
		t.putLocked(next, now, replace)
	}
}

// enter makes the entry of a record; nil: it is invalid.
func (t *Table) enter(r Record) *entry {
	next := &entry{Record: r}
	err := r.Check()
	if err == nil && r.Value != "" {
		next.made, err = t.read(&next.Record)
	}
	if err != nil {
		return nil
	}
	return next
}

// putLocked merges an entry. nil counts as rejected, and so does a new key beyond the bound.
func (t *Table) putLocked(next *entry, now instant, replace bool) {
	var is *entry
	if next != nil {
		is = t.records[next.Key]
	}
	if next == nil || is == nil && len(t.records) >= mostKept {
		t.Rejected.Add(1)
		return
	}
	order := 1
	if is != nil {
		next.Key = is.Key // the same bytes, once
		order = next.compare(&is.Record)
	}
	switch {
	case order == 0: // rule 3: it arrived again
		is.arrived, is.round = now, t.round
	case order > 0 || replace:
		t.place++
		next.arrived = now
		next.place = t.place
		next.round = t.round
		t.live += next.lives() - is.lives()
		t.records[next.Key], t.top = next, max(t.top, next.Version)
		t.size.Store(int64(len(t.records)))
		t.feed = append(t.feed, next)
		t.tidyLocked()
	}
}

// lives is 1 for a record that was not removed, and 0 for none.
func (e *entry) lives() int {
	if e == nil || e.Value == "" {
		return 0
	}
	return 1
}

// tidyLocked drops changes that count no more, when they are half of the feed.
func (t *Table) tidyLocked() {
	if len(t.feed) > 2*len(t.records)+64 {
		t.feed = slices.DeleteFunc(t.feed, func(e *entry) bool { return t.records[e.Key] != e })
	}
}

// Set sets a record with a version above each that was ever here, if the key has what is expected. It returns the
// key's record afterwards. It is for a place that is the store of its records: now is its clock, and at its time.
func (t *Table) Set(r Record, expected Expected, now, at instant) (Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	is := t.lookLocked(r.Key)
	if !is.Is(expected, at) {
		return is, ErrChanged
	}
	r.Version = max(at, t.top+1)
	next := t.enter(r)
	if next == nil {
		return is, ErrRecord
	}
	t.putLocked(next, now, false)
	return t.lookLocked(r.Key), nil
}

// Forget drops records that were removed or have ended, after their time, and returns those that arrived in this round.
// now is the place's clock, and at the store's. It looks at each record, so call it once a minute.
func (t *Table) Forget(now, at instant) (gone []Record) {
	t.mu.RLock()
	var old []string
	for key, e := range t.records {
		if e.expired(e.arrived, now, at) {
			old = append(old, key)
		}
	}
	t.mu.RUnlock()
	// Requests wait only for the drop. A record may have arrived again since the look.
	t.drop(old, func(e *entry) bool {
		ok := e.expired(e.arrived, now, at)
		if ok && !t.silent(e) {
			gone = append(gone, e.Record)
		}
		return ok
	})
	return gone
}

// Drop drops records that still have these versions.
func (t *Table) Drop(records []Record) {
	for i := range records {
		t.drop([]string{records[i].Key}, func(e *entry) bool { return e.Version == records[i].Version })
	}
}

// drop drops the records of keys for which ok holds now. No version falls by that: top stays (rule 2).
func (t *Table) drop(keys []string, ok func(*entry) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		if e := t.records[key]; e != nil && ok(e) {
			t.live -= e.lives()
			delete(t.records, key)
		}
	}
	t.size.Store(int64(len(t.records)))
	t.tidyLocked()
}

// Len is the number of records that were not removed.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.live
}

// again begins another round: no record has arrived in it.
func (t *Table) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
}

// full reports whether there is no room for a record in place of the present one of its key. It would be set elsewhere,
// and not here.
func (t *Table) full(r *Record) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	is := t.records[r.Key]
	return r.Value != "" && (is.lives() == 0 && t.live >= Most || is == nil && len(t.records) >= mostKept)
}

// silent reports whether a record has not arrived in this round.
func (t *Table) silent(e *entry) bool { return e.round != t.round }

// missing are the keys of records that have not arrived in this round, in the order of the feed.
func (t *Table) missing() (keys []string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, e := range t.feed {
		if t.records[e.Key] == e && t.silent(e) {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// stillMissing are the records of these keys that have not arrived in this round.
func (t *Table) stillMissing(keys []string) (all []Record) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, key := range keys {
		if e := t.records[key]; e != nil && t.silent(e) {
			all = append(all, e.Record)
		}
	}
	return all
}
