package leasing

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// thirtyBillion a month is more than 32 bits, and more millionths of a token than a
// double holds.
const thirtyBillion tokens = 30_000_000_000

func largeLimit(algorithm ratelimit.Algorithm) ratelimit.Limit {
	l := ratelimit.Limit{Algorithm: algorithm, Unit: ratelimit.Month, Requests: thirtyBillion}
	if algorithm == ratelimit.TokenBucket {
		l.Burst = thirtyBillion
	}
	return l
}

// largeLimits are those of the three algorithms, and of billing months.
func largeLimits(t *testing.T) map[string]ratelimit.Limit {
	limits := map[string]ratelimit.Limit{"billing_month": billingLimit(t, 15, "America/New_York")}
	for algorithm, name := range ratelimit.Algorithms {
		limits[name] = largeLimit(ratelimit.Algorithm(algorithm))
	}
	return limits
}

// largeLedger is a ledger whose clock stands still, and which can lose its data.
type largeLedger struct {
	ratelimit.Ledger
	now    *ledgerTime
	forget func()
}

// largeClaimant is one holder's side, which spends all that it is granted.
type largeClaimant struct {
	t *testing.T
	largeLedger
	c ratelimit.Claim
}

// take asks for n tokens and spends what it gets.
func (h *largeClaimant) take(n tokens) (got tokens, g ratelimit.Grant) {
	h.t.Helper()
	h.c.Seq++
	h.c.Waiting, h.c.Want = n, n
	grants := make([]ratelimit.Grant, 1)
	h.Settle(context.Background(), []ratelimit.Claim{h.c}, grants)
	g = grants[0]
	if g.Err != nil {
		h.t.Fatal(g.Err)
	}
	if err := ledger.CheckGrant(&h.c, &g, 0); err != nil {
		h.t.Fatal(err)
	}
	if !g.Carried {
		h.c.Granted, h.c.Spent, h.c.Returned = 0, 0, 0
	}
	got = g.Granted - h.c.Granted
	h.c.Granted, h.c.Spent, h.c.Fence, h.c.Window = g.Granted, h.c.Spent+got, g.Fence, g.Window
	return got, g
}

func eachLargeLedger(t *testing.T, test func(t *testing.T, l largeLedger, limit ratelimit.Limit)) {
	s := redistest.Start(t)
	for name, limit := range largeLimits(t) {
		t.Run("memory/"+name, func(t *testing.T) {
			now := ledgertest.Epoch
			m := ledger.NewMemory(10, func() ledgerTime { return now })
			test(t, largeLedger{m, &now, m.Forget}, limit)
		})
		t.Run("redis/"+name, func(t *testing.T) {
			s.Do("FLUSHALL")
			m := newTimedRedis(t, s)
			m.now = ledgertest.Epoch
			test(t, largeLedger{m, &m.now, func() { s.Do("FLUSHALL") }}, limit)
		})
	}
}

// Two holders take 30,000,000,000 tokens in odd portions, and not one more, also when
// the ledger has lost its data in between and is told.
func TestLargeLimitIsExact(t *testing.T) {
	eachLargeLedger(t, func(t *testing.T, l largeLedger, limit ratelimit.Limit) {
		rnd := rand.New(rand.NewPCG(18, 30))
		holders := make([]*largeClaimant, 2)
		for i := range holders {
			holders[i] = &largeClaimant{t, l, ratelimit.Claim{Key: "large", Limit: limit, Holder: ratelimit.Holder(i + 1), TTL: time.Hour}}
		}
		taken := tokens(0)
		for i := range 20 {
			got, _ := holders[i%2].take(1 + tokens(rnd.Int64N(1_000_000_000)))
			taken += got
		}
		l.forget()
		for _, h := range holders { // each tells what it has spent
			h.take(0)
		}
		refilled := tokens(0)
		if *l.now = l.now.Add(ledger.RelearnTime); limit.Algorithm == ratelimit.TokenBucket {
			refilled = 23_148 // in 2 s, 11,574.07 a second
		}
		_, g := holders[0].take(0)
		if want := thirtyBillion - taken + refilled; g.Available != want {
			t.Fatalf("%d taken: %d are left, want %d", taken, g.Available, want)
		}
		rest := g.Available
		if got, _ := holders[1].take(rest - 1); got != rest-1 {
			t.Errorf("of the last %d, %d were granted", rest-1, got)
		}
		if got, g := holders[0].take(2); got != 1 || g.Available != 0 {
			t.Errorf("the last token: %d were granted, and %d are left", got, g.Available)
		}
		if got, _ := holders[1].take(1); got != 0 {
			t.Errorf("%d beyond the limit", got)
		}
	})
}

// What comes back with time comes back to the token: a bucket refills 11,574.07 tokens
// a second, and a sliding window lets go of the window before bit by bit.
func TestLargeLimitComesBack(t *testing.T) {
	eachLargeLedger(t, func(t *testing.T, l largeLedger, limit ratelimit.Limit) {
		*l.now = limit.WindowEnd(limit.WindowAt(*l.now))
		h := &largeClaimant{t, l, ratelimit.Claim{Key: "large", Limit: limit, Holder: 1, TTL: time.Hour}}
		if got, _ := h.take(thirtyBillion); got != thirtyBillion {
			t.Fatalf("%d were granted", got)
		}
		h.take(0) // it tells that all is spent
		month := limit.WindowLength(limit.WindowAt(*l.now))
		want, after := thirtyBillion, month // a fixed window: all, in the next
		switch limit.Algorithm {
		case ratelimit.SlidingWindow:
			after = month + month/2
			want = thirtyBillion - halfOf(thirtyBillion, month)
		case ratelimit.TokenBucket:
			want, after = 1_000_000_000, month/30
		case ratelimit.FixedWindow:
		}
		*l.now = l.now.Add(after - time.Microsecond)
		if _, g := h.take(0); g.Available >= want && limit.Algorithm != ratelimit.SlidingWindow {
			t.Errorf("a microsecond before, %d are there", g.Available)
		}
		*l.now = l.now.Add(time.Microsecond)
		if _, g := h.take(0); g.Available != want {
			t.Errorf("after %v, %d are there, want %d", after, g.Available, want)
		}
		if limit.Algorithm != ratelimit.TokenBucket {
			return
		}
		*l.now = l.now.Add(864 * time.Microsecond) // 86.4 µs a token
		if _, g := h.take(0); g.Available != want+10 {
			t.Errorf("ten tokens later, %d are there, want %d", g.Available, want+10)
		}
		*l.now = l.now.Add(month - month/30 - 864*time.Microsecond)
		if _, g := h.take(0); g.Available != thirtyBillion || g.ResetAfter != 0 {
			t.Errorf("a month later, %d are there and it is full after %v", g.Available, g.ResetAfter)
		}
	})
}

// halfOf is what half of a window before counts: its ticks of a 2^20th of a period,
// rounded up, in whole numbers of any size.
func halfOf(n tokens, period time.Duration) tokens {
	tick := period.Microseconds() >> 20
	up := func(x, y int64) int64 { return (x + y - 1) / y }
	part := new(big.Int).Mul(big.NewInt(int64(n)), big.NewInt(up(period.Microseconds()/2, tick)))
	total := big.NewInt(up(period.Microseconds(), tick))
	whole, rest := part.DivMod(part, total, new(big.Int))
	return tokens(whole.Int64() + int64(rest.Sign()))
}

// Accounts of 30,000,000,000 tokens that wander between processes admit what one process
// would have, to the token.
func TestLargeLimitIsHandedOver(t *testing.T) {
	for name, limit := range largeLimits(t) {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(18, uint64(limit.Algorithm)))
			wall := time.Unix(1_800_000_000, 0)
			one, several := NewLocal(10, 1, wall), []*Local{NewLocal(10, 1, wall), NewLocal(10, 1, wall)}
			r := testRule(limit)
			r.Coordination.OnDeny = ratelimit.DenyRefunds
			now, owner, admitted := instant(1), 0, tokens(0)
			spend := func(cost tokens) bool {
				a := ask{Rule: r, Key: keyOf(1), Cost: cost}
				want, got := decideOne(one, now, a), decideOne(several[owner], now, a)
				if want.OverLimit != got.OverLimit || want.Remaining != got.Remaining {
					t.Fatalf("%d after %d: %+v, one process says %+v", cost, admitted, got, want)
				}
				if !got.OverLimit {
					admitted += cost
				}
				return !got.OverLimit
			}
			for range 100 {
				spend(1 + tokens(rnd.Int64N(1_000_000_000)))
				if handOver(t, now, several[owner], several[1-owner], func([]byte) bool { return true }) != 1 {
					t.Fatal("the account was not handed over")
				}
				owner = 1 - owner
			}
			for cost := thirtyBillion; cost > 0; cost /= 2 {
				for spend(cost) {
				}
			}
			if admitted != thirtyBillion {
				t.Errorf("%d were admitted, want %d", admitted, thirtyBillion)
			}
		})
	}
}

// A fleet's nodes on Redis admit 30,000,000,000 to the token.
func TestLargeLimitOfAFleet(t *testing.T) {
	for name, limit := range largeLimits(t) {
		if limit.Algorithm == ratelimit.TokenBucket { // it refills meanwhile
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			fleets := []*Fleet{newLargeFleet(t, s, nil), newLargeFleet(t, s, nil)}
			r := testRule(limit)
			r.Coordination.OnDeny, r.Coordination.OnStoreFailure = ratelimit.DenyRefunds, ratelimit.FailClosed
			r.Coordination.StoreDeadline, r.Coordination.Lease.Fixed = ratelimit.MaxStoreDeadline, 1
			admitted := tokens(0)
			spend := func(f *Fleet, cost tokens) bool {
				v := make([]verdict, 1)
				f.Decide(context.Background(), f.clock(), []ask{{Rule: r, Key: keyOf(7), Cost: cost}}, v)
				if v[0].Source == ratelimit.FromFallback {
					t.Fatalf("the store was not asked: %+v", v[0])
				}
				if !v[0].OverLimit {
					admitted += cost
				}
				return !v[0].OverLimit
			}
			// What one node holds, another may be refused for a moment.
			for end := time.Now().Add(20 * time.Second); admitted < thirtyBillion && time.Now().Before(end); {
				for cost := thirtyBillion / 3; cost > 0; cost /= 2 {
					for spend(fleets[0], cost) || spend(fleets[1], cost) {
					}
				}
			}
			if spend(fleets[0], 1) || spend(fleets[1], 1) {
				t.Error("one more was admitted")
			}
			if admitted != thirtyBillion {
				t.Errorf("%d were admitted, want %d", admitted, thirtyBillion)
			}
		})
	}
}

// newLargeFleet is a node on a Redis that goes by a clock, or by its own if it is nil.
func newLargeFleet(t *testing.T, s *redistest.Server, there func() ledgerTime) *Fleet {
	t.Helper()
	client := s.Client()
	store := ledger.NewRedis(client, "")
	if there != nil {
		store.GoBy(there)
	}
	clock := ratelimit.MonotonicClock()
	f := NewFleet(store, ledger.NewHolder(), 100, clock, time.Now())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; _ = client.Close() })
	for end := time.Now().Add(10 * time.Second); !f.Ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(fmt.Errorf("the ledger was not heard of: %+v", f.Stats()))
		}
	}
	return f
}
