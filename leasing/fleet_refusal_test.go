package leasing

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A refusal has a time and a cost for the next attempt, which then passes, also if other nodes have tokens in hand.
func TestRefusalsCanBeActedOn(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		for _, on := range []string{"charge", "refund"} {
			t.Run(fmt.Sprint(ratelimit.Algorithm(algorithm), " ", on), func(t *testing.T) {
				s := newStage(t, 2, 100, 60, map[string]string{"on_deny": on})
				s.rule.Limit.Algorithm, s.rule.Limit.Unit, s.rule.Limit.Burst = ratelimit.Algorithm(algorithm), ratelimit.Hour, 60
				for range 3 {
					s.ask(0, "k", 10)
				}
				s.ask(1, "k", 28) // it may have more in hand
				v := s.ask(0, "k", 20)
				if !v.OverLimit || v.Remaining >= 20 || v.ResetAfter <= 0 {
					t.Fatalf("%+v", v)
				}
				if on == "refund" && v.Remaining > 0 {
					if v := s.ask(0, "k", v.Remaining); v.OverLimit {
						t.Errorf("so much was said to remain, and %+v", v)
					}
					v = s.ask(0, "k", 20)
				}
				if s.rule.Limit.Algorithm == ratelimit.SlidingWindow {
					return // when it passes, depends on what is old
				}
				s.goOn(v.ResetAfter)
				if again := s.ask(0, "k", 20); again.OverLimit {
					t.Errorf("after %v it does not pass: %+v", v.ResetAfter, again)
				}
			})
		}
	}
}

// Requests get the tokens that a claim brought for them, though refusals of other nodes exceed the limit before the
// requests are awake. Later requests are refused then.
func TestGrantedTokensAreSpent(t *testing.T) {
	s := newStage(t, 3, 100, 5, nil)
	for i := range s.nodes {
		s.ask(i, "other", 1)
	}
	verdicts := make([]verdict, 8)
	waits := make([]*Wait, len(verdicts))
	for i := range waits {
		waits[i] = s.nodes[0].Ask(s.now, []ask{{Rule: s.rule, Key: []byte("k"), Cost: 1}}, verdicts[i:i+1])
	}
	s.sent(0)()
	for range 8 {
		if v := s.ask(1, "k", 1); !v.OverLimit {
			t.Fatalf("node 0 has all of the limit, and %+v", v)
		}
	}
	s.nodes[0].Recalled("k", s.rule.Limit.WindowAt(s.time()))
	s.settle()
	if sum := s.key(0, "k").Sum; sum <= 5 {
		t.Fatalf("node 0 has no answer with the refusals of node 1: %d", sum)
	}
	admitted := 0
	for i, w := range waits {
		for w != nil && w.Advance(s.now) {
			s.settle()
			s.goOn(10 * time.Millisecond)
		}
		if !verdicts[i].OverLimit {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("%d of 5 were admitted", admitted)
	}
	if v := s.ask(0, "k", 1); !v.OverLimit {
		t.Errorf("the limit is exceeded, and %+v", v)
	}
}

// Nodes that each have fewer tokens in hand than a request needs, and more together, do not refuse it for long. A rest
// that is too small costs few claims.
func TestRestInSeveralHandsIsUsed(t *testing.T) {
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 7))
		s := newStage(t, 2, 100, 100, map[string]string{"on_deny": "refund"})
		s.rule.Limit.Algorithm, s.rule.Limit.Burst = ratelimit.Algorithm(seed)%ratelimit.Concurrency, 100
		s.oneWay = time.Duration(random.IntN(4)) * time.Millisecond
		s.recalling()
		var callers [5]struct {
			at      instant // of the next request, or of the release of the last one's unused tokens
			wait    *Wait
			verdict [1]verdict
			unused  tokens
		}
		asks, asked, used := []ask{{Rule: s.rule, Key: []byte("k"), Cost: 30}}, 0, tokens(0)
		for end := s.now.Add(3 * time.Second); s.now < end; s.goOn(time.Millisecond) {
			for i := range callers {
				c := &callers[i]
				switch {
				case c.wait == nil && s.now < c.at:
					continue
				case c.unused > 0:
					a := ask{Rule: s.rule, Key: []byte("k"), Cost: c.unused, Kind: ratelimit.Release}
					c.unused, a.Window = 0, c.verdict[0].Window
					s.decide(random.IntN(2), a)
					continue
				case c.wait == nil:
					asked++
					c.wait = s.nodes[asked%2].Ask(s.now, asks, c.verdict[:])
				}
				if c.wait != nil && c.wait.Advance(s.now) {
					continue
				}
				if c.wait, c.at = nil, s.now.Add(50*time.Millisecond); !c.verdict[0].OverLimit {
					c.unused, c.at = tokens(random.IntN(30)), s.now.Add(100*time.Millisecond)
					used += 30 - c.unused
				}
			}
		}
		if used <= 70 || s.claims > asked/2 {
			t.Errorf("seed %d: %d of 100 are used, by requests for 30, and %d requests made %d claims", seed, used, asked, s.claims)
		}
	}
}

// A node that has refused holds for long admits them a second after another node has released tokens.
func TestReleasesElsewhereAreFound(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		s := newStage(t, 2, 100, 100, map[string]string{"on_deny": "refund"})
		s.rule.Limit.Algorithm, s.rule.Limit.Burst, s.rule.Hold = ratelimit.Algorithm(algorithm), 100, &ratelimit.Hold{}
		s.ask(0, "k", 100)
		for range 200 {
			s.ask(1, "k", 30)
			s.goOn(50 * time.Millisecond)
		}
		released, w := s.now, s.key(0, "k").Window
		s.decide(0, ask{Rule: s.rule, Key: []byte("k"), Cost: 60, Kind: ratelimit.Release, Window: w})
		for s.ask(1, "k", 30).OverLimit {
			s.goOn(50 * time.Millisecond)
		}
		if s.now > released.Add(time.Second) {
			t.Errorf("%v: %v until it fits", ratelimit.Algorithm(algorithm), s.now.Sub(released))
		}
	}
}
