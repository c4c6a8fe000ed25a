package local

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

// Random requests at random instants, against the budget on paper: on one node every answer is exact, a denial is
// booked whole, and undone so. A limit that changes on a reload goes on from what was used.
func TestLocalIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// A second is 2^20 ticks of a sliding window at most: whole milliseconds are exact in both.
		limit := of(rapid.SampledFrom(rates).Draw(t, "algorithm"), 0)
		limit.Unit = ratelimit.Second
		sizes := rapid.IntRange(1, 50)
		reload := func() {
			limit.Requests = tokens(sizes.Draw(t, "limit"))
			if limit.Algorithm == ratelimit.TokenBucket {
				limit.Burst = tokens(sizes.Draw(t, "burst"))
			}
		}
		reload()
		onDeny := ratelimit.OnDeny(rapid.IntRange(0, 1).Draw(t, "on_deny"))
		model := paper{limit: limit, onDeny: onDeny, level: float64(limit.Burst)}
		at := time.Duration(0)
		l := New(10, 1, begins)
		for range rapid.IntRange(1, 80).Draw(t, "requests") {
			at += time.Duration(rapid.IntRange(0, 400).Draw(t, "wait")) * time.Millisecond
			if rapid.IntRange(0, 20).Draw(t, "reload") == 0 {
				model.roll(at) // at the old rate
				decideOne(l, instant(at)+1, ask{Rule: testRule(limit), Key: keyOf(1), Cost: 0})
				reload()
				model.limit = limit
			}
			rule := testRule(limit)
			rule.Coordination.OnDeny = onDeny
			kind := rapid.SampledFrom([]ratelimit.Kind{
				ratelimit.Spend, ratelimit.Spend, ratelimit.Spend, ratelimit.Peek, ratelimit.Refund,
			}).Draw(t, "kind")
			cost := tokens(rapid.IntRange(1, 12).Draw(t, "cost"))
			if kind == ratelimit.Peek {
				cost = 0
			}
			over, remaining, booked := model.ask(at, kind, cost)
			a := ask{Rule: rule, Key: keyOf(1), Cost: cost, Kind: kind}
			v := decideOne(l, instant(at)+1, a)
			if v.OverLimit != over || v.Remaining != remaining {
				t.Fatalf("at %v, %v of %d under %v: over %v, remaining %d; want %v, %d",
					at, kind, cost, limit, v.OverLimit, v.Remaining, over, remaining)
			}
			if rapid.IntRange(0, 5).Draw(t, "undo") == 0 && booked > 0 {
				model.book(-booked)
				l.Undo(instant(at)+1, []ask{a}, []verdict{v})
			}
		}
	})
}

// A refusal has the time at which the same cost passes, without further usage: it does not pass a microsecond
// earlier, and it passes then. A cost above the limit never does. The limit may be lowered below what is spent.
func TestRefusedCostPassesWhenItSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := testRule(drawLimit(t))
		r.Coordination.OnDeny = ratelimit.OnDeny(rapid.IntRange(0, 1).Draw(t, "on_deny"))
		now := ledgerTime(1_800_000_000_000_000 + rapid.Int64Range(0, 1e14).Draw(t, "begin"))
		period := int64(r.Limit.Period() / time.Microsecond)
		c := counter{}
		for range rapid.IntRange(1, 20).Draw(t, "asks") {
			now += ledgerTime(rapid.Int64Range(0, period/3).Draw(t, "wait"))
			if rapid.IntRange(0, 10).Draw(t, "lower") == 0 && r.Limit.Algorithm != ratelimit.TokenBucket {
				r.Limit.Requests -= r.Limit.Requests / 3
			}
			cost := tokens(rapid.Int64Range(1, int64(r.Limit.Capacity())+1).Draw(t, "cost"))
			larger := c
			v := c.ask(now, r, ratelimit.Spend, cost)
			if cost > r.Limit.Capacity() {
				most := larger.ask(now, r, ratelimit.Spend, ratelimit.MaxTokens).ResetAfter
				if r.Limit.Algorithm != ratelimit.TokenBucket && most != v.ResetAfter {
					t.Fatalf("%d of %v at %d: %+v, and %v for all tokens", cost, r.Limit, now, v, most)
				}
				continue
			}
			if !v.OverLimit || v.ResetAfter > 100*365*24*time.Hour { // beyond what a duration can say
				continue
			}
			most := time.Duration(period) * time.Microsecond
			if r.Limit.Algorithm == ratelimit.SlidingWindow { // as config.Effects says of a lowered limit
				most *= 2
			}
			longer := v.ResetAfter > most && !r.Limit.Unit.OfCalendar() && r.Limit.Algorithm != ratelimit.TokenBucket
			if v.ResetAfter <= 0 || longer {
				t.Fatalf("%d of %v at %d: %+v", cost, r.Limit, now, v)
			}
			at := now + ledgerTime(v.ResetAfter/time.Microsecond)
			early, late := c, c
			if over := early.ask(at-1, r, ratelimit.Spend, cost).OverLimit; !over {
				t.Fatalf("%d of %v at %d passes earlier than after %v", cost, r.Limit, now, v.ResetAfter)
			}
			if over := late.ask(at, r, ratelimit.Spend, cost).OverLimit; over {
				t.Fatalf("%d of %v at %d does not pass after %v", cost, r.Limit, now, v.ResetAfter)
			}
		}
	})
}

func (c *counter) ask(now ledgerTime, r *ratelimit.Rule, kind ratelimit.Kind, cost tokens) (v verdict) {
	c.decide(now, &ask{Rule: r, Cost: cost, Kind: kind}, &v)
	return v
}

// A counter that is dead answers as a new one does, to everything.
func TestDeadCounterIsNew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := testRule(drawLimit(t))
		r.Coordination.OnDeny = ratelimit.OnDeny(rapid.IntRange(0, 1).Draw(t, "on_deny"))
		now := ledgerTime(1_800_000_000_000_000)
		period := int64(r.Limit.Period() / time.Microsecond)
		c := counter{}
		kinds := rapid.SampledFrom([]ratelimit.Kind{ratelimit.Spend, ratelimit.Spend, ratelimit.Peek, ratelimit.Refund})
		costs := rapid.Int64Range(1, int64(r.Limit.Capacity())+1)
		for range rapid.IntRange(1, 20).Draw(t, "asks") {
			now += ledgerTime(rapid.Int64Range(0, period).Draw(t, "wait"))
			c.ask(now, r, kinds.Draw(t, "kind"), tokens(costs.Draw(t, "cost")))
			dead := max(now, c.dead(r.Limit.Algorithm))
			if dead > now+100*ledgerTime(period) { // a bucket that takes years
				continue
			}
			old, fresh := c, counter{}
			at := dead + ledgerTime(rapid.Int64Range(0, 3*period).Draw(t, "later"))
			for range 3 {
				kind, cost := kinds.Draw(t, "kind"), tokens(costs.Draw(t, "cost"))
				if kind == ratelimit.Refund && r.Limit.Algorithm == ratelimit.TokenBucket {
					continue // a full bucket may be refunded what it has spent: it stays full
				}
				if got, want := old.ask(at, r, kind, cost), fresh.ask(at, r, kind, cost); got != want {
					t.Fatalf("%v of %d under %v: %+v, a new one says %+v", kind, cost, r.Limit, got, want)
				}
			}
		}
	})
}

// However many keys there are, none gets more than its limit, a key that was limited stays limited, and memory stays
// where it is.
func TestMoreKeysThanItMayTrack(t *testing.T) {
	const maxKeys = 2048
	l := New(maxKeys, 1, testWall)
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Hour, Requests: 5})
	admitted := map[uint64]int{}
	for range 5 {
		decideOne(l, 1, spend(rule, 0, 1))
	}
	for round := range 8 {
		for key := range uint64(5*maxKeys + 1) {
			if !decideOne(l, 1, spend(rule, key, 1)).OverLimit {
				admitted[key]++
			}
		}
		if admitted[0] > 0 {
			t.Fatalf("round %d: the limited key was forgotten", round)
		}
	}
	for key, n := range admitted {
		if n > 5 {
			t.Fatalf("key %d was admitted %d times under a limit of 5", key, n)
		}
	}
	if s := l.Stats(); s.Overflow == 0 || s.Accounts > maxKeys+maxKeys/8 {
		t.Fatalf("%+v", s)
	}
	// When the window is over, there is room again, for others too.
	for key := uint64(100_000); key < 100_000+maxKeys/2; key++ {
		if v := decideOne(l, instant(2*time.Hour), spend(rule, key, 1)); v.Source == ratelimit.FromOverflow {
			t.Fatalf("key %d found no room in a ledger of dead accounts", key)
		}
	}
}

// A key that shared a budget does not get its limit again once there is room for it.
func TestOverflowThenTracked(t *testing.T) {
	l := New(64, 1, testWall)
	hour := testRule(ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
	fill(l, 1, testRule(ratelimit.Limit{Unit: ratelimit.Second, Requests: 100}), 64)
	n := admit(l, 1, hour, 20) // shares a budget
	n += admit(l, instant(2*time.Second), hour, 20)
	if n > 10 {
		t.Errorf("%d admitted in an hour under a limit of 10", n)
	}
}

// A key without room is refused at a peek once the budget that it shares is in debt, until tokens are given back.
func TestSharedBudgetRefusesPeeks(t *testing.T) {
	l := New(64, 1, testWall)
	r := testRule(ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
	fill(l, 1, r, 64)
	shared := ask{Rule: r, Key: keyOf(1)}
	ask := func(kind ratelimit.Kind, cost tokens) verdict {
		a := shared
		a.Kind, a.Cost = kind, cost
		return decideOne(l, 1, a)
	}
	ask(ratelimit.Charge, 15)
	if v := ask(ratelimit.Peek, 0); !v.OverLimit {
		t.Errorf("15 of 10 are used: %+v", v)
	}
	if v := l.Look(t.Context(), 1, &shared).Ledger; v == nil || v.Free != -5 || l.Reset(t.Context(), 1, &shared) == nil {
		t.Errorf("%+v is shown, or others' usage reset", v)
	}
	ask(ratelimit.Refund, 5)
	ask(ratelimit.Release, 5)
	if v := ask(ratelimit.Spend, 5); v.OverLimit {
		t.Errorf("10 of 15 were given back: %+v", v)
	}
}

// A bucket that does not refill is never dropped.
func TestBucketThatDoesNotRefill(t *testing.T) {
	r := testRule(ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Burst: 3})
	l := New(64, 1, testWall).Predictable()
	n := admit(l, 1, r, 3)
	for range 10 { // each looks for room in a part of the table
		fill(l, instant(time.Hour), r, 64)
	}
	if n += admit(l, instant(time.Hour), r, 1); n != 3 {
		t.Errorf("%d are admitted of a bucket of 3", n)
	}
}

// Limits are remembered by number, and only so many.
func TestLimitNotes(t *testing.T) {
	var n limitNotes
	for limit := tokens(1); limit < 3*mostNotes; limit++ {
		number := n.note(limit)
		if got := n.limit(number); got != limit && (got != 0 || limit < mostNotes) || n.note(limit) != number {
			t.Fatalf("limit %d has number %d, which is %d, and then %d", limit, number, got, n.note(limit))
		}
	}
	if len(n.limits) > mostNotes {
		t.Errorf("%d limits", len(n.limits))
	}
}

// A cold key's place is one cache line, and a decision about it allocates nothing.
func TestDecideAllocatesNothing(t *testing.T) {
	if n := unsafe.Sizeof(counterCell{}); n != 64 {
		t.Errorf("a key takes %d bytes", n)
	}
	l := New(1000, 1, testWall)
	for _, algorithm := range rates {
		asks, verdicts := []ask{spend(testRule(of(algorithm, 1<<30)), uint64(algorithm), 1)}, make([]verdict, 1)
		if n := testing.AllocsPerRun(1000, func() { l.Decide(context.Background(), 1, asks, verdicts) }); n != 0 {
			t.Errorf("%v: %v allocations", algorithm, n)
		}
	}
}

// From many goroutines at once, a limit admits exactly as many as it says.
func TestConcurrentSpendsAreExact(t *testing.T) {
	const limit, callers, calls = 1000, 8, 500
	for _, algorithm := range rates {
		l := New(100, 1, testWall)
		rule := testRule(of(algorithm, limit))
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() { admitted.Add(int64(admit(l, 1, rule, calls))) })
		}
		wg.Wait()
		if n := admitted.Load(); n != limit {
			t.Errorf("%v: admitted %d", rule.Limit, n)
		}
	}
}

// Nodes that share nothing admit the limit each: what is declared for each further node.
func TestNodesAlone(t *testing.T) {
	const nodes = 3
	rule := testRule(of(ratelimit.FixedWindow, 20))
	admitted := tokens(0)
	for range nodes {
		admitted += tokens(admit(New(10, 1, testWall), 1, rule, 50))
	}
	declared := declare.Of(rule, nodes, declare.OwnMemory).Over
	if over := admitted - rule.Limit.Requests; over != declared.Tokens || over != (nodes-1)*declared.EachNode {
		t.Errorf("%d over, declared: %+v", over, declared)
	}
}

func ExampleLocal() {
	wall := time.Date(2027, 1, 1, 12, 0, 0, 0, time.UTC)
	limiter := New(1_000_000, 1, wall)
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 2})
	key := ratelimit.AppendEntry(ratelimit.AppendPrefix(nil, "shop", rule.Limit), "user", "ada", ratelimit.OfRequest)
	for range 3 {
		v := make([]ratelimit.Verdict, 1)
		limiter.Decide(context.Background(), 1, []ratelimit.Ask{{Rule: rule, Key: key, Cost: 1}}, v)
		fmt.Println(v[0].OverLimit, v[0].Remaining)
	}
	// Output:
	// false 1
	// false 0
	// true 0
}

// begins is the start of a minute. testWall is in the middle of one.
var (
	begins   = time.Unix(1_800_000_000, 0)
	testWall = begins.Add(15 * time.Second)
)

func testRule(l ratelimit.Limit) *ratelimit.Rule {
	return &ratelimit.Rule{Domain: "d", Path: "p", Limit: l, Coordination: ratelimit.DefaultCoordination()}
}

// ownedRule is of keys that move with a ring.
func ownedRule(l ratelimit.Limit) *ratelimit.Rule {
	r := testRule(l)
	r.Coordination.Mode = ratelimit.Routing
	return r
}

// of is an algorithm's limit of so many a minute.
func of(a ratelimit.Algorithm, n tokens) ratelimit.Limit {
	l := ratelimit.Limit{Algorithm: a, Unit: ratelimit.Minute, Requests: n}
	if a == ratelimit.TokenBucket {
		l.Burst = n
	}
	return l
}

func keyOf(n uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{1, 0, 1, 'd'}, n)
}

// spend is a request for tokens of a key.
func spend(r *ratelimit.Rule, key uint64, cost tokens) ask {
	return ask{Rule: r, Key: keyOf(key), Cost: cost}
}

func decideOne(l *Limiter, now instant, a ask) verdict {
	v := make([]verdict, 1)
	l.Decide(context.Background(), now, []ask{a}, v)
	return v[0]
}

// admit sends that many requests for single tokens of key 1, and returns the number of admitted ones.
func admit(l *Limiter, now instant, r *ratelimit.Rule, n int) (admitted int) {
	for range n {
		if !decideOne(l, now, spend(r, 1, 1)).OverLimit {
			admitted++
		}
	}
	return admitted
}

// fill spends a token of each of so many other keys.
func fill(l *Limiter, now instant, r *ratelimit.Rule, n uint64) {
	for k := range n {
		decideOne(l, now, spend(r, 1000+k, 1))
	}
}

func everything([]byte) bool { return true }

// handOver moves the keys that match accepts. What has no room stays.
func handOver(now instant, from, to *Limiter, match func(key []byte) bool) (handed int) {
	var keys [][]byte
	for v := (Visit{}); !from.Visit(&v, func(key []byte) {
		if match(key) {
			keys = append(keys, append([]byte(nil), key...))
		}
	}); {
	}
	for _, key := range keys {
		a, ok := from.TakeOut(now, key)
		if !ok {
			continue
		}
		if to.Adopt(now, key, a, from.LedgerNow(now)) {
			handed++
		} else {
			from.Adopt(now, key, a, from.LedgerNow(now))
		}
	}
	return handed
}

func billed(t interface{ Fatal(args ...any) }, day int, name string) ratelimit.Limit {
	c, err := zone.Calendar(day, name)
	if err != nil {
		t.Fatal(err)
	}
	return ratelimit.Limit{Unit: ratelimit.Month, Requests: 1000}.Billed(c)
}

func drawLimit(t *rapid.T) ratelimit.Limit {
	sizes := rapid.SampledFrom([]tokens{1, 2, 7, 100, 1 << 32, 30_000_000_000})
	l := ratelimit.Limit{
		Algorithm: rapid.SampledFrom(rates).Draw(t, "algorithm"),
		Unit:      ratelimit.Unit(rapid.IntRange(1, int(ratelimit.BillingMonth)).Draw(t, "unit")),
	}
	if l.Unit == ratelimit.BillingMonth {
		zones := []string{"UTC", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12", "America/Asuncion", "Africa/Cairo"}
		l = billed(t, rapid.IntRange(1, 31).Draw(t, "day"), rapid.SampledFrom(zones).Draw(t, "zone"))
	}
	if l.Unit.OfCalendar() {
		l.Algorithm = ratelimit.FixedWindow
	}
	l.Requests = sizes.Draw(t, "limit")
	if l.Algorithm == ratelimit.TokenBucket {
		l.Burst = sizes.Draw(t, "burst")
	}
	return l
}

var rates = []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.TokenBucket}

// paper is a budget as a person would write it down: what each algorithm means, on one node, with no leases.
type paper struct {
	limit  ratelimit.Limit
	onDeny ratelimit.OnDeny
	window int64
	used   tokens // in the window
	prev   tokens // in the one before
	at     time.Duration
	level  float64
}

// roll brings it to an instant.
func (c *paper) roll(at time.Duration) {
	c.level = min(float64(c.limit.Burst), c.level+float64(at-c.at)*float64(c.limit.Requests)/float64(c.limit.Period()))
	c.at = at
	if w := int64(at / c.limit.Period()); w != c.window {
		c.prev = 0
		if w == c.window+1 && c.limit.Algorithm == ratelimit.SlidingWindow {
			c.prev = c.used
		}
		c.window, c.used = w, 0
	}
}

// left is what may be spent; below nothing by what is owed.
func (c *paper) left() tokens {
	if c.limit.Algorithm == ratelimit.TokenBucket {
		return tokens(math.Floor(c.level + 1e-6))
	}
	left := c.limit.Period() - c.at%c.limit.Period()
	weighted := (int64(c.prev)*int64(left) + int64(c.limit.Period()) - 1) / int64(c.limit.Period())
	return c.limit.Requests - c.used - tokens(weighted)
}

// book books n tokens, or credits them.
func (c *paper) book(n tokens) {
	c.level = min(float64(c.limit.Burst), c.level-float64(n))
	c.used = max(0, c.used+n)
}

// ask answers, and says what was booked.
func (c *paper) ask(at time.Duration, kind ratelimit.Kind, cost tokens) (over bool, remaining, booked tokens) {
	c.roll(at)
	switch {
	case kind == ratelimit.Refund:
		c.book(-cost)
	case kind == ratelimit.Peek:
		over = c.left() < 0
	case cost > c.left():
		if over = true; c.onDeny == ratelimit.DenyCharges {
			booked = cost
		}
	default:
		booked = cost
	}
	if booked > 0 {
		c.book(booked)
	}
	return over, max(0, c.left()), booked
}
