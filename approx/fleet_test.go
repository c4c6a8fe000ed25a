package approx_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/bench/judge"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// messages are those of the ledger, that others wait for what holders have.
type messages struct {
	mu      sync.Mutex
	holders map[ratelimit.Holder]func(string, ratelimit.Window) // guarded by mu
}

func (r *messages) send(h ratelimit.Holder, name string, w ratelimit.Window) {
	r.mu.Lock()
	recalled := r.holders[account.NodeOf(h)]
	r.mu.Unlock()
	if recalled != nil {
		recalled(name, w)
	}
}

// wire is a node's way to the ledger and the seats, in virtual time.
type wire struct {
	recalls *messages
	ledger  *account.Memory
	seats   *approx.Memory
	mu      sync.Mutex
	trip    time.Duration // guarded by mu
	loss    float64       // guarded by mu: of answers
	cut     bool          // guarded by mu
	rnd     *rand.Rand    // guarded by mu
	calls   int           // guarded by mu
}

var errCut = errors.New("the wire is cut")

func (w *wire) travel() (back time.Duration, err error) {
	w.mu.Lock()
	trip, cut, lost := w.trip, w.cut, w.rnd.Float64() < w.loss
	w.calls++
	w.mu.Unlock()
	time.Sleep(trip / 2)
	if cut {
		return 0, errCut
	}
	if lost {
		err = errCut
	}
	return trip / 2, err
}

func (w *wire) Settle(
	ctx context.Context, claims []account.Claim, grants []account.Grant,
) (e ratelimit.Epoch, at ratelimit.LedgerTime, err error) {
	back, err := w.travel()
	if err == nil || back > 0 {
		e, at, _ = w.ledger.Settle(ctx, claims, grants) // it never fails
	}
	time.Sleep(back)
	if err != nil {
		clear(grants)
		return ratelimit.Epoch{}, 0, err
	}
	return e, at, nil
}

// Recalls delivers recalls to the node, like Redis.
func (w *wire) Recalls(ctx context.Context, h ratelimit.Holder, recalled func(string, ratelimit.Window)) {
	w.recalls.mu.Lock()
	w.recalls.holders[h] = recalled
	w.recalls.mu.Unlock()
	<-ctx.Done()
}

func (w *wire) Verify(context.Context) (ratelimit.Epoch, error) { return ratelimit.Epoch{}, nil }

func (w *wire) Prolong(ctx context.Context) (ratelimit.Epoch, error) { return w.ledger.Prolong(ctx) }

func (w *wire) Sit(ctx context.Context, a approx.Application) (approx.Tenancy, error) {
	back, err := w.travel()
	if err != nil {
		time.Sleep(back)
		return approx.Tenancy{Seat: -1}, err
	}
	t, err := w.seats.Sit(ctx, a)
	time.Sleep(back)
	return t, err
}

func (w *wire) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

type node struct {
	id uint64 // from 1
	*wire
	fleet  *leasing.Fleet
	keeper *approx.Keeper
	stop   func(clean bool)
}

// world is nodes with drift shares on one ledger in memory.
type world struct {
	testing.TB
	start   time.Time
	recalls messages
	ledger  *account.Memory
	seats   *approx.Memory
	rule    *ratelimit.Rule
	seed    uint64
	nodes   []*node
	mu      sync.Mutex
	judge   *judge.Judge // guarded by mu
	waits   []time.Duration
}

func newWorld(tb testing.TB, seed uint64, rule *ratelimit.Rule) *world {
	w := &world{TB: tb, start: time.Now(), rule: rule, seed: seed, judge: judge.New(rule.Limit)}
	rule.Counters = &ratelimit.RuleCounters{}
	w.ledger, w.seats = account.NewMemory(ledgerNow), approx.NewMemory(ledgerNow)
	w.recalls.holders, w.ledger.OnRecall = map[ratelimit.Holder]func(string, ratelimit.Window){}, w.recalls.send
	return w
}

func ledgerNow() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) }

func (w *world) clock() ratelimit.Instant { return ratelimit.Instant(time.Since(w.start)) + 1 }

func (w *world) join(trip time.Duration) *node {
	id := uint64(len(w.nodes) + 1)
	n := &node{id: id, wire: &wire{recalls: &w.recalls, ledger: w.ledger, seats: w.seats, trip: trip, rnd: rand.New(rand.NewPCG(w.seed, id))}}
	n.keeper = approx.NewKeeper(n.wire, ratelimit.Holder(id)<<28, w.clock)
	n.fleet = leasing.NewFleet(n.wire, ratelimit.Holder(id)<<28, 1000, w.clock, w.start)
	n.fleet.Drift = n.keeper
	n.fleet.Random = seeded(w.seed, 100+id)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.fleet.Run(ctx) })
	running.Go(func() { n.keeper.Run(ctx, func() approx.Plan { return approx.NewPlan([]*ratelimit.Rule{w.rule}) }) })
	n.stop = once(func(clean bool) {
		if !clean {
			n.set(func() { n.cut = true })
		}
		cancel()
		running.Wait()
		n.keeper.Leave(context.Background(), !n.fleet.Drifting())
	})
	w.nodes = append(w.nodes, n)
	return n
}

// ask spends cost at a node, and has the judge count it when it was decided.
func (w *world) ask(n *node, cost ratelimit.Tokens) ratelimit.Verdict {
	start := time.Now()
	v := make([]ratelimit.Verdict, 1)
	n.fleet.Decide(context.Background(), w.clock(), []ratelimit.Ask{{Rule: w.rule, Key: []byte{1, 0, 1, 'd', 1, 'k'}, Cost: cost}}, v)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits = append(w.waits, time.Since(start))
	if !v[0].OverLimit {
		w.judge.Admit(ledgerNow(), cost)
	}
	return v[0]
}

// load asks at a node, every so often on average, until the end.
func (w *world) load(n *node, every time.Duration, until time.Time) {
	rnd := rand.New(rand.NewPCG(w.seed, 999+n.id))
	for time.Now().Before(until) {
		time.Sleep(time.Duration(rnd.Int64N(2*int64(every)) + 1))
		w.ask(n, 1)
	}
}

func (w *world) end() {
	for _, n := range w.nodes {
		n.stop(true)
	}
}

func rule(algorithm ratelimit.Algorithm, seconds uint32, limit ratelimit.Tokens, drift string, nodes int) *ratelimit.Rule {
	r := &ratelimit.Rule{Domain: "d", Path: "p", Coordination: ratelimit.DefaultCoordination()}
	r.Limit = ratelimit.Limit{Algorithm: algorithm, Unit: ratelimit.Second, Multiplier: seconds, Requests: limit, Burst: limit}
	c := &r.Coordination
	c.Mode, c.MaxNodes, c.OnStoreFailure = ratelimit.Approx, nodes, ratelimit.FailClosed
	if err := c.Set("drift_budget", drift); err != nil {
		panic(err)
	}
	return r
}

// The excess of the fleet is at most the drift budget, and in a bucket that never fills one more share for each
// node that is cut off. Nodes join, crash, are cut off for longer than their seats last, and return. Answers
// are late and get lost. All start cold at once.
func TestDriftStaysWithinItsBudget(t *testing.T) {
	worst, used := ratelimit.Tokens(0), 0
	for seed := range uint64(150) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 5))
				limit := []ratelimit.Tokens{100, 400, 2000}[rnd.IntN(3)]
				r := rule(ratelimit.Algorithm(rnd.IntN(3)), uint32(1+rnd.IntN(10)), limit, []string{"0.5%", "1%", "5%", "20"}[rnd.IntN(4)], []int{1, 3, 5}[rnd.IntN(3)])
				budget := r.Coordination.DriftBudget.Of(limit)
				local := r.Limit.Algorithm == ratelimit.FixedWindow && rnd.IntN(3) == 0
				if local { // declared on top: so much for each node
					r.Coordination.OnStoreFailure = ratelimit.FailLocal
				}
				w := newWorld(t, seed, r)
				defer w.end()
				trip := []time.Duration{0, time.Millisecond, 50 * time.Millisecond}[rnd.IntN(3)]
				length := 12*time.Second + 2*r.Limit.Period()
				until := time.Now().Add(length)
				var wg sync.WaitGroup
				rate := r.Limit.Period() / time.Duration(limit) * 2
				start := func() *node {
					n := w.join(trip)
					n.set(func() { n.loss = float64(rnd.IntN(3)) * 0.1 })
					wg.Go(func() { w.load(n, rate, until) })
					return n
				}
				for range 2 + rnd.IntN(4) {
					start()
				}
				silent := ratelimit.Tokens(0)
				for time.Now().Before(until) {
					time.Sleep(time.Duration(rnd.Int64N(int64(length) / 6)))
					n := w.nodes[rnd.IntN(len(w.nodes))]
					switch rnd.IntN(5) {
					case 0:
						if len(w.nodes) < 8 {
							start()
						}
					case 1: // a crash: nothing is said, and nothing is asked any more
						silent++
						n.set(func() { n.cut, n.trip = true, time.Second })
					case 2:
						silent++
						n.set(func() { n.cut = true })
					case 3:
						n.set(func() { n.cut = false })
					case 4:
						n.set(func() { n.trip = trip + time.Duration(rnd.IntN(40))*time.Millisecond })
					}
				}
				wg.Wait()
				if r.Limit.Algorithm == ratelimit.TokenBucket {
					budget += silent * r.DriftShare()
				}
				if local {
					budget += r.LocalShare(0).Limit.Capacity() * ratelimit.Tokens(len(w.nodes))
				}
				if got := w.judge.Worst(); got > budget {
					t.Errorf("%v, %d nodes with %d seats: %d over, and the budget is %d", r.Limit, len(w.nodes), r.Coordination.MaxNodes, got, budget)
				} else if got > 0 {
					used++
					worst = max(worst, got)
				}
			})
		})
	}
	t.Logf("%d runs went over, by %d tokens at most", used, worst)
	if used == 0 {
		t.Error("no run drifted: was it tried?")
	}
}

func once(f func(bool)) func(bool) {
	var o sync.Once
	return func(b bool) { o.Do(func() { f(b) }) }
}

// The nodes' count of over-admission is at least the excess that clients got, with drift, late reports and
// turns of windows. It is larger by at most the drift: the account does not show which of its tokens refusals
// were charged.
func TestOverAdmissionIsCounted(t *testing.T) {
	total := ratelimit.Tokens(0)
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 6))
				limit := []ratelimit.Tokens{100, 400, 2000}[rnd.IntN(3)]
				r := rule(ratelimit.FixedWindow, uint32(3+rnd.IntN(5)), limit, "5%", 3)
				w := newWorld(t, seed, r)
				defer w.end()
				for range 3 {
					w.join(50 * time.Millisecond)
				}
				time.Sleep(2*r.Limit.Period() - time.Since(w.start.Truncate(r.Limit.Period()))) // seats are taken
				until := time.Now().Add(4*r.Limit.Period() - time.Duration(rnd.Int64N(int64(r.Limit.Period()/2))))
				var wg sync.WaitGroup
				for _, n := range w.nodes {
					wg.Go(func() { w.load(n, r.Limit.Period()/time.Duration(limit), until) })
				}
				wg.Wait()
				for range 2 { // a little demand, so that last words are said
					time.Sleep(r.Limit.Period() / 2)
					for _, n := range w.nodes {
						w.ask(n, 1)
					}
				}
				time.Sleep(2 * time.Second)
				over := w.judge.Over(ledgerNow())
				total += over
				got, most := ratelimit.Tokens(r.Counters.OverAdmitted.Load()), over+3*r.DriftShare()
				if got < over || got > most {
					t.Errorf("clients were admitted %d beyond the limit, and %d were counted", over, got)
				}
				if d := r.Counters.Drifting.Load(); d < 0 || d > int64(3*r.DriftShare()) {
					t.Errorf("%d tokens are said to be unconfirmed now", d)
				}
			})
		})
	}
	if total == 0 {
		t.Error("nothing was over: was it tried?")
	}
	t.Logf("%d tokens over, in all", total)
}

// With a prompt ledger, mode approx exceeds a limit by at most one request of each node, which does not wait
// for the returns of others. While there are shares, no request waits longer than check_timeout, even at 50
// ms a trip. Mode leasing shows the difference.
func TestDriftInsteadOfWaiting(t *testing.T) {
	for _, c := range []struct {
		mode ratelimit.Mode
		trip time.Duration
		most time.Duration // p99
		over ratelimit.Tokens
	}{
		{ratelimit.Approx, 200 * time.Microsecond, time.Millisecond, 3},
		{ratelimit.Approx, 50 * time.Millisecond, 3 * time.Millisecond, 500},
		{ratelimit.Leasing, 50 * time.Millisecond, time.Hour, 0},
	} {
		t.Run(fmt.Sprint(c.mode, " ", c.trip), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rule(ratelimit.FixedWindow, 10, 10_000, "5%", 3)
				r.Coordination.Mode = c.mode
				w := newWorld(t, 1, r)
				defer w.end()
				for range 3 {
					w.join(c.trip)
				}
				time.Sleep(time.Second) // seats are taken; the key is cold
				until := time.Now().Add(35 * time.Second)
				var wg sync.WaitGroup
				for _, n := range w.nodes {
					wg.Go(func() { w.load(n, 2*time.Millisecond, until) })
				}
				wg.Wait()
				slices.Sort(w.waits)
				p99, longest := w.waits[len(w.waits)*99/100], w.waits[len(w.waits)-1]
				least, _ := w.judge.Least(ledgerNow())
				t.Logf("p99 %v, longest %v, %d over, at least %d a window of 10000", p99, longest, w.judge.Worst(), least)
				if p99 > c.most {
					t.Errorf("p99 is %v", p99)
				}
				if got := w.judge.Worst(); got > c.over {
					t.Errorf("%d over", got)
				}
				if least < 10_000 && c.trip < time.Millisecond {
					t.Errorf("only %d of 10000 were admitted", least)
				}
			})
		})
	}
}

// One node and a prompt ledger: exact, at the limit and to the token.
func TestOneNodeIsExact(t *testing.T) {
	for _, limit := range []ratelimit.Tokens{1, 100, 5000} {
		synctest.Test(t, func(t *testing.T) {
			r := rule(ratelimit.FixedWindow, 10, limit, "5%", 1)
			w := newWorld(t, 1, r)
			defer w.end()
			n := w.join(200 * time.Microsecond)
			time.Sleep(time.Second)
			w.load(n, 10*time.Second/time.Duration(limit)/4, time.Now().Add(35*time.Second))
			if least, ok := w.judge.Least(ledgerNow()); w.judge.Worst() > 0 || !ok || least != limit {
				t.Errorf("%d over, and at least %d of %d", w.judge.Worst(), least, limit)
			}
		})
	}
}

// seeded is randomness that several goroutines may draw from.
func seeded(seed, stream uint64) func() float64 {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, stream))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return rnd.Float64()
	}
}
