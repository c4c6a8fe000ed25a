package leasing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// slowLedger is a memory ledger at the end of a wire, in virtual time.
type slowLedger struct {
	*ledger.Memory
	mu    sync.Mutex
	trip  time.Duration // guarded by mu
	err   error         // guarded by mu: instead of an answer
	hung  bool          // guarded by mu
	calls int           // guarded by mu
}

func (l *slowLedger) Settle(ctx context.Context, claims []ratelimit.Claim, grants []ratelimit.Grant) {
	l.mu.Lock()
	trip, err, hung := l.trip, l.err, l.hung
	l.calls += len(claims)
	l.mu.Unlock()
	if hung {
		<-ctx.Done()
		err = ctx.Err()
	}
	time.Sleep(trip / 2)
	if err != nil {
		for i := range grants {
			grants[i] = ratelimit.Grant{Err: err}
		}
	} else {
		l.Memory.Settle(ctx, claims, grants)
	}
	time.Sleep(trip / 2)
}

func (l *slowLedger) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func (l *slowLedger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// fleetWorld is a few nodes and a ledger in a bubble of virtual time.
type fleetWorld struct {
	*testing.T
	ledger *slowLedger
	nodes  []*Fleet
	stop   []func()
	start  time.Time
}

func newFleetWorld(t *testing.T, nodes int, trip time.Duration) *fleetWorld {
	start := time.Now() // a midnight, in a bubble
	w := &fleetWorld{T: t, start: start}
	clock := func() ledgerTime { return ledgerTime(time.Now().UnixMicro()) }
	w.ledger = &slowLedger{Memory: ledger.NewMemory(100_000, clock), trip: trip}
	for i := range nodes {
		f := NewFleet(w.ledger, ratelimit.Holder(i+1), 10_000, w.now, start)
		f.Random = seeded(1, uint64(i))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.Run(ctx)
		}()
		w.nodes = append(w.nodes, f)
		w.stop = append(w.stop, func() { cancel(); <-done })
	}
	return w
}

func (w *fleetWorld) now() instant { return instant(time.Since(w.start)) + 1 }

func (w *fleetWorld) end() {
	for _, stop := range w.stop {
		stop()
	}
}

// ask spends cost on key at a node, and says how long that took.
func (w *fleetWorld) ask(node int, rule *ratelimit.Rule, key uint64, cost tokens) (verdict, time.Duration) {
	start := time.Now()
	v := make([]verdict, 1)
	w.nodes[node].Decide(context.Background(), w.now(), []ask{{Rule: rule, Key: keyOf(key), Cost: cost}}, v)
	return v[0], time.Since(start)
}

// Three nodes, three windows, more demand than there is: each window admits
// its limit and not a token more, almost all of it, for a few claims.
func TestFleetSharesALimit(t *testing.T) {
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.TokenBucket} {
		for _, limit := range []tokens{5, 100, 3000} {
			t.Run(fmt.Sprintf("%s/%d", ratelimit.Algorithms[algorithm], limit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newFleetWorld(t, 3, time.Millisecond)
					defer w.end()
					rule := testRule(ratelimit.Limit{Algorithm: algorithm, Unit: ratelimit.Second, Multiplier: 10, Requests: limit, Burst: limit})
					var mu sync.Mutex
					admitted := map[int64]tokens{}
					var wg sync.WaitGroup
					for i := range 12 {
						wg.Go(func() {
							pause := 20*time.Millisecond + time.Duration(i)*100*time.Microsecond
							for time.Since(w.start) < 30*time.Second {
								v, took := w.ask(i%3, rule, 1, 1)
								if took > ratelimit.StoreDeadline {
									t.Errorf("a decision took %v", took)
								}
								if !v.OverLimit {
									mu.Lock()
									admitted[int64(time.Since(w.start)/(10*time.Second))]++
									mu.Unlock()
								}
								time.Sleep(pause)
							}
						})
					}
					wg.Wait()
					w.judge(algorithm, limit, admitted)
				})
			})
		}
	}
}

func (w *fleetWorld) judge(algorithm ratelimit.Algorithm, limit tokens, admitted map[int64]tokens) {
	total := tokens(0)
	for n := range int64(3) {
		got := admitted[n]
		total += got
		if algorithm == ratelimit.FixedWindow && (got > limit || got < limit-max(1, limit/200)) {
			w.Errorf("window %d admitted %d of %d", n, got, limit)
		}
	}
	// A sliding window rounds what counts of the one before up: one token.
	most, missing := 3*limit, max(3, 3*limit/200)
	if algorithm == ratelimit.TokenBucket {
		// The bucket was full, and a full bucket does not refill for what a node has spent until the
		// node tells, which it does when half of a lease is spent: after half of the horizon at most.
		most = 4 * limit
		missing = max(3, most/200) + limit*tokens(lease.Horizon/2)/tokens(10*time.Second)
		// Once it has been emptied, it yields its rate.
		if got := admitted[2]; got < limit-max(3, limit/200) {
			w.Errorf("an empty bucket yielded %d in a period of %d", got, limit)
		}
	}
	if total > most {
		w.Errorf("admitted %d in three periods, at most %d", total, most)
	}
	if least := most - missing; total < least {
		w.Errorf("admitted only %d in three periods, %d were there", total, most)
	}
	w.Logf("limit %d: admitted %v, %d claims", limit, admitted, w.ledger.count())
}

// A hot key costs about a claim a second, not one a request; a flood of
// refused requests costs the one that finds out, and one each lease.RefusalHold.
func TestFleetAsksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFleetWorld(t, 1, time.Millisecond)
		defer w.end()
		rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 1_000_000})
		ask := func(n int, every time.Duration) {
			for range n {
				w.ask(0, rule, 1, 1)
				time.Sleep(every)
			}
		}
		ask(10_000, time.Millisecond) // 10 s: it learns the rate
		before := w.ledger.count()
		ask(20_000, time.Millisecond)
		if claims := w.ledger.count() - before; claims > 25 {
			t.Errorf("%d claims in 20 s", claims)
		}
		w.ask(0, rule, 1, 2_000_000) // drains it
		before = w.ledger.count()
		ask(20_000, time.Millisecond)
		if claims := w.ledger.count() - before; claims > 1+int(20*time.Second/lease.RefusalHold) {
			t.Errorf("%d claims for refused requests", claims)
		}
	})
}

// Renewal is early enough that no request on a warm key waits, even when the
// ledger takes 50 ms.
func TestFleetRenewsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFleetWorld(t, 1, 10*time.Millisecond)
		defer w.end()
		rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 100_000_000})
		for i := range 20_000 {
			if i == 10_000 {
				w.ledger.set(func() { w.ledger.trip = 50 * time.Millisecond })
			}
			_, took := w.ask(0, rule, 1, 1)
			if took > 0 && i > 1000 {
				t.Fatalf("request %d waited %v", i, took)
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// What an idle node, or one that ends, has not spent is there for others.
func TestFleetReturnsWhatIsUnspent(t *testing.T) {
	for _, how := range []string{"idle", "end"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFleetWorld(t, 2, time.Millisecond)
				rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
				rule.Coordination.Lease.Fixed = 400
				w.ask(0, rule, 1, 1)
				if how == "idle" {
					time.Sleep(4 * time.Second)
				} else {
					w.stop[0]()
				}
				if v, _ := w.ask(1, rule, 1, 999); v.OverLimit {
					t.Errorf("999 of 1000 are not to be had: %+v", v)
				}
				if v, _ := w.ask(1, rule, 1, 1); !v.OverLimit {
					t.Errorf("one too many: %+v", v)
				}
				if how == "idle" {
					w.stop[0]()
				}
				w.stop[1]()
			})
		})
	}
}

// Without the ledger each policy decides as declared, within the deadline, and
// counts why; with it back, so is the ledger.
func TestFleetWithoutLedger(t *testing.T) {
	for _, fault := range []string{"error", "hung"} {
		for policy, want := range map[ratelimit.FailurePolicy]int{
			ratelimit.FailOpen: 100, ratelimit.FailClosed: 0, ratelimit.FailLocal: 10, ratelimit.FailCached: 0,
		} {
			t.Run(fault+"/"+policy.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newFleetWorld(t, 1, time.Millisecond)
					defer w.end()
					rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
					rule.Coordination.OnStoreFailure = policy
					w.ledger.set(func() {
						w.ledger.hung = fault == "hung"
						w.ledger.err = fmt.Errorf("refused")
					})
					admitted := 0
					for range 100 {
						v, took := w.ask(0, rule, 1, 1)
						if took > ratelimit.StoreDeadline {
							t.Errorf("a decision took %v", took)
						}
						if v.Source != ratelimit.FromFallback || v.Err != nil {
							t.Errorf("%+v", v)
						}
						if !v.OverLimit {
							admitted++
						}
						time.Sleep(30 * time.Millisecond)
					}
					if admitted != want {
						t.Errorf("admitted %d, declared %d", admitted, want)
					}
					s := w.nodes[0].Stats()
					if s.Fallbacks[ratelimit.FallbackBreaker] == 0 || !s.BreakerOpen || w.ledger.count() > 30 {
						t.Errorf("the breaker did not open: %+v after %d calls", s, w.ledger.count())
					}
					w.ledger.set(func() { w.ledger.hung, w.ledger.err = false, nil })
					time.Sleep(4 * time.Second)
					w.ask(0, rule, 1, 1) // the probe
					time.Sleep(time.Second)
					if v, _ := w.ask(0, rule, 1, 1); v.Source == ratelimit.FromFallback {
						t.Errorf("the ledger is back, and not asked: %+v %+v", v, w.nodes[0].Stats())
					}
				})
			})
		}
	}
}

// Cached goes on against what was left, and no further.
func TestFleetCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFleetWorld(t, 1, time.Millisecond)
		defer w.end()
		rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
		rule.Coordination.OnStoreFailure = ratelimit.FailCached
		rule.Coordination.Lease.Fixed = 10
		w.ask(0, rule, 1, 1)
		w.ledger.set(func() { w.ledger.err = fmt.Errorf("refused") })
		admitted := 1
		for range 200 {
			if v, _ := w.ask(0, rule, 1, 1); !v.OverLimit {
				admitted++
			}
			time.Sleep(time.Millisecond)
		}
		if admitted != 100 {
			t.Errorf("admitted %d of 100", admitted)
		}
		w.ledger.set(func() { w.ledger.err = nil })
		time.Sleep(4 * time.Second)
		for range 3 { // the ledger learns what was spent
			if v, _ := w.ask(0, rule, 1, 1); !v.OverLimit {
				t.Errorf("%+v", v)
			}
			time.Sleep(time.Second)
		}
	})
}

// All descriptors of a request wait together.
func TestFleetWaitsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFleetWorld(t, 1, 4*time.Millisecond)
		defer w.end()
		rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
		asks := make([]ask, 20)
		for i := range asks {
			asks[i] = ask{Rule: rule, Key: keyOf(uint64(i)), Cost: 1}
		}
		asks[19].Key = asks[0].Key // twice
		verdicts := make([]verdict, len(asks))
		start := time.Now()
		w.nodes[0].Decide(context.Background(), w.now(), asks, verdicts)
		if took := time.Since(start); took > 5*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		for i, v := range verdicts {
			if want := tokens(99 - i/19); v.OverLimit || v.Remaining != want {
				t.Errorf("%d: %+v, want %d remaining", i, v, want)
			}
		}
	})
}

// Keys beyond the table are limited by this node alone.
func TestFleetBeyondItsTable(t *testing.T) {
	// In 64 places, so that 14 are empty. A search for room looks at 24 of them, and goes on from there
	// the next time: with fewer keys it might see none, however many may go.
	const most = 50
	synctest.Test(t, func(t *testing.T) {
		w := newFleetWorld(t, 1, 100*time.Microsecond)
		defer w.end()
		w.nodes[0] = NewFleet(w.ledger, 9, most, w.now, w.start)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); w.nodes[0].Run(ctx) }()
		defer func() { cancel(); <-done }()
		rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 20})
		for range 30 {
			for key := range uint64(100) {
				w.ask(0, rule, key, 1)
			}
		}
		s := w.nodes[0].Stats()
		if s.Leases > most || s.Fallbacks[ratelimit.FallbackTableFull] == 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(5 * time.Second) // idle keys are settled, and can go
		if v, _ := w.ask(0, rule, 1000, 1); v.Source == ratelimit.FromFallback {
			t.Errorf("there is no room for a new key: %+v", v)
		}
		// A key that comes back is charged for what it had spent before.
		if v, _ := w.ask(0, rule, 1, 1); !v.OverLimit && v.Remaining > 17 {
			t.Errorf("%+v", v)
		}
	})
}

func TestFleetTakesWithoutAllocating(t *testing.T) {
	m := ledger.NewMemory(10, func() ledgerTime { return 1_800_000_000_000_000 })
	f := NewFleet(m, 1, 10, func() instant { return 1 }, testWall)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 1 << 30})
	rule.Coordination.Lease.Fixed = 1 << 29
	asks := []ask{{Rule: rule, Key: keyOf(1), Cost: 1}}
	verdicts := make([]verdict, 1)
	if n := testing.AllocsPerRun(1000, func() { f.Decide(context.Background(), 1, asks, verdicts) }); n > 0.1 {
		t.Errorf("%v allocations", n)
	}
	cancel()
	<-done
}

// What an outage admitted is charged when the ledger is back: a short one
// costs nothing beyond the limit.
func TestFleetChargesWhatAnOutageAdmitted(t *testing.T) {
	for _, warm := range []bool{false, true} {
		t.Run(fmt.Sprint("warm ", warm), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFleetWorld(t, 1, time.Millisecond)
				defer w.end()
				rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
				rule.Coordination.Lease.Fixed = 1
				admitted := 0
				ask := func(n int) {
					for range n {
						if v, _ := w.ask(0, rule, 1, 1); !v.OverLimit {
							admitted++
						}
						time.Sleep(50 * time.Millisecond)
					}
				}
				if warm {
					ask(20)
				}
				w.ledger.set(func() { w.ledger.err = fmt.Errorf("refused") })
				before := admitted
				ask(30)
				if during := admitted - before; during != 10 {
					t.Errorf("the outage admitted %d, declared 10", during)
				}
				w.ledger.set(func() { w.ledger.err = nil })
				time.Sleep(4 * time.Second)
				ask(200)
				if admitted != 100 {
					t.Errorf("admitted %d of 100 in all", admitted)
				}
			})
		})
	}
}

// On a busy key no request waits at the turn of a window for longer than the
// ledger's clock is uncertain, even when the ledger has become slow; each window admits
// its limit by the ledger's clock, and a key that is used up costs one claim a window.
func TestFleetTurnsWithoutWaiting(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  tokens
		trip   time.Duration
		claims int // in ten windows, from both nodes
	}{
		{"plenty", 100_000, 50 * time.Millisecond, 100},
		{"used up", 200, 50 * time.Millisecond, 350},
		{"plenty, always slow", 100_001, 50 * time.Millisecond, 100},
		{"used up, prompt", 200, time.Millisecond, 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				always := c.limit == 100_001
				w := newFleetWorld(t, 2, time.Millisecond)
				if always {
					w.ledger.set(func() { w.ledger.trip = c.trip })
				}
				defer w.end()
				rule := testRule(ratelimit.Limit{Unit: ratelimit.Second, Requests: c.limit})
				rule.Coordination.OnStoreFailure = ratelimit.FailClosed
				admitted := map[int64]tokens{}
				var mu sync.Mutex
				load := func(length time.Duration, check func(v verdict, took time.Duration)) {
					var wg sync.WaitGroup
					for node := range 2 {
						wg.Go(func() {
							for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(time.Millisecond) {
								v, took := w.ask(node, rule, 1, 1)
								mu.Lock()
								if !v.OverLimit {
									admitted[time.Now().Unix()]++
								}
								check(v, took)
								mu.Unlock()
							}
						})
					}
					wg.Wait()
				}
				load(2300*time.Millisecond, func(verdict, time.Duration) {}) // warm
				w.ledger.set(func() { w.ledger.trip = c.trip })
				before := w.ledger.count()
				waited := time.Duration(0)
				load(10*time.Second, func(v verdict, took time.Duration) {
					if v.Source == ratelimit.FromClaim && c.limit == 200 {
						return // the last tokens of a window are asked for
					}
					waited = max(waited, took)
					if v.Source == ratelimit.FromFallback && c.limit > 200 {
						t.Errorf("%v: without the ledger: %+v", time.Since(w.start), v)
					}
				})
				if c.limit > 200 && waited > 4*time.Millisecond {
					t.Errorf("a request waited %v", waited)
				}
				if claims := w.ledger.count() - before; claims > c.claims {
					t.Errorf("%d claims", claims)
				}
				for at, n := range admitted {
					if n > c.limit {
						t.Errorf("second %d admitted %d of %d", at, n, c.limit)
					}
				}
				t.Logf("waited %v at most, %d claims, %v", waited, w.ledger.count()-before, admitted)
			})
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
