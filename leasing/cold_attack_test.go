package leasing

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var coldSeeds = 200

func init() {
	if n, err := strconv.Atoi(os.Getenv("SEEDS")); err == nil {
		coldSeeds = n
	}
}

// other all that may be is.
func coldTwin(seed uint64, keepBusy int) (log []string) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	now := instant(time.Hour)
	say := func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
	limits := []ratelimit.Limit{
		{Unit: ratelimit.Minute, Requests: 20},
		{Unit: ratelimit.Second, Requests: 10},
		{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 20},
		{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 60, Burst: 20},
	}
	limit := limits[rnd.IntN(len(limits))]
	huge := seed%3 == 0
	if huge {
		limit.Requests, limit.Burst = limit.Requests*10_000_000_000, limit.Burst*10_000_000_000
	}
	keyOf := func(n uint64) []byte {
		if seed%2 == 0 {
			return keyOf(n)
		}
		return append(keyOf(n), make([]byte, 128)...)[:[]int{128, 127, 1, 0, 64, 65}[n%6]]
	}
	counters := new(ratelimit.RuleCounters)
	newRule := func(l ratelimit.Limit) *ratelimit.Rule {
		r := testRule(l)
		r.Counters = counters
		return r
	}
	base := newRule(limit)
	c := &base.Coordination
	c.Lease.TTL = []time.Duration{time.Second, 10 * time.Second, time.Hour}[rnd.IntN(3)]
	if rnd.IntN(2) == 0 {
		c.Lease.Fixed = tokens(1 + rnd.IntN(8))
	}
	c.OnDeny = []ratelimit.OnDeny{ratelimit.DenyRefunds, ratelimit.DenyCharges}[rnd.IntN(2)]
	c.OnStoreFailure = []ratelimit.FailurePolicy{ratelimit.FailOpen, ratelimit.FailLocal, ratelimit.FailCached, ratelimit.FailClosed}[rnd.IntN(4)]
	c.MaxStaleness = 10 * time.Second
	if rnd.IntN(3) == 0 {
		c.Reclaim = ratelimit.ReclaimEager
	}
	approxMode := rnd.IntN(2) == 0
	if approxMode {
		c.Mode, c.MaxNodes, c.CheckTimeout, c.LowWatermark = ratelimit.Approx, 2, 2*time.Millisecond, ratelimit.Share{PPM: 200_000}
		c.SyncInterval = 10 * time.Second
	}
	rules := []*ratelimit.Rule{base}
	again := *base
	rules = append(rules, &again)
	smaller := *base
	smaller.Limit.Requests -= 5
	rules = append(rules, &smaller)

	var timers []nodeTimer
	after := func(d time.Duration, call func()) { timers = append(timers, nodeTimer{now.Add(d), call}) }
	n := NewStepped(1, 10_000, func() instant { return now }, time.Unix(1_800_000_015, 0), after, func() float64 { return 0.5 })
	ledger := NewMemory(100, func() ledgerTime { return ledgertest.Epoch.Add(now.Sub(instant(time.Hour))) })
	losable := NewLosable(ledger)
	n.KeepBusy(keepBusy)
	if approxMode {
		n.SetDrift(&shareOfTen{})
	}
	epochs := rnd.IntN(2) == 0
	if epochs {
		n.Hears()
	}
	recalls := rnd.IntN(2) == 0
	if recalls {
		n.Recalls()
	}
	type request struct {
		asks []ask
		v    []verdict
		w    *Wait
		over instant
	}
	var open []*request
	var done []*request
	var flying []*Batch
	other := uint64(0)
	_ = other
	finish := func(r *request) { say("  %+v", r.v); done = append(done, r) }
	advance := func() {
		var rest []*request
		for _, r := range open {
			if !r.w.Advance(now) {
				finish(r)
				continue
			}
			rest = append(rest, r)
		}
		open = rest
	}
	rule := rules[0]
	nkeys := uint64(1 + rnd.IntN(6))
	for step := range 400 {
		k := rnd.Uint64N(nkeys)
		x := rnd.IntN(100)
		a, b, c := rnd.IntN(100), rnd.IntN(10), rnd.IntN(1000)
		switch {
		case x < 45:
			kind := ratelimit.Spend
			if a < 5 {
				kind = ratelimit.Peek
			} else if a < 10 {
				kind = ratelimit.Refund
			}
			cost := tokens(b / 2)
			if huge {
				cost *= tokens(c%7) * 1_000_000_000
			}
			if c < 20 {
				cost = ratelimit.MaxTokens - tokens(c%3)
			}
			r := &request{asks: []ask{{Rule: rule, Key: keyOf(k), Cost: cost, Kind: kind}}, v: make([]verdict, 1)}
			if b == 9 {
				r.asks = append(r.asks, ask{Rule: rule, Key: keyOf((k + 1) % nkeys), Cost: 1})
				r.v = make([]verdict, 2)
			}
			say("%d ask %d cost %d kind %d", step, k, cost, kind)
			if r.w = n.Ask(now, r.asks, r.v); r.w == nil {
				finish(r)
			} else {
				r.over = now.Add(r.w.Patience())
				open = append(open, r)
			}
		case x < 65:
			var d time.Duration
			switch {
			case a < 70:
				d = tick * time.Duration(1+b)
			case a < 90:
				d = tick * time.Duration(c/10)
			default:
				d = tick * time.Duration(c)
			}
			end := now.Add(d)
			for now < end {
				now = now.Add(tick)
				var due []func()
				rest := timers[:0]
				for _, t := range timers {
					if t.at <= now {
						due = append(due, t.call)
					} else {
						rest = append(rest, t)
					}
				}
				timers = rest
				for _, call := range due {
					call()
				}
				n.Sweep(now)
				for _, r := range open {
					if now >= r.over {
						more := r.w.TimeOver()
						r.over = now.Add(more)
					}
				}
				advance()
			}
		case x < 85: // send
			for bt := n.Batch(); bt != nil; bt = n.Batch() {
				say("%d sends %+v", step, bt.Claims())
				flying = append(flying, bt)
			}
		case x < 86 && len(done) > 0:
			r := done[a%len(done)]
			say("%d undo", step)
			n.Undo(now, r.asks, r.v)
			done = nil
		case x < 88 && recalls:
			say("recalled %d", k)
			n.Recalled(string(keyOf(k)))
		case x < 89 && epochs:
			losable.Forget()
		case x < 90:
			rule = rules[a%len(rules)]
		case x < 91:
			sh, _, h := n.fleet.locked(keyOf(k))
			may := h != nil && h.lease.window != 0 // else the claim has no limit: another finding
			sh.mu.Unlock()
			if may {
				n.fleet.Drop(now, keyOf(k))
			}
		case x < 93:
			var g [1]ratelimit.Grant
			other++
			cl := ratelimit.Claim{Key: string(keyOf(k)), Limit: rule.Limit, Holder: 99, Seq: other, Waiting: tokens(b), Want: tokens(b), TTL: time.Second}
			losable.Settle(context.Background(), []ratelimit.Claim{cl}, g[:])
		case x < 95:
			r := &ratelimit.Ask{Rule: rule, Key: keyOf(k)}
			lk := n.fleet.Look(context.Background(), now, r)
			say("look %+v", lk.Lease)
		}
		if x >= 75 || x < 5 { // answer
			for _, bt := range flying {
				if a < 15 {
					bt.Fail(errors.New("gone"))
					continue
				}
				g := make([]ratelimit.Grant, len(bt.Claims()))
				if epochs {
					e, at, _ := losable.SettleEpoch(context.Background(), bt.Query(), bt.Claims(), g)
					bt.AnswerIn(e, at, g)
				} else {
					losable.Settle(context.Background(), bt.Claims(), g)
					bt.Answer(g)
				}
				say("%d answered %+v", step, g)
			}
			flying = nil
		}
		advance()
		if err := coldInvariants(n.fleet); err != nil {
			say("BROKEN %v", err)
			return log
		}
		st := n.Stats()
		say("%d drifting %v gauges %d %d %d stats %d %d %d", step, n.Drifting(), counters.Leased.Load(), counters.Drifting.Load(), counters.Stranded.Load(), st.Claims, st.Leases, st.Missing)
	}
	say("release %+v", n.Release(now))
	return log
}

// coldInvariants are of the books of a node's shards.
func coldInvariants(f *Fleet) error {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		uses, busy := map[*ratelimit.Rule]int{}, 0
		var err error
		for w := (walk{shard: i}); ; {
			w.at = s.keys.Walk(w.at, func(c *heldCell) {
				if c.Val.slot != 0 {
					busy++
					h := s.busy.at(c.Val.slot - 1)
					if h.id != c.ID() || h.shard != s || h.slot != c.Val.slot-1 {
						err = fmt.Errorf("cell and slot differ")
					}
					return
				}
				uses[s.rules.ofCold(s.keys.Kept(c))]++
			})
			if w.at.Done {
				break
			}
		}
		taken := 0
		for _, c := range s.busy.chunks {
			taken += bits.OnesCount64(c.used)
		}
		if busy != s.busy.size || busy != taken {
			err = fmt.Errorf("%d busy, size %d, slots taken %d", busy, s.busy.size, taken)
		}
		if len(uses) != len(s.rules.numbers) {
			err = fmt.Errorf("%d rules are used, and %d have numbers", len(uses), len(s.rules.numbers))
		}
		for r, n := range uses {
			if r == nil || s.rules.uses[s.rules.numbers[r]] != (ruleUse{r, n}) {
				err = fmt.Errorf("rule counts")
			}
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// A node with cold keys does and says to the letter what one does that has none.
func TestColdTwins(t *testing.T) {
	t.Parallel()
	bad := 0
	first, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	for seed := first; seed < first+uint64(coldSeeds); seed++ {
		warm, cold := coldTwin(seed, 1<<30), coldTwin(seed, 0)
		if reflect.DeepEqual(warm, cold) {
			continue
		}
		for i := range min(len(warm), len(cold)) {
			if warm[i] != cold[i] {
				from := max(0, i-12)
				t.Errorf("seed %d, line %d:", seed, i)
				for _, l := range warm[from:i] {
					t.Log(l)
				}
				t.Fatalf("\nbusy: %s\ncold: %s", warm[i], cold[i])
			}
		}
		t.Errorf("seed %d: %d and %d lines", seed, len(warm), len(cold))
		if bad++; bad > 3 {
			break
		}
	}
}

// crowd has so many other keys asked for under the rule, each with its own lease.
func (s *nodeScript) crowd(first, n uint64) {
	s.Helper()
	for k := first; k < first+n; k++ {
		v := make([]verdict, 1)
		w := s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(k), Cost: 1}}, v)
		for b := s.Batch(); b != nil; b = s.Batch() {
			s.settled(b, 0)
		}
		if w != nil && w.Advance(s.now) {
			s.Fatalf("key %d is not decided", k)
		}
	}
}

// window is over, in a table that is not full, too.
func TestColdOwedIsNotPurged(t *testing.T) {
	for _, others := range []uint64{0, 600} {
		s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
		s.ledger = NewMemory(10_000, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
		s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
		s.outage(50)
		s.passes(forgottenAfter + time.Second)
		s.crowd(2, others)
		r := s.asks(1)
		for !r.decided() {
			s.exchange()
		}
		if v := r.says(false, ratelimit.FromClaim); v.Remaining != 49 {
			t.Errorf("%d other keys in a table for 10,000: 50 of 100 were admitted in an outage a minute ago and 1 now, and %d are left", others, v.Remaining)
		}
	}
}

// window in the next, of a bucket until it is repaid.
func TestColdDriftIsNotPurged(t *testing.T) {
	for _, others := range []uint64{0, 600} {
		s, _ := newDriftScript(t, sliding100)
		s.ledger = NewMemory(10_000, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
		s.drifts(9)
		b, _ := s.sends()
		b.Fail(errors.New("gone"))
		s.passes(forgottenAfter + 2*time.Second) // the window ended 17 s ago, and counts for 43 s more
		s.crowd(2, others)
		if !s.Drifting() {
			t.Errorf("%d other keys: 9 tokens of a sliding window are unconfirmed, count for 43 s more, and are forgotten", others)
		}

		s = newNodeScript(t, bucket100)
		s.ledger = NewMemory(10_000, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
		s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
		s.leased(1)
		s.outage(4000)
		s.passes(3 * time.Minute)
		s.crowd(2, others)
		if !s.Drifting() {
			t.Errorf("%d other keys: a bucket has lent 3,999 tokens, which takes it an hour to repay, and after 3 minutes they are forgotten", others)
		}
	}
}

// A sweep looks once at a cold key whose window is over, and not in each round again.
func TestColdEndedKeysAreLeftPacked(t *testing.T) {
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Second, Requests: 10})
	s.rule.Counters = new(ratelimit.RuleCounters)
	s.KeepBusy(0)
	s.leased(5) // 1 is spent
	s.passes(time.Minute)
	s.sweeps()
	s.sweeps()
	sh, c := s.fleet.cell(keyOf(1))
	defer sh.mu.Unlock()
	if c.Val.slot != 0 {
		t.Fatal("it is busy")
	}
	for range 3 {
		s.now = s.now.Add(time.Minute)
		if sh.dueCold(s.now, c) {
			t.Fatal("the window is over since a minute and was swept, there is nothing to do, and each round unpacks the key and packs it again")
		}
	}
}

// not answer become cold again, like all others.
func TestColdReloadInAnOutage(t *testing.T) {
	const keys = 3000
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
	s.ledger = NewMemory(2*keys, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
	s.KeepBusy(4)
	s.rule.Coordination.Lease.TTL = time.Hour
	s.crowd(1, keys)
	changed := *s.rule
	changed.Limit.Requests = 12
	s.rule = &changed
	for k := range uint64(keys) {
		v := make([]verdict, 1)
		w := s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(1 + k), Cost: 1}}, v)
		for b := s.Batch(); b != nil; b = s.Batch() {
			b.Fail(errors.New("gone"))
		}
		if w != nil && w.Advance(s.now) {
			t.Fatalf("key %d is not decided", k)
		}
	}
	for range 3 { // the ledger is back, and hours pass
		s.passes(time.Hour)
		for range 3 * sweepParts {
			s.passes(sweepEvery)
			s.Sweep(s.now)
			for b := s.Batch(); b != nil; b = s.Batch() {
				s.settled(b, 0)
			}
		}
	}
	busy := 0
	for i := range s.fleet.shards {
		busy += s.fleet.shards[i].busy.size
	}
	if busy > 8*len(s.fleet.shards) {
		t.Errorf("nobody asks for any of %d keys, nothing is under way, and %d are busy, each in %d bytes beside its packed place", keys, busy, unsafe.Sizeof(held{}))
	}
}

// What a burst took is given back, or used: slots that no key is in are not kept for ever.
func TestColdSlotsAfterAWindow(t *testing.T) {
	const keys = 5000
	s := newNodeScript(t, perMinute100)
	s.ledger = NewMemory(2*keys, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
	s.rule.Coordination.Lease.TTL, s.rule.Coordination.Lease.Fixed = 2*time.Minute, 10
	s.crowd(1, keys)
	s.passes(44*time.Second + 500*time.Millisecond) // half a second before the window ends
	s.crowd(1, keys)                                // each has the next window's lease claimed
	for range 10 {
		s.passes(time.Minute)
		for range 2 * sweepParts {
			s.passes(sweepEvery)
			s.Sweep(s.now)
			for b := s.Batch(); b != nil; b = s.Batch() {
				s.settled(b, 0)
			}
		}
	}
	busy, slots := 0, 0
	for i := range s.fleet.shards {
		busy, slots = busy+s.fleet.shards[i].busy.size, slots+len(s.fleet.shards[i].busy.chunks)*busySlots
	}
	if slots > keys/4 {
		t.Errorf("%d keys were asked for before a window ended ten minutes ago; %d are busy, and %d slots of %d bytes are kept", keys, busy, slots, unsafe.Sizeof(held{}))
	}
}

// A key that is asked for most of all is among the hottest, wherever it is kept.
func TestColdHottestColdKey(t *testing.T) {
	for _, busy := range []int{1000, 1} {
		s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10_000})
		s.KeepBusy(busy)
		s.rule.Coordination.Lease.TTL = time.Hour
		s.leased(5000)
		s.rule.Coordination.Lease.Fixed = 1
		s.ledger = NewMemory(10_000, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
		s.crowd(2, 400)
		for range 1000 {
			s.passes(time.Millisecond)
			s.spends(1)
		}
		if hot := s.fleet.Hottest(s.now, 3); len(hot) == 0 || hot[0].Account != string(keyOf(1)) {
			t.Errorf("at most %d busy: a key that was asked for 1,000 times in the last second is not the hottest: %+v", busy, hot)
		}
	}
}

// A round of sweeps that is behind goes on with the next sweep.
func TestColdSweepsThatAreBehind(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	f := NewFleet(nil, 1, 4_000_000, func() instant { return s.now }, time.Unix(1_800_000_015, 0))
	// As after ten sweeps of a table with twice as many segments as those look at, and
	// the first after them.
	f.swept, f.behind = walk{shard: len(f.shards) / 2}, true
	if f.sweepPart(s.now, 1); f.swept.shard != 0 || f.behind {
		t.Errorf("half of the round before was left to do, and is not done: %+v", f.swept)
	}
}

// A key of which nothing is leased can be dropped (console: correct).
func TestColdDropOfAKeyWithoutALease(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	s.outage(5)
	s.fleet.Drop(s.now, keyOf(1))
	for b := s.Batch(); b != nil; b = s.Batch() {
		if c := b.Claims()[0]; c.Limit.Requests == 0 {
			t.Fatalf("a claim without a limit, which Memory divides by: %+v", c)
		}
		s.settled(b, 0)
	}
}

// A reload that gives a limit to another rule (its path is new, so its counters are) leaves
// no key busy for the rest of its window.
func TestColdRenamedRule(t *testing.T) {
	const keys = 3000
	s := newNodeScript(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1})
	s.ledger = NewMemory(2*keys, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
	s.KeepBusy(4)
	s.rule.Coordination.Lease.TTL, s.rule.Counters = time.Hour, new(ratelimit.RuleCounters)
	s.crowd(1, keys)
	s.crowd(1, keys) // all are refused
	renamed := *s.rule
	renamed.Path, renamed.Counters = "other", new(ratelimit.RuleCounters)
	s.rule = &renamed
	for k := range uint64(keys) {
		s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(1 + k), Cost: 1}}, make([]verdict, 1))
	}
	for range 3 {
		s.passes(time.Hour)
		for range 3 * sweepParts {
			s.passes(sweepEvery)
			s.Sweep(s.now)
			for b := s.Batch(); b != nil; b = s.Batch() {
				s.settled(b, 0)
			}
		}
	}
	busy := 0
	for i := range s.fleet.shards {
		busy += s.fleet.shards[i].busy.size
	}
	if busy > 8*len(s.fleet.shards) {
		t.Errorf("nobody asks for any of %d keys, nothing is under way, and %d are busy", keys, busy)
	}
}

// A key is not dropped from a full table before the last word on its window is told,
// however far behind the sweeps are.
func TestColdLastWordOfAFullTable(t *testing.T) {
	for _, swept := range []bool{true, false} {
		s, d := newNodeScript(t, perMinute100), &shareOfTen{}
		s.Stepped = NewStepped(1, 7, func() instant { return s.now }, time.Unix(1_800_000_015, 0), func(time.Duration, func()) {}, func() float64 { return 0 })
		s.rule.Counters = new(ratelimit.RuleCounters)
		c := &s.rule.Coordination
		c.Mode, c.MaxNodes, c.CheckTimeout, c.LowWatermark = ratelimit.Approx, 2, 2*time.Millisecond, ratelimit.Share{PPM: 200_000}
		c.SyncInterval, c.Lease.TTL = 10*time.Second, time.Hour
		s.SetDrift(d)
		s.leased(1)
		s.drifts(4)
		b, _ := s.sends()
		b.Fail(errors.New("gone"))
		s.passes(46*time.Second + 100*time.Millisecond) // the window is over since 1.1 s
		if swept {
			s.sweeps()
		}
		final := 0
		for k := uint64(2); k < 12; k++ {
			s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(k), Cost: 1}}, make([]verdict, 1))
			for b := s.Batch(); b != nil; b = s.Batch() {
				for _, c := range b.Claims() {
					if c.Key == string(keyOf(1)) && c.Final && c.Spent == 5 {
						final++
					}
				}
				s.settled(b, 0)
			}
		}
		_, _, h := s.fleet.locked(keyOf(1))
		if h == nil && final != 1 {
			t.Errorf("swept %v: the key is gone, and the ledger was never told of 4 tokens over its lease", swept)
		}
	}
}

// A request that is about to wait while the node shuts down is decided, and not answered
// with a panic: release takes the place of its flight, after which the key may be dropped.
func TestColdEnqueueAfterRelease(t *testing.T) {
	now := instant(time.Hour)
	ledger := NewMemory(100, func() ledgerTime { return ledgertest.Epoch.Add(now.Sub(instant(time.Hour))) })
	f := NewFleet(ledger, 1, 1, func() instant { return now }, time.Unix(1_800_000_015, 0))
	l, rule := &f.lanes[0], testRule(perMinute100)
	rule.Coordination.Lease.Fixed = 5
	fl, _, _ := f.join(now, &ask{Rule: rule, Key: keyOf(1), Cost: 1})
	f.settle(l, []*flight{fl}) // it has a lease
	f.settle(l, nil)
	waits, launch, _ := f.join(now, &ask{Rule: rule, Key: keyOf(1), Cost: 50})
	if !launch {
		t.Fatal("it need not wait")
	}
	all, _ := f.releases(now, &walk{}) // Run has ended meanwhile
	f.settle(l, all[l])
	if other, _, _ := f.join(now, &ask{Rule: rule, Key: keyOf(2), Cost: 1}); other == nil {
		t.Fatal("there is no room for another key")
	}
	for len(l.queue) < cap(l.queue) {
		l.queue <- &flight{errand: errand{beat: true}}
	}
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%v", r)
		}
	}()
	f.enqueue(waits)
}
