package leasing

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Of a small limit, nodes take what they need, and nothing else. So a peek at any node shows what is left in all, and
// each token is admitted wherever its request arrives, without a recall.
func TestSmallLimitsAreExact(t *testing.T) {
	for limit := tokens(1); limit < 60; limit++ {
		for _, mode := range []string{"leasing", "approx"} {
			for _, deny := range []string{"charge", "refund"} {
				s := newStage(t, 3, 100, limit, map[string]string{"mode": mode, "on_deny": deny})
				s.oneWay = 500 * time.Microsecond
				for _, n := range s.nodes {
					n.Drift = always{s.rule.DriftShare()}
				}
				at := int(limit)
				next := func() int { at++; return at % 3 }
				for left := limit; left >= 0; left-- {
					if v := s.decide(next(), ask{Rule: s.rule, Key: []byte("k"), Kind: ratelimit.Peek}); v.Remaining != left || v.OverLimit {
						t.Fatalf("%s, %s: of %d, %d are left, and a peek shows %+v", mode, deny, limit, left, v)
					}
					if v := s.ask(next(), "k", 1); v.OverLimit != (left == 0) || v.Remaining != max(0, left-1) {
						t.Fatalf("%s, %s: of %d, %d are left, and a request for one shows %+v", mode, deny, limit, left, v)
					}
				}
			}
		}
	}
}

// Whatever is asked of a small limit, at any node, the answers are those of one counter.
func TestSmallLimitsAreOneCounter(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 14))
		limit, deny := 1+tokens(r.IntN(59)), ratelimit.OnDeny(seed%2)
		s := newStage(t, 3, 100, limit, nil)
		s.rule.Coordination.OnDeny, s.oneWay = deny, time.Duration(r.IntN(2))*time.Millisecond
		s.recalling()
		count := tokens(0)
		var did []string
		for range 60 {
			a := ask{Rule: s.rule, Key: []byte("k"), Cost: 1 + tokens(r.IntN(4))}
			node, kind := r.IntN(3), r.IntN(6)
			switch kind {
			case 0:
				a.Kind, a.Cost = ratelimit.Peek, 0
			case 1:
				a.Cost = 1 + tokens(r.IntN(int(limit)+2))
			}
			v := s.decide(node, a)
			did = append(did, fmt.Sprintf("node %d, %d: %+v", node, a.Cost, v))
			over, undone := count+a.Cost > limit, kind == 2
			if !undone && (!over || deny == ratelimit.DenyCharges) {
				count += a.Cost
			}
			left := max(0, limit-count)
			if v.OverLimit != over || a.Kind == ratelimit.Peek && v.Remaining != left {
				t.Fatalf("seed %d: of %d, %d are left\n%s", seed, limit, left, strings.Join(did, "\n"))
			}
			if undone {
				s.nodes[node].Undo(s.now, []ask{a}, []verdict{v})
			}
			if s.goOn(time.Duration(r.IntN(30)) * time.Millisecond); undone || over {
				s.goOn(10 * time.Second) // the ledger has what was refused, and has back what was undone
			}
		}
	}
}

// For the ledger, what others have just drawn is in hand. Of a small limit they need it, so that a request waits for
// its recalls during half of its time at most.
func TestSmallLimitsRefuseInHalfTheTime(t *testing.T) {
	s := newStage(t, 3, 100, 10, nil)
	s.ask(1, "k", 1)
	for range 9 {
		s.ask(0, "k", 1)
	}
	began := s.now
	if v := s.ask(1, "k", 1); !v.OverLimit || s.now.Sub(began) > 10*time.Millisecond {
		t.Errorf("after %v: %+v", s.now.Sub(began), v)
	}
}
