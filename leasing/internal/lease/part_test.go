package lease

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// scene is one part, and what it says to a ledger that the script plays.
type scene struct {
	Part
	limit ratelimit.Limit
	q     Asking
	said  []Message
}

// A part writes its messages, and judges their answers, as the scripts say. Each line is an event, with its numbers by
// name.
//
//	go test ./leasing/internal/lease -run PartScripts -rewrite
func TestPartScripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/part.txt", func(t *testing.T, in *datadriven.TestData) string {
		s := &scene{
			Part: Part{Window: 7, Deadline: Never}, limit: ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100},
			q: Asking{Now: 1e9, Epoch: ratelimit.Epoch{ID: 1}},
		}
		var out strings.Builder
		for line := range strings.Lines(in.Input) {
			words, by := strings.Fields(line), map[string]tokens{}
			for i := 1; i < len(words); i += 2 {
				n, err := strconv.ParseInt(words[i+1], 10, 64)
				if err != nil {
					t.Fatal(line, err)
				}
				by[words[i]] = tokens(n)
			}
			fmt.Fprintln(&out, s.event(t, words[0], by))
		}
		return out.String()
	})
}

// event plays one event. It returns a message, or what the part has.
func (s *scene) event(t *testing.T, what string, by map[string]tokens) string {
	result := ""
	switch what {
	case "says":
		return s.says(by["need"], by["want"])
	case "hears":
		s.q.Now = s.q.Now.Add(max(1, time.Duration(by["after"])) * time.Millisecond)
		g := account.Grant{Granted: by["granted"], Total: by["total"], Sum: by["sum"], At: ledgerTime(by["at"])}
		if by["fails"] > 0 {
			g.Err = account.ErrOver
		}
		q := s.q.Epoch
		if by["epoch"] > 0 {
			q.ID = uint64(by["epoch"])
		}
		q.Ends = ledgerTime(by["ends"])
		result = "no answer; "
		if s.Apply(s.message(by), &g, &Answer{Now: s.q.Now, Epoch: q}) {
			result = "an answer; "
		}
	case "loses":
		s.Lost(s.message(by))
		result = fmt.Sprintf("in flight %v; ", s.InFlight())
	case "spends":
		s.Spent += by["n"]
	case "refunds":
		s.Refund(by["n"])
	case "returns":
		s.GiveBack(0)
	case "lapses":
		s.Lapse()
	case "registered":
		s.Deadline = s.q.Now.Add(time.Duration(by["ms"]) * time.Millisecond)
	case "epoch":
		s.q.Epoch.ID = uint64(by["id"])
		s.q.Young = by["young"] > 0
	case "others":
		s.Sum = by["sum"]
	case "bucket":
		s.limit = ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 1, Burst: 9}
		s.bucket = true
	default:
		t.Fatal(what)
	}
	return result + fmt.Sprintf("taken %d, spent %d, in hand %d", s.Taken, s.Spent, s.InHand(s.q.Now))
}

// message is the last one, or that with a number.
func (s *scene) message(by map[string]tokens) *Message {
	if n := by["number"]; n > 0 {
		return &s.said[n-1]
	}
	return &s.said[len(s.said)-1]
}

func (s *scene) says(need, want tokens) string {
	number := len(s.said) + 1
	c := account.Claim{Limit: s.limit, Holder: 5, Seq: uint64(number), Need: need, Want: want}
	s.said = append(s.said, Message{})
	s.Write(&s.said[number-1], uint32(number), c, &s.q)
	c = s.said[number-1].Claim
	if c.Draws() {
		return fmt.Sprintf("draws %d of window %d", c.Want, c.Window)
	}
	return fmt.Sprintf("claims %d of window %d, taken %d, spent %d", c.Want, c.Window, c.Taken, c.Spent)
}

// A bucket with a debt of centuries is kept by its node, and refuses for that long.
func TestBucketInDeepDebt(t *testing.T) {
	limit := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 1, Burst: 9}
	const century = 100 * 365 * 24 * time.Hour
	if d := limit.Refill(account.MostBooked); d < century {
		t.Errorf("it refills after %v", d)
	}
	k := Key{Part: Part{Window: 1, Sum: account.MostBooked, LastAnswer: 1, flags: flags{bucket: true}}}
	if k.Full(instant(century), &limit) {
		t.Error("it is dropped within a century")
	}
}

// Tokens in hand at the end of a lease are the ledger's again: they are not spent in addition to the share.
func TestExpiredHandIsNoDrift(t *testing.T) {
	rule := testRule(ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 100, Burst: 100})
	e := Entry{&Key{Part: Part{
		Taken: 45, Spent: 5, booked: 45, Deadline: 1e9, LastAnswer: 1, flags: flags{bucket: true},
	}}, &Use{}}
	admitted := 0
	for e.SpendShare(2e9, &ratelimit.Ask{Rule: rule, Cost: 1}, 2, &ratelimit.Verdict{}) {
		admitted++
	}
	if admitted != 2 || !e.Unreported() {
		t.Errorf("%d were admitted, of a share of 2; told %v", admitted, !e.Unreported())
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

// A reset forgives the refusals that no message under way reports, and each of them once.
func TestForgivenOnce(t *testing.T) {
	e := Entry{&Key{Part: Part{Spent: 25}}, &Use{Excess: Excess{Charged: 20}}}
	for underWay, stay := range map[tokens]tokens{8: 13, 0: 5} {
		of := Entry{&Key{Part: e.Part}, &Use{Excess: e.Excess}}
		of.Forgive(underWay)
		of.Forgive(underWay)
		if of.Spent != stay || of.Charged != underWay {
			t.Errorf("of 25 spent, 20 of them refused and %d reported, %d stay spent and %d charged, want %d and %d",
				underWay, of.Spent, of.Charged, stay, underWay)
		}
	}
}

// answered is the last answer of these tests.
const answered = 100 * second

// At its deadline, a request is refused if there was not enough a moment ago, and where it must be cautious, if others
// may have spent the rest. Else on_store_failure decides.
func TestOverdueRequests(t *testing.T) {
	const limit, soonest, later = 100, time.Duration(0), time.Second // since the last answer; 0: the deadline
	const alive, cautious, both = "alive", "cautious", "alive cautious"
	open := func(sum, taken, spent tokens) Key {
		return Key{Part: Part{Sum: sum, Taken: taken, Spent: spent, LastAnswer: answered}, CurrentUntil: Never}
	}
	ends := func(at instant) Key { return Key{Part: Part{Sum: limit, LastAnswer: answered}, CurrentUntil: at} }
	for _, c := range []struct {
		name    string
		key     Key
		unasked tokens
		after   time.Duration
		cost    tokens
		is      string
		want    Overdue
		sliding Overdue
	}{
		{"without an answer", Key{}, 0, later, 1, both, Undecided, Undecided},
		{"the second without an answer", Key{}, 1, later, 1, both, Doubtful, Doubtful},
		{"the second, not cautious", Key{}, 1, later, 1, alive, Undecided, Undecided},
		{"the second, of a dead store", Key{}, 1, later, 1, cautious, Undecided, Undecided},
		{"after its window", ends(answered + second), 0, later, 1, both, Undecided, Undecided},
		{"just before its end", ends(answered + 2*second), 0, soonest, 1, both, Short, Short},
		{"used up", open(limit, 0, 0), 0, soonest, 1, "", Short, Short},
		{"used up, long ago", open(limit, 0, 0), 0, later, 1, "", Undecided, Undecided},
		{"used up, long ago, alive", open(limit, 0, 0), 0, later, 1, alive, Doubtful, Undecided},
		{"it fits exactly", open(90, 0, 0), 0, soonest, 10, alive, Undecided, Undecided},
		{"it does not fit", open(90, 0, 0), 0, soonest, 11, alive, Short, Short},
		{"with the tokens in hand", open(90, 9, 4), 0, soonest, 15, alive, Undecided, Undecided},
		{"less the drift", open(90, 4, 9), 0, soonest, 6, alive, Short, Short},
		{"little is left, cautious", open(90, 0, 0), 0, soonest, 1, both, Doubtful, Doubtful},
		{"little was left, cautious", open(90, 0, 0), 0, later, 1, both, Doubtful, Undecided},
		{"little was left, not alive", open(90, 0, 0), 0, later, 1, cautious, Undecided, Undecided},
		{"much is left, cautious", open(10, 0, 0), 0, later, 1, both, Undecided, Undecided},
	} {
		for algorithm, want := range []Overdue{c.want, c.sliding} {
			rule := testRule(ratelimit.Limit{
				Algorithm: []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow}[algorithm],
				Unit:      ratelimit.Hour, Requests: limit,
			})
			now := answered.Add(max(c.after, rule.Coordination.Deadline()))
			e := Entry{&c.key, &Use{Excess: Excess{Outage: c.unasked}}}
			isAlive, isCautious := strings.Contains(c.is, alive), strings.Contains(c.is, cautious)
			if got := e.Overdue(now, &ratelimit.Ask{Cost: c.cost, Rule: rule}, isAlive, isCautious); got != want {
				t.Errorf("%s, of a %v: %d, want %d", c.name, rule.Limit, got, want)
			}
		}
	}
}
