package leasing

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// earlyAtTurn is a node that is about to ask for tokens of the next window, a moment before it begins.
func earlyAtTurn(t *testing.T) (s *stage, n *Stepped, turn instant) {
	t.Helper()
	s = newStage(t, 1, 100, 1000, map[string]string{"mode": "leasing"})
	turn = instant(2 * time.Hour)
	s.now = turn - instant(2*time.Second)
	for s.now < turn-instant(150*time.Millisecond) {
		s.ask(0, "k", 4)
		s.goOn(50 * time.Millisecond)
	}
	return s, s.nodes[0], turn
}

// An early claim may wait for a batch until the window has turned. It claims no tokens of the window after the next:
// these would not be restated for a whole window, and a ledger that loses its data would grant them again.
func TestEarlyMessageThatLeavesLate(t *testing.T) {
	t.Parallel()
	s, n, turn := earlyAtTurn(t)
	s.now = turn - instant(time.Millisecond)
	s.wantEarly(n, "k")
	s.now = turn + instant(5*time.Millisecond)
	for b := n.Batch(); b != nil; b = n.Batch() {
		for _, c := range b.Claims() {
			if c.Window > s.rule.Limit.WindowAt(s.time()) {
				t.Errorf("it asks for %d of window %d, and %d goes on", c.Want, c.Window, s.rule.Limit.WindowAt(s.time()))
			}
		}
		b.Fail(context.DeadlineExceeded)
	}
}

// An early claim that the ledger lost before its window began is restated in it.
func TestEarlyClaimIsToldAfterALoss(t *testing.T) {
	t.Parallel()
	s, n, turn := earlyAtTurn(t)
	s.now = turn - instant(50*time.Millisecond)
	s.wantEarly(n, "k")
	s.settle()
	if k := s.held(n, "k"); k.Next == nil || k.Next.Taken == 0 {
		t.Fatal("nothing was claimed early")
	}
	s.ledger.Lose(nil, "2")
	n.Greet()
	s.settle()
	s.sweepAll(n) // the account of the ending window is reported before the turn
	s.settle()
	s.goOn(3 * time.Second)
	if k, used := s.held(n, "k"), s.used("k"); k.Taken == 0 || used < k.Taken {
		t.Errorf("the ledger has %d, and the node has taken %d", used, k.Taken)
	}
}

// The end of an override is no turn of a window: nothing of the next window is claimed then.
func TestEndOfAnOverrideIsNoTurn(t *testing.T) {
	s, _, _ := earlyAtTurn(t)
	s.now, s.rule.Limit.Ceiling = s.now.Add(time.Second), 1000
	s.override(ratelimit.Override{Requests: 500, Expires: s.time().Add(2 * time.Second)})
	for range 50 {
		s.ask(0, "k", 4)
		s.goOn(50 * time.Millisecond)
	}
	if next := s.usedIn("k", s.rule.Limit.WindowAt(s.time())+1); next > 0 {
		t.Errorf("%d of the next window are claimed", next)
	}
}

// wantEarly makes a node claim tokens of a key's next window.
func (s *stage) wantEarly(n *Stepped, name string) {
	s.Helper()
	k := s.held(n, name)
	if k.use.flight != nil || !k.Early(s.now, new(s.nodes[0].sizing(k.rule()))) {
		s.Fatal("no early claim is due")
	}
	n.renewLocked(s.now, k)
	l := n.lane(k)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.send(nil) // its time to share a trip is over
}

// held is what a node has of a key. Nothing else of the node may run meanwhile.
func (s *stage) held(n *Stepped, name string) entry {
	s.Helper()
	sh, id, c := n.find([]byte(name))
	defer sh.mu.Unlock()
	if c == nil {
		s.Fatal("the key is not known")
	}
	return sh.entry(s.now, id, c)
}

// sweepAll has a node look after all its keys now.
func (s *stage) sweepAll(n *Stepped) {
	for range sweepParts {
		n.Sweep(s.now)
	}
}
