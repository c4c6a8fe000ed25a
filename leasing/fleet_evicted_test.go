package leasing

import (
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
