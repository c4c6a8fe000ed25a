package lease

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// inBetween is a key of which this window has 5 tokens for ten seconds more, and the next one 4; this
// one may be over from 1 s on, and the next has begun for certain at 2 s.
func inBetween() *Held {
	var h Held
	h.Begin(40)
	h.Rule = testRule(perMinute100)
	h.expires = 12 * second
	h.Lease = Lease{Window: 7, Granted: 5, Deadline: second, Reset: second}
	h.Lease.SetLimit(&h.Rule.Limit)
	h.Next = &NextLease{Over: second, Start: 2 * second, Lease: Lease{Window: 8, Granted: 4, Deadline: 60 * second, Reset: 60 * second}}
	return &h
}

// While a window may be over and may not, a request is admitted by what both windows' leases have, to
// the last token; it waits for the turn where that is no more than 2 ms away. Before and behind it
// is decided as ever.
func TestInBetween(t *testing.T) {
	wait := DoubtWait
	for _, c := range []struct {
		name    string
		at      instant
		cost    tokens
		decided bool
		charged tokens
	}{
		{"this window goes on for certain", second - 1, 1, false, 0},
		{"it may be over", second, 1, true, 1},
		{"all that both have", second, 4, true, 4},
		{"more than the next has", second, 5, true, 0},
		{"the turn is more than 2 ms away", (2 * second).Add(-wait) - 1, 1, true, 1},
		{"the turn is 2 ms away", (2 * second).Add(-wait), 1, false, 0},
	} {
		h := inBetween()
		a := &ask{Rule: h.Rule, Kind: ratelimit.Spend, Cost: c.cost}
		v, ok := h.inDoubt(c.at, a)
		if ok != c.decided || v.Charged != c.charged || ok && v.OverLimit != (c.charged == 0) {
			t.Errorf("%s: decided %v, %+v", c.name, ok, v)
		}
		if h.Lease.Spent != c.charged || h.Next.Lease.Spent != c.charged {
			t.Errorf("%s: %d and %d are spent, and %d were charged", c.name, h.Lease.Spent, h.Next.Lease.Spent, c.charged)
		}
	}
}

// A lease that has expired by its own time has nothing to spend in between, to the nanosecond: the
// ledger may have given its tokens to another.
func TestInBetweenOfAnExpiredLease(t *testing.T) {
	for _, c := range []struct {
		expires instant
		over    bool
	}{{second + 1, false}, {second, true}} {
		h := inBetween()
		h.expires = c.expires
		if v, ok := h.inDoubt(second, &ask{Rule: h.Rule, Kind: ratelimit.Spend, Cost: 1}); !ok || v.OverLimit != c.over {
			t.Errorf("a lease that expires %v later answers %+v %v", c.expires.Sub(second), v, ok)
		}
	}
}

// Who cannot be served claims for this window until it may be over, and from then on waits for the
// turn, which brings what a claim could not.
func TestWhoWaitsForTheTurn(t *testing.T) {
	for _, c := range []struct {
		at   instant
		want Joining
	}{{second - 1, Alone}, {second, UntilTurn}, {2*second - 1, UntilTurn}} {
		h := inBetween()
		if how, _ := h.Join(c.at, &ask{Rule: h.Rule, Kind: ratelimit.Spend, Cost: 50}); how != c.want {
			t.Errorf("after %v: it waits in manner %d and not %d", time.Duration(c.at), how, c.want)
		}
	}
}

// A peek at a full bucket says that there is nothing to wait for, to the nanosecond.
func TestPeekAtAFullBucketWaitsForNothing(t *testing.T) {
	h := Held{Rule: testRule(ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 60, Burst: 10})}
	h.Lease = Lease{Window: 1, Available: 10, Deadline: 10 * second, Reset: second}
	h.Lease.SetLimit(&h.Rule.Limit)
	h.Told = second
	var v verdict
	if ok := h.Take(2*second, &ask{Rule: h.Rule, Kind: ratelimit.Peek}, false, &v); !ok || v.Remaining != 10 || v.ResetAfter != 0 {
		t.Errorf("%+v %v", v, ok)
	}
}

// A request may be undone after its key was forgotten, and has come back with nothing known of it.
func TestUndoOfAForgottenKey(t *testing.T) {
	var h Held
	h.Begin(40)
	h.Undo(&ask{Rule: testRule(perMinute100), Kind: ratelimit.Spend, Cost: 1}, &verdict{Charged: 1, Window: 7})
	if h.Lease != (Lease{}) {
		t.Errorf("%+v is known of it", h.Lease)
	}
}

// Nothing is to be done of a key of which nothing is known, not even a rule.
func TestSweepOfAKeyWithoutARule(t *testing.T) {
	var h Held
	h.Begin(40)
	if ended := h.Sweep(second, true); !ended || h.Ready() != nil {
		t.Error("it wants something")
	}
}
