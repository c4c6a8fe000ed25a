package local

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Keys that wander between processes admit what one process would have admitted, to the token.
func TestHandOver(t *testing.T) {
	for _, algorithm := range rates {
		rnd := rand.New(rand.NewPCG(1, uint64(algorithm)))
		one := New(1000, 1, begins)
		several := []*Limiter{New(1000, 1, begins), New(1000, 1, begins), New(1000, 1, begins)}
		owner := make([]int, 50)
		now := instant(1)
		for step := range 20_000 {
			now = now.Add(time.Duration(rnd.Int64N(int64(2 * time.Millisecond))))
			k := rnd.IntN(len(owner))
			r := ownedRule(of(algorithm, tokens(1+k%7*5)))
			r.Limit.Unit, r.Limit.Multiplier = ratelimit.Second, 3
			a := spend(r, uint64(k), 1+tokens(rnd.IntN(2)))
			want, got := decideOne(one, now, a), decideOne(several[owner[k]], now, a)
			if want.OverLimit != got.OverLimit || want.Remaining != got.Remaining {
				t.Fatalf("step %d, %v: %+v, one process says %+v", step, r.Limit, got, want)
			}
			if rnd.IntN(20) > 0 {
				continue
			}
			kind, to := rnd.IntN(5), rnd.IntN(3) // all keys of a kind go elsewhere
			for from := range several {
				if from != to {
					handOver(now, several[from], several[to], func(key []byte) bool { return int(key[4])%5 == kind })
				}
			}
			for k := kind; k < len(owner); k += 5 {
				owner[k] = to
			}
		}
		for _, l := range several {
			for _, seen := range l.Hottest(now, len(owner)) {
				if seen.Limit == 0 || seen.Spent < 0 {
					t.Errorf("%+v", seen)
				}
			}
		}
	}
}

// wanderers are nodes whose clocks differ and are set, by less than a period in all. A key moves between them, and
// others come and go in their small tables.
type wanderers struct {
	*rand.Rand
	nodes []*Limiter
	wall  time.Time
	now   instant
	rule  *ratelimit.Rule
	owner int
	// unused means that the key has no usage in its window. Then a full table may drop it without a note, and the window
	// before is granted again if the clock is set back into it.
	unused   bool
	admitted map[window]tokens
}

const farthest = 29 * time.Second // of a clock from the right time

func newWanderers(seed uint64, l ratelimit.Limit, wall time.Time) *wanderers {
	w := &wanderers{
		Rand: rand.New(rand.NewPCG(seed, 300)), wall: wall, now: 1, rule: ownedRule(l), admitted: map[window]tokens{},
	}
	w.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	for range 3 {
		w.nodes = append(w.nodes, New(10, w.now, wall).Predictable())
		w.sets(len(w.nodes) - 1)
	}
	return w
}

// sets sets a node's clock.
func (w *wanderers) sets(node int) {
	off := time.Duration(w.Int64N(int64(2*farthest)) - int64(farthest))
	w.nodes[node].SyncClock(w.now, w.wall.Add(time.Duration(w.now)+off))
}

func (w *wanderers) step() {
	w.now = w.now.Add(time.Duration(w.Int64N(int64([]time.Duration{1, 10, 1000, 10_000}[w.IntN(4)] * time.Millisecond))))
	l := w.nodes[w.owner]
	switch w.IntN(10) {
	case 0, 1:
		to := w.IntN(len(w.nodes))
		if to != w.owner && handOver(w.now, l, w.nodes[to], everything) > 0 {
			w.owner = to
		}
	case 2:
		w.sets(w.IntN(len(w.nodes)))
	case 3:
		others, node := *w.rule, w.IntN(len(w.nodes))
		others.Coordination.Mode = ratelimit.Leasing // they do not move
		if node != w.owner || !w.unused {
			fill(w.nodes[node], w.now, &others, 30)
		}
	default:
		a := spend(w.rule, 1, 1+tokens(w.Int64N(int64(w.rule.Limit.Requests))))
		v := decideOne(l, w.now, a)
		if w.IntN(4) == 0 {
			l.Undo(w.now, []ask{a}, []verdict{v})
			v.Charged = 0
		}
		w.admitted[v.Window] += v.Charged
		w.unused = w.admitted[v.Window] == 0
	}
}

// Clocks differ and are set, by less than a period in all. A key wanders between full tables. In each window at
// most the limit is admitted, and two periods later it is admitted again.
func TestNoWindowIsGrantedTwice(t *testing.T) {
	month := billed(t, 1, "America/Asuncion")
	month.Requests = 10
	cut := time.Date(2023, 10, 1, 4, 0, 0, 0, time.UTC) // from 00:00 -04:00 to 01:00 -03:00
	for _, x := range []struct {
		limit ratelimit.Limit
		wall  time.Time
	}{
		{of(ratelimit.FixedWindow, 10), begins},
		{of(ratelimit.SlidingWindow, 10), begins},
		{month, cut.Add(-2 * time.Minute)},
	} {
		for seed := range uint64(300) {
			w := newWanderers(seed, x.limit, x.wall)
			for range 200 {
				w.step()
			}
			for at, n := range w.admitted {
				if n > x.limit.Requests {
					t.Fatalf("%v, seed %d: %d were admitted in window %d", x.limit, seed, n, at)
				}
			}
			l := w.nodes[w.owner]
			w.now = w.now.Add(2*x.limit.Period() + 2*farthest)
			if n := admit(l, w.now, w.rule, 20); n != 10 {
				t.Errorf("%v, seed %d: two periods later %d of 10 are admitted", x.limit, seed, n)
			}
		}
	}
}

// A clock that was set back by more than a period waits for as long as a period, and no longer.
func TestClockIsSetFarBack(t *testing.T) {
	for _, algorithm := range rates {
		for _, back := range []time.Duration{2 * time.Minute, time.Hour, 365 * 24 * time.Hour} {
			r, l := testRule(of(algorithm, 10)), New(10, 1, testWall)
			admit(l, 1, r, 10)
			l.SyncClock(1, testWall.Add(-back))
			if n := admit(l, 1, r, 10); n != 0 {
				t.Errorf("%v: set back by %v, and %d more were admitted", r.Limit, back, n)
			}
			if n := admit(l, instant(2*time.Minute), r, 1); n != 1 {
				t.Errorf("%v: set back by %v, and two minutes later nothing is admitted", r.Limit, back)
			}
		}
	}
}

// Whatever number an account's window has, a key waits for its end and one more period at most.
func TestAccountOfAnyWindow(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		r := ownedRule(of(ratelimit.FixedWindow, 10))
		r.Limit.Unit = ratelimit.Unit(1 + rnd.IntN(4))
		r.Limit.Multiplier = 1 + rnd.Uint32N(r.Limit.Unit.MostMultiplier())
		l := New(10, 1, testWall)
		here := l.LedgerNow(1)
		x := Account{Sum: 10, State: rnd.Int64N(int64(here) / 1_000_000), Begins: here, Ends: here + 1}
		l.Adopt(1, keyOf(1), x, here)
		admit(l, instant(time.Second), r, 1)
		if n := admit(l, instant(0).Add(2*r.Limit.Period()), r, 1); n != 1 {
			t.Fatalf("%v: nothing is admitted after window %d", r.Limit, x.State)
		}
	}
}

// If the clock goes to and fro, a bucket gains the tokens of the difference once.
func TestBucketBetweenTwoClocks(t *testing.T) {
	r, l := testRule(of(ratelimit.TokenBucket, 120)), New(10, 1, testWall)
	admit(l, 1, r, 120)
	gained := 0
	for range 20 {
		l.SyncClock(1, testWall.Add(time.Second/2))
		gained += admit(l, 1, r, 10)
		l.SyncClock(1, testWall)
		gained += admit(l, 1, r, 10)
	}
	if gained != 1 {
		t.Errorf("%d are granted of a bucket that gains 1 in half a second", gained)
	}
}

// An account that arrives where the key is known is charged there too: in the same window, or in the one before. Of
// two buckets the emptier one counts. It does not matter which one arrives.
func TestAdoptMerges(t *testing.T) {
	const now = instant(61 * time.Second)
	for _, x := range []struct {
		name      string
		algorithm ratelimit.Algorithm
		here      instant // the time of the other one's requests
		had, more int
	}{
		{"the same window", ratelimit.FixedWindow, now, 3, 1},
		{"the window before", ratelimit.FixedWindow, 1, 12, 4},
		{"the window before, which counts", ratelimit.SlidingWindow, 1, 3, 1},
		{"a bucket that was idle", ratelimit.TokenBucket, 1, 1, 4},
	} {
		for _, arrives := range []string{"the newer", "the older"} {
			r := ownedRule(of(x.algorithm, 10))
			older, newer := New(10, 1, begins), New(10, 1, begins)
			admit(older, x.here, r, x.had)
			admit(newer, now, r, 6)
			here, from := older, newer
			if arrives == "the older" {
				here, from = newer, older
			}
			handOver(now, from, here, everything)
			if n := admit(here, now, r, 20); n != x.more {
				t.Errorf("%s, %s arrives: %d more were admitted, want %d", x.name, arrives, n, x.more)
			}
		}
	}
}

// A visit shows every key that is there all the time, however many come and go. It shows only keys of a mode with
// owners, by the rule of their last request.
func TestVisitShowsAll(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	l := New(4000, 1, begins)
	r := ownedRule(ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
	leased := testRule(r.Limit)
	for k := range uint64(1000) {
		decideOne(l, 2, spend([]*ratelimit.Rule{r, leased}[k%2], k, 1))
		decideOne(l, 2, spend([]*ratelimit.Rule{r, leased}[k%3%2], k, 1))
	}
	seen := map[string]bool{}
	for v := (Visit{}); !l.Visit(&v, func(key []byte) { seen[string(key)] = true }); {
		for range 20 {
			if k := 1000 + rnd.Uint64N(2000); rnd.IntN(2) == 0 {
				decideOne(l, 2, spend(r, k, 1))
			} else {
				l.TakeOut(2, keyOf(k))
			}
		}
	}
	for k := range uint64(1000) {
		if owned := k%3%2 == 0; seen[string(keyOf(k))] != owned {
			t.Fatalf("key %d with an owner, %v, is shown: %v", k, owned, !owned)
		}
	}
}

// slotRule lets n requests be in flight at once, each for a minute at most.
func slotRule(n tokens) *ratelimit.Rule {
	r := testRule(ratelimit.AtOnce(n, time.Minute))
	r.Hold, r.Coordination.OnDeny = r.Limit.HoldsSlot(), ratelimit.DenyRefunds
	return r
}

func slotOf(r *ratelimit.Rule, key string, kind ratelimit.Kind, slot int) ask {
	return ask{Rule: r, Key: []byte(key), Cost: 1, Kind: kind, Window: window(slot)}
}

// A node alone: a slot is taken once, given back once, undone exactly, and comes back when its time is over.
func TestSlotsOfANode(t *testing.T) {
	l, r := New(100, 0, begins), slotRule(2)
	look := &ask{Rule: r, Key: []byte("k")}
	at := func(s int, kind ratelimit.Kind, slot int, over bool, charged, left tokens) {
		t.Helper()
		v := decideOne(l, instant(s)*instant(time.Second), slotOf(r, "k", kind, slot))
		if v.OverLimit != over || v.Charged != charged || v.Remaining != left {
			t.Errorf("at %d s: %+v, must be over %v, charged %d, left %d", s, v, over, charged, left)
		}
	}
	const take, give = ratelimit.Spend, ratelimit.Release
	at(0, take, 1, false, 1, 1)
	at(0, take, 1, false, 1, 1)
	at(1, take, 2, false, 1, 0)
	at(2, take, 3, true, 0, 0)
	at(2, give, 3, false, 0, 0)
	at(2, ratelimit.Refund, 0, false, 0, 0)
	at(2, ratelimit.Charge, 2, false, 0, 0)
	at(3, give, 1, false, 1, 1)
	at(3, give, 1, false, 0, 1)
	at(3, take, 3, false, 1, 0)
	l.Undo(0, []ask{slotOf(r, "k", take, 3)}, []verdict{{Charged: 1, Window: 3}})
	at(4, take, 4, false, 1, 0)
	at(60, take, 5, true, 0, 0) // 2 is in flight until 61 s
	at(61, take, 5, false, 1, 0)
	if n := l.Stats().Accounts; n != 1 {
		t.Errorf("%d accounts", n)
	}
	if x := l.Look(t.Context(), instant(64*time.Second), look).Ledger; x == nil || x.Charged != 1 || x.Free != 1 {
		t.Errorf("it looks like %+v", x)
	}
	if err := l.Reset(t.Context(), instant(61*time.Second), look); err != nil {
		t.Fatal(err)
	}
	at(61, take, 6, false, 1, 1)
}

// A part of a node's table keeps as many slots as one key may have, and refuses more, for tracked keys and for new
// ones. None is dropped for others.
func TestSlotsAreBounded(t *testing.T) {
	const most, clients = int(ratelimit.MaxConcurrency), 30_000
	l, r := New(64, 0, begins), slotRule(ratelimit.MaxConcurrency) // the table has one part
	all := func(kind ratelimit.Kind, n int) (charged int) {
		for i := range n {
			charged += int(decideOne(l, 0, slotOf(r, fmt.Sprint(i%6), kind, i+1)).Charged)
		}
		return charged
	}
	if in := all(ratelimit.Spend, clients); in != most {
		t.Errorf("%d slots are taken, must be %d", in, most)
	}
	one := slotOf(r, "new", ratelimit.Spend, clients+1)
	if v := decideOne(l, 0, one); !v.OverLimit {
		t.Error("a new key has a slot, and there is no room")
	}
	if back := all(ratelimit.Release, clients); back != most {
		t.Errorf("%d slots of %d came back", back, most)
	}
	if in := all(ratelimit.Spend, most); in != most {
		t.Errorf("%d slots are taken when all have come back, must be %d", in, most)
	}
	if v := decideOne(l, instant(r.Limit.Period()), one); v.OverLimit {
		t.Errorf("all slots have ended, and a new key has none: %+v", v)
	}
}
