package lease

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// answered is the last answer of these tests.
const answered = 100 * second

// At its deadline, a request is refused if there was not enough a moment ago, and where it must be cautious, if others
// may have spent the rest. Else on_store_failure decides.
func TestOverdueRequests(t *testing.T) {
	const limit, fixed = 100, ratelimit.FixedWindow
	coordination := ratelimit.DefaultCoordination()
	deadline := coordination.Deadline()
	open := func(sum, taken, spent tokens) Key {
		return Key{Part: Part{Sum: sum, Taken: taken, Spent: spent, LastAnswer: answered}, Till: Never}
	}
	ends := func(at instant) Key { return Key{Part: Part{Sum: limit, LastAnswer: answered}, Till: at} }
	for _, c := range []struct {
		name            string
		algorithm       ratelimit.Algorithm
		key             Key
		unasked         tokens
		after           time.Duration // since the last answer
		cost            tokens
		alive, cautious bool
		want            Overdue
	}{
		{"without an answer", fixed, Key{}, 0, time.Second, 1, true, true, Undecided},
		{"the second without an answer", fixed, Key{}, 1, time.Second, 1, true, true, Doubtful},
		{"the second, not cautious", fixed, Key{}, 1, time.Second, 1, true, false, Undecided},
		{"the second, of a dead store", fixed, Key{}, 1, time.Second, 1, false, true, Undecided},
		{"after its window", fixed, ends(answered + second), 0, time.Second, 1, true, true, Undecided},
		{"just before its end", fixed, ends(answered + 2*second), 0, deadline, 1, true, true, Short},
		{"used up", fixed, open(limit, 0, 0), 0, deadline, 1, false, false, Short},
		{"used up, long ago", fixed, open(limit, 0, 0), 0, time.Second, 1, false, false, Undecided},
		{"used up, long ago, alive", fixed, open(limit, 0, 0), 0, time.Second, 1, true, false, Doubtful},
		{"it fits exactly", fixed, open(90, 0, 0), 0, deadline, 10, true, false, Undecided},
		{"it does not fit", fixed, open(90, 0, 0), 0, deadline, 11, true, false, Short},
		{"with the tokens in hand", fixed, open(90, 9, 4), 0, deadline, 15, true, false, Undecided},
		{"less the drift", fixed, open(90, 4, 9), 0, deadline, 6, true, false, Short},
		{"little is left, cautious", fixed, open(90, 0, 0), 0, time.Second, 1, true, true, Doubtful},
		{"little is left, not alive", fixed, open(90, 0, 0), 0, time.Second, 1, false, true, Undecided},
		{"much is left, cautious", fixed, open(10, 0, 0), 0, time.Second, 1, true, true, Undecided},
		{"sliding, a moment ago", ratelimit.SlidingWindow, open(limit, 0, 0), 0, deadline, 1, true, true, Short},
		{"sliding, little is left", ratelimit.SlidingWindow, open(90, 0, 0), 0, deadline, 1, true, true, Doubtful},
		{"sliding, long ago", ratelimit.SlidingWindow, open(limit, 0, 0), 0, time.Second, 1, true, true, Undecided},
	} {
		a := &ratelimit.Ask{Cost: c.cost, Rule: &ratelimit.Rule{
			Limit:        ratelimit.Limit{Algorithm: c.algorithm, Unit: ratelimit.Hour, Requests: limit},
			Coordination: coordination,
		}}
		e := Entry{&c.key, &Use{Excess: Excess{Outage: c.unasked}}}
		if got := e.Overdue(answered.Add(c.after), a, c.alive, c.cautious); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// A claim grows with the demand and the node's part, and less what is in hand; for few nodes that is a twentieth. Of a
// limit with few tokens for each node, it is the need.
func TestWantsFewerAmongMore(t *testing.T) {
	rule := &ratelimit.Rule{
		Limit: ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, Coordination: ratelimit.DefaultCoordination(),
	}
	for nodes, most := range map[int]tokens{1: 50, 4: 50, 10: 20, 50: 4, 51: 0, 500: 0} {
		e := Entry{&Key{Part: Part{LastAnswer: answered}, Till: Never}, &Use{}}
		size := Sizing{Rule: rule, Nodes: nodes}
		if want, _ := e.Wants(answered+second, 3, size); want != max(3, most) {
			t.Errorf("%d nodes: %d; want %d", nodes, want, max(3, most))
		}
		e.scarce = answered + 2*second
		if want, _ := e.Wants(answered+second, 3, size); want != 3 {
			t.Errorf("%d nodes: %d where others need the rest, want the need", nodes, want)
		}
	}
}

// A charge is bounded by what the ledger can book, and counts as reported only when the ledger has it.
func TestChargesHaveABound(t *testing.T) {
	e := Entry{&Key{Part: Part{Spent: account.MostBooked - 5}}, &Use{}}
	e.charge(100, &e.Charged)
	e.charge(100, &e.Charged)
	if e.Spent != account.MostBooked || e.Charged != 200 || !e.Unreported() {
		t.Errorf("%+v", e.Part)
	}
}
