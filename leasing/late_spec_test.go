package leasing

import (
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// inVain has a request wait for its whole time, and no answer come.
func (s *nodeScript) inVain(cost tokens) *nodeRequest {
	s.Helper()
	r := s.asks(cost)
	if r.decided() {
		s.Fatalf("it should wait for the ledger, and was decided: %+v", r.v[0])
	}
	s.passes(ratelimit.StoreDeadline)
	for r.wait.TimeOver() > 0 {
	}
	return r
}

// While the ledger answers, what waited in vain is refused where half of the limit or
// less was left when the key was last heard of. Another node may have spent it since,
// and what this node may admit in an outage would be over. When nothing has been
// heard for aliveFor, it is an outage.
func TestLateAnswerIsNoOutage(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.other(ratelimit.Claim{Seq: 1, Waiting: 60})
	s.leased(1) // 39 are left
	s.inVain(3).says(true, ratelimit.FromClaim)
	s.passes(aliveFor)
	s.inVain(3).says(false, ratelimit.FromFallback)
}

// Where more than half is left, or the key was never heard of, on_store_failure
// decides, as if there were an outage: the first request on a cold key passes. The
// second does not, before the ledger has been heard of the key; but with open.
func TestLateOnPlenty(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.Stepped.fleet.lanes[0].answered = s.now // the ledger answers others
	s.inVain(1).says(false, ratelimit.FromFallback)
	s.inVain(1).says(true, ratelimit.FromClaim)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	s.inVain(1).says(false, ratelimit.FromFallback)

	s = newNodeScript(t, perMinute100)
	s.other(ratelimit.Claim{Seq: 1, Waiting: 40})
	s.leased(1) // 59 are left
	s.inVain(3).says(false, ratelimit.FromFallback)
}
