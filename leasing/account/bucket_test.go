package account

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// filled is a bucket of so many tokens, and so many more a second.
func filled(burst, rate tokens) ratelimit.Limit {
	return ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: rate, Burst: burst}
}

// of states a lease of a slot, and a Want of so many tokens beyond the need.
func (b *bench) of(slot ratelimit.Window, beyond tokens) func(*Claim) {
	return func(c *Claim) { c.Window, c.Want = slot, c.Need+beyond }
}

const ms100 = 100 * time.Millisecond // a slot of a bucket for a second

// A bucket begins full. What a claim needs is spent, and a lease beyond it is in hand until it is spent or ends.
func TestBucket(t *testing.T) {
	b := newBench(t, filled(800, 10))
	slot := BucketSlotAt(b.now, &b.limit)
	b.is(b.claims(1, 0, 0, 30, b.of(0, 20)), 50, 20, 50, 0)
	b.is(b.claims(2, 0, 0, 760, b.of(0, 20)), 750, 0, 800, 20) // less than the need, and no lease
	b.pass(ms100 / 2)                                          // half a token
	b.is(b.claims(1, 20, 15, 0, b.of(slot, 9)), 0, 5, 800, 0)  // what is left goes on
	b.pass(ms100)
	b.is(b.claims(1, 5, 0, 0, b.of(slot-1, 0)), 0, 0, 799, 5) // a lease that has ended: nothing is left of it
	b.is(b.claims(1, 5, 5, 1, b.of(slot, 0)), 1, 0, 800, 0)   // spent, and so there is room
	b.pass(8 * time.Second)
	b.is(b.claims(3, 0, 0, 5), 5, 0, 725, 0)
	b.is(b.claims(1, 60, 60, 0, b.of(slot, 0)), 0, 0, 725, 0) // of a lease that has ended, nothing counts
	b.is(b.claims(2, 41, 50, 0, b.of(slot, 0)), 0, 0, 734, 0) // but a charge beyond it
}

// Less than the need is granted in whole units: a part of one serves no request.
func TestBucketGrantsWholeUnits(t *testing.T) {
	b := newBench(t, filled(100, 1))
	units := func(c *Claim) { c.Unit = 30 }
	b.is(b.claims(1, 0, 0, 120, units), 90, 0, 90, 0)
	b.is(b.claims(1, 0, 0, 60, units), 0, 0, 90, 0)
	b.is(b.claims(2, 0, 0, 5, units), 5, 0, 95, 0)
}

// The part of a live lease beyond the Want returns to the level, which has kept room for it.
func TestBucketLeaseGoesBack(t *testing.T) {
	b := newBench(t, filled(800, 8000))
	slot := BucketSlotAt(b.now, &b.limit)
	b.is(b.claims(1, 0, 0, 0, b.of(0, 100)), 100, 100, 100, 0)
	b.pass(ms100)
	b.is(b.claims(1, 100, 30, 0, b.of(slot, 20)), 0, 20, 50, 0) // 30 are spent, and 50 go back
	b.is(b.claims(2, 0, 0, 800), 750, 0, 800, 20)
}

// While a lease is live, the room of what is in hand stays free: burst + rate x t bounds what is spent.
func TestBucketKeepsRoomForLeases(t *testing.T) {
	b := newBench(t, filled(800, 8000))
	b.is(b.claims(1, 0, 0, 0, b.of(0, 100)), 100, 100, 100, 0)
	b.is(b.claims(2, 0, 0, 700), 700, 0, 800, 100)
	b.pass(ms100 - time.Microsecond)
	b.is(b.claims(2, 0, 0, 800), 700, 0, 800, 100)
	b.pass(time.Microsecond) // the lease was claimed in this slot, and lives through the next
	b.is(b.claims(2, 0, 0, 1), 0, 0, 800, 100)
	b.pass(ms100)
	b.is(b.claims(2, 0, 0, 800), 700, 0, 800, 0)
	b.pass(ms100 / 2)
	b.is(b.claims(2, 0, 0, 800), 400, 0, 800, 0)
}

// A charge beyond the level is debt. A refund pays it, at whichever holder it comes, and is lost where it does not fit.
func TestBucketDebtAndRefunds(t *testing.T) {
	b := newBench(t, filled(100, 1))
	slot := BucketSlotAt(b.now, &b.limit)
	b.is(b.claims(1, 0, 150, 0), 0, 0, 150, 0)
	b.is(b.claims(2, 0, -30, 0), 0, 0, 120, 0)
	b.is(b.claims(2, 0, -50, 1, b.of(0, 9)), 3, 2, 73, 0)
	b.is(b.claims(2, 2, 1, 0, b.of(slot, 1)), 0, 1, 73, 0)
	b.is(b.claims(2, 1, -10, 0, b.of(slot, 1)), 0, 1, 63, 0) // its lease is whole again
	b.is(b.claims(3, 0, -900, 0), 0, 0, 1, 1)
	b.is(b.claims(2, 1, 3, 0, b.of(slot, 0)), 0, 0, 3, 0)
}

// A clock that goes back has no lease be over, and no bucket refuse for as long as the step was.
func TestBucketWhoseClockGoesBack(t *testing.T) {
	b := newBench(t, filled(800, 80))
	b.is(b.claims(1, 0, 0, 0, b.of(0, 100)), 100, 100, 100, 0)
	b.is(b.claims(2, 0, 0, 700), 700, 0, 800, 100)
	b.pass(-24 * time.Hour)
	b.is(b.claims(2, 0, 0, 9), 0, 0, 800, 100)
	b.pass(2 * time.Second)
	b.is(b.claims(2, 0, 0, 999), 160, 0, 800, 0)
}

// A bucket gains the tokens of a difference of clocks once, however often the clock goes to and fro: in etcd, each node
// has a clock of its own.
func TestBucketBetweenTwoClocks(t *testing.T) {
	b := newBench(t, filled(100, 10))
	b.is(b.claims(1, 0, 0, 100), 100, 0, 100, 0)
	has := tokens(0)
	for range 20 {
		for _, d := range []time.Duration{time.Second / 2, -time.Second / 2} {
			b.pass(d)
			has += b.claims(2, 0, 0, 10).Granted
		}
	}
	if has != 5 {
		t.Errorf("%d are granted of a bucket that gains 5 in half a second", has)
	}
}

// After a loss, a bucket has the least that any holder states, and leases keep their room.
func TestBucketThatWasLost(t *testing.T) {
	b := newBench(t, filled(100, 1))
	b.is(b.claims(1, 80, 0, 0, b.of(Stated, 0)), 0, 0, 20, 0)
	b.is(b.claims(2, 95, 0, 0, b.of(Stated, 0)), 0, 0, 20, 0)
	b.is(b.claims(2, -7, 0, 0, b.of(Stated, 0)), 0, 0, 107, 0)
	b.pass(17 * time.Second)
	b.is(b.claims(2, 0, 0, 0, b.of(0, 6)), 1, 1, 91, 0)
	b.is(b.claims(3, 10, 0, 0, b.of(Stated, 0)), 0, 0, 91, 1)
	b.is(b.claims(3, 9, 0, 0, b.of(Stated, 0)), 0, 0, 92, 1)
}

// A bucket is not dropped before it is full, nor while a lease is live.
func TestBucketExpires(t *testing.T) {
	b := newBench(t, filled(100, 10))
	over := func() time.Duration { return b.account("k", 0).over.Sub(epochAt) }
	b.claims(1, 0, 0, 50)
	if d := over(); d != 5*time.Second {
		t.Errorf("after %v", d)
	}
	b.claims(1, 0, -50, 0)
	b.pass(5 * time.Second)
	b.claims(1, 0, 0, 0, b.of(0, 1))
	if d := over(); d != 5*time.Second+2*ms100 {
		t.Errorf("after %v", d)
	}
	b.limit.Requests = 0
	b.claims(1, 0, 1, 0)
	if d := over(); d < 365*24*time.Hour {
		t.Errorf("after %v", d)
	}
}

// Nothing is lost to rounding, whatever the rate, the steps and the size.
func TestBucketFillsExactly(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		l := ratelimit.Limit{
			Algorithm:  ratelimit.TokenBucket,
			Unit:       ratelimit.Unit(1 + rnd.IntN(4)),
			Multiplier: uint32(1 + rnd.IntN(3)),
			Requests:   tokens(rnd.Int64N([]int64{2, 100, 1_000_000, 1_000_000_000_000}[rnd.IntN(4)])),
			Burst:      tokens(1 + rnd.Int64N(1<<32-1)),
		}
		b := bucket{at: 1}
		elapsed := int64(0)
		for range 50 {
			step := rnd.Int64N([]int64{2, 1000, 10_000_000}[rnd.IntN(3)])
			b.refill(instant(1+elapsed+step), &l)
			elapsed += step
		}
		seconds := int64(l.Period() / time.Second)
		full := float64(l.Burst) * Micro
		if want := float64(elapsed) * float64(l.Requests) / float64(seconds); want < full {
			// Whole numbers below 2^53, computed as they are written.
			whole, rest := int64(l.Requests)/seconds, int64(l.Requests)%seconds
			exact := elapsed*whole + elapsed/seconds*rest + elapsed%seconds*rest/seconds
			if b.level != exact {
				t.Errorf("seed %d: %v: %d millionths after %d us, want %d", seed, l, b.level, elapsed, exact)
			}
		} else if b.level != int64(l.Burst)*Micro {
			t.Errorf("seed %d: %v: %d millionths after %d us, and it is full", seed, l, b.level, elapsed)
		}
	}
}

// People see of a bucket what the next claim will find: its tokens of now, and not those of the last claim.
func TestBucketIsShownAsOfNow(t *testing.T) {
	l := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 10, Burst: 10}
	began := instant(time.Now().Add(-time.Minute / 2).UnixMicro())
	now := began
	client := redistest.Start(t).Client()
	defer client.Close()
	inRedis, err := NewRedis(client, "")
	if err != nil {
		t.Fatal(err)
	}
	inRedis.LookThrough(client)
	inRedis.GoBy(func() ratelimit.LedgerTime { return began }) // not for views
	for _, ledger := range []interface {
		Ledger
		Look(context.Context, string, ratelimit.Window, *ratelimit.Limit) (*ratelimit.AccountLook, error)
	}{NewCAS(NewMemoryStore(func() ratelimit.LedgerTime { return now }), ""), inRedis} {
		now = began
		g := make([]Grant, 1)
		c := Claim{Key: "k", Limit: l, Holder: 1 << 63, Seq: 1, Need: 10, Want: 10}
		if _, _, err := ledger.Settle(t.Context(), []Claim{c}, g); err != nil || g[0].Granted != 10 {
			t.Fatal(g, err)
		}
		now = now.Add(time.Minute / 2)
		if v, err := ledger.Look(t.Context(), "k", 0, &l); err != nil || v == nil || v.Free < 4 || v.Free > 6 {
			t.Errorf("half a minute after a grant of all 10, of %T people see %+v, %v", ledger, v, err)
		}
	}
}
