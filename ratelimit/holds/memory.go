package holds

import (
	"cmp"
	"sync"
)

// memory has the settled parts of holds. It has two generations, and drops the older one when the younger is
// full. The zero memory is empty.
//
// Guarantee: a part is marked once, while the clock is not set back. A hold with dropped parts is never marked again.
type memory struct {
	mu         sync.Mutex
	young, old map[uint64]uint16 // guarded by mu; parts by the hold's id
	latest     int64             // guarded by mu: instant of the latest hold in young, or when young was last marked
	oldest     int64             // guarded by mu: parts of holds up to here may have been dropped
	retired    int64             // guarded by mu: latest of old
	clock      int64             // guarded by mu: the latest time of a settlement
	most       int               // guarded by mu: of a generation; 0: mostSettled
}

// mostBack is how far the clock may go back, in seconds, while the settled parts are kept.
const mostBack = 60

// mostSettled are the holds of a generation: some 20 MB when it is full.
const mostSettled = 1 << 19

// mark is what becomes of a part: it is marked now, was so before, or may have been, because older ones are dropped.
type mark uint8

const (
	marked mark = iota
	before
	forgotten
)

// mark marks a part of a hold, which was made at an instant, in seconds.
func (m *memory) mark(id uint64, part int, at, now int64) mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now < m.clock-mostBack { // new holds would count as dropped until the earlier time has come again
		m.young = nil
		m.old = nil
		m.latest = 0
		m.oldest = 0
		m.retired = 0
		m.clock = 0
	}
	m.clock = max(m.clock, now)
	bit := uint16(1) << part
	switch {
	case m.young[id]&bit != 0 || m.old[id]&bit != 0:
		return before
	case at <= m.oldest && m.oldest != 0:
		return forgotten
	}
	if m.young == nil {
		m.young = map[uint64]uint16{}
	}
	m.young[id] |= bit
	m.latest = max(m.latest, at, now)
	if len(m.young) >= cmp.Or(m.most, mostSettled) {
		// Dropped parts were settled by then, and so were made by then.
		m.oldest, m.retired = m.retired, m.latest
		m.old, m.young = m.young, nil
	}
	return marked
}
