package leasing

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// With a reserve for drift, nodes together admit at most the limit, with any answers of the ledger or without: each
// spends only its share of the reserve.
func TestReserveStaysWithinTheLimit(t *testing.T) {
	for seed := range uint64(20) {
		s := newStage(t, 2, 100, 100, map[string]string{
			"lease.reserve": "20", "max_nodes": "2", "on_deny": "refund", "on_store_failure": "closed",
		})
		r := rand.New(rand.NewPCG(seed, 29))
		for _, n := range s.nodes {
			n.Drift = always{s.rule.AtLedger().DriftShare()}
		}
		admitted, first := tokens(0), ratelimit.Verdict{}
		for i := range 300 {
			cost, node := 1+tokens(r.IntN(3)), r.IntN(2)
			s.down = r.IntN(3) == 0
			v := s.ask(node, "k", cost)
			if i == 0 {
				first = v
			}
			if !v.OverLimit {
				admitted += cost
			}
			if r.IntN(4) == 0 {
				s.goOn(20 * time.Millisecond)
			}
		}
		s.down = false
		s.goOn(3 * time.Second)
		if admitted += s.spendAll("k"); admitted > 100 || admitted < 80 {
			t.Errorf("seed %d: %d of 100 were admitted", seed, admitted)
		}
		// Who is answered sees the whole limit, and not the ledger's part of it.
		if !first.OverLimit && first.Remaining < 90 {
			t.Errorf("seed %d: %+v", seed, first)
		}
	}
}

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

// A peek passes while the whole limit is not exceeded, as a request does.
func TestPeeksCountTheReserve(t *testing.T) {
	s := newStage(t, 1, 100, 100, map[string]string{"lease.reserve": "20", "max_nodes": "1"})
	s.nodes[0].Drift = always{s.rule.AtLedger().DriftShare()}
	for i := range 100 {
		if v := s.peek(0, "k"); v.OverLimit {
			t.Errorf("%d of 100 are used, and a peek is refused: %+v", i, v)
		}
		if v := s.ask(0, "k", 1); v.OverLimit {
			t.Fatalf("%d: %+v", i, v)
		}
	}
}
