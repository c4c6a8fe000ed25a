package leasing

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// What lies at other nodes comes back when a request needs it, before that is refused: all of the limit is admitted at
// one node, in time. The others take nothing again meanwhile.
func TestRecallsServeTheRequestThatWaits(t *testing.T) {
	s := newStage(t, 4, 100, 100, map[string]string{"on_deny": "refund", "store_deadline": "100ms"})
	s.recalling()
	for i := range s.nodes {
		s.ask(i, "k", 1)
	}
	for i := range 96 {
		if v := s.ask(0, "k", 1); v.OverLimit || v.Source == ratelimit.FromFallback {
			t.Fatalf("of the rest of 96, %d were admitted: %+v", i, v)
		}
	}
	for i := range s.nodes {
		if k := s.key(i, "k"); k.InHand(s.now) != 0 || !s.ask(i, "k", 1).OverLimit {
			t.Errorf("node %d has %d in hand", i, k.InHand(s.now))
		}
	}
}

// A recall gives back what no request waits for, and takes nothing for a while. One of another window, or of a key that
// is not known, changes nothing.
func TestRecalledGivesBackTheRest(t *testing.T) {
	s := newStage(t, 1, 100, 100, nil)
	s.ask(0, "k", 1)
	k, n := s.key(0, "k"), s.nodes[0]
	hand := k.InHand(s.now)
	for i, of := range []struct {
		key string
		w   window
	}{{"k", k.Window - 1}, {"k", k.Window + 1}, {"unknown", k.Window}, {"", 0}} {
		if n.Recalled(of.key, of.w); k.InHand(s.now) != hand || hand == 0 {
			t.Errorf("recall %d: %d are in hand, of %d", i, k.InHand(s.now), hand)
		}
	}
	k.Waiting = 2
	if n.Recalled("k", k.Window); k.InHand(s.now) != 2 {
		t.Errorf("%d are in hand, and requests wait for 2", k.InHand(s.now))
	}
	k.Waiting = 0
	if n.Recalled("k", k.Window); k.InHand(s.now) != 0 {
		t.Errorf("%d are in hand, and nobody waits", k.InHand(s.now))
	}
	s.goOn(50 * time.Millisecond)
	if used := s.used("k"); used != 1 {
		t.Errorf("the ledger has %d, and 1 was admitted", used)
	}
	claims := s.claims
	var lines []string
	for range 4 { // each waits for its own token: others need what there is
		v := s.ask(0, "k", 1)
		lines = append(lines, fmt.Sprint(v.OverLimit, k.InHand(s.now)))
	}
	if slices.ContainsFunc(lines, func(l string) bool { return l != "false 0" }) || s.claims == claims {
		t.Errorf("%q", lines)
	}
}
