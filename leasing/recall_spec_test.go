package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// recallScript is a node whose ledger recalls leases, and another holder's claims.
type recallScript struct {
	*nodeScript
	other    ratelimit.Claim
	recalled []ratelimit.Holder
}

func newRecallScript(t testing.TB, l ratelimit.Limit) *recallScript {
	s := &recallScript{nodeScript: newNodeScript(t, l)}
	s.Recalls()
	s.rule.Coordination.Lease.Auto = true
	s.ledger.OnRecall = func(_ string, holders []ratelimit.Holder) { s.recalled = append(s.recalled, holders...) }
	s.other = ratelimit.Claim{Key: string(keyOf(1)), Limit: l, Holder: 99, TTL: 10 * time.Second, Recall: true}
	return s
}

// otherAsks has the other holder claim, of which it spends all that it gets.
func (s *recallScript) otherAsks(waiting tokens) ratelimit.Grant {
	s.Helper()
	g := make([]ratelimit.Grant, 1)
	c := &s.other
	c.Seq++
	c.Waiting, c.Want = waiting, waiting
	s.ledger.Settle(s.Context(), []ratelimit.Claim{*c}, g)
	if g[0].Err != nil {
		s.Fatal(g[0].Err)
	}
	c.Window, c.Fence, c.Granted, c.Spent = g[0].Window, g[0].Fence, g[0].Granted, g[0].Granted
	return g[0]
}

var hundredAMinute = ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100}

// While there is plenty, one claim fetches a share of the limit, and nothing is
// claimed for time's sake nor given back for idleness.
func TestPlentyIsLeasedOnce(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	r := s.asks(1)
	c, g := s.exchange()
	if !c.Stretch || !c.Recall || !g.Plenty || g.Granted != 5 {
		t.Fatalf("claimed %+v, granted %+v", c, g)
	}
	r.says(false, ratelimit.FromClaim)
	for range 40 { // s, to the end of the window less a little
		s.passes(time.Second)
		s.Sweep(s.now)
		for b := s.Batch(); b != nil; b = s.Batch() {
			if len(b.Claims()) > 0 {
				t.Fatalf("it claims %+v", b.Claims())
			}
			b.Answer(nil)
		}
	}
	s.spends(1)
}

// What others wait for is given back at once, but for what the next moment needs.
func TestRecalledLeaseIsGivenBack(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	r := s.asks(3)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.passes(time.Second) // three a second: the next moment needs none
	s.otherAsks(96)
	if len(s.recalled) != 1 || s.recalled[0]>>1 != 1 {
		t.Fatalf("recalled from %v", s.recalled)
	}
	s.Recalled(string(keyOf(1)))
	c, _ := s.exchange()
	if c.Returned != 2 || c.Waiting != 0 || c.Want != 0 || c.Stretch {
		t.Fatalf("it claims %+v", c)
	}
	if g := s.otherAsks(2); g.Granted != 97 || g.RetryAfter != 0 {
		t.Errorf("the other has %+v", g)
	}
	s.Recalled(string(keyOf(1))) // late, or once more: there is nothing to say
	s.quiet("all has been given back")
	s.Recalled("no such key")
}

// What a node has spent the ledger need not know while there is plenty; when it is
// recalled, it tells.
func TestRecalledLeaseTellsWhatIsSpent(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	r := s.asks(3)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.spends(2)
	s.Recalled(string(keyOf(1)))
	if c, _ := s.exchange(); c.Spent != 5 || c.Returned != 0 {
		t.Errorf("it tells %+v", c)
	}
}

// A recall that comes while a claim is under way is answered after it.
func TestRecallDuringAClaim(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	r := s.asks(1)
	b, _ := s.sends()
	s.Recalled(string(keyOf(1)))
	s.settled(b, time.Millisecond)
	if c, _ := s.exchange(); c.Returned != 4 {
		t.Errorf("it claims %+v", c)
	}
	r.says(false, ratelimit.FromClaim) // which has waited for the first
}

// A request that waits for what was recalled is served when that comes, and claims
// again after a pause meanwhile; when nothing comes, it is refused, and
// on_store_failure has no say: the ledger was heard.
func TestRequestsWaitForWhatIsRecalled(t *testing.T) {
	for _, comes := range []bool{true, false} {
		s := newRecallScript(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
		s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
		s.otherAsks(10)
		s.other.Spent = 4 // and has the rest to give back
		s.ledger.Settle(t.Context(), []ratelimit.Claim{func() ratelimit.Claim { c := s.other; c.Seq++; c.Waiting, c.Want = 0, 0; return c }()}, make([]ratelimit.Grant, 1))
		s.other.Seq++
		r := s.asks(2)
		_, g := s.exchange()
		if !g.Recalling || g.Recalled != 1 || r.decided() {
			t.Fatalf("the ledger says %+v", g)
		}
		s.quiet("it has just claimed")
		if comes {
			s.other.Returned = 6
			s.otherAsks(0)
		}
		claims := 0
		for range 15 {
			s.passes(time.Millisecond)
			if r.decided() {
				break
			}
			if b := s.Batch(); b != nil {
				claims++
				s.settled(b, 0)
			}
		}
		if !r.decided() {
			for more := r.wait.TimeOver(); more > 0; more = r.wait.TimeOver() {
				s.passes(more)
			}
		}
		r.says(!comes, ratelimit.FromClaim)
		if comes && claims != 1 || claims > 6 {
			t.Errorf("what comes %v: it claimed %d times", comes, claims)
		}
	}
}

// A rule whose leases are sized or timed by hand is not stretched; and where many
// keys are tracked, idle ones are given back.
func TestStretchedRules(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	for what, change := range map[string]func(c *ratelimit.Coordination){
		"size": func(c *ratelimit.Coordination) { c.Lease.Fixed = 3 }, "max": func(c *ratelimit.Coordination) { c.Lease.Max = 3 },
		"ttl": func(c *ratelimit.Coordination) { c.Lease.Auto = false }, "eager": func(c *ratelimit.Coordination) { c.Reclaim = ratelimit.ReclaimEager },
	} {
		r := *s.rule
		change(&r.Coordination)
		if r.Stretched() || !s.rule.Stretched() {
			t.Errorf("%s is set, and leases are stretched", what)
		}
	}
	c := ratelimit.DefaultCoordination()
	if err := c.Set("lease.ttl", "3s"); err != nil || c.Lease.Auto || c.Lease.TTL != 3*time.Second {
		t.Errorf("%v: %+v", err, c.Lease)
	}
	if err := c.Set("lease.ttl", "auto"); err != nil || c.Lease != ratelimit.DefaultCoordination().Lease {
		t.Errorf("%v: %+v", err, c.Lease)
	}
}
