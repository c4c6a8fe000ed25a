package leasing

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A reset at a node without requests for the key also works there, and if one comes meanwhile. The key has another name
// than the reset, under which its first message would take the refund back.
func TestResetByANodeWithoutTheKey(t *testing.T) {
	for _, meanwhile := range []int{0, 1} {
		s := newStage(t, 2, 100, 100, map[string]string{"audit": "true", "on_deny": "refund"})
		s.ask(0, "k", 100)
		s.ask(1, "other", 1) // so that it has read the time
		n := s.nodes[1]
		n.ledger, n.OnAudit = s.ledger, func(*ratelimit.Rule, *account.Claim, *account.Grant) {
			if meanwhile--; meanwhile == 0 {
				s.ask(1, "k", 1)
			}
		}
		if err := n.Reset(context.Background(), s.now, &ask{Rule: s.rule, Key: []byte("k")}); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			s.passes(1, 1)
		}
	}
}

// Refused requests are charged, and nodes report that later. Once they have dropped the key, a reset of it is not undone
// by reports of earlier refusals. A report that is under way at the reset is credited once.
func TestResetAndRefusalsOfOthers(t *testing.T) {
	for _, underWay := range []bool{false, true} {
		s := newStage(t, 2, 100, 5, nil)
		s.nodes[0].ledger = s.ledger
		if n := s.spendAll("k"); n != 5 {
			t.Fatalf("%d of 5", n)
		}
		for range 20 {
			s.ask(1, "k", 1)
		}
		answer := func() {}
		if underWay {
			s.nodes[1].visit(s.now, []byte("k"), func(k entry) { _, _ = s.nodes[1].joinLocked(k) })
			answer = s.sent(1)
		} else {
			s.nodes[1].drop(s.now, []byte("k"))
			s.goOn(time.Second)
		}
		if err := s.nodes[0].Reset(t.Context(), s.now, &ask{Rule: s.rule, Key: []byte("k")}); err != nil {
			t.Fatal(err)
		}
		admitted := tokens(0)
		for range 5 {
			if !s.ask(0, "k", 1).OverLimit {
				admitted++
			}
		}
		s.nodes[1].drop(s.now, []byte("k"))
		answer()
		s.goOn(time.Second)
		if n := admitted + s.spendAll("k"); n != 5 {
			t.Errorf("after a reset %d of 5 are admitted, with a report under way: %t", n, underWay)
		}
	}
}

// drops has a node drop the key as Drop does: until the ledger has what the node reports.
func (s *stage) drops(node int) {
	for m, _, earlier := s.nodes[node].drop(s.now, []byte("k")); ; m, _, earlier = s.nodes[node].drop(s.now, []byte("k")) {
		s.goOn(10 * time.Millisecond)
		if !earlier && m.err == nil {
			return
		}
	}
}

// A report of refusals that is lost, or its answer, is neither credited twice nor charged after a reset.
func TestResetAndLostReports(t *testing.T) {
	for _, booked := range []bool{false, true} {
		s := newStage(t, 2, 100, 5, nil)
		s.nodes[0].ledger = s.ledger
		s.spendAll("k")
		for range 20 {
			s.ask(1, "k", 1)
		}
		n := s.nodes[1]
		n.visit(s.now, []byte("k"), func(k entry) { _, _ = n.joinLocked(k) })
		b := s.batchOf(n)
		lose := func() { b.Fail(errLost) }
		if booked {
			_, lose = s.book(b)
		}
		n.drop(s.now, []byte("k"))
		lose()
		s.drops(1)
		if err := s.nodes[0].Reset(t.Context(), s.now, &ask{Rule: s.rule, Key: []byte("k")}); err != nil {
			t.Fatal(err)
		}
		s.goOn(300 * time.Millisecond)
		if used := s.used("k"); used != 0 {
			t.Errorf("%d are used after a reset, with a report that was booked: %t", used, booked)
		}
		admitted := tokens(0)
		for range 5 {
			if !s.ask(0, "k", 1).OverLimit {
				admitted++
			}
		}
		s.drops(1)
		s.goOn(time.Second)
		if admitted += s.spendAll("k"); admitted != 5 {
			t.Errorf("%d of 5 are admitted after a reset, with a report that was booked: %t", admitted, booked)
		}
	}
}

// Refusals of a bucket that come while a report is under way are forgiven, too.
func TestResetOfABucketThatChargesRefusals(t *testing.T) {
	s := newStrictStage(t, 2, bucketOf(5, 5, ratelimit.Day), map[string]string{"on_deny": "charge"})
	s.nodes[0].ledger = s.ledger
	for i := range s.nodes {
		s.ask(i, "other", 1)
	}
	s.ask(0, "k", 5)
	s.ask(1, "k", 1)
	s.goOn(300 * time.Millisecond)
	n := s.nodes[1]
	n.visit(s.now, []byte("k"), func(k entry) {
		k.Restate()
		_, _ = n.joinLocked(k)
	})
	answer, _ := s.book(s.batchOf(n))
	for range 20 {
		n.Ask(s.now, []ask{{Rule: s.rule, Key: []byte("k"), Cost: 1}}, make([]verdict, 1))
	}
	n.drop(s.now, []byte("k"))
	answer()
	if err := s.nodes[0].Reset(t.Context(), s.now, &ask{Rule: s.rule, Key: []byte("k")}); err != nil {
		t.Fatal(err)
	}
	s.drops(1)
	s.goOn(time.Second)
	if used := s.used("k"); used != 0 {
		t.Errorf("%d are used after a reset", used)
	}
}

// A view of a sliding window counts its part of the previous one, which a reset also clears.
func TestResetOfASlidingWindow(t *testing.T) {
	limit := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100, Algorithm: ratelimit.SlidingWindow}
	s := newStrictStage(t, 1, limit, nil)
	s.ask(0, "k", 100)
	s.goOn(65 * time.Second)
	n, a := s.nodes[0], &ask{Rule: s.rule, Key: []byte("k")}
	n.ledger = s.ledger
	if v := n.Look(t.Context(), s.now, a); v.Ledger == nil || v.Ledger.Free > 10 {
		t.Errorf("nine tenths of it count, and it shows %+v", v.Ledger)
	}
	if err := n.Reset(t.Context(), s.now, a); err != nil {
		t.Fatal(err)
	}
	s.goOn(time.Second)
	s.passes(0, 90)
}
