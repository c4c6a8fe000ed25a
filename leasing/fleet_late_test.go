package leasing

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// sent has the ledger settle what a node has to send, and returns what delivers the answers.
func (s *stage) sent(node int) (deliver func()) {
	s.Helper()
	b := s.nodes[node].Batch()
	if b == nil {
		s.Fatal("nothing is to be sent")
	}
	grants := make([]account.Grant, len(b.Claims()))
	epoch, at, err := s.ledger.Settle(context.Background(), b.Claims(), grants)
	if err != nil {
		s.Fatal(err)
	}
	return func() { b.Answer(epoch, at, grants) }
}

// spendAll spends single tokens at all nodes in turn until all refuse for a while, and returns how many were admitted.
func (s *stage) spendAll(key string) (admitted tokens) {
	for refused := 0; refused < 3*len(s.nodes); {
		refused++
		for i := range s.nodes {
			for !s.ask(i, key, 1).OverLimit {
				admitted, refused = admitted+1, 0
			}
		}
		s.goOn(200 * time.Millisecond)
	}
	return admitted
}

// An answer that comes when the lease that it grants is over renews nothing. What was granted in vain only comes back
// with time.
func TestLateAnswersRenewNothing(t *testing.T) {
	s := newStage(t, 2, 100, 100, map[string]string{"lease.size": "20", "on_deny": "refund", "on_store_failure": "closed"})
	s.rule.Limit = ratelimit.Limit{Unit: ratelimit.Year, Requests: 1, Burst: 100, Algorithm: ratelimit.TokenBucket}
	admitted := tokens(0)
	if v := s.ask(0, "k", 1); v.OverLimit {
		t.Fatalf("%+v", v)
	}
	admitted++
	k, verdicts := s.key(0, "k"), make([]verdict, 1)
	w := s.nodes[0].Ask(s.now, []ask{{Rule: s.rule, Key: []byte("k"), Cost: 30}}, verdicts)
	before := k.Taken
	deliver := s.sent(0)
	s.now = s.now.Add(10 * time.Second)
	if w.TimeOver(); w.Advance(s.now) || !verdicts[0].OverLimit {
		t.Fatalf("nothing was heard, and on_store_failure is closed: %+v", verdicts[0])
	}
	for !s.ask(1, "k", 1).OverLimit {
		admitted++
	}
	if deliver(); k.InHand(s.now) != 0 {
		t.Errorf("%d are in hand, of %d before", k.InHand(s.now), before)
	}
	s.goOn(10 * time.Second)
	if admitted += s.spendAll("k"); admitted > 100 {
		t.Errorf("%d of 100 were admitted", admitted)
	}
}

// A request of several rules waits for the longest check_timeout of those that drift, and then for the longest
// deadline, in any order. At the end of the first, the rules that may drift have drifted, and the others wait.
func TestRulesOfDifferentPatience(t *testing.T) {
	for _, order := range [][3]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {1, 0, 2}} {
		s := newStage(t, 1, 100, 100, nil)
		s.nodes[0].Drift = always{50}
		rules := [3]*ratelimit.Rule{}
		for i, fields := range []map[string]string{
			{"mode": "approx", "check_timeout": "2ms", "drift_budget": "50", "max_nodes": "1"},
			{"mode": "approx", "check_timeout": "6ms", "drift_budget": "50", "max_nodes": "1"},
			{"store_deadline": "40ms", "on_store_failure": "open"},
		} {
			rules[i] = newStage(t, 1, 1, 100, fields).rule
		}
		names := [3]string{"short", "long", "leases"}
		var asks []ask
		for _, i := range order {
			s.rule = rules[i]
			s.ask(0, names[i], 1)
			asks = append(asks, ask{Rule: rules[i], Key: []byte(names[i]), Cost: 20})
		}
		s.goOn(3 * time.Second) // the last answer is too old for drift
		verdicts := make([]verdict, len(asks))
		w := s.nodes[0].Ask(s.now, asks, verdicts)
		if w == nil || w.Patience() != 6*time.Millisecond {
			t.Fatalf("%v: it waits %v", order, w.Patience())
		}
		if rest := w.TimeOver(); rest != 34*time.Millisecond || !w.Advance(s.now) {
			t.Errorf("%v: it waits %v longer", order, rest)
		}
		if rest := w.TimeOver(); rest != 0 || w.Advance(s.now) {
			t.Errorf("%v: it waits still, for %v", order, rest)
		}
		for j, i := range order {
			want := [3]ratelimit.Source{ratelimit.FromDrift, ratelimit.FromDrift, ratelimit.FromFallback}[i]
			if v := verdicts[j]; v.Source != want || v.OverLimit {
				t.Errorf("%v: %s: %+v", order, names[i], v)
			}
		}
	}
}
