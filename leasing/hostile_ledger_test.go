package leasing

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/fuzztest"
)

// A ledger that lies. Where what it says cannot be, nothing of it is taken and each
// kind is counted; where it could be, it is believed for a short time only. Either
// way a request costs few claims, and the node is right again soon after the ledger.

// lyingLedger is a memory ledger whose answers are changed on the way, in virtual time.
type lyingLedger struct {
	*ledger.LosableMemory
	mu     sync.Mutex
	lie    func(c *ratelimit.Claim, g *ratelimit.Grant) // guarded by mu; nil: none
	epoch  func(e *ratelimit.Epoch, at *ledgerTime)     // guarded by mu; nil: as it is
	claims int                                          // guarded by mu
}

func (l *lyingLedger) SettleEpoch(ctx context.Context, q ratelimit.EpochQuery, claims []ratelimit.Claim, grants []ratelimit.Grant) (ratelimit.Epoch, ledgerTime, error) {
	time.Sleep(time.Millisecond / 4)
	l.mu.Lock()
	defer l.mu.Unlock()
	e, at, err := l.LosableMemory.SettleEpoch(ctx, q, claims, grants)
	l.claims += len(claims)
	for i := range grants {
		if l.lie != nil {
			l.lie(&claims[i], &grants[i])
			at = max(at, grants[i].At) // as Redis.SettleEpoch does
		}
	}
	if l.epoch != nil {
		l.epoch(&e, &at)
	}
	return e, at, err
}

func (l *lyingLedger) tells(lie func(c *ratelimit.Claim, g *ratelimit.Grant)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lie, l.epoch = lie, nil
}

func (l *lyingLedger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claims
}

// lied is a node on a lying ledger, in a bubble.
type lied struct {
	*testing.T
	ledger   *lyingLedger
	node     *Fleet
	start    time.Time
	rule     *ratelimit.Rule
	warned   map[error]int
	rejected func(ratelimit.Rejection) uint64
}

func newLied(t *testing.T, limit ratelimit.Limit) (w *lied, end func()) {
	start := time.Now()
	clock := func() ledgerTime { return ledgerTime(time.Now().UnixMicro()) }
	w = &lied{T: t, start: start, ledger: &lyingLedger{LosableMemory: ledger.NewLosable(ledger.NewMemory(1000, clock))}, warned: map[error]int{}, rule: testRule(limit)}
	w.rule.Coordination.OnStoreFailure = ratelimit.FailClosed
	w.node = NewFleet(w.ledger, 1, 1000, w.now, start)
	w.node.Random = seeded(1, 1)
	var mu sync.Mutex
	w.node.OnWarning = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		for _, kind := range []error{ErrClockSet, ErrEvicted, ledger.ErrLedgerAnswer} {
			if errors.Is(err, kind) {
				w.warned[kind]++
			}
		}
	}
	w.rejected = func(kind ratelimit.Rejection) uint64 { return w.node.Stats().Rejected[kind] }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.node.Run(ctx) }()
	time.Sleep(time.Second) // the ledger has been heard
	return w, func() { cancel(); <-done }
}

func (w *lied) now() instant { return instant(time.Since(w.start)) + 1 }

// ask asks n times for one token, and returns how often it was admitted.
func (w *lied) ask(n int, every time.Duration) (admitted int) {
	for range n {
		v := make([]verdict, 1)
		w.node.Decide(context.Background(), w.now(), []ask{{Rule: w.rule, Key: keyOf(1), Cost: 1}}, v)
		if !v[0].OverLimit {
			admitted++
		}
		time.Sleep(every)
	}
	return admitted
}

const century = 100 * 365 * 24 * time.Hour

// Each number that cannot be is rejected, whatever it is, and nothing is admitted by
// it; the key rests between claims. When the ledger tells the truth again, the key is
// right again within two seconds, and to the token.
func TestHostileGrantsAreRejected(t *testing.T) {
	hour := ledgerTime(time.Hour / time.Microsecond)
	for name, c := range map[string]struct {
		kind ratelimit.Rejection
		lie  func(c *ratelimit.Claim, g *ratelimit.Grant)
	}{
		"10,000 of a limit of 10":    {ratelimit.RejectedGrant, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Granted = 10_000 }},
		"one more than was asked":    {ratelimit.RejectedGrant, func(c *ratelimit.Claim, g *ratelimit.Grant) { g.Granted = c.Granted + max(c.Want, c.Waiting) + 1 }},
		"a negative grant":           {ratelimit.RejectedGrant, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Granted = -1 }},
		"the least number":           {ratelimit.RejectedGrant, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Granted = math.MinInt64 }},
		"void of what it never had":  {ratelimit.RejectedGrant, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Void, g.Carried, g.Granted = true, false, 0 }},
		"a fence that goes back":     {ratelimit.RejectedFence, func(c *ratelimit.Claim, g *ratelimit.Grant) { g.Fence = c.Fence }},
		"a fence without bound":      {ratelimit.RejectedFence, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Fence = math.MaxInt64 }},
		"a window of long ago":       {ratelimit.RejectedWindow, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Window -= 2 }},
		"a window to come":           {ratelimit.RejectedWindow, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Window += 3 }},
		"a clock beside its window":  {ratelimit.RejectedWindow, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.At += hour }},
		"a clock before 1970":        {ratelimit.RejectedClock, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.At = -1 }},
		"a clock without bound":      {ratelimit.RejectedClock, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.At = math.MaxInt64 }},
		"retry after 100 years":      {ratelimit.RejectedTime, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.RetryAfter = century }},
		"retry in the past":          {ratelimit.RejectedTime, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.RetryAfter = -1 }},
		"reset after 100 years":      {ratelimit.RejectedTime, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.ResetAfter = century }},
		"more left than the limit":   {ratelimit.RejectedCount, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Available = 11 }},
		"less than nothing out":      {ratelimit.RejectedCount, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Outstanding = -1 }},
		"more stranded than is out":  {ratelimit.RejectedCount, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Stranded = g.Outstanding + 1 }},
		"holders without bound":      {ratelimit.RejectedCount, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Holders = math.MaxInt }},
		"over-admission for nothing": {ratelimit.RejectedCount, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.OverAdmitted = math.MaxInt64 }},
		"another's answer":           {ratelimit.RejectedSequence, func(_ *ratelimit.Claim, g *ratelimit.Grant) { g.Seq++ }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, end := newLied(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
				defer end()
				w.ledger.tells(c.lie)
				if admitted := w.ask(60, 10*time.Millisecond); admitted > 0 {
					t.Errorf("%d of 60 were admitted", admitted)
				}
				if w.rejected(c.kind) == 0 {
					t.Errorf("not counted as %s: %v", ratelimit.Rejections[c.kind], w.node.Stats().Rejected)
				}
				if claims := w.ledger.count(); claims > 15 {
					t.Errorf("%d claims for 60 requests in 600 ms", claims)
				}
				w.ledger.tells(nil)
				time.Sleep(lease.LongestPause)
				if admitted := w.ask(60, 10*time.Millisecond); admitted != 10 {
					t.Errorf("%d of 10 were admitted after the lie", admitted)
				}
				if w.warned[ledger.ErrLedgerAnswer] == 0 {
					t.Error("nobody was told")
				}
			})
		})
	}
}

// Refusals that could be true are held for lease.RefusalHold at most: a ledger that says
// "all is used up until the hour ends" is asked again meanwhile. One claim in that
// time, whatever is asked for.
func TestHostileRefusalEndsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newLied(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 10})
		defer end()
		w.ledger.tells(func(c *ratelimit.Claim, g *ratelimit.Grant) {
			g.Granted, g.Available, g.Outstanding, g.RetryAfter = c.Granted, 0, 0, g.ResetAfter
		})
		if admitted := w.ask(2000, 10*time.Millisecond); admitted > 0 {
			t.Errorf("%d were admitted", admitted)
		}
		if claims := w.ledger.count(); claims > 1+int(20*time.Second/lease.RefusalHold) {
			t.Errorf("%d claims in 20 s", claims)
		}
		w.ledger.tells(nil)
		if admitted := w.ask(600, 10*time.Millisecond); admitted != 10 {
			t.Errorf("%d of 10 were admitted within 6 s of its recovery", admitted)
		}
	})
}

// A ledger that refuses, and gives no time to wait; that says of each claim that it is
// late; or whose windows are over when they arrive, is not claimed from in a loop.
func TestHostileAnswersLeadToNoLoop(t *testing.T) {
	for name, lie := range map[string]func(c *ratelimit.Claim, g *ratelimit.Grant){
		"nothing, at once": func(c *ratelimit.Claim, g *ratelimit.Grant) {
			g.Granted, g.Available, g.RetryAfter, g.Outstanding = c.Granted, 0, 0, 0
		},
		"too late": func(c *ratelimit.Claim, g *ratelimit.Grant) {
			*g = ratelimit.Grant{Seq: c.Seq, Err: ratelimit.ErrStaleClaim}
		},
		"a window that is over": func(_ *ratelimit.Claim, g *ratelimit.Grant) {
			g.Window--
			g.At -= ledgerTime(time.Hour / time.Microsecond)
			g.ResetAfter, g.RetryAfter = 0, 0
		},
		"a clock to and fro": func(c *ratelimit.Claim, g *ratelimit.Grant) {
			by := ledgerTime(time.Hour / time.Microsecond)
			if c.Seq%2 == 0 {
				by = 0
			}
			g.At, g.Window = g.At+by, c.Limit.WindowAt(g.At+by)
			g.Carried = g.Window == c.Window
			if !g.Carried {
				g.Granted = min(g.Granted, 1)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, end := newLied(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
				defer end()
				before := w.ledger.count()
				w.ledger.tells(lie)
				w.ask(1, 0)
				if claims := w.ledger.count() - before; claims > lease.MostFruitless+1 {
					t.Errorf("one request cost %d claims", claims)
				}
				w.ask(500, 10*time.Millisecond)
				if claims := w.ledger.count() - before; claims > 80 {
					t.Errorf("%d claims in 5 s", claims)
				}
				w.ledger.tells(nil)
				time.Sleep(2 * time.Second)
				w.ask(1, 0)
				if s := w.node.Stats(); s.Fallbacks[ratelimit.FallbackError] > 0 {
					after := s.Fallbacks
					w.ask(20, 10*time.Millisecond)
					if w.node.Stats().Fallbacks != after {
						t.Errorf("it still falls back: %v, then %v", after, w.node.Stats().Fallbacks)
					}
				}
			})
		})
	}
}

// A clock that is set an hour ahead, and back, is noticed and counted each time; what
// is set to and fro has leases told again four times in ten seconds, and claims go on
// at their usual rate.
func TestHostileClockIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newLied(t, ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Hour, Requests: 10_000, Burst: 10_000})
		defer end()
		w.ask(100, 10*time.Millisecond)
		if s := w.node.Stats(); s.ClockSteps != [2]uint64{} {
			t.Fatalf("steps of an honest clock: %v", s.ClockSteps)
		}
		before, n := w.ledger.count(), 0
		w.ledger.mu.Lock()
		w.ledger.epoch = func(_ *ratelimit.Epoch, at *ledgerTime) {
			if n++; n%2 == 1 {
				*at += ledgerTime(time.Hour / time.Microsecond)
			}
		}
		w.ledger.mu.Unlock()
		if admitted := w.ask(3000, 10*time.Millisecond); admitted != 3000 {
			t.Errorf("%d of 3000 were admitted", admitted)
		}
		s := w.node.Stats()
		if s.ClockSteps[0] < 3 || s.ClockSteps[1] < 3 || w.warned[ErrClockSet] < 6 {
			t.Errorf("steps %v, told %d times", s.ClockSteps, w.warned[ErrClockSet])
		}
		if claims := w.ledger.count() - before; claims > 120 {
			t.Errorf("%d claims in 30 s", claims)
		}
	})
}

// A ledger that says of each batch that its data was lost has everything told again
// four times in ten seconds, and no more.
func TestHostileEpochsWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newLied(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10_000})
		defer end()
		w.ask(100, 10*time.Millisecond)
		before := w.ledger.count()
		w.ledger.mu.Lock()
		w.ledger.epoch = func(e *ratelimit.Epoch, at *ledgerTime) {
			*e = ratelimit.Epoch{ID: e.ID + uint64(*at), Began: *at, Learning: at.Add(ledger.RelearnTime)}
		}
		w.ledger.mu.Unlock()
		w.ask(2000, 10*time.Millisecond)
		if claims := w.ledger.count() - before; claims > 150 {
			t.Errorf("%d claims in 20 s", claims)
		}
		if w.node.Stats().Recoveries == 0 {
			t.Error("no loss was counted")
		}
	})
}

// An epoch that says it learns for a hundred years is believed for ten seconds.
func TestHostileEpoch(t *testing.T) {
	at := ledgerTime(1_800_000_000_000_000)
	if e := plausible(ratelimit.Epoch{ID: 1, Learning: at.Add(century)}, at); e.Learning != at.Add(ledger.LongestLearning) {
		t.Errorf("it learns until %v after", e.Learning.Sub(at))
	}
	if e := plausible(ratelimit.Epoch{ID: 1, Learning: at.Add(ledger.RelearnTime)}, at); e.Learning != at.Add(ledger.RelearnTime) {
		t.Errorf("it learns until %v after", e.Learning.Sub(at))
	}
}

// An account that is lost alone shows with the next claim of a holder that knows of
// it: it is counted, with what may have been granted again, and everything is told
// again. A holder whose refusals would hold for a day is heard within seconds.
func TestEvictionIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newLied(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
		defer end()
		if admitted := w.ask(1100, time.Millisecond); admitted != 1000 {
			t.Fatalf("%d of 1000 were admitted", admitted)
		}
		w.ask(1, lease.RefusalHold) // all it knows has been told
		w.ledger.mu.Lock()
		w.ledger.Evict(KeyName(keyOf(1)))
		w.ledger.mu.Unlock()
		// Another node is granted the limit again. That is what an eviction costs.
		other := ratelimit.Claim{Key: KeyName(keyOf(1)), Limit: w.rule.Limit, Holder: 99, Seq: 1, Waiting: 1000, Want: 1000, TTL: time.Minute}
		var g [1]ratelimit.Grant
		w.ledger.Settle(context.Background(), []ratelimit.Claim{other}, g[:])
		if g[0].Granted != 1000 {
			t.Fatalf("%+v", g[0])
		}
		for range 3 {
			if w.ask(1, lease.RefusalHold) > 0 {
				t.Error("a request was admitted by an account that is over its limit")
			}
		}
		s := w.node.Stats()
		if s.Missing != 1 || s.MissingTokens != 1000 || w.warned[ErrEvicted] != 1 {
			t.Errorf("%d accounts with %d tokens were missed, and %d told", s.Missing, s.MissingTokens, w.warned[ErrEvicted])
		}
		other.Seq, other.Granted, other.Spent, other.Fence, other.Window, other.Waiting, other.Want = 2, 1000, 1000, g[0].Fence, g[0].Window, 0, 0
		if w.ledger.Settle(context.Background(), []ratelimit.Claim{other}, g[:]); g[0].Over != 1000 {
			t.Errorf("over-admission is counted as %d, and was 1000", g[0].Over)
		}
	})
}

// A ledger that loses everything at once is no eviction.
func TestLossIsNoEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newLied(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
		defer end()
		w.ask(100, time.Millisecond)
		w.ledger.mu.Lock()
		w.ledger.Forget()
		w.ledger.mu.Unlock()
		w.ask(500, 10*time.Millisecond)
		if s := w.node.Stats(); s.Missing != 0 || s.Recoveries == 0 {
			t.Errorf("%d evictions, %d recoveries", s.Missing, s.Recoveries)
		}
	})
}

// FuzzGrant holds what CheckGrant guarantees, of answers that hold anything.
func FuzzGrant(f *testing.F) {
	f.Add(int64(10), int64(5), int64(3), int64(0), int64(5), int64(10), int64(9), int64(2), int64(1), int64(1), uint8(0), uint8(1))
	f.Add(int64(10), int64(0), int64(0), int64(0), int64(5), int64(10_000), int64(9), int64(math.MaxInt64), int64(-1), int64(1), uint8(2), uint8(3))
	f.Fuzz(func(t *testing.T, limit, granted, spent, returned, want, said, available, fence, times, at int64, algorithm, flags uint8) {
		all := []int64{limit, granted, spent, returned, want, said, available, fence, times, at, int64(algorithm), int64(flags)}
		fuzztest.Numbers(all, func(n []int64) { grantHolds(t, n) })
	})
}

// grantHolds is that of a claim and an answer of these numbers.
func grantHolds(t *testing.T, n []int64) {
	within := func(n, most int64) tokens { return tokens(uint64(n) % uint64(most)) }
	algorithm, flags := ratelimit.Algorithm(uint64(n[10])%3), n[11]
	c := ratelimit.Claim{
		Limit: ratelimit.Limit{Algorithm: algorithm, Unit: ratelimit.Minute, Requests: within(n[0], 1<<32), Burst: within(n[0], 1<<32)},
		Seq:   7, Granted: within(n[1], 1<<40), Spent: within(n[2], 1<<40), Returned: within(n[3], 1<<40), Want: within(n[4], 1<<40),
		Fence: 100, Window: 5, TTL: time.Second,
	}
	g := ratelimit.Grant{
		Seq: 7, Granted: tokens(n[5]), Available: tokens(n[6]), Fence: ratelimit.Fence(n[7]), TTL: time.Second,
		ResetAfter: time.Duration(n[8]), RetryAfter: time.Duration(n[8]), At: ledgerTime(n[9]), Window: window(n[7]),
		Carried: flags&1 != 0, Void: flags&2 != 0, Outstanding: tokens(n[8]), Holders: int(n[6]),
	}
	if ledger.CheckGrant(&c, &g, 0) != nil {
		return
	}
	l := lease.Lease{Granted: c.Granted, Spent: c.Spent, Returned: c.Returned, Seq: 7, Fence: c.Fence, Window: c.Window}
	before := max(0, l.Unspent())
	l.Apply(1, &c, &g, 0, instant(time.Minute))
	if more := max(0, l.Unspent()) - before; more > min(c.Limit.Capacity(), c.Want) {
		t.Errorf("%d more may be spent: %+v of %+v", more, g, c)
	}
	if l.Fence <= c.Fence || l.Granted < 0 || g.ResetAfter > 2*time.Minute+time.Second && algorithm != ratelimit.TokenBucket || g.At < 0 {
		t.Errorf("%+v of %+v", g, c)
	}
}
