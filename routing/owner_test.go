package routing_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// What becomes of requests whose owner does not answer, and of what nodes owe it then.

// late is how long frames take when answers come after a request's time.
const late = 30 * time.Millisecond

// outage is what happens between node a:1 and b:1, which owns the key.
type outage struct {
	*world
	a, b *node
	key  []byte
	slot ratelimit.Window
	held verdict // of the last spend at a:1
}

// at is a request for the key at a node.
func (o *outage) at(addr string, kind ratelimit.Kind, cost tokens) verdict {
	a := ask{Key: o.key, Kind: kind, Cost: cost, Window: o.slot}
	if kind.Settles() {
		a.Window = o.held.Window
	}
	v := o.one(addr, a)
	if kind == ratelimit.Spend && addr == "a:1" {
		o.held = v
	}
	return v
}

// undo takes back the last spend at a:1.
func (o *outage) undo(cost tokens) {
	o.a.Undo([]ask{{Rule: o.rule, Key: o.key, Cost: cost}}, []verdict{o.held})
}

const (
	open   = ratelimit.FailOpen
	closed = ratelimit.FailClosed
	minute = ratelimit.Minute
	spend  = ratelimit.Spend
	refund = ratelimit.Refund
	charge = ratelimit.Charge
	gives  = ratelimit.Release
)

// plays plays a script. Its steps are:
//
//	a KIND N, b KIND N   a request at a node
//	undo N               takes back the last spend at a:1
//	cut, late            answers do not come, or after a request's time
//	lose ask|booking     the answer to the next one is lost, with its stream
//	turn D               goes on until so long before the end of a window
//	wait D               goes on for a while
//	slow                 the owner's clock is behind
func (o *outage) plays(script string) {
	kinds := map[string]ratelimit.Kind{"spend": spend, "refund": refund, "charge": charge, "release": gives}
	for step := range strings.SplitSeq(script, "; ") {
		words := strings.Fields(step)
		switch words[0] {
		case "cut":
			o.a.reach(false)
		case "late":
			o.delay = late
		case "slow":
			o.b.local.SyncClock(o.now, o.wall().Add(-1100*time.Millisecond))
		case "lose":
			o.loses(words[1] == "booking")
		case "turn":
			o.toTurn(o.duration(words[1]))
		case "wait":
			o.play(o.duration(words[1]))
		case "undo":
			o.undo(o.tokens(words[1]))
		default:
			o.at(words[0]+":1", kinds[words[1]], o.tokens(words[2]))
		}
	}
}

func (o *outage) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		o.Fatal(err)
	}
	return d
}

func (o *outage) tokens(text string) tokens {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		o.Fatal(err)
	}
	return tokens(n)
}

// loses has the answer to the first ask, or booking, be lost.
func (o *outage) loses(booking bool) {
	id := uint64(0)
	o.carries = func(_, _ string, f *wire.Frame) bool {
		for _, a := range f.GetAsks() {
			if a.GetArrears() == booking && id == 0 {
				id = a.GetId()
			}
		}
		lost := slices.ContainsFunc(f.GetReplies(), func(r *wire.Reply) bool { return id != 0 && r.GetId() == id })
		if lost {
			id = math.MaxUint64
		}
		return !lost
	}
}

// Each row is an outage, and what is left of 10 at the owner in the end.
func TestWhatOwnersBookAfterAnOutage(t *testing.T) {
	year, minutes := ratelimit.Limit{Unit: ratelimit.Year, Requests: 10}, ratelimit.Limit{Unit: minute, Requests: 10}
	bucket, sliding, slots := year, minutes, year
	bucket.Algorithm, bucket.Burst = ratelimit.TokenBucket, 10
	sliding.Algorithm = ratelimit.SlidingWindow
	slots.Algorithm = ratelimit.Concurrency
	most := fmt.Sprint("a spend ", ratelimit.MaxTokens)
	for _, c := range []struct {
		what   string
		limit  ratelimit.Limit
		policy ratelimit.FailurePolicy
		script string
		left   tokens
	}{
		{"an admission is booked", year, open, "cut; a spend 3", 7},
		{"several, too", year, open, "cut; " + strings.Repeat("a spend 1; ", 8) + "wait 20s", 2},
		{"a refusal is not", year, closed, "cut; a spend 3", 10},
		{"what is taken back is not", year, open, "cut; a spend 3; undo 3", 10},
		{"what is given back is not", year, open, "cut; a spend 3; a refund 3", 10},
		{"a refund of no usage cancels no later charge", year, open, "cut; a refund 8; a spend 8", 2},
		{"the largest costs give nothing back", year, open, "cut; " + most + "; " + most, 0},
		{"an answer that is late counts once", year, open, "late; a spend 4", 6},
		{"a late charge of the owner is taken back after a refusal", year, closed, "late; a spend 4", 10},
		{"a late refusal stays", year, closed, "late; a spend 12", 0},
		{"a charge whose answer is lost may count twice", year, open, "lose booking; cut; a spend 3", 4},
		{"a credit whose answer is lost does not", year, open, "a spend 6; lose booking; cut; a refund 3", 7},
		{"a refund whose answer is lost counts once", year, open, "b spend 6; lose ask; a refund 3", 7},
		{"a hold is settled, and an admission counts", bucket, open, "a spend 6; cut; a spend 2; a release 1", 3},
		{"a charge counts in its window", minutes, open, "turn 10s; cut; a spend 3", 7},
		{"and in no other", minutes, open, "turn 1s; cut; a spend 3; turn -1s", 10},
		{"a charge of an ended window counts nowhere", minutes, open, "a spend 1; turn -1s; cut; a charge 8", 10},
		{"a refund counts in its window", minutes, open, "turn 1s; cut; a refund 3; turn -1s; b spend 6", 4},
		{"and in the next it is of the next", minutes, open, "turn -1ms; b spend 6; cut; a refund 3", 7},
		{
			"what is taken back after the turn counts in no other", minutes, open,
			"turn 70ms; cut; a spend 6; turn -20ms; undo 6; b spend 6", 4,
		},
		{
			"a late answer that is taken back is no credit in the next window", minutes, open,
			"turn 70ms; late; a spend 4; undo 4; wait 75ms; b spend 6", 4,
		},
		{"a sliding window counts it in the next, too", sliding, open, "turn 700ms; cut; a spend 10; turn -1s", 0},
		{
			"and also if that has arrears of its own", sliding, open,
			"turn 700ms; cut; a spend 10; turn -100ms; a spend 1", 0,
		},
		{
			"an owner whose window has not begun books it later", minutes, open,
			"turn 5s; slow; b spend 1; turn 50ms; cut; turn -1ms; a spend 8", 2,
		},
		{"a slot that the owner took too late is given back", slots, closed, "late; a spend 1; undo 1", 10},
	} {
		t.Run(c.what, func(t *testing.T) {
			w, a, b := newPair(t)
			o := &outage{world: w, a: a, b: b, key: keyIn(0, "b:1", "a:1")}
			w.rule.Limit, w.rule.Coordination.OnStoreFailure = c.limit, c.policy
			if c.limit == slots {
				o.slot = 9
			}
			o.plays(c.script)
			o.delay = 100 * time.Microsecond
			if a.cut {
				a.reach(true)
			}
			o.play(3 * time.Second)
			if left := w.left("b:1", o.key); left != c.left {
				t.Errorf("%d are left at the owner, want %d", left, c.left)
			}
			if n := a.Stats().Malformed + b.Stats().Malformed; n > 0 {
				t.Errorf("%d messages made no sense", n)
			}
		})
	}
}

// Without an owner the rule's policy decides, and nothing is charged for a question. What is undone was charged to this
// node's share, if to anything. That is one budget for all outages.
func TestDecidingWithoutAnOwner(t *testing.T) {
	for policy, want := range map[ratelimit.FailurePolicy]struct {
		admitted int // of five asks of one token, of which one is undone
		again    int // of five in the next outage
	}{open: {5, 5}, closed: {0, 0}, ratelimit.FailLocal: {4, 0}} {
		w, a, _ := newPair(t)
		w.rule.Coordination.OnStoreFailure, w.rule.Coordination.MaxNodes = policy, 3
		o := &outage{world: w, a: a, key: keyIn(0, "b:1", "a:1")}
		w.crash("b:1")
		admitted := 0
		for i := range 5 {
			v := o.at("a:1", spend, 1)
			if v.Source != ratelimit.FromFallback || v.Reason != ratelimit.FallbackPeer || v.ResetAfter <= 0 ||
				v.OverLimit == (v.Charged == 1) {
				t.Errorf("%v: %+v", policy, v)
			}
			if admitted += int(v.Charged); i == 2 {
				o.undo(1)
			}
		}
		if v := o.at("a:1", ratelimit.Peek, 1); v.OverLimit == (policy == open) || v.Charged != 0 {
			t.Errorf("%v: a peek after all of a node's own budget: %+v", policy, v)
		}
		b := w.start("b:1")
		w.until("they have met", func() bool { return a.sees(2)() && b.Ready() })
		w.crash("b:1")
		if again := w.admits("a:1", o.key, 5); admitted != want.admitted || again != want.again {
			t.Errorf("%v: %d were admitted, and %d in the next outage, want %+v", policy, admitted, again, want)
		}
	}
}

// A slot that a node took without the key's owner comes back when its request ends, also if another key that the same
// request settles waits for its owner.
func TestSlotsOfAnOutageComeBack(t *testing.T) {
	w, a, _ := newPair(t)
	w.rule.Limit = ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10, Algorithm: ratelimit.Concurrency}
	w.rule.Coordination.OnStoreFailure, w.rule.Coordination.MaxNodes = ratelimit.FailLocal, 10 // a slot for each
	first := keyIn(0, "b:1", "a:1")
	second := keyIn(100, "b:1", "a:1")
	both := func(kind ratelimit.Kind, slot ratelimit.Window) []verdict {
		asks := []ask{{Key: first, Kind: kind, Cost: 1, Window: slot}, {Key: second, Kind: kind, Cost: 1, Window: slot}}
		return w.all("a:1", asks...)
	}
	for slot := range ratelimit.Window(2) {
		a.reach(false)
		w.play(500 * time.Millisecond)
		for i, v := range both(spend, 7+slot) {
			if v.OverLimit || v.Source != ratelimit.FromFallback {
				t.Errorf("key %d, outage %d: the slot of this node is free, and the verdict is %+v", i, slot, v)
			}
		}
		a.reach(true)
		w.play(500 * time.Millisecond)
		both(gives, 7+slot)
	}
}

// A late credit of a bucket is less what was refilled in its place.
func TestBucketsAreNotFilledTwice(t *testing.T) {
	w, a, _ := newPair(t)
	w.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	w.rule.Limit = ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 100, Burst: 100}
	o := &outage{world: w, a: a, key: keyIn(0, "b:1", "a:1")}
	o.at("a:1", spend, 100)
	a.reach(false)
	o.undo(100)
	w.play(300 * time.Millisecond) // some is there, by the refill of the bucket
	n, since := 0, w.now
	drain := func() {
		for v := make([]verdict, 1); !v[0].OverLimit; {
			w.nodes["b:1"].Ask([]ask{{Rule: w.rule, Key: o.key, Cost: 1}}, v, nil, func() { n += int(v[0].Charged) })
		}
	}
	drain()
	a.reach(true)
	for range 200 {
		w.play(10 * time.Millisecond)
		drain()
	}
	if most := 100 + int(w.now.Sub(since)*100/time.Second); n > most {
		t.Errorf("%d are admitted in %v of a bucket of 100 and 100 a second: %d at most", n, w.now.Sub(since), most)
	}
}

// An answer that comes between the end of a request's time and its decision, is late, or is lost: whatever was charged
// for refused requests is taken back.
func TestRefusedRequestsCostNothing(t *testing.T) {
	for after := range 30 {
		w, _, _ := newPair(t)
		key := keyIn(0, "b:1", "a:1")
		w.delay, w.tail = ratelimit.StoreDeadline/2-15*time.Microsecond+time.Duration(after)*time.Microsecond, 0
		v := w.one("a:1", ask{Key: key, Cost: 4})
		w.play(2 * time.Second)
		if left := w.left("b:1", key); left != 10-v.Charged || v.OverLimit == (left == 6) {
			t.Errorf("answers take %v: %d of 10 are left: %+v", 2*w.delay, left, v)
		}
	}
}

// Clients look whether they may, and charge what it cost when it is done (as with LLM tokens). A charge is booked whole:
// what is used beyond the limit is at most what was under way, and from then on everybody is refused.
func TestChargesAfterTheFact(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		w := newWorld(t, 1, 10_000)
		w.rule.Limit.Algorithm, w.rule.Limit.Burst = ratelimit.Algorithm(algorithm), 10_000
		w.ring("a:1", "b:1", "c:1")
		peeks := func() (passed int) {
			for _, addr := range w.addrs {
				if !w.one(addr, ask{Key: keyOf(0), Kind: ratelimit.Peek}).OverLimit {
					passed++
				}
			}
			return passed
		}
		for i, addr := range w.addrs {
			before, v := peeks(), w.one(addr, ask{Key: keyOf(0), Cost: 6000})
			if (before == 3) != (i < 2) || v.OverLimit != (i > 0) || v.Charged+v.Debt != 6000 {
				t.Errorf("%v: %d nodes say before charge %d that some is left: %+v", w.rule.Limit, before, i, v)
			}
		}
		w.one("b:1", ask{Key: keyOf(0), Kind: refund, Cost: 6000})
		if n, left := peeks(), w.left("c:1", keyOf(0)); n > 0 || left > 0 {
			t.Errorf("%v: of 12000 that are used of 10000 %d are left, and %d nodes admit", w.rule.Limit, left, n)
		}
	}
}

// Each charge is given back at its end: at most the limit is in flight at once, and no token is lost.
func TestChargesThatComeBack(t *testing.T) {
	const limit, clients = 10, 32
	w := newWorld(t, 1, limit)
	w.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	w.ring("a:1", "b:1", "c:1")
	under, most, ends := 0, 0, w.now.Add(time.Second)
	at := func(kind ratelimit.Kind, then func(v *verdict)) {
		v := make([]verdict, 1)
		n := w.nodes[w.addrs[w.rnd.IntN(3)]]
		n.Ask([]ask{{Rule: w.rule, Key: keyOf(0), Kind: kind, Cost: 1}}, v, nil, func() { then(&v[0]) })
	}
	var client func()
	soon := func(do func()) { w.in(time.Duration(1+w.rnd.IntN(10))*time.Millisecond, do) }
	client = func() {
		if w.now >= ends {
			return
		}
		at(spend, func(v *verdict) {
			if v.OverLimit {
				soon(client)
				return
			}
			under++
			most = max(most, under)
			soon(func() {
				under--
				at(refund, func(*verdict) { client() })
			})
		})
	}
	for range clients {
		soon(client)
	}
	w.play(2 * time.Second)
	if left := w.left("a:1", keyOf(0)); most != limit || under != 0 || left != limit {
		t.Errorf("%d were under way at once, and %d are left in the end", most, left)
	}
}

// A settlement is booked at the key's owner, whichever node it comes to, and only in the window that it names.
func TestSettlementsComeToTheOwner(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.hotRate = 5
	w.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	w.ring("a:1", "b:1", "c:1")
	for k := range 5 {
		key := keyOf(k)
		held := w.one(w.addrs[k%3], ask{Key: key, Cost: 600})
		for _, addr := range w.addrs {
			for _, x := range []struct {
				kind ratelimit.Kind
				ago  ratelimit.Window
				cost tokens
				want tokens
			}{{gives, 1, 600, 0}, {gives, 0, 100, 100}, {charge, 0, 200, 200}} {
				v := w.one(addr, ask{Key: key, Kind: x.kind, Cost: x.cost, Window: held.Window - x.ago})
				if v.Charged+v.Debt != x.want || v.OverLimit {
					t.Errorf("key %d at %s: %v %d books %+v, want %d", k, addr, x.kind, x.cost, v, x.want)
				}
			}
		}
		if left := w.left(w.addrs[k%3], key); left != 100 {
			t.Errorf("key %d: 600 less 300 and 600 more are used, and %d of 1000 are left", k, left)
		}
	}
}

// A charge that is taken back while its account moves is credited where the account is in the end.
func TestUndoFollowsItsAccount(t *testing.T) {
	for i := range ratelimit.RateAlgorithms() {
		w := newWorld(t, 50, 100)
		w.rule.Limit.Algorithm, w.rule.Limit.Burst = ratelimit.Algorithm(i), 100
		w.ring("a:1", "b:1", "c:1")
		w.fill(4, "a:1")
		asks := make([]ask, len(w.admitted))
		for k := range asks {
			asks[k] = ask{Key: keyOf(k), Cost: 4}
		}
		charged := w.all("a:1", asks...)
		w.delay = 5 * time.Millisecond
		w.nodes["b:1"].Leave(func() {})
		w.until("it is leaving", w.nodes["a:1"].sees(2))
		w.nodes["a:1"].Undo(asks, charged)
		w.play(6 * time.Second)
		for k := range asks {
			if left := w.left("a:1", keyOf(k)); left != 96 {
				t.Errorf("%v, key %d: %d are left of 100", w.rule.Limit.Algorithm, k, left)
			}
		}
	}
}

// A key without room in its owner's table has one budget there, for requests of the owner and of peers. What is taken
// back returns to it.
func TestUntrackedKeyHasOneLimit(t *testing.T) {
	w := newWorld(t, 1, 10)
	w.table, w.rule.Path = 1, "user"
	w.ring("a:1", "b:1")
	o := &outage{world: w, a: w.nodes["a:1"]}
	for k := 0; w.nodes["b:1"].local.Stats().Overflow == 0; k++ {
		o.key = keyIn(k, "b:1", "a:1")
		w.one("b:1", ask{Key: o.key, Cost: 1})
	}
	held := o.at("a:1", spend, 9)
	o.undo(9)
	w.play(time.Second)
	if n := w.admits("a:1", o.key, 4) + w.admits("b:1", o.key, 12); n != 9 || held.Charged != 9 {
		t.Errorf("after 1 of 10, %d are admitted, and %d more when they are taken back", held.Charged, n)
	}
}

// With a store, owners lease from it, and any node may.

// newStorePair is a pair of nodes on a store, and a key of b:1.
func newStorePair(t *testing.T, hotRate float64) (w *world, a, b *node, key []byte) {
	w = newWorld(t, 1, 100)
	w.ledger = account.NewMemory(w.here)
	w.hotRate = hotRate
	w.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	w.ring("a:1", "b:1")
	w.play(3 * time.Second) // the store's epoch is old enough
	return w, w.nodes["a:1"], w.nodes["b:1"], keyIn(0, "b:1", "a:1")
}

// rest is how much the owner of a key admits, and then node a:1 alone, of what it has in hand.
func (w *world) rest(owner string, key []byte) int {
	n := w.admits(owner, key, 120)
	w.nodes["a:1"].cut = true
	return n + w.admits("a:1", key, 10)
}

// Keys of this node's own are decided here, and others by their owners.
func TestOwnersLease(t *testing.T) {
	w, a, b, theirs := newStorePair(t, 1e9)
	mine := keyIn(0, "a:1", "b:1")
	for _, keys := range [][][]byte{{mine, mine}, {mine, theirs, mine}, {theirs, theirs}} {
		asks, forwarded := []ask{}, 0
		for _, key := range keys {
			asks = append(asks, ask{Key: key, Cost: 5})
		}
		b.said = nil
		for i, v := range w.all("a:1", asks...) {
			owner := slices.Equal(keys[i], theirs)
			if v.OverLimit || v.Charged != 5 || (v.Source == ratelimit.FromOwner) != owner {
				t.Errorf("key %d: %+v", i, v)
			}
			if owner {
				forwarded++
			}
		}
		if len(b.said) != forwarded || len(a.said) > 0 {
			t.Errorf("of %d keys the owner has decided %q", len(keys), b.said)
		}
	}
}

// A node leases in place of an owner that is late or cut off. What the owner charged late is taken back there.
func TestOwnersThatAreLateArePassedBy(t *testing.T) {
	for _, x := range []struct {
		what    string
		play    func(w *world, a, b *node)
		said    string // what the owner has decided and taken back
		instead uint64 // requests that were leased in its place
	}{
		{"it is late", func(w *world, _, _ *node) { w.delay = late }, "[5 of 5 undo 5]", 1},
		{"it is cut off", func(_ *world, a, _ *node) { a.cut = true }, "[]", 1},
		{"streams break", func(w *world, _, _ *node) { w.breakAll("a:1", "b:1"); w.play(time.Microsecond) }, "[]", 1},
	} {
		w, a, b, key := newStorePair(t, 1e9)
		x.play(w, a, b)
		v := w.one("a:1", ask{Key: key, Cost: 5})
		if v.OverLimit || v.Source == ratelimit.FromOwner || v.Source == ratelimit.FromFallback || v.Charged != 5 {
			t.Errorf("%s: %+v", x.what, v)
		}
		w.delay, a.cut = 100*time.Microsecond, false
		w.play(4 * time.Second)
		if said := fmt.Sprint(b.said); said != x.said || a.Stats().Instead != x.instead {
			t.Errorf("%s: the owner says %s, and %d were leased in its place", x.what, said, a.Stats().Instead)
		}
		if v := w.one("a:1", ask{Key: key, Cost: 5}); v.Source != ratelimit.FromOwner {
			t.Errorf("%s: the owner answers again, and is not asked: %+v", x.what, v)
		}
		if n := w.rest("b:1", key); n != 90 {
			t.Errorf("%s: after 10 of 100 the owner admits %d more", x.what, n)
		}
	}
}

// An owner that has not answered in half of a request's time is passed by at once.
func TestSilentOwnersAreNotWaitedFor(t *testing.T) {
	w, a, _, key := newStorePair(t, 1e9)
	a.cut = true
	for i, most := range []time.Duration{ratelimit.StoreDeadline, 0, 0} {
		v, began, took := make([]verdict, 1), w.now, time.Hour
		a.do(func() { a.Ask([]ask{{Rule: w.rule, Key: key, Cost: 1}}, v, nil, func() { took = w.now.Sub(began) }) })
		w.play(50 * time.Millisecond)
		if took > most+time.Millisecond || v[0].OverLimit {
			t.Errorf("request %d took %v: %+v", i, took, v[0])
		}
	}
}

// A refund that cannot leave for the key's owner is booked by this node, and so is one that is refused there because
// the ring has changed. One that may have arrived is not: it would count twice.
func TestRefundWithoutItsOwnerIsBookedOnce(t *testing.T) {
	for _, x := range []struct {
		what, owner string // at the end
		play        func(w *world, a, b *node)
		rest        int
	}{
		{"it cannot leave", "b:1", func(_ *world, a, _ *node) { a.reach(false) }, 55},
		{"it may have arrived", "b:1", func(w *world, _, _ *node) { w.delay = late }, 55},
		{"its owner has left, which is news", "a:1", func(w *world, _, b *node) {
			w.carries = func(_, _ string, f *wire.Frame) bool { return len(f.GetPresences()) == 0 }
			b.do(func() { b.Leave(func() {}) })
			w.play(time.Millisecond)
		}, 55 - 6}, // it keeps its lease
	} {
		w, a, b, key := newStorePair(t, 1e9)
		w.one("b:1", ask{Key: key, Cost: 50})
		x.play(w, a, b)
		v := w.one("a:1", ask{Key: key, Kind: ratelimit.Refund, Cost: 5})
		w.delay, b.cut = 100*time.Microsecond, false
		w.carries = func(string, string, *wire.Frame) bool { return true }
		a.reach(true)
		w.play(4 * time.Second)
		if n := w.rest(x.owner, key); v.OverLimit || n != x.rest {
			t.Errorf("%s: %d are admitted after 50 of 100 and a refund of 5: %+v", x.what, n, v)
		}
	}
}

// A charge is taken back at the owner of the key now, or where it was made.
func TestUndoWithAStore(t *testing.T) {
	for _, x := range []struct {
		owner, other string
		alone        bool // this node was cut off from the owner
		said         string
	}{
		{"b:1", "a:1", false, "[5 of 5 undo 5]"},
		{"a:1", "b:1", false, "[]"},
		{"b:1", "a:1", true, "[]"},
	} {
		w, a, b, _ := newStorePair(t, 1e9)
		key := keyIn(0, x.owner, x.other)
		a.cut = x.alone
		spent := ask{Key: key, Cost: 5, Rule: w.rule}
		v := w.one("a:1", spent)
		a.do(func() { a.Undo([]ask{spent}, []verdict{v}) })
		a.cut = false
		w.play(4 * time.Second)
		said := fmt.Sprint(b.said)
		if n := w.rest(x.owner, key); said != x.said || n != 100 {
			t.Errorf("%+v: the owner says %s, and %d of 100 are admitted", x, said, n)
		}
	}
}

// What a node admits without an answer, in place of an owner that is late, is refused after all. It stands if the rule
// would rather admit.
func TestAdmittedWithoutOwnerOrStore(t *testing.T) {
	for policy, admitted := range map[ratelimit.FailurePolicy]bool{
		ratelimit.FailLocal: false, ratelimit.FailClosed: false, ratelimit.FailOpen: true,
	} {
		w, a, _, key := newStorePair(t, 1e9)
		w.rule.Coordination.OnStoreFailure = policy
		a.store.Nodes = func() int { return 1 }
		a.deaf, w.delay = true, late
		v := w.one("a:1", ask{Key: key, Cost: 5})
		if v.OverLimit == admitted || v.Source != ratelimit.FromFallback {
			t.Errorf("%v: %+v", policy, v)
		}
		v = w.one("a:1", ask{Key: keyIn(0, "a:1", "b:1"), Cost: 5})
		if v.OverLimit != (policy == ratelimit.FailClosed) {
			t.Errorf("%v, a key of its own: %+v", policy, v)
		}
	}
}

// Each node leases a key that its owner has called hot.
func TestHotKeysAreLeasedHere(t *testing.T) {
	w, a, _, key := newStorePair(t, 5)
	for range 100 {
		w.one("a:1", ask{Key: key, Cost: 1})
	}
	if s := a.Stats(); s.Hot == 0 || len(s.HotHere) != 1 || w.nodes["b:1"].Stats().HotKeys == nil {
		t.Errorf("%+v", s)
	}
}
