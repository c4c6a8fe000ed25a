package lease

import (
	"fmt"
	"math/rand/v2"
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

const second = instant(time.Second)

func testRule(l ratelimit.Limit) *ratelimit.Rule {
	return &ratelimit.Rule{Domain: "d", Path: "p", Limit: l, Coordination: ratelimit.DefaultCoordination()}
}

// A rate exists from the second claim on. It rises at once to the rate that the tokens prove, because a lease that is
// too small makes requests wait. Beyond that, and where it falls, a second halves the difference, because a pause is
// no proof. A burst's first requests come within microseconds, and count as if they took 10 ms: the lease would last
// for hours. Between claims refused requests count, so that the demand for a refused key stays the same.
func TestDemandRisesAtOnceAndFallsSlowly(t *testing.T) {
	for _, c := range []struct {
		perSec                 float64
		after                  time.Duration // 0: after the first claim
		used, refused, waiting tokens
		least, most            float64
	}{
		{0, 0, 1000, 0, 0, 0, 0}, // since when is unknown
		{0, time.Second, 100, 0, 0, 80, 80},
		{80, time.Second, 100, 0, 0, 90, 90},
		{90, time.Second, 30, 0, 60, 90, 90},
		{90, time.Second, 400, 0, 0, 360, 360}, // 400 less two deviations of 20 are proven
		{360, time.Second, 160, 0, 0, 260, 260},
		{260, time.Second, 0, 0, 0, 130, 130}, // it rests
		{130, time.Second, 4, 0, 0, 67, 67},
		{100, 9 * time.Second, 0, 0, 0, 10, 10},
		{100, time.Millisecond, 1, 0, 0, 95, 105}, // a moment says nothing
		{0, time.Microsecond, 100, 0, 0, 8000, 8000},
		{100, time.Second, 50, 50, 0, 100, 100},
		{100, time.Second, 0, 400, 0, 360, 360},
	} {
		d, now := Demand{PerSec: c.perSec, Used: c.used, Refused: c.refused}, second.Add(c.after)
		if c.after > 0 {
			d.Since = second
		}
		got := d.Rate(now)
		again := d.Rate(now) // reading changes nothing
		if c.refused == 0 {
			d.Measure(now, c.waiting)
			if got = d.PerSec; c.waiting == 0 && got != again || d.Used != 0 {
				t.Errorf("%+v: between claims the rate is %v, and then %v; %d are counted again", c, again, got, d.Used)
			}
		}
		if got < c.least || got > c.most {
			t.Errorf("%+v: the rate is %v", c, got)
		}
	}
}

// One request a few milliseconds after a claim is what chance brings. On each of a hundred
// nodes that are asked seven times a second it happens all the time, and is no hundred a second.
func TestDemandOfChance(t *testing.T) {
	var d Demand
	d.Measure(second, 0)
	at := second
	for range 20 { // 7 a second, by pairs: one waits, and one comes 10 ms after its claim
		for _, later := range []time.Duration{276 * time.Millisecond, 10 * time.Millisecond} {
			at = at.Add(later)
			d.Measure(at, 1)
			if d.PerSec > 10 {
				t.Fatalf("%v a second where 7 come", d.PerSec)
			}
		}
	}
	if d.PerSec < 5 {
		t.Errorf("%v a second where 7 come", d.PerSec)
	}
}

// A lease is to last two seconds, or the period if that is shorter. It is at least what waits and the rule's size, at
// most the limit; a part of a token is a token.
func TestDemandWants(t *testing.T) {
	for _, c := range []struct {
		perSec               float64
		waiting, fixed, want tokens
		unit                 ratelimit.Unit
	}{
		{30, 0, 0, 60, ratelimit.Minute},
		{30, 0, 0, 30, ratelimit.Second},
		{0.2, 0, 0, 1, ratelimit.Minute},
		{1e6, 0, 0, 1000, ratelimit.Minute},
		{0, 3, 0, 3, ratelimit.Minute},
		{30, 3, 10, 10, ratelimit.Minute},
		{30, 13, 10, 13, ratelimit.Minute},
	} {
		rule := testRule(ratelimit.Limit{Unit: c.unit, Requests: 1000})
		rule.Coordination.Lease.Fixed = c.fixed
		if got := (&Demand{PerSec: c.perSec}).Want(rule, c.waiting); got != c.want {
			t.Errorf("%+v: it wants %d", c, got)
		}
	}
}

// However long the trips and however the clocks drift, within MaxSkew, the truth stays within the bounds, and they are
// soon narrower than a trip.
func TestLedgerClockBoundsTheTruth(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		between := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(rnd.Int64N(int64(hi-lo)+1)) }
		epoch := 1_800_000_000 * time.Second
		rate := 1 + (2*rnd.Float64()-1)/MaxSkew
		there := func(x instant) time.Duration { return epoch + time.Duration(rate*float64(x)) }
		var c LedgerClock
		at := instant(0)
		for range 200 {
			at = at.Add(between(0, 2*time.Second))
			out, back := between(50*time.Microsecond, 50*time.Millisecond), between(50*time.Microsecond, 50*time.Millisecond)
			handled := ledgerTime(there(at.Add(out)) / time.Microsecond)
			c.Observe(at, at.Add(out+back), handled, handled)
			at = at.Add(out + back)
			// An event of the ledger, up to ten seconds from now.
			event := ledgerTime((there(at) + between(0, 10*time.Second)) / time.Microsecond)
			if x := c.NotBefore(at, event); there(x) > nanos(event) {
				t.Fatalf("seed %d: it is said to be before %v, and it is %v after", seed, event, there(x)-nanos(event))
			}
			if early, late := c.Between(at); nanos(early) > there(at) || nanos(late+1) < there(at) {
				t.Fatalf("seed %d: it is said to be from %v to %v, and it is %v", seed, early, late, there(at))
			}
		}
		if gap := c.Hi - c.Lo; gap > 30*time.Millisecond {
			t.Errorf("seed %d: known to %v only, with trips of up to 100 ms", seed, gap)
		}
	}
}

// The clocks of several servers are all within the bounds, also that of a new one, and of one that is left. When the
// ledger's clock is set, what was known is no hindrance.
func TestLedgerClockIsSet(t *testing.T) {
	const begins = ledgerTime(5_000_000)
	var c LedgerClock
	for i, s := range []struct{ from, to, early, late ledgerTime }{
		{begins, begins, 0, 10},
		{begins, begins + 50_000, 0, 50_000},
		{begins, begins, -10, 10},
		{1_000_000, 1_000_000, 1_000_000 - begins, 1_000_010 - begins},
	} {
		at := instant(2000*i + 1000)
		c.Observe(at, at+1000, s.from, s.to)
		early, late := c.Between(at + 1000)
		if early > s.from+2 || late < s.to || early < begins+s.early-10 || late > begins+s.late+10 {
			t.Errorf("observation %d: it is from %d to %d, and must be from %d to %d", i, early, late, s.from, s.to)
		}
	}
}
