package leasing

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
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
	p := &process{ledger: account.NewCAS(skewed{x.store, x.skew}, ""), beat: x.now.Add(greetEvery), oneWay: 500 * time.Microsecond}
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
		if p.gone {
			continue
		}
		if x.now >= p.beat {
			p.beat = p.beat.Add(greetEvery)
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
				p.Greet()
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
			if p.gone {
				continue
			}
			left := p.waiting
			p.waiting = nil
			for _, a := range left {
				if !x.advance(p, a) {
					p.waiting = append(p.waiting, a)
				}
			}
			for b := p.Batch(); b != nil; b = p.Batch() {
				again = true
				x.send(p, b)
			}
		}
	}
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
		x.after(p.oneWay, func() {
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

// A process that has read no epoch claims nothing before the others have said that data was lost: of a bucket, too.
func TestNewProcessAfterALoss(t *testing.T) {
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.TokenBucket} {
		limit := bucketOf(100, 100, ratelimit.Hour)
		limit.Algorithm = algorithm
		x := newArena(t, limit, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
		x.start(1)
		x.goOn(2 * time.Second)
		used := x.takes(0, "k", 1)
		x.goOn(time.Second)
		x.flush()
		x.start(1)
		again := tokens(0)
		for range 400 {
			again += x.takes(1, "k", 1)
			x.goOn(10 * time.Millisecond)
		}
		if used != 100 || again > 100/20 {
			t.Errorf("%v: %d of 100 passed before the loss, and %d after it", algorithm, used, again)
		}
	}
}

// Requests of one key may bring limits of their own. In a young epoch, all of them together have one part.
func TestPartOfTwoLimitsInAYoungEpoch(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{"on_deny": "refund"})
	x.start(1)
	x.goOn(2 * time.Second)
	x.ask(0, "k", 950)
	x.goOn(10 * time.Second)
	x.flush()
	x.goOn(600 * time.Millisecond)
	lower := *x.rule
	lower.Limit.Requests = 900
	passed := tokens(0)
	for i := range 200 {
		rule := []*ratelimit.Rule{x.rule, &lower}[i%2]
		if v := x.decide(0, ask{Rule: rule, Key: []byte("k"), Cost: 40}); !v.OverLimit {
			passed += 40
		}
	}
	if passed > 1000/20 {
		t.Errorf("%d of 1000 passed in a young epoch", passed)
	}
}

// The first process on an empty store refuses nothing for longer than its wait, whenever its first request comes.
func TestFirstStartWaitsForABeat(t *testing.T) {
	for _, first := range []int{10, 100, 250, 400} {
		x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{"on_store_failure": "closed"})
		x.start(1)
		x.goOn(time.Duration(first) * time.Millisecond)
		began := x.now
		for x.ask(0, "k", 1).OverLimit && x.now.Sub(began) < 3*time.Second {
			x.goOn(time.Millisecond)
		}
		if after := x.now.Sub(began); after > firstWait+2*firstPause {
			t.Errorf("first request after %d ms: requests are refused for %v", first, after)
		}
	}
}

// A store restarts empty, and a process starts with it. Nodes whose breakers are open say that they have read another
// epoch, before that process is granted their tokens.
func TestNewProcessAfterAnOutage(t *testing.T) {
	for _, outage := range []int{2, 5, 10} {
		x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
		old := x.start(2)
		x.goOn(2 * time.Second)
		used := x.takes(old, "k", 1)
		x.goOn(time.Second)
		x.nodes[old].down = true
		for end := x.now.Add(time.Duration(outage) * time.Second); x.now < end; x.goOn(10 * time.Millisecond) {
			x.ask(old, "k", 1)
		}
		x.nodes[old].down = false
		x.flush()
		fresh, again := x.start(2), tokens(0)
		for range 400 {
			for _, node := range []int{fresh, old} {
				again += x.takes(node, "k", 1)
			}
			x.goOn(10 * time.Millisecond)
		}
		if used != 100 || again > 100/20 {
			t.Errorf("after %d s: %d of 100 passed before the loss, and %d after it", outage, used, again)
		}
	}
}

// An account that the store cannot read does not hold up other keys for good.
func TestUnreadableAccountInAYoungEpoch(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Year, Requests: 10}, map[string]string{"on_deny": "refund"})
	x.start(1)
	x.goOn(2 * time.Second)
	x.ask(0, "broken", 1)
	x.ask(0, "k", 1)
	x.goOn(3 * time.Second)
	x.flush()
	broken := account.StoreKey{Name: account.NameOf("", "broken", x.rule.Limit.WindowAt(x.time()))}
	_, err := x.store.Write(t.Context(), "1", []account.Change{{StoreKey: broken, Data: []byte("foreign"), Until: 1 << 60}})
	if err != nil {
		t.Fatal(err)
	}
	began := x.now
	x.goOn(600 * time.Millisecond)
	for x.ask(0, "k", 1).OverLimit && x.now.Sub(began) < time.Minute {
		x.goOn(10 * time.Millisecond)
	}
	if after := x.now.Sub(began); after > ratelimit.YoungMost+ratelimit.YoungFor+greetEvery {
		t.Errorf("a key is refused for %v after a loss", after)
	}
}

// In any time, a bucket admits burst and refill, at a slow store too. Requests that no longer wait return nothing that
// was refilled in their place.
func TestBucketsOfASlowStoreAtRandom(t *testing.T) {
	for seed := range *arenaSeeds {
		r := rand.New(rand.NewPCG(seed, 77)) //nolint:gosec // the same run each time
		nodes := 1 + r.IntN(3)
		rate, burst := []tokens{1, 5, 20}[r.IntN(3)], []tokens{20, 100, 400}[r.IntN(3)]
		policy := []string{"closed", "closed", "local"}[r.IntN(2)]
		fields := map[string]string{
			"on_deny": "refund", "on_store_failure": policy, "store_deadline": []string{"15ms", "100ms", "1s"}[r.IntN(3)],
		}
		if r.IntN(3) == 0 {
			fields["lease.size"] = fmt.Sprint(1 + burst/10)
		}
		share := tokens(0)
		if r.IntN(2) == 0 {
			share = []tokens{1, 4, burst / 2, burst * 2}[r.IntN(4)]
			fields["mode"], fields["max_nodes"] = "approx", fmt.Sprint(nodes)
			fields["check_timeout"] = []string{"0s", "5ms"}[r.IntN(2)]
			fields["drift_budget"] = fmt.Sprint(share * tokens(nodes))
		}
		x := newArena(t, bucketOf(rate, burst, ratelimit.Second), fields)
		for range nodes {
			x.start(nodes)
			if share > 0 {
				x.nodes[len(x.nodes)-1].Drift = always{share}
			}
			x.nodes[len(x.nodes)-1].oneWay = time.Duration([]int{0, 1, 5, 20, 80, 200}[r.IntN(6)])*time.Millisecond + time.Millisecond/2
		}
		x.goOn(2 * time.Second)
		level, at, worst, all := float64(burst), x.now, 0.0, tokens(0)
		refill := func() {
			level = min(float64(burst), level+x.now.Sub(at).Seconds()*float64(rate))
			at = x.now
		}
		lower, mutes := *x.rule, r.IntN(2) == 0
		lower.Limit.Burst, lower.Limit.Requests = max(1, burst/2), max(1, rate/2)
		rules := []*ratelimit.Rule{x.rule, x.rule, &lower}[r.IntN(2):]
		for range 400 {
			if mutes && r.IntN(10) == 0 {
				p := x.nodes[r.IntN(nodes)]
				p.mute, p.down = r.IntN(2) == 0, r.IntN(4) == 0
			}
			for range r.IntN(4) {
				cost := []tokens{1, 1, 2, burst / 4, burst/2 + 1, burst}[r.IntN(6)]
				node, a := r.IntN(nodes), ask{Rule: rules[r.IntN(len(rules))], Key: []byte("k"), Cost: max(1, cost)}
				undone := r.IntN(6) == 0
				x.begin(node, a, func(v *verdict) {
					if undone { // by another limit of the request
						x.nodes[node].Undo(x.now, []ask{a}, []verdict{*v})
						return
					}
					if v.OverLimit || v.Source == ratelimit.FromFallback {
						return
					}
					refill()
					all += a.Cost
					level -= float64(a.Cost)
					worst = min(worst, level)
				})
			}
			x.goOn(time.Duration([]int{1, 1, 5, 30, 300}[r.IntN(5)]) * time.Millisecond)
		}

		// A granted request may be answered later: by its deadline.
		slack := 1 + float64(share*tokens(nodes)) + float64(rate)*(x.rule.Coordination.Deadline().Seconds()+0.001)
		if -worst > slack {
			t.Errorf("seed %d: %d nodes, %v, %v: %.1f beyond burst and refill (slack %.1f), of %d", seed, nodes, x.rule.Limit, fields, -worst, slack, all)
		}
	}
}

// After a loss, nodes that all answer admit at most a twentieth of a limit beyond it.
// That holds whatever comes before and meanwhile: refunds, undone requests, limits that a request brings.
func TestLossesAtRandom(t *testing.T) {
	for seed := range *arenaSeeds {
		r := rand.New(rand.NewPCG(seed, 78)) //nolint:gosec // the same run each time
		nodes, limit := 1+r.IntN(4), []tokens{40, 100, 1000}[r.IntN(3)]
		of := bucketOf(limit, limit, ratelimit.Year)
		of.Algorithm = ratelimit.Algorithm(r.IntN(3))
		fields := map[string]string{
			"on_deny": "refund", "on_store_failure": "closed", "store_deadline": []string{"15ms", "500ms"}[r.IntN(2)],
			"reclaim": ratelimit.Reclaims[r.IntN(2)],
		}
		if r.IntN(4) == 0 {
			fields["lease.size"] = fmt.Sprint(1 + limit/8)
		}
		x := newArena(t, of, fields)
		if r.IntN(3) == 0 {
			x.rule.Hold = &ratelimit.Hold{}
		}
		for range nodes {
			x.start(nodes)
			p := x.nodes[len(x.nodes)-1]
			p.oneWay = time.Duration([]int{0, 0, 1, 5, 60}[r.IntN(5)])*time.Millisecond + time.Millisecond/2
			x.goOn(time.Duration(r.IntN(400)) * time.Millisecond)
		}
		x.goOn(2 * time.Second)
		net, losses, w, lossAt := tokens(0), 0, window(0), r.IntN(150)
		var older *account.MemoryStore
		var did []string
		for i := range 150 {
			if i == lossAt/2 && r.IntN(2) == 0 {
				older = x.store.Copy()
			}
			if i == lossAt {
				x.store.Lose(older, "2")
				losses++
				did = append(did, fmt.Sprintf("%v LOSS, older %v", time.Duration(x.now), older != nil))
			}
			for _, p := range x.nodes {
				p.mute = r.IntN(12) == 0
			}
			node := r.IntN(nodes)
			cost := 1 + tokens(r.Int64N(int64([]tokens{1, limit / 10, limit / 3}[r.IntN(3)])))
			a := ask{Rule: x.rule, Key: []byte("k"), Cost: cost, Window: w}
			undone := r.IntN(6) == 0
			if r.IntN(5) == 0 && net >= cost && w != 0 {
				a.Kind = []ratelimit.Kind{ratelimit.Refund, ratelimit.Release}[r.IntN(2)]
				net -= cost
				undone = false
			}
			x.begin(node, a, func(v *verdict) {
				switch {
				case a.Kind != ratelimit.Spend:
				case undone:
					x.nodes[node].Undo(x.now, []ask{a}, []verdict{*v})
				case !v.OverLimit && v.Source != ratelimit.FromFallback:
					net, w = net+cost, v.Window
					did = append(did, fmt.Sprintf("%v node %d admits %d: %d (%v)", time.Duration(x.now), node, cost, net, v.Source))
				}
			})
			x.goOn(time.Duration([]int{1, 1, 5, 30, 100, 700}[r.IntN(6)]) * time.Millisecond)
		}
		for _, p := range x.nodes {
			p.mute = false
		}
		x.goOn(20 * time.Second)
		for range 20 {
			for node := range nodes {
				net += x.takes(node, "k", 1)
			}
			x.goOn(200 * time.Millisecond)
		}
		if net > limit+tokens(losses)*limit/20 {
			t.Errorf("seed %d: %d nodes, %v, %v: %d after %d losses", seed, nodes, x.rule.Limit, fields, net, losses)
			if testing.Verbose() {
				for _, d := range did {
					t.Log(d)
				}
				t.FailNow()
			}
		}
	}
}

// A live node's usage of an eager lease is not credited after a loss: in a young epoch it must be reported, too.
func TestEagerLeaseInAYoungEpoch(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Second, Multiplier: 4, Requests: 1000}, map[string]string{
		"on_deny": "refund", "reclaim": "eager", "lease.size": "400",
	})
	x.start(2)
	x.start(2)
	x.goOn(4*time.Second - time.Duration(x.time()%4_000_000)*time.Microsecond + 20*time.Millisecond)
	for node := range 2 {
		x.ask(node, "other", 1)
	}
	admitted, w := tokens(0), x.rule.Limit.WindowAt(x.time())
	try := func(node int, cost tokens) {
		if v := x.ask(node, "k", cost); !v.OverLimit && v.Window == w {
			admitted += cost
		}
	}
	try(0, 1)
	try(1, 800)
	x.flush()
	for x.rule.Limit.WindowAt(x.time()) == w {
		try(0, 1)
		if x.goOn(10 * time.Millisecond); x.time()%4_000_000 > 1_800_000 {
			try(1, 10)
		}
	}
	if admitted > 1000+50 {
		t.Errorf("%d of 1000 were admitted", admitted)
	}
}

// On etcd each node has its own clock. A node that is behind does not claim before others have stated their totals.
func TestYoungEpochBetweenTwoClocks(t *testing.T) {
	for _, ahead := range []time.Duration{0, 100 * time.Millisecond, 400 * time.Millisecond} {
		x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
		x.skew = ahead
		x.start(2)
		x.skew = 0
		x.start(2)
		x.goOn(2 * time.Second)
		used, again := tokens(0), tokens(0)
		for !x.ask(0, "k", 50).OverLimit {
			used += 50
		}
		x.goOn(time.Second)
		x.flush()
		for range 400 {
			if !x.ask(1, "k", 20).OverLimit {
				again += 20
			}
			x.goOn(5 * time.Millisecond)
		}
		if used != 1000 || again > 1000/20 {
			t.Errorf("a node is ahead by %v: %d of 1000 passed before the loss, and %d after it", ahead, used, again)
		}
	}
}

// skewed is a store as a node with another clock reads it.
type skewed struct {
	account.Store
	by time.Duration
}

func (s skewed) Read(ctx context.Context, keys []account.StoreKey) (account.Snapshot, error) {
	x, err := s.Store.Read(ctx, keys)
	x.Now = x.Now.Add(s.by)
	return x, err
}

// A new process that asks in the first half second of a young epoch makes no loop of claims.
func TestClaimsOfANewProcessInAYoungEpoch(t *testing.T) {
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.TokenBucket} {
		limit := bucketOf(100, 100, ratelimit.Hour)
		limit.Algorithm = algorithm
		x := newArena(t, limit, map[string]string{"on_deny": "refund", "on_store_failure": "closed", "store_deadline": "200ms"})
		x.start(1)
		x.goOn(2 * time.Second)
		x.ask(0, "k", 1)
		x.flush()
		x.goOn(greetEvery + 10*time.Millisecond) // it says so
		x.flush()
		x.goOn(greetEvery + 10*time.Millisecond)
		fresh := x.start(1)
		v := x.ask(fresh, "k", 1)
		if n := x.nodes[fresh].claims; n > 3 {
			t.Errorf("%v: %d claims for one request, which is decided %+v", algorithm, n, v)
		}
	}
}

// twoParts divides accounts: those of keys that begin with "2" are in the second part.
type twoParts struct{ account.Ledger }

func (twoParts) Partitions() int { return 2 }
func (twoParts) Partition(key string) int {
	if key[0] == '2' {
		return 1
	}
	return 0
}

func (twoParts) Ask(context.Context, int) (e ratelimit.Epoch, from, to ledgerTime, err error) {
	return e, 0, 0, errors.New("not asked")
}

// Two masters of a Cluster lose their data, and one of them does not come back. That does not hold up keys of the other
// for good.
func TestDeadPartInAYoungEpoch(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
	x.start(1)
	p, other := x.nodes[0], account.NewMemoryStore(x.time)
	p.second = account.NewCAS(other, "")
	p.Divide(twoParts{})
	x.goOn(2 * time.Second)
	x.ask(0, "k", 1)
	x.ask(0, "2", 1)
	x.goOn(3 * time.Second)
	x.flush()
	other.Lose(nil, "1")
	p.Greet()
	x.goOn(10 * time.Millisecond) // it has read both epochs
	p.dead = true
	began := x.now
	x.goOn(600 * time.Millisecond)
	for x.ask(0, "k", 1).OverLimit && x.now.Sub(began) < time.Minute {
		x.goOn(10 * time.Millisecond)
	}
	if after := x.now.Sub(began); after > ratelimit.YoungMost+ratelimit.YoungFor+greetEvery {
		t.Errorf("a key of the part that is back is refused for %v", after)
	}
}

// In the half second of a first start, a node spends its own budget under on_store_failure: local.
func TestFirstStartIsDecidedLocally(t *testing.T) {
	for policy, want := range map[string]int{"open": 20, "local": 10, "closed": 0} {
		x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10}, map[string]string{"on_deny": "refund", "on_store_failure": policy})
		x.start(1)
		passed := 0
		for range 20 {
			if !x.ask(0, "k", 1).OverLimit {
				passed++
			}
		}
		if passed != want {
			t.Errorf("%s: %d of 20 pass in the first %v, with a limit of 10", policy, passed, time.Duration(x.now-instant(time.Hour)))
		}
	}
}

// A message that hangs when the store comes back, empty: within the bound of FoundWithin, its node states its totals
// before others are granted them.
func TestNodeIsFoundWhileTheEpochIsYoung(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
	x.start(2)
	x.start(2)
	p := x.nodes[0]
	p.Random = func() float64 { return 0.9 }
	x.goOn(2 * time.Second)
	used, again := x.takes(0, "k", 1), tokens(0)
	x.goOn(time.Second)
	p.down, p.hangs = true, TimeLimit
	sent := p.Stats().RoundTrips
	for end := x.now.Add(20 * time.Second); x.now < end || p.Stats().RoundTrips == sent; x.goOn(time.Millisecond) {
		if x.now < end {
			sent = p.Stats().RoundTrips
		}
	}
	x.goOn(1700 * time.Millisecond) // the next message hangs
	p.down = false
	x.flush()
	for back := x.now; x.now.Sub(back) < FoundWithin; x.goOn(10 * time.Millisecond) {
		again += x.takes(1, "k", 1)
	}
	if used != 100 || again > 100/20 {
		t.Errorf("%d of 100 passed before the loss, and %d after it", used, again)
	}
}

// A bucket of a slow store passes its refill.
func TestRefillOfASlowStorePasses(t *testing.T) {
	for _, oneWay := range []int{1, 10, 20, 40, 80, 120} {
		for _, nodes := range []int{1, 3} {
			x := newArena(t, bucketOf(100, 100, ratelimit.Second), map[string]string{"on_deny": "refund", "on_store_failure": "closed", "store_deadline": "1s"})
			for range nodes {
				x.nodes[x.start(nodes)].oneWay = time.Duration(oneWay) * time.Millisecond
			}
			x.goOn(2 * time.Second)
			passed, asked := 0, 0
			for i := range 2000 { // 80 a second
				if i%2 == 0 && i%10 != 0 {
					asked++
					x.begin(i/2%nodes, ask{Rule: x.rule, Key: []byte("k"), Cost: 1}, func(v *verdict) {
						if !v.OverLimit {
							passed++
						}
					})
				}
				x.goOn(5 * time.Millisecond)
			}
			x.goOn(2 * time.Second)
			if passed < asked*95/100 {
				t.Errorf("%d ms one way, %d nodes: %d of %d pass", oneWay, nodes, passed, asked)
			}
		}
	}
}

// A beat and a slower trip: the node that has read another epoch says so before a new process claims.
func TestNewProcessBeforeALateBeat(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
	p := x.nodes[x.start(1)]
	x.goOn(2 * time.Second)
	used := x.takes(0, "k", 1)
	x.goOn(time.Second)
	x.goOn(p.beat.Sub(x.now) + 5*time.Millisecond)
	fresh := x.start(1)
	x.goOn(greetEvery - 3*time.Millisecond) // the one has just greeted, and the other greets next
	x.flush()
	p.oneWay = 50 * time.Millisecond
	again, end := tokens(0), x.now.Add(4*time.Second)
	for x.goOn(100 * time.Millisecond); x.now < end; x.goOn(time.Millisecond) {
		again += x.takes(fresh, "k", 1)
	}
	if used != 100 || again > 100/20 {
		t.Errorf("%d of 100 passed before the loss, and %d after it", used, again)
	}
}

// A full table drops no key of which the store has lost the total.
func TestFullTableInAYoungEpoch(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
	x.start(1)
	x.goOn(2 * time.Second)
	for i := range 100 {
		x.ask(0, fmt.Sprint("old", i), 10)
	}
	x.goOn(10 * time.Second)
	x.flush()
	x.nodes[0].Greet()
	x.goOn(5 * time.Millisecond) // it has read the epoch
	tracked := 0
	for i := range 100 {
		of, _, c := x.nodes[0].find(fmt.Append(nil, "old", i))
		if of.mu.Unlock(); c != nil {
			tracked++
		}
	}
	for i := range 60 {
		x.ask(0, fmt.Sprint("new", i), 1)
	}
	x.goOn(10 * time.Second)
	again := 0
	for i := range 100 {
		if !x.ask(0, fmt.Sprint("old", i), 10).OverLimit {
			again++
		}
	}
	if again > 100-tracked {
		t.Errorf("%d of 100 keys were tracked at the loss, and %d pass again", tracked, again)
	}
}

// What a slow store granted for requests that left comes back, less the refill: of a bucket of a day, single tokens, too.
func TestRequestsThatLeaveReturnTheirTokens(t *testing.T) {
	for _, cost := range []tokens{1, 2} {
		x := newArena(t, bucketOf(10, 10, ratelimit.Day), map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
		p := x.nodes[x.start(1)]
		x.goOn(2 * time.Second)
		p.oneWay = 10 * time.Millisecond
		for range 10 / cost {
			if v := x.ask(0, "k", cost); !v.OverLimit || v.Charged > 0 {
				t.Errorf("%+v", v)
			}
			x.goOn(100 * time.Millisecond)
		}
		p.oneWay = time.Millisecond / 2
		x.goOn(5 * time.Second)
		if n := x.takes(0, "k", 1); n < 9 {
			t.Errorf("cost %d: all requests were refused, and %d of 10 tokens are left", cost, n)
		}
	}
}
