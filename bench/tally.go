package bench

import "time"

// tally is the caller's count, by key and window. A request near a turn may count in either of two windows,
// and is evidence for neither: it makes no window over or under its limit. It is safe for concurrent use.
type tally struct {
	calls
	limit  int64
	window time.Duration
	counts map[countKey]*count // guarded by mu
	passed int64               // guarded by mu
	early  int64               // guarded by mu: refused while fewer than the limit had been admitted
}

type countKey struct {
	key    int
	window int64
}

// count is of one key in one window.
type count struct{ offered, admitted, perhaps int64 }

// turn is how near to the end of a window a request may be in either: nodes have the ledger's clock from an
// older answer.
const turn = 5 * time.Millisecond

func newTally(limit int64, window time.Duration) *tally {
	return &tally{calls: calls{latency: newLatencies()}, limit: limit, window: window, counts: map[countKey]*count{}}
}

// answered counts the answer to a request for one token; err says that there was none.
func (t *tally) answered(key int, intended, sent, now time.Time, ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(now.Sub(intended), err)
	first, last := sent.Add(-turn).UnixNano()/int64(t.window), now.Add(turn).UnixNano()/int64(t.window)
	if err != nil {
		ok = true // for all that is known, it may have been charged
		last = first + 1
	} else if ok {
		t.passed++
	}
	if first != last {
		for w := first; w <= last; w++ {
			if ok {
				t.ofLocked(key, w).perhaps++
			}
		}
		return
	}
	c := t.ofLocked(key, first)
	c.offered++
	if ok {
		c.admitted++
		return
	}
	if c.admitted+c.perhaps < t.limit {
		t.early++
	}
}

func (t *tally) ofLocked(key int, window int64) *count {
	k := countKey{key, window}
	c := t.counts[k]
	if c == nil {
		c = &count{}
		t.counts[k] = c
	}
	return c
}

// count has what the caller counted. Over is of the key and window that went furthest.
func (m *Measured) count(t *tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.Asked = t.asked
	m.Failed = t.failed
	m.Admitted = t.passed
	m.Early = t.early
	m.P50 = t.latency.at(50)
	m.P99 = t.latency.at(99)
	m.P999 = t.latency.at(99.9)
	for _, c := range t.counts {
		exact := min(t.limit, c.offered)
		m.Allowed += exact
		m.Under += max(0, exact-c.admitted-c.perhaps)
		m.Over = max(m.Over, c.admitted-t.limit)
	}
}
