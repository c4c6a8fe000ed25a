package leasing

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var (
	twinSeeds = flag.Int("twins", 200, "how many pairs TestColdTwins plays")
	twinSeed  = flag.Uint64("twin", 0, "the seed of the first")
)

// A node that packs whatever it can does and says to the letter what one does that packs
// nothing: verdicts, claims, what it takes in of grants, gauges, and its last words.
func TestColdTwins(t *testing.T) {
	t.Parallel()
	for seed := *twinSeed; seed < *twinSeed+uint64(*twinSeeds); seed++ {
		warm, cold := playCold(seed, 1<<30), playCold(seed, 0)
		if reflect.DeepEqual(warm, cold) {
			continue
		}
		for i := range min(len(warm), len(cold)) {
			if warm[i] != cold[i] {
				for _, line := range warm[max(0, i-12):i] {
					t.Logf("%q", line) // keys are no text
				}
				t.Fatalf("-twin %d, line %d:\nbusy: %q\ncold: %q", seed, i, warm[i], cold[i])
			}
		}
		t.Fatalf("-twin %d: %d and %d lines", seed, len(warm), len(cold))
	}
}

// coldPlay is a node and what happens to it, by a seed. What it says is written down.
type coldPlay struct {
	*Stepped
	seed     uint64
	rnd      *rand.Rand
	now      instant
	timers   []nodeTimer
	ledger   *ledger.LosableMemory
	rules    []*ratelimit.Rule // the second is the first again, as after a reload; the third has a smaller limit
	rule     *ratelimit.Rule   // of them, the one that is asked under
	counters ratelimit.RuleCounters
	keys     uint64
	huge     bool // costs and limits near their largest
	epochs   bool // the ledger tells of its epochs
	recalls  bool // it can recall
	open     []*coldRequest
	done     []*coldRequest
	flying   []*Batch
	others   uint64 // claims of another holder
	said     []string
}

// coldRequest is one, and until when it waits.
type coldRequest struct {
	asks []ask
	v    []verdict
	wait *Wait
	over instant
}

// coldDraw is what one step draws, whatever it does with it.
type coldDraw struct {
	key         uint64
	hundred     int
	ten         int
	thousand    int
	description string
}

// playCold plays 400 steps, and returns what was said. keepBusy is how many keys of a
// shard stay busy at least.
func playCold(seed uint64, keepBusy int) []string {
	p := newColdPlay(seed, keepBusy)
	for step := range 400 {
		key, what := p.rnd.Uint64N(p.keys), p.rnd.IntN(100)
		d := coldDraw{key, p.rnd.IntN(100), p.rnd.IntN(10), p.rnd.IntN(1000), fmt.Sprint("step ", step)}
		p.act(what, d)
		if what >= 75 || what < 5 {
			p.answer(d)
		}
		p.advance()
		if err := coldInvariants(p.fleet); err != nil {
			p.say("broken: %v", err)
			return p.said
		}
		s, c := p.Stats(), &p.counters
		p.say("%s: drifting %v, gauges %d %d %d, counts %d %d %d", d.description, p.Drifting(),
			c.Leased.Load(), c.Drifting.Load(), c.Stranded.Load(), s.Claims, s.Leases, s.Missing)
	}
	p.say("releases %+v", p.Release(p.now))
	return p.said
}

func newColdPlay(seed uint64, keepBusy int) *coldPlay {
	p := &coldPlay{seed: seed, rnd: rand.New(rand.NewPCG(seed, 1)), now: instant(time.Hour), huge: seed%3 == 0}
	p.chooseRules()
	after := func(d time.Duration, call func()) { p.timers = append(p.timers, nodeTimer{p.now.Add(d), call}) }
	p.Stepped = NewStepped(1, 10_000, func() instant { return p.now }, time.Unix(1_800_000_015, 0), after, func() float64 { return 0.5 })
	p.ledger = ledger.NewLosable(ledger.NewMemory(100, func() ledgerTime { return ledgertest.Epoch.Add(p.now.Sub(instant(time.Hour))) }))
	p.KeepBusy(keepBusy)
	if p.rule.Coordination.Mode == ratelimit.Approx {
		p.SetDrift(&shareOfTen{})
	}
	if p.epochs = p.rnd.IntN(2) == 0; p.epochs {
		p.Hears()
	}
	if p.recalls = p.rnd.IntN(2) == 0; p.recalls {
		p.Recalls()
	}
	p.keys = uint64(1 + p.rnd.IntN(6))
	if seed%2 == 0 {
		p.Gathers()
	}
	return p
}

func (p *coldPlay) chooseRules() {
	limits := []ratelimit.Limit{
		{Unit: ratelimit.Minute, Requests: 20},
		{Unit: ratelimit.Second, Requests: 10},
		{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 20},
		{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 60, Burst: 20},
	}
	limit := limits[p.rnd.IntN(len(limits))]
	if p.huge {
		limit.Requests, limit.Burst = limit.Requests*10_000_000_000, limit.Burst*10_000_000_000
	}
	p.rule = testRule(limit)
	p.rule.Counters = &p.counters
	c := &p.rule.Coordination
	c.Lease.TTL = []time.Duration{time.Second, 10 * time.Second, time.Hour}[p.rnd.IntN(3)]
	if p.rnd.IntN(2) == 0 {
		c.Lease.Fixed = tokens(1 + p.rnd.IntN(8))
	}
	c.OnDeny = []ratelimit.OnDeny{ratelimit.DenyRefunds, ratelimit.DenyCharges}[p.rnd.IntN(2)]
	c.OnStoreFailure = []ratelimit.FailurePolicy{ratelimit.FailOpen, ratelimit.FailLocal, ratelimit.FailCached, ratelimit.FailClosed}[p.rnd.IntN(4)]
	c.MaxStaleness = 10 * time.Second
	if p.rnd.IntN(3) == 0 {
		c.Reclaim = ratelimit.ReclaimEager
	}
	if p.rnd.IntN(2) == 0 {
		c.Mode, c.MaxNodes, c.SyncInterval = ratelimit.Approx, 2, 10*time.Second
		c.DriftBudget = ratelimit.Share{Tokens: 20}
	}
	again, smaller := *p.rule, *p.rule
	smaller.Limit.Requests -= 5
	p.rules = []*ratelimit.Rule{p.rule, &again, &smaller}
}

// key is one of a few, in half of the plays of all lengths that there are.
func (p *coldPlay) key(n uint64) []byte {
	n %= p.keys
	if p.seed%2 == 0 {
		return keyOf(n)
	}
	return append(keyOf(n), make([]byte, 128)...)[:[]int{128, 127, 1, 0, 64, 65}[n]]
}

func (p *coldPlay) say(format string, args ...any) {
	p.said = append(p.said, fmt.Sprintf(format, args...))
}

// act has something happen.
func (p *coldPlay) act(what int, d coldDraw) {
	switch {
	case what < 45:
		p.request(d)
	case what < 65:
		p.passes(d)
	case what < 85:
		for b := p.Batch(); b != nil; b = p.Batch() {
			p.say("%s: sends %+v", d.description, b.Claims())
			p.flying = append(p.flying, b)
		}
	case what < 86 && len(p.done) > 0:
		r := p.done[d.hundred%len(p.done)]
		p.say("%s: undoes %+v", d.description, r.v)
		p.Undo(p.now, r.asks, r.v)
		p.done = nil
	case what < 88 && p.recalls:
		p.Recalled(string(p.key(d.key)))
	case what < 89 && p.epochs:
		p.ledger.Forget()
	case what < 90:
		p.rule = p.rules[d.hundred%len(p.rules)]
	case what < 91:
		p.fleet.Drop(p.now, p.key(d.key))
	case what < 93: // another holder claims
		p.others++
		c := ratelimit.Claim{Key: string(p.key(d.key)), Limit: p.rule.Limit, Holder: 99, Seq: p.others, TTL: time.Second}
		c.Waiting, c.Want = tokens(d.ten), tokens(d.ten)
		p.ledger.Settle(context.Background(), []ratelimit.Claim{c}, make([]ratelimit.Grant, 1))
	case what < 95:
		p.say("looks %+v", p.fleet.Look(context.Background(), p.now, &ratelimit.Ask{Rule: p.rule, Key: p.key(d.key)}).Lease)
	}
}

// request asks, as a rule to spend, and sometimes for two keys.
func (p *coldPlay) request(d coldDraw) {
	a := ask{Rule: p.rule, Key: p.key(d.key), Cost: tokens(d.ten / 2)}
	switch {
	case d.hundred < 5:
		a.Kind = ratelimit.Peek
	case d.hundred < 10:
		a.Kind = ratelimit.Refund
	}
	if p.huge {
		a.Cost *= tokens(d.thousand%7) * 1_000_000_000
	}
	if d.thousand < 20 {
		a.Cost = ratelimit.MaxTokens - tokens(d.thousand%3)
	}
	r := &coldRequest{asks: []ask{a}}
	if d.ten == 9 {
		r.asks = append(r.asks, ask{Rule: p.rule, Key: p.key(d.key + 1), Cost: 1})
	}
	r.v = make([]verdict, len(r.asks))
	p.say("%s: asks %d of key %d, kind %d", d.description, a.Cost, d.key, a.Kind)
	if r.wait = p.Ask(p.now, r.asks, r.v); r.wait == nil {
		p.decided(r)
		return
	}
	r.over = p.now.Add(r.wait.Patience())
	p.open = append(p.open, r)
}

func (p *coldPlay) decided(r *coldRequest) {
	p.say("  %+v", r.v)
	p.done = append(p.done, r)
}

// advance goes on with what waits.
func (p *coldPlay) advance() {
	var rest []*coldRequest
	for _, r := range p.open {
		if r.wait.Advance(p.now) {
			rest = append(rest, r)
		} else {
			p.decided(r)
		}
	}
	p.open = rest
}

// passes has time go by, in ticks: then both nodes take the same instant for last used.
func (p *coldPlay) passes(d coldDraw) {
	ticks := 1 + d.ten
	switch {
	case d.hundred >= 90:
		ticks = d.thousand
	case d.hundred >= 70:
		ticks = d.thousand / 10
	}
	for range ticks {
		p.now = p.now.Add(lease.Tick)
		due := p.timers
		p.timers = nil
		for _, t := range due {
			if t.at <= p.now {
				t.call()
			} else {
				p.timers = append(p.timers, t)
			}
		}
		p.Sweep(p.now)
		for _, r := range p.open {
			if p.now >= r.over {
				r.over = p.now.Add(r.wait.TimeOver())
			}
		}
		p.advance()
	}
}

// answer settles what is under way, or has it fail.
func (p *coldPlay) answer(d coldDraw) {
	for _, b := range p.flying {
		grants := make([]ratelimit.Grant, len(b.Claims()))
		switch {
		case d.hundred < 15:
			b.Fail(errors.New("gone"))
			continue
		case p.epochs:
			epoch, at, _ := p.ledger.SettleEpoch(context.Background(), b.Query(), b.Claims(), grants)
			b.AnswerIn(epoch, at, grants)
		default:
			p.ledger.Settle(context.Background(), b.Claims(), grants)
			b.Answer(grants)
		}
		p.say("%s: answered %+v", d.description, grants)
	}
	p.flying = nil
}

// coldInvariants says what is wrong with the books of a node's shards: each busy key has a
// slot of its own and each slot a key, and rules have numbers for as long as cold keys are
// of them.
func coldInvariants(f *Fleet) error {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		err := s.books()
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *fleetShard) books() (err error) {
	uses, busy, taken := map[*ratelimit.Rule]int{}, 0, 0
	for w := (walk{}); !w.at.Done; {
		w.at = s.keys.Walk(w.at, func(c *heldCell) {
			if c.Val.slot == 0 {
				uses[s.rules.ofCold(s.keys.Kept(c))]++
				return
			}
			busy++
			if h := s.busy.at(c.Val.slot - 1); h.id != c.ID() || h.shard != s || h.slot != c.Val.slot-1 {
				err = errors.New("a key's slot is another's")
			}
		})
	}
	for _, c := range s.busy.chunks {
		taken += bits.OnesCount64(c.used)
	}
	switch {
	case err != nil:
		return err
	case busy != s.busy.size || busy != taken:
		return fmt.Errorf("%d keys are busy, %d are counted, and %d slots are taken", busy, s.busy.size, taken)
	case len(uses) != len(s.rules.numbers):
		return fmt.Errorf("%d rules are used, and %d have numbers", len(uses), len(s.rules.numbers))
	}
	for r, n := range uses {
		if got := s.rules.uses[s.rules.numbers[r]]; got != (ruleUse{r, n}) {
			return fmt.Errorf("%d cold keys are of a rule, and %d are counted", n, got.keys)
		}
	}
	return nil
}
