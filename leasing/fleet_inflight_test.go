package leasing

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// inFlight is a caller that charges one token, and refunds it when its request ends, as Envoy does at the end of a
// stream. A refused request ends at once. Any node may get either.
type inFlight struct {
	rules    []*ratelimit.Rule // of each node
	apart    bool              // charges and refunds go to different nodes
	wait     *Wait             // for an answer
	asked    []ask
	verdicts []verdict
	began    instant
	held     bool
	next     instant // time of the next request
}

// look has a caller take its answer, if that is there.
func (c *inFlight) look(s *stage, r *rand.Rand, holds time.Duration) {
	if s.now.Sub(c.began) >= s.rule.Coordination.Deadline() {
		s.Fatal("the ledger did not decide")
	}
	if !c.wait.Advance(s.now) {
		c.wait = nil
		c.answered(s, r, holds)
	}
}

// ask has a caller make its next request at a node.
func (c *inFlight) ask(s *stage, r *rand.Rand, holds time.Duration) {
	kind, node := ratelimit.Spend, r.IntN(len(s.nodes))
	if c.asked != nil && c.asked[0].Kind == ratelimit.Spend {
		kind, c.held = ratelimit.Refund, false
	}
	if c.apart && kind == ratelimit.Refund {
		node = 2
	} else if c.apart {
		node %= 2
	}
	c.asked = []ask{{Rule: c.rules[node], Key: []byte("k"), Cost: 1, Kind: kind}}
	c.verdicts, c.began = make([]verdict, 1), s.now
	if c.wait = s.nodes[node].Ask(s.now, c.asked, c.verdicts); c.wait == nil {
		c.answered(s, r, holds)
	}
}

func (c *inFlight) answered(s *stage, r *rand.Rand, holds time.Duration) {
	a, v := c.asked[0], c.verdicts[0]
	if c.held = a.Kind == ratelimit.Spend && !v.OverLimit; c.held {
		c.next = s.now.Add(time.Duration(r.Int64N(int64(holds))))
	} else {
		c.next = s.now.Add(time.Duration(r.IntN(3)) * time.Millisecond)
	}
}

// A limit of requests in flight by charges and refunds, of refused requests too: at most the limit is held at once.
func TestRefundsOfRefusedRequestsAdmitNothing(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 10))
		limit := []tokens{10, 10, 10, 10, 100}[seed%5]
		s := newStage(t, 3, 100, limit, nil)
		s.rule.Coordination.StoreDeadline = time.Second // a refusal without an answer may be booked later
		rules := make([]*ratelimit.Rule, len(s.nodes))
		for i := range rules {
			own := *s.rule
			own.Counters = &ratelimit.RuleCounters{}
			rules[i] = &own
		}
		s.recalling()
		callers := make([]inFlight, int(limit)+2+r.IntN(30))
		holds := []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}[seed%3]
		most := 0
		for range 3000 {
			s.oneWay = time.Duration(r.IntN(2)) * time.Millisecond
			held := 0
			for i := range callers {
				c := &callers[i]
				if c.wait == nil {
					continue
				}
				c.look(s, r, holds)
			}
			for i := range callers {
				c := &callers[i]
				c.rules, c.apart = rules, seed%2 == 0
				if c.wait == nil && s.now >= c.next {
					c.ask(s, r, holds)
				}
				if c.held {
					held++
				}
			}
			most = max(most, held)
			s.goOn(time.Millisecond)
		}
		for i := range callers {
			c := &callers[i]
			for c.wait != nil {
				s.goOn(time.Millisecond)
				c.look(s, r, holds)
			}
			if c.asked[0].Kind == ratelimit.Spend {
				s.decide(2, ask{Rule: rules[2], Key: []byte("k"), Cost: 1, Kind: ratelimit.Refund})
			}
		}
		s.goOn(10 * time.Second)
		hand := tokens(0)
		for i := range s.nodes {
			k := s.key(i, "k")
			hand += k.InHand(s.now)
		}
		if used := s.used("k"); used != hand || most != int(limit) {
			t.Errorf("seed %d: %d callers, up to %v: %d are held at once, of %d, and of refunded ones %d are used, %d in hand",
				seed, len(callers), holds, most, limit, used, hand)
		}
	}
}
