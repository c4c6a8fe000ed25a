package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Tokens that are in hand when a window ends go back, if the next one still counts them. So do
// tokens that a message brings after the turn, whether the key is already in the next window or not.
func TestTokensOfAnEndedWindowGoBack(t *testing.T) {
	for _, delivers := range []string{"before the turn", "before the key turns", "after the key has turned"} {
		tokensGoBack(t, delivers)
	}
}

func tokensGoBack(t *testing.T, delivers string) {
	t.Helper()
	s := newStage(t, 2, 100, 1000, nil)
	s.rule.Limit.Algorithm, s.rule.Limit.Unit = ratelimit.SlidingWindow, ratelimit.Minute
	s.ask(0, "other", 1) // from then on, node 0 has the ledger's time
	w := s.rule.Limit.WindowAt(s.time())
	for s.time().Add(20*time.Millisecond) < s.rule.Limit.WindowEnd(w) {
		s.goOn(10 * time.Millisecond)
	}
	request := []ask{{Rule: s.rule, Key: []byte("k"), Cost: 40}}
	first, second := make([]verdict, 1), make([]verdict, 1)
	waits := []*Wait{s.nodes[0].Ask(s.now, request, first)}
	deliver := s.sent(0)
	if delivers == "before the turn" {
		deliver()
		waits[0].Advance(s.now)
		s.nodes[0].Undo(s.now, request, first)
	}
	for s.rule.Limit.WindowAt(s.time()) == w {
		s.now = s.now.Add(time.Millisecond)
	}
	s.now = s.now.Add(20 * time.Millisecond)
	if delivers == "after the key has turned" {
		waits = append(waits, s.nodes[0].Ask(s.now, request, second))
	}
	if delivers != "before the turn" {
		deliver()
	}
	for range 5 {
		s.settle()
		for _, wait := range waits {
			wait.Advance(s.now)
		}
		s.goOn(time.Millisecond)
	}
	s.goOn(3 * time.Second)
	if used := s.usedIn("k", w); used != 0 {
		t.Errorf("the answer comes %s: %d are used of the ended window", delivers, used)
	}
}
