package leasing

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// lossScript is a node whose ledger tells of its epochs, and may lose its data.
type lossScript struct {
	*nodeScript
	losable *ledger.LosableMemory
}

func newLossScript(t testing.TB, l ratelimit.Limit) *lossScript {
	s := &lossScript{nodeScript: newNodeScript(t, l)}
	s.Hears()
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = time.Hour, 5
	s.losable = ledger.NewLosable(s.ledger)
	return s
}

// answers has the ledger settle a batch, and say in which epoch.
func (s *lossScript) answers(b *Batch) {
	g := make([]ratelimit.Grant, len(b.Claims()))
	e, at, _ := s.losable.SettleEpoch(s.Context(), b.Query(), b.Claims(), g)
	b.AnswerIn(e, at, g)
}

// asksFor has the node ask for tokens of a key, and take in what is answered.
func (s *lossScript) asksFor(key uint64, cost tokens) {
	w := s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(key), Cost: cost}}, make([]verdict, 1))
	s.allAnswered()
	if w != nil && w.Advance(s.now) {
		s.Helper()
		s.Fatalf("key %d is not decided", key)
	}
}

// leasesTo gives so many keys a lease of five tokens each, of which every second one
// has spent all, and the others one.
func (s *lossScript) leasesTo(keys int) {
	for k := range uint64(keys) {
		s.asksFor(k, 1)
		if k%2 == 1 {
			sh, _, c := s.fleet.locked(keyOf(k))
			c.Lease.Spent = 5
			sh.mu.Unlock()
		}
	}
}

// allAnswered has all that is to be sent answered, and returns the claims in order.
func (s *lossScript) allAnswered() (claims []ratelimit.Claim) {
	for b := s.Batch(); b != nil; b = s.Batch() {
		claims = append(claims, b.Claims()...)
		s.answers(b)
	}
	return claims
}

// hearsOfALoss has the ledger lose its data, and the node hear of that with a batch
// that has no claims.
func (s *lossScript) hearsOfALoss() {
	s.Helper()
	s.losable.Forget()
	s.passes(beatEvery)
	s.Sweep(s.now)
	b := s.Batch()
	if b == nil || len(b.Claims()) != 0 {
		s.Fatalf("nothing was heard of the ledger for %v, and the node sends %+v", beatEvery, b)
	}
	s.answers(b)
}

// A node that hears nothing of its ledger for half a second asks for a word, once,
// and sooner only when it has never heard of it. One whose ledger has nothing to tell
// does not.
func TestNodeListens(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.Sweep(s.now)
	s.quiet("its ledger tells of no epochs")

	l := newLossScript(t, perMinute100)
	l.now = instant(time.Millisecond) // it has just started
	l.Sweep(l.now)
	b := l.Batch()
	if b == nil || len(b.Claims()) != 0 {
		t.Fatalf("it has never heard of the ledger, and sends %+v", b)
	}
	for range 2 {
		l.passes(time.Second)
		l.Sweep(l.now)
		l.quiet("it has asked already")
	}
	l.answers(b)
	l.passes(500*time.Millisecond - 1)
	l.Sweep(l.now)
	l.quiet("it was heard half a second ago")
	l.passes(1)
	l.Sweep(l.now)
	b = l.Batch()
	if b == nil {
		t.Fatal("it was heard half a second ago, and nothing since")
	}
	b.Fail(errors.New("gone"))
	for range breakAfter - 1 { // what fails is asked again
		l.fleet.judge(&l.fleet.lanes[0], nil, errors.New("gone"))
	}
	l.fleet.lanes[0].memory.beating = false
	l.Sweep(l.now)
	if n := len(l.fleet.lanes[0].queue); n != 0 {
		t.Errorf("the breaker is open, and %d words wait to be sent", n)
	}
}

// When too much waits to be sent, a word is asked for as soon as there is room.
func TestNodeListensWhenThereIsRoom(t *testing.T) {
	s := newLossScript(t, perMinute100)
	empties := s.fills()
	s.Sweep(s.now)
	empties()
	s.Sweep(s.now)
	if s.Batch() == nil {
		t.Error("there is room, and nothing was asked for")
	}
}

// What a batch asks about the ledger's data: at first, and after a failure, whether
// the same server has it still; and, from a second before the ledger has learned
// what it lost, that it goes on learning while there is something to tell. Its
// claims say until when the ledger learns, as long as it may.
func TestQueries(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	query := func() ratelimit.EpochQuery { return s.fleet.lanes[0].query(s.now) }
	expect := func(when string, verify, telling bool) {
		t.Helper()
		if q := query(); q.Verify != verify || q.Telling != telling || q.Part != 0 {
			t.Errorf("%s: %+v", when, q)
		}
	}
	expect("nothing was heard", true, false)
	s.asksFor(1, 1)
	expect("it was heard", false, false)
	s.asksFor(2, 1)
	s.asks(1)
	s.hearsOfALoss()
	epoch, _, _ := s.losable.SettleEpoch(context.Background(), ratelimit.EpochQuery{}, nil, nil)
	learning := epoch.Learning
	expect("it learns for two seconds", false, false)
	s.Sweep(s.now)
	b := s.Batch()
	if b == nil || b.Claims()[0].Learning != learning {
		t.Fatalf("it learns until %d, and the claims are %+v", learning, b)
	}
	s.passes(learning.Sub(ledgertest.Epoch) - s.now.Sub(instant(time.Hour)) - 1010*time.Millisecond)
	expect("it learns for more than a second", false, false)
	s.passes(20 * time.Millisecond)
	expect("it learns for less than a second", false, true)
	lane := &s.fleet.lanes[0]
	lane.memory.telling = false
	expect("it learns for less than a second, and nothing is to be told", false, false)
	lane.memory.telling = true
	b.Fail(errors.New("gone"))
	expect("a batch has failed", true, true)
	s.passes(time.Second)
	expect("it has learned", true, false)
	if known := s.fleet.lanes[0].known(s.now); known.Learning != 0 || known.ID != 2 {
		t.Errorf("it has learned, and claims would say %+v", known)
	}
	s.Sweep(s.now)
	s.allAnswered()
	for range 2 * sweepParts { // all is told
		s.Sweep(s.now)
		s.allAnswered()
	}
	expect("all is told", false, false)
	if s.fleet.lanes[0].memory.telling || s.fleet.doubt.Load() != 0 {
		t.Errorf("all is told, and the node has %+v in doubt", s.fleet.lanes[0].memory)
	}
}

// Data was lost when an epoch is another than the one that was known. An answer from
// before, which comes late, says nothing; nor does one that knows of no epoch.
func TestEpochsThatAreHeard(t *testing.T) {
	var l lane
	for _, c := range []struct {
		what    string
		sent    instant
		id      uint64
		lost    bool
		known   uint64
		telling bool
	}{
		{"the first", 10, 5, false, 5, false},
		{"no epoch", 20, 0, false, 5, false},
		{"the same", 15, 5, false, 5, false},
		{"the same, earlier", 12, 5, false, 5, false},
		{"another, from before", 14, 4, false, 5, false},
		{"another", 16, 6, true, 6, true},
		{"the same, later", 17, 6, false, 6, true},
		{"another, as late", 17, 7, true, 7, true},
	} {
		l.memory.beating, l.memory.heard = true, 0
		if lost := l.learned(c.sent, 100, ratelimit.Epoch{ID: c.id}); lost != c.lost || l.memory.epoch.ID != c.known || l.memory.telling != c.telling || l.memory.beating {
			t.Errorf("%s: lost %v, known %+v", c.what, lost, l.memory)
		}
		if heard := l.memory.heard == 100; heard != (c.id == c.known) {
			t.Errorf("%s: the ledger was heard of: %v", c.what, heard)
		}
	}
}

// A grant by a ledger that learns is taken only if the claim said so: that it learns,
// after this loss.
func TestGrantsOfAYoungLedger(t *testing.T) {
	for _, c := range []struct {
		what      string
		known, in ratelimit.Epoch
		at        ledgerTime
		trusted   bool
	}{
		{"no loss", ratelimit.Epoch{ID: 1}, ratelimit.Epoch{ID: 1}, 50, true},
		{"it has learned", ratelimit.Epoch{ID: 1}, ratelimit.Epoch{ID: 2, Learning: 50}, 50, true},
		{"the claim knew of none", ratelimit.Epoch{ID: 1}, ratelimit.Epoch{ID: 2, Learning: 51}, 50, false},
		{"the claim knew", ratelimit.Epoch{ID: 2, Learning: 51}, ratelimit.Epoch{ID: 2, Learning: 51}, 50, true},
		{"the claim knew of another loss", ratelimit.Epoch{ID: 1, Learning: 60}, ratelimit.Epoch{ID: 2, Learning: 51}, 50, false},
		{"the claim took it for over", ratelimit.Epoch{ID: 2, Learning: 50}, ratelimit.Epoch{ID: 2, Learning: 90}, 50, false},
	} {
		if got := trusted(c.known, c.in, c.at); got != c.trusted {
			t.Errorf("%s: trusted %v", c.what, got)
		}
	}
}

// A node is ready when it has heard of its ledger, and that knows all; until then it
// takes it for learning. One whose ledger tells of no epochs is ready at once.
func TestNodeIsReady(t *testing.T) {
	expect := func(s *nodeScript, when string, ready, learning bool) {
		t.Helper()
		if s.fleet.Ready() != ready || s.Epoch().Learning != learning {
			t.Errorf("%s: ready %v, learning %v", when, s.fleet.Ready(), s.Epoch().Learning)
		}
	}
	expect(newNodeScript(t, perMinute100), "nothing is told", true, false)
	s := newLossScript(t, perMinute100)
	expect(s.nodeScript, "nothing was heard", false, true)
	s.asksFor(1, 1)
	expect(s.nodeScript, "it was heard", true, false)
	s.hearsOfALoss()
	expect(s.nodeScript, "data was lost", false, true)
	s.passes(ledger.RelearnTime + time.Millisecond)
	expect(s.nodeScript, "it has learned", true, false)

	s = newLossScript(t, perMinute100)
	s.fleet.lanes[0].learned(s.now, s.now, ratelimit.Epoch{ID: 5})
	expect(s.nodeScript, "nobody knows what time it is there", false, true)
}

// When the ledger has lost its data, it is told of every key: of those that are used
// up first. What is left of a lease is spent meanwhile, and each key is told once.
func TestAllIsToldAfterALoss(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	const keys = 40
	s.leasesTo(keys)
	s.hearsOfALoss()
	s.Sweep(s.now)
	b := s.Batch()
	if b == nil || len(b.Claims()) != keys {
		t.Fatalf("told of %+v", b)
	}
	for i, c := range b.Claims() {
		if usedUp := c.Spent == 5; usedUp != (i < keys/2) {
			t.Errorf("claim %d of %d tells of %d that are spent of 5", i, keys, c.Spent)
		}
	}
	r := &nodeRequest{nodeScript: s.nodeScript, v: make([]verdict, 1)}
	r.wait = s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(0), Cost: 1}}, r.v)
	r.says(false, ratelimit.FromLease)
	s.Sweep(s.now)
	s.quiet("all are under way")
	s.answers(b)
	for range sweepParts {
		s.Sweep(s.now)
	}
	s.quiet("all are told")
}

// What was told and not heard of is told again, a part of it at a time, until the
// ledger has heard of all.
func TestWhatWasNotHeardIsToldAgain(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	const keys = 40
	for k := range uint64(keys) {
		s.asksFor(k, 1)
	}
	s.hearsOfALoss()
	s.Sweep(s.now)
	b := s.Batch()
	x := &s.fleet.teller
	if x.pass != 2 || x.shard != 0 {
		t.Errorf("all was looked at twice, and the teller is at %+v", *x)
	}
	s.Sweep(s.now)
	if x.pass != 2 || x.shard != len(s.fleet.shards)/sweepParts+1 {
		t.Errorf("a part of the rest was looked at, and the teller is at %+v", *x)
	}
	b.Fail(errors.New("gone"))
	told := map[string]int{}
	for range 3 * len(s.fleet.shards) {
		s.Sweep(s.now)
		for _, c := range s.allAnswered() {
			told[c.Key]++
		}
	}
	for key, n := range told {
		if n != 1 {
			t.Errorf("%q was told %d times", key, n)
		}
	}
	if len(told) != keys || s.fleet.doubt.Load() != 0 || s.fleet.teller.doubt != 0 {
		t.Errorf("%d of %d keys were told, and the teller is at %+v", len(told), keys, s.fleet.teller)
	}
}

// While half of what may wait to be sent does, the ledger is told nothing: the rest
// is for requests. Then it goes on where it was.
func TestTellingLeavesRoom(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.leasesTo(4)
	s.hearsOfALoss()
	l := &s.fleet.lanes[0]
	for len(l.queue) < cap(l.queue)/2 {
		l.queue <- &flight{Flight: lease.Flight{Errand: lease.Errand{Beat: true}}}
	}
	for range 3 {
		s.Sweep(s.now)
	}
	if n := len(l.queue); n != cap(l.queue)/2 || s.fleet.teller.pass != 0 {
		t.Errorf("%d claims wait, and may be half of %d; the teller is at %+v", n, cap(l.queue), s.fleet.teller)
	}
	for len(l.queue) > 0 {
		<-l.queue
	}
	s.Sweep(s.now)
	claims := s.allAnswered()
	if len(claims) != 4 || claims[0].Spent != 5 || claims[1].Spent != 5 {
		t.Errorf("told of %+v", claims)
	}
}

// The half that requests do not need is used for telling, to the last place.
func TestTellingUsesItsHalf(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.leasesTo(4) // two of which are used up
	s.hearsOfALoss()
	l := &s.fleet.lanes[0]
	for len(l.queue) < cap(l.queue)/2-1 {
		l.queue <- &flight{Flight: lease.Flight{Errand: lease.Errand{Beat: true}}}
	}
	s.Sweep(s.now)
	if n := len(l.queue); n != cap(l.queue)/2 {
		t.Errorf("%d claims wait, and may be half of %d", n, cap(l.queue))
	}
}

// So it is with the last keys of all: those that are used up are still told before the
// others, and in a hurry, once there is room.
func TestTellingLeavesRoomAtItsEnd(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	last, key := &s.fleet.shards[len(s.fleet.shards)-1], uint64(1)
	for s.fleet.shard(s.fleet.Hash.ID(keyOf(key))) != last {
		key++
	}
	s.asksFor(key, 1)
	_, _, c := s.fleet.locked(keyOf(key))
	c.Lease.Spent = 5 // all of it
	last.mu.Unlock()
	s.hearsOfALoss()
	empties := s.fills()
	for range 3 {
		s.Sweep(s.now)
	}
	if x := &s.fleet.teller; x.pass != 0 || x.shard != len(s.fleet.shards)-1 {
		t.Errorf("the last key is used up and was not told, and the teller is at %+v", *x)
	}
	empties()
	s.Sweep(s.now)
	if claims := s.allAnswered(); len(claims) != 1 || claims[0].Spent != 5 {
		t.Errorf("told of %+v", claims)
	}
}

// A key that has a lease of the next window since the loss is no reason to stop: all keys
// are told, and the telling ends.
func TestTellingEndsWhereTheNextWindowIsClaimed(t *testing.T) {
	s := newLossScript(t, perMinute100)
	s.asksFor(1, 1)
	s.passes(45*time.Second - 600*time.Millisecond)
	s.asksFor(1, 0)
	h := s.keyHeld()
	if h.Next == nil {
		t.Fatal("the next window has no lease")
	}
	s.hearsOfALoss()
	h.Next.Told = instant(s.fleet.doubt.Load())
	for range 3 * len(s.fleet.shards) {
		s.Sweep(s.now)
		s.allAnswered()
	}
	if h.Next == nil || s.fleet.doubt.Load() != 0 {
		t.Errorf("the next window has the lease %+v, all is told, and in doubt is what was told before %d", h.Next, s.fleet.doubt.Load())
	}
}

// A cold key of which the ledger was told since the doubt stays cold: a node with millions of
// keys does not unpack them all to find that there is nothing to tell.
func TestTellingLeavesColdKeysPacked(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.KeepBusy(0)
	s.asksFor(1, 1)
	told := s.keyHeld().Told
	s.passes(time.Second)
	s.sweeps()
	s.sweeps()
	sh, c := s.fleet.cell(keyOf(1))
	cold := c.Val.slot == 0
	sh.mu.Unlock()
	if !cold {
		t.Fatal("nothing was asked for a second, and the key is busy")
	}
	s.fleet.doubtAll(told)
	if s.fleet.tell(s.now); s.fleet.doubt.Load() != 0 {
		t.Errorf("there was nothing to tell, and after two passes the teller is at %+v", s.fleet.teller)
	}
	if sh.mu.Lock(); c.Val.slot != 0 {
		t.Error("there was nothing to tell of it, and it was unpacked")
	}
	sh.mu.Unlock()
}

// A part of the ledger that does not answer is told nothing, for what is told would only be
// lost; it is told once it answers again.
func TestDeadPartIsToldWhenItAnswers(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.asksFor(1, 1)
	s.hearsOfALoss()
	for range breakAfter {
		s.fleet.judge(&s.fleet.lanes[0], nil, errors.New("gone"))
	}
	for range 3 {
		s.Sweep(s.now)
	}
	s.quiet("its breaker is open")
	s.passes(beatEvery)
	s.fleet.Answered()
	if b := s.Batch(); b == nil {
		t.Error("it has answered somebody, and is not asked")
	} else {
		s.answers(b)
	}
	for range 3 * len(s.fleet.shards) {
		s.Sweep(s.now)
	}
	if claims := s.allAnswered(); len(claims) != 1 || claims[0].Spent != 1 {
		t.Errorf("told of %+v", claims)
	}
}

// The telling that waited for room goes through the rest in a hurry, too: the ledger learns
// for two seconds only.
func TestTellingHurriesWhenThereIsRoom(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	in := map[int]uint64{} // by shard, a key
	for key := uint64(1); len(in) < len(s.fleet.shards); key++ {
		for i := range s.fleet.shards {
			if s.fleet.shard(s.fleet.Hash.ID(keyOf(key))) == &s.fleet.shards[i] {
				in[i] = key
			}
		}
	}
	s.asksFor(in[0], 1)
	s.asksFor(in[len(s.fleet.shards)-1], 1)
	s.hearsOfALoss()
	empties := s.fills()
	s.Sweep(s.now)
	if x := &s.fleet.teller; x.pass != 1 || x.shard != 0 {
		t.Errorf("neither key is used up, there is no room to tell of the first, and the teller is at %+v", *x)
	}
	empties()
	s.Sweep(s.now)
	if claims := s.allAnswered(); len(claims) != 2 {
		t.Errorf("one sweep told of %+v, and there are two keys", claims)
	}
}

// While nothing is in doubt the telling looks at no key: it would go through all of them
// many times a second.
func TestNothingIsLookedAtWithoutADoubt(t *testing.T) {
	s := newLossScript(t, perMinute100)
	s.asksFor(1, 1)
	s.passes(45*time.Second - 600*time.Millisecond)
	s.asksFor(1, 0)
	s.passes(time.Second) // the next window has begun, which whoever looks at the key sees
	s.fleet.tell(s.now)
	if s.keyHeld().Next == nil {
		t.Error("nothing is in doubt, and the key was looked at")
	}
}

// What is known of a ledger in two parts is as old as what is known of the one that was
// asked first; and the number of its epochs changes when that of either part does.
func TestEpochOfAllParts(t *testing.T) {
	s := newLossScript(t, perMinute100)
	s.fleet.lanes = append(s.fleet.lanes, lane{})
	known := func(parts ...instant) ratelimit.EpochKnown {
		for i, sent := range parts {
			s.fleet.lanes[i].memory = memory{epoch: ratelimit.Epoch{ID: uint64(10 + i)}, sent: sent, heard: s.now}
		}
		return s.fleet.Epoch()
	}
	for _, parts := range [][]instant{{5, 9}, {9, 5}} {
		if k := known(parts...); k.Asked != 5 {
			t.Errorf("its parts were asked at %v, and what is known is of %d", parts, k.Asked)
		}
	}
	if parts, all := s.fleet.Heard(); parts != 2 || all != 2 {
		t.Errorf("both parts were heard of, and not %d of %d", parts, all)
	}
	if q := (&lane{part: 3}).query(s.now); q.Part != 3 {
		t.Errorf("part 3 is asked about part %d", q.Part)
	}
	before := s.fleet.Epoch().ID
	for i := range s.fleet.lanes {
		known(5, 9)
		s.fleet.lanes[i].memory.epoch.ID += 3
		if after := s.fleet.Epoch().ID; after == before {
			t.Errorf("part %d has another epoch, and that of all is still %d", i, after)
		}
	}
}

// All parts of a ledger are listened to, also where another part has been heard a moment
// ago, and where nothing more can be sent to it.
func TestAllPartsAreListenedTo(t *testing.T) {
	s := newLossScript(t, perMinute100)
	s.fleet.lanes = append(s.fleet.lanes, lane{part: 1, queue: make(chan *flight, 1)})
	s.fleet.lanes[0].memory.heard = s.now
	s.fleet.beat(s.now)
	if first, second := len(s.fleet.lanes[0].queue), len(s.fleet.lanes[1].queue); first != 0 || second != 1 {
		t.Errorf("one part was heard just now and the other never, and they are asked %d and %d times", first, second)
	}
}

// A clock that differs by less than a tenth of a second from what is known of it was slewed,
// or is of a busy machine; one that differs by more was set.
func TestClockIsSetOrSlewed(t *testing.T) {
	for _, c := range []struct {
		by          time.Duration
		ahead, back uint64
	}{
		{99 * time.Millisecond, 0, 0},
		{-99 * time.Millisecond, 0, 0},
		{101 * time.Millisecond, 1, 0},
		{-101 * time.Millisecond, 0, 1},
	} {
		s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
		s.leased(1)
		s.asks(1)
		b, claim := s.sends()
		g := make([]ratelimit.Grant, 1)
		s.ledger.Settle(t.Context(), []ratelimit.Claim{claim}, g)
		g[0].At = g[0].At.Add(c.by)
		b.Answer(g)
		if n := s.Stats().ClockSteps; n[0] != c.ahead || n[1] != c.back {
			t.Errorf("by %v: set ahead %d times, and back %d times", c.by, n[0], n[1])
		}
	}
}

// After the ledger's clock went ahead, leases from before may be over there: nothing of them
// is spent any more.
func TestLeasesFromBeforeTheClockWentAhead(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.asksFor(1, 1)
	s.passes(time.Second)
	s.fleet.lapse(s.now, true)
	s.Sweep(s.now)
	if r := s.asks(1); r.decided() {
		t.Errorf("it was decided by the lease from before: %+v", r.v)
	}
}

// What is not told: a key that rests, until its pause is over; and one whose window
// is over.
func TestWhatIsNotTold(t *testing.T) {
	for what, c := range map[string]struct {
		change func(s *lossScript, h *busyKey)
		told   int
	}{
		"a lease":                         {func(*lossScript, *busyKey) {}, 1},
		"a key that rests":                {func(s *lossScript, h *busyKey) { h.Pause = s.now + 1 }, 0},
		"a key that has rested":           {func(s *lossScript, h *busyKey) { h.Pause = s.now }, 1},
		"a lease whose window is over":    {func(s *lossScript, h *busyKey) { h.Lease.Reset = s.now }, 0},
		"a lease whose window goes on":    {func(s *lossScript, h *busyKey) { h.Lease.Reset = s.now + 1 }, 1},
		"a lease that was told":           {func(s *lossScript, h *busyKey) { h.Told = instant(s.fleet.doubt.Load()) }, 0},
		"a lease that was told before":    {func(s *lossScript, h *busyKey) { h.Told = instant(s.fleet.doubt.Load()) - 1 }, 1},
		"a key of which nothing is known": {func(_ *lossScript, h *busyKey) { h.Lease = lease.Lease{} }, 0},
	} {
		s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
		s.asksFor(1, 1)
		s.hearsOfALoss()
		c.change(s, s.keyHeld())
		s.Sweep(s.now)
		if claims := s.allAnswered(); len(claims) != c.told {
			t.Errorf("%s: told of %+v", what, claims)
		}
	}
}

// A key that rests when the ledger is told of all is told of when it has rested: until then the
// telling goes on.
func TestWhoRestsIsToldLater(t *testing.T) {
	s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	s.asksFor(1, 1)
	s.hearsOfALoss()
	s.keyHeld().Pause = s.now.Add(300 * time.Millisecond)
	sweeps := func() (told int) {
		for range 3 * len(s.fleet.shards) {
			s.Sweep(s.now)
			told += len(s.allAnswered())
		}
		return told
	}
	if told := sweeps(); told != 0 || s.fleet.doubt.Load() == 0 {
		t.Errorf("it rests, and was told %d times; in doubt is what was told before %d", told, s.fleet.doubt.Load())
	}
	s.passes(300 * time.Millisecond)
	if told := sweeps(); told != 1 || s.fleet.doubt.Load() != 0 {
		t.Errorf("it has rested, and was told %d times; in doubt is what was told before %d", told, s.fleet.doubt.Load())
	}
}

// A lease of the next window that was claimed before the loss is claimed anew; one
// that was claimed since is not.
func TestNextWindowAfterALoss(t *testing.T) {
	for _, since := range []bool{false, true} {
		s := newLossScript(t, perMinute100)
		s.asksFor(1, 1)
		s.passes(45*time.Second - 600*time.Millisecond)
		s.asksFor(1, 0)
		h := s.keyHeld()
		if h.Next == nil {
			t.Fatal("the next window has no lease")
		}
		s.hearsOfALoss()
		if since {
			h.Next.Told = instant(s.fleet.doubt.Load())
		}
		s.Sweep(s.now)
		s.allAnswered()
		if again := h.Next == nil; again == since {
			t.Errorf("claimed since the loss %v: it is to be claimed anew %v", since, again)
		}
		s.asksFor(1, 0)
		if h.Next == nil || h.Next.Told < instant(s.fleet.evicted.Load()) {
			t.Errorf("claimed since the loss %v: it has none now", since)
		}
	}
}

// So it is where the lease of the current window was told since the loss.
func TestNextWindowOfALeaseThatWasTold(t *testing.T) {
	s := newLossScript(t, perMinute100)
	s.asksFor(1, 1)
	s.passes(45*time.Second - 600*time.Millisecond)
	s.asksFor(1, 0)
	s.hearsOfALoss()
	h := s.keyHeld()
	h.Told = instant(s.fleet.doubt.Load())
	if h.Next == nil {
		t.Fatal("the next window has no lease")
	}
	if s.Sweep(s.now); h.Next != nil {
		t.Error("the lease of the next window is from before the loss, and is kept")
	}
}

// What is in doubt is told at once, and not when the next sweep is due.
func TestTellingBeginsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLossScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
		s.asksFor(1, 1)
		s.hearsOfALoss()
		ctx, cancel := context.WithCancel(t.Context())
		var sweeping sync.WaitGroup
		sweeping.Go(func() { s.fleet.sweep(ctx) })
		synctest.Wait() // no time passes
		if claims := s.allAnswered(); len(claims) != 1 || claims[0].Spent != 1 {
			t.Errorf("told of %+v", claims)
		}
		cancel()
		sweeping.Wait()
	})
}

// Clocks that were set, and losses, too often to be acted upon each time are acted
// upon once, when they have rested.
func TestWhatCameTooOftenIsActedUponLater(t *testing.T) {
	for _, c := range []struct {
		what   string
		come   func(l *lane, now instant)
		lapses bool
	}{
		{"the clock went ahead", func(l *lane, now instant) {
			l.steps = clockSteps{n: mostSteps + 1, since: now, late: true, ahead: true}
		}, true},
		{"the clock went back", func(l *lane, now instant) { l.steps = clockSteps{n: mostSteps + 1, since: now, late: true} }, false},
		{"data was lost", func(l *lane, now instant) { l.losses = clockSteps{n: mostSteps + 1, since: now, late: true} }, false},
	} {
		s := newNodeScript(t, perMinute100)
		c.come(&s.fleet.lanes[0], s.now)
		s.passes(stepsRest - 1)
		s.Sweep(s.now)
		if len(s.fleet.tellAtOnce) > 0 {
			t.Errorf("%s: it has not rested", c.what)
		}
		s.passes(1)
		s.Sweep(s.now)
		if lapsed := s.fleet.lapsed.Load() != 0; len(s.fleet.tellAtOnce) != 1 || lapsed != c.lapses {
			t.Errorf("%s: leases lapsed %v; it is to be told %d times", c.what, lapsed, len(s.fleet.tellAtOnce))
		}
	}
}

// A draw tells its ledger nothing of what the node had. So nothing is drawn before the node knows whose data there
// is, and what was drawn of another epoch, or of one that nobody could read, is not taken; the next claim tells.
func TestDrawsOfAnotherEpochAreNotTaken(t *testing.T) {
	for what, says := range map[string]func(ratelimit.Epoch) ratelimit.Epoch{
		"the same":                    func(e ratelimit.Epoch) ratelimit.Epoch { return e },
		"one that could not be read":  func(ratelimit.Epoch) ratelimit.Epoch { return ratelimit.Epoch{} },
		"another that has learnt all": func(e ratelimit.Epoch) ratelimit.Epoch { e.ID++; return e },
	} {
		s := newLossScript(t, perMinute100)
		s.Recalls()
		s.rule.Coordination.Lease = ratelimit.DefaultCoordination().Lease
		s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(1), Cost: 1}}, make([]verdict, 1))
		b := s.Batch()
		if c := b.Claims()[0]; c.Draw != 0 {
			t.Fatalf("a node that has heard nothing draws: %+v", c)
		}
		s.answers(b)
		s.passes(3 * time.Second) // what was lost before is told
		s.allAnswered()
		s.asksFor(2, 1)
		s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(3), Cost: 1}}, make([]verdict, 1))
		b = s.Batch()
		g := make([]ratelimit.Grant, len(b.Claims()))
		e, at, _ := s.losable.SettleEpoch(s.Context(), b.Query(), b.Claims(), g)
		if len(g) != 1 || !g[0].Drawn {
			t.Fatalf("%s: claimed %+v, granted %+v", what, b.Claims(), g)
		}
		b.AnswerIn(says(e), at, g)
		sh, _, c := s.fleet.locked(keyOf(3))
		taken := c.Lease.Granted
		sh.mu.Unlock()
		if (taken > 0) != (what == "the same") {
			t.Errorf("drawn in %s: %d are taken", what, taken)
		}
	}
}
