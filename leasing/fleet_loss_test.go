package leasing

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
)

// After a loss of data, a node restates all keys, for any number of them. It has more to state until the last answer,
// and the epoch is young until then.
func TestManyKeysAreToldAfterALoss(t *testing.T) {
	const keys = 12_000 // more than may wait at once
	s := newStage(t, 1, 2*keys, 100, nil)
	s.ledger = account.NewMemory(s.time)
	node := s.nodes[0]
	for i := range keys {
		s.ask(0, fmt.Sprint("k", i), 60)
	}
	s.goOn(3 * time.Second)
	s.ledger.Lose(nil, "99")
	node.Beat()
	s.settle()
	for range sweepParts {
		node.Sweep(s.now)
	}
	if !node.Restating() {
		t.Error("nothing was answered, and it has nothing more to tell")
	}
	for range 40 {
		if node.Restating() {
			if _, err := s.ledger.Prolong(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.goOn(100 * time.Millisecond)
	}
	for i := range keys {
		if used := s.used(fmt.Sprint("k", i)); used < 60 {
			t.Fatalf("key %d: the ledger knows of %d of 60", i, used)
		}
	}
}

// Admissions before the first answer of the ledger are booked with it.
func TestAdmittedBeforeTheFirstAnswer(t *testing.T) {
	s := newStage(t, 1, 100, 100, map[string]string{"on_store_failure": "open"})
	if v := s.overdue(0, ask{Rule: s.rule, Key: []byte("k"), Cost: 50}); v.OverLimit {
		t.Fatalf("the store is away, and it is decided %+v", v)
	}
	s.goOn(time.Second)
	s.ask(0, "k", 1)
	s.goOn(time.Second)
	if used := s.used("k"); used < 51 {
		t.Errorf("%d are booked of 51", used)
	}
}

// An older copy of the data, as of a replica that lags, has tokens that the node has returned since.
func TestReturnedTokensAreNotLost(t *testing.T) {
	s := newStage(t, 1, 100, 100, nil)
	s.ask(0, "k", 1)
	v := s.ask(0, "k", 30)
	older := s.ledger.Copy()
	s.nodes[0].Undo(s.now, []ask{{Rule: s.rule, Key: []byte("k"), Cost: 30}}, []verdict{v})
	s.refund(0, "k", 1)
	s.nodes[0].Recalled("k", s.rule.Limit.WindowAt(s.time()))
	s.goOn(time.Second)
	if used := s.used("k"); used != 0 {
		t.Fatalf("%d are used", used)
	}
	s.ledger.Lose(older, "99")
	s.nodes[0].Beat()
	s.goOn(5 * time.Second)
	if used, hand := s.used("k"), s.key(0, "k").InHand(s.now); used != hand {
		t.Errorf("after the loss %d are used, and %d are in hand", used, hand)
	}
}
