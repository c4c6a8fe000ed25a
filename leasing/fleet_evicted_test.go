package leasing

import (
	"fmt"
	"testing"
	"time"
)

// Evicted accounts are restated within a sweep. Accounts evicted within the next minute are restated at its end.
func TestEvictedTwiceIsToldTwice(t *testing.T) {
	s := newStage(t, 1, 100, 100, nil)
	s.ask(0, "k", 5)
	evict := func(tells time.Duration) {
		t.Helper()
		s.ledger.Evict("k", s.key(0, "k").Window)
		s.nodes[0].RestateEvicted()
		s.goOn(tells)
	}
	evict(10 * time.Second) // which is also for as long as the account learns
	if used := s.used("k"); used < 5 {
		t.Fatalf("the ledger has %d of 5", used)
	}
	evict(40 * time.Second)
	if used := s.used("k"); used != 0 {
		t.Fatalf("the ledger has %d, and all is told once in a minute", used)
	}
	s.goOn(11 * time.Second)
	if used := s.used("k"); used < 5 {
		t.Errorf("the ledger has %d of 5", used)
	}
}

// Each time that recalls may have been missed, all totals are stated again. The rest before the next time grows with
// their number.
func TestMissedRecallsAreMadeUpFor(t *testing.T) {
	const many = largeShard - 10
	s := newStage(t, 1, 2*many, 100, nil)
	missed := func(key string, rest time.Duration, told bool) {
		t.Helper()
		s.ledger.Evict(key, s.key(0, key).Window)
		s.nodes[0].Recalled("", 0)
		s.goOn(rest)
		if used := s.used(key); (used > 0) != told {
			t.Errorf("after %v the ledger has %d of %q", rest, used, key)
		}
	}
	s.ask(0, "k", 5)
	for range 300 { // which is more than the numbers of restatements
		missed("k", 300*time.Millisecond, true)
	}
	for i := range many {
		s.ask(0, fmt.Sprint(i), 5)
	}
	missed("k", 300*time.Millisecond, true)
	missed("k", 100*time.Millisecond, false)
	s.goOn(many * missedRest)
	missed("k", 300*time.Millisecond, true)
}
