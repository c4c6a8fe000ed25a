package leasing

import (
	"errors"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

var errLost = errors.New("lost")

// batchOf is the next batch of a node.
func (s *stage) batchOf(n *Stepped) *Batch {
	for {
		if b := n.Batch(); b != nil {
			return b
		}
		s.now = s.now.Add(time.Millisecond)
		s.run(&s.timers)
	}
}

// book has the ledger settle a batch. Its answer arrives, or is lost.
func (s *stage) book(b *Batch) (answer, lose func()) {
	g := make([]account.Grant, len(b.Claims()))
	epoch, at, err := s.ledger.Settle(s.Context(), b.Claims(), g)
	if err != nil {
		s.Fatal(err)
	}
	return func() { b.Answer(epoch, at, g) }, func() { b.Fail(errLost) }
}

// begins has a node begin a request, which waits.
func (s *stage) begins(node int, cost tokens) (*Wait, *verdict) {
	v := make([]verdict, 1)
	return s.nodes[node].Ask(s.now, []ask{{Rule: s.rule, Key: []byte("k"), Cost: cost}}, v), &v[0]
}

// leaves has the caller of a request leave.
func (s *stage) leaves(w *Wait) {
	w.call.timeOver(true)
	w.Advance(s.now)
}

// newReturning is a node, or several, with a bucket of 100, and 100 ms after their first message.
func newReturning(t *testing.T, nodes int, unit ratelimit.Unit) *stage {
	s := newStrictStage(t, nodes, bucketOf(100, 100, unit), map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
	for i := range s.nodes {
		s.ask(i, "other", 1)
	}
	s.goOn(100 * time.Millisecond)
	return s
}

// two requests of a node wait. The claim of the first is granted when it has left. The second, with another cost, came
// when that was under way.
func (s *stage) two(cost, other tokens) (second *Wait, v *verdict) {
	first, _ := s.begins(0, cost)
	b := s.batchOf(s.nodes[0])
	second, v = s.begins(0, other)
	answer, _ := s.book(b)
	s.leaves(first)
	answer()
	return second, v
}

// breaks opens the breaker of the key's lane.
func (s *stage) breaks() {
	l := s.nodes[0].lane(s.key(0, "k"))
	for range 10 {
		l.Failure(s.now, .5)
	}
}

// What was granted for a request that left is for another one that waits, also if it is all of the bucket.
func TestGrantOfARequestThatLeft(t *testing.T) {
	for _, cost := range []tokens{1, 100} {
		s := newReturning(t, 1, ratelimit.Day)
		w, v := s.two(cost, cost)
		s.claims = 0
		if w.Advance(s.now) || v.OverLimit || s.claims > 0 {
			t.Errorf("a request of %d whose tokens are granted gets %+v, after %d claims", cost, *v, s.claims)
		}
	}
}

// A young epoch's messages do not state refunds: what was granted in vain returns after it, less what has refilled.
func TestReturnAfterAYoungEpoch(t *testing.T) {
	s := newReturning(t, 2, ratelimit.Second)
	s.goOn(3 * time.Second)
	w, _ := s.two(50, 60)
	s.ledger.Lose(nil, "99")
	for i := range s.nodes {
		s.nodes[i].Beat()
	}
	s.goOn(2 * time.Millisecond)
	if !s.nodes[0].Young() {
		t.Fatal("the epoch is not young")
	}
	s.leaves(w)
	for s.nodes[0].Young() || s.nodes[1].Young() {
		s.goOn(time.Millisecond)
	}
	from, admitted := s.now, tokens(0)
	for !s.ask(1, "k", 1).OverLimit {
		admitted++
	}
	s.goOn(30 * time.Millisecond)
	for i := range 60 {
		if !s.ask(i%2, "k", 10).OverLimit {
			admitted += 10
		}
	}
	if most := 101 + tokens(100*s.now.Sub(from).Seconds()); admitted > most {
		t.Errorf("%d are admitted, of at most %d", admitted, most)
	}
}

// A key whose bucket has refilled leaves the table, also if its node never returned what it was granted in vain.
func TestFullBucketLeavesTheTable(t *testing.T) {
	s := newReturning(t, 1, ratelimit.Second)
	w, _ := s.two(10, 20)
	s.breaks()
	s.leaves(w)
	s.down = true
	s.goOn(3 * time.Second)
	s.down = false
	s.goOn(5 * time.Minute)
	left := 0
	for i := range s.nodes[0].shards {
		left += s.nodes[0].shards[i].keys.Len()
	}
	if left > 0 {
		t.Errorf("%d keys are left", left)
	}
}

// A refund whose message never left, because the breaker is open, is stated later.
func TestRefundThatNeverLeft(t *testing.T) {
	s := newReturning(t, 1, ratelimit.Day)
	first, _ := s.begins(0, 30)
	answer, _ := s.book(s.batchOf(s.nodes[0]))
	s.leaves(first)
	answer()
	s.breaks()
	s.goOn(10 * time.Second)
	if used := s.used("k"); used > 0 {
		t.Errorf("%d are used, of a request that left", used)
	}
}
