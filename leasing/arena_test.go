package leasing

import (
	"errors"
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

var arenaSeeds = flag.Uint64("arena-seeds", 80, "how many histories each random test of an arena plays")

// arena is nodes with ledgers of their own on one store, as processes are. Each has its own beat, distance to the store
// and outages, and requests wait at the same time.
type arena struct {
	*testing.T
	now    instant
	rule   *ratelimit.Rule
	store  *account.MemoryStore
	nodes  []*process
	events []timer
	skew   time.Duration // of the clocks of processes that start now
}

type process struct {
	*Stepped
	ledger  *account.CAS
	second  *account.CAS // nil: the ledger has one part
	oneWay  time.Duration
	down    bool
	dead    bool          // the second part is
	hangs   time.Duration // messages do, while it is down
	mute    bool          // answers to it are lost
	gone    bool          // it has crashed
	paused  bool          // it does nothing, and gets answers when it continues
	beat    instant
	waiting []*asked
	claims  int
}

type asked struct {
	wait   *Wait
	asks   []ask
	v      []verdict
	start  instant
	drifts bool
	then   func(*verdict)
}

func newArena(t *testing.T, limit ratelimit.Limit, fields map[string]string) *arena {
	x := &arena{T: t, now: instant(time.Hour)}
	limit.Multiplier = max(1, limit.Multiplier)
	x.rule = &ratelimit.Rule{Domain: "d", Path: "p", Limit: limit, Coordination: ratelimit.DefaultCoordination()}
	for field, text := range fields {
		if err := x.rule.Coordination.Set(field, text); err != nil {
			t.Fatal(err)
		}
	}
	x.store = account.NewMemoryStore(x.time)
	return x
}

func (x *arena) time() ledgerTime { return 1_800_144_000_000_000 + ledgerTime(x.now/1000) }

// start starts a process. n is the number of nodes that each has counted.
func (x *arena) start(n int) int {
	i := len(x.nodes)
	after := func(d time.Duration, do func()) { x.after(d, do) }
	p := &process{ledger: account.NewCAS(skewed{x.store, x.skew}, ""), beat: x.now.Add(beatEvery), oneWay: 500 * time.Microsecond}
	p.Stepped = NewStepped(ratelimit.Holder(i+1)<<28, 100, func() instant { return x.now }, time.UnixMicro(0), after,
		func() float64 { return 0.5 })
	p.Nodes = func() int { return n }
	p.Peers = p.Nodes
	p.ledger.OnRecall = func(h ratelimit.Holder, key string, w window) {
		x.after(0, func() {
			if to := x.nodes[h>>28-1]; !to.gone {
				to.Recalled(key, w)
			}
		})
	}
	x.nodes = append(x.nodes, p)
	return i
}

func (x *arena) after(d time.Duration, do func()) {
	x.events = append(x.events, timer{x.now.Add(d), do})
}

// goOn has time pass, in milliseconds.
func (x *arena) goOn(d time.Duration) {
	for end := x.now.Add(d); x.now < end; {
		x.now = x.now.Add(time.Millisecond)
		x.step()
	}
}

func (x *arena) step() {
	for _, p := range x.nodes {
		if p.gone || p.paused {
			continue
		}
		if x.now >= p.beat {
			p.beat = p.beat.Add(beatEvery)
			if p.Restating() {
				x.after(p.oneWay, func() {
					if !p.down {
						_, _ = p.ledger.Prolong(x.Context())
					}
					if p.second != nil && !p.dead {
						_, _ = p.second.Prolong(x.Context())
					}
				})
			} else {
				p.Beat()
			}
			if !p.down && !p.mute {
				reclaimShort(x.T, p.Stepped, p.ledger)
			}
		}
		if x.now%instant(SweepEvery) == 0 {
			p.Sweep(x.now)
		}
	}
	x.settle()
}

// settle has all happen that can happen now.
func (x *arena) settle() {
	for again, n := true, 0; again; n++ {
		if again = false; n > 1000 {
			x.Fatalf("a busy loop at %v", time.Duration(x.now))
		}
		due := slices.Clone(x.events)
		x.events = nil
		for _, e := range due {
			if e.at > x.now {
				x.events = append(x.events, e)
			} else {
				again = true
				e.do()
			}
		}
		for _, p := range x.nodes {
			if p.gone || p.paused {
				continue
			}
			left := p.waiting
			p.waiting = nil
			for _, a := range left {
				if !x.advance(p, a) {
					p.waiting = append(p.waiting, a)
				}
			}
			if sent := x.now; p.RegisterDue(sent) {
				again = true
				x.register(p, sent)
			}
			for b := p.Batch(); b != nil; b = p.Batch() {
				again = true
				x.send(p, b)
			}
		}
	}
}

// register carries a registration, and its answer.
func (x *arena) register(p *process, sent instant) {
	if p.down {
		x.after(max(p.hangs, time.Millisecond), func() { p.RegisterAnswered(sent, errors.New("down")) })
		return
	}
	x.after(p.oneWay, func() {
		err := p.ledger.Register(x.Context(), p.name)
		x.answer(p, p.oneWay, func() { p.RegisterAnswered(sent, err) })
	})
}

// answer answers a process, once it runs.
func (x *arena) answer(p *process, after time.Duration, do func()) {
	x.after(after, func() {
		if p.paused {
			x.answer(p, time.Millisecond, do)
		} else if !p.gone {
			do()
		}
	})
}

func (x *arena) advance(p *process, a *asked) (ended bool) {
	if a.wait.Advance(x.now) {
		d := x.now.Sub(a.start)
		if (a.drifts || d < a.wait.Patience()) && d < a.asks[0].Rule.Coordination.Deadline() {
			return false
		}
		a.wait.TimeOver()
		a.drifts = true
		if a.wait.Advance(x.now) {
			return false
		}
	}
	a.then(&a.v[0])
	return true
}

func (x *arena) send(p *process, b *Batch) {
	p.claims += len(b.Claims())
	if p.down && b.Part() == 0 || p.dead && b.Part() == 1 {
		x.after(max(p.hangs, time.Millisecond), func() { b.Fail(errors.New("down")) })
		return
	}
	x.after(p.oneWay, func() {
		grants := make([]account.Grant, len(b.Claims()))
		ledger := []*account.CAS{p.ledger, p.second}[b.Part()]
		epoch, at, err := ledger.Settle(x.Context(), b.Claims(), grants)
		x.answer(p, p.oneWay, func() {
			if err != nil || p.mute {
				b.Fail(errors.Join(err, errors.New("no answer")))
			} else {
				b.Answer(epoch, at, grants)
			}
		})
	})
}

// begin has a node decide, and calls then with the verdict.
func (x *arena) begin(node int, a ask, then func(*verdict)) {
	p := x.nodes[node]
	w := &asked{asks: []ask{a}, v: make([]verdict, 1), start: x.now, then: then}
	if w.wait = p.Ask(x.now, w.asks, w.v); w.wait == nil {
		then(&w.v[0])
		return
	}
	p.waiting = append(p.waiting, w)
	x.settle()
}

func (x *arena) decide(node int, a ask) (v verdict) {
	done := false
	x.begin(node, a, func(is *verdict) { v, done = *is, true })
	for !done {
		x.goOn(time.Millisecond)
	}
	return v
}

func (x *arena) ask(node int, key string, cost tokens) verdict {
	return x.decide(node, ask{Rule: x.rule, Key: []byte(key), Cost: cost})
}

// takes is what passes at a node of requests of a cost, until one is refused.
func (x *arena) takes(node int, key string, cost tokens) (n tokens) {
	for n < 3*x.rule.Limit.Capacity() && !x.ask(node, key, cost).OverLimit {
		n += cost
	}
	return n
}

// flush loses all data of the store.
func (x *arena) flush() { x.store.Lose(nil, "1") }
