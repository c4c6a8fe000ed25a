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

func slot(d time.Duration) func(*Claim) { return func(c *Claim) { c.TTL = d } }

const ms100 = 100 * time.Millisecond

// A bucket begins full, and refills to its burst less what live leases have in hand.
func TestBucket(t *testing.T) {
	b := newBench(t, filled(100, 10))
	b.is(b.claims(1, 0, 0, 60, slot(ms100)), 60, 60, 60, 0)
	b.is(b.claims(2, 0, 0, 60, slot(ms100)), 40, 40, 100, 60)
	b.pass(ms100 / 2) // half a token
	b.is(b.claims(2, 40, 40, 60, slot(ms100)), 0, 40, 100, 60)
	b.pass(ms100)
	b.is(b.claims(2, 40, 40, 60, slot(ms100)), 1, 41, 100, 60)
	b.pass(15 * time.Second / 2) // what 1 has in hand is gone
	b.is(b.claims(3, 0, 0, 5, slot(ms100)), 5, 5, 30, 0)
	b.is(b.claims(1, 60, 60, 0, slot(ms100)), 0, 60, 30, 5) // it had been charged for
	b.is(b.claims(2, 41, 50, 0, slot(ms100)), 0, 50, 39, 5)
}

// While a lease is live, the room of what is in hand stays free: burst + rate x t bounds what is spent.
func TestBucketKeepsRoomForLeases(t *testing.T) {
	b := newBench(t, filled(100, 1000))
	b.is(b.claims(1, 0, 0, 100, slot(ms100)), 100, 100, 100, 0)
	b.pass(ms100 - time.Microsecond)
	b.is(b.claims(2, 0, 0, 100, slot(ms100)), 0, 0, 100, 100)
	b.pass(time.Microsecond) // the lease was claimed in this slot, and lives through the next
	b.is(b.claims(2, 0, 0, 100, slot(ms100)), 0, 0, 100, 100)
	b.pass(ms100)
	b.is(b.claims(2, 0, 0, 100, slot(ms100)), 0, 0, 100, 0)
	b.pass(ms100 / 2)
	b.is(b.claims(2, 0, 0, 100, slot(ms100)), 50, 50, 100, 0)
}

// A charge beyond the level is debt. A refund pays it, also at a holder without a record, and is cut where it does
// not fit.
func TestBucketDebtAndRefunds(t *testing.T) {
	b := newBench(t, filled(100, 1))
	b.is(b.claims(1, 0, 150, 0, slot(ms100)), 0, 150, 150, 0)
	b.is(b.claims(2, -30, -30, 0, slot(ms100)), 0, -30, 120, 0)
	b.is(b.claims(2, -50, -50, 0, slot(ms100)), 0, -50, 100, 0)
	b.is(b.claims(3, 0, 0, 1, slot(ms100)), 0, 0, 100, 0)
	b.pass(time.Second)
	b.is(b.claims(3, 0, 0, 9, slot(ms100)), 1, 1, 100, 0)
	b.pass(time.Second)
	b.is(b.claims(2, -60, -60, 0, slot(ms100)), 0, -60, 89, 0) // its lease is over, and it had nothing in hand
	g := b.claims(2, -260, -260, 0, slot(ms100))
	b.is(g, 0, -149, 0, 0)
	if g.Cut != 111 {
		t.Errorf("%d were cut", g.Cut)
	}
	b.is(b.claims(9, -5, -5, 0, slot(ms100), at(Answered+1)), 0, -5, 0, 0) // told again, it is no refund
}

// A refund of tokens that the bucket counts as in hand of others is owed until their lease is reported or ends. It is
// dropped if they were in hand.
func TestBucketOwesRefunds(t *testing.T) {
	for _, is := range []string{"spent", "silent", "in hand", "lost"} {
		b := newBench(t, filled(100, 1))
		b.is(b.claims(1, 0, 0, 90, slot(ms100)), 90, 90, 90, 0)
		b.is(b.claims(2, -50, -50, 0, slot(ms100)), 0, -50, 90, 90)
		g := b.claims(3, -70, -70, 0, slot(ms100))
		if b.is(g, 0, -40, 90, 90); g.Cut != 30 {
			t.Errorf("%d were cut, and others have 40 more in hand than is owed already", g.Cut)
		}
		r := reader{left: b.records[NameOf("", "k", 0)].Data[1:]}
		for range 12 {
			r.int()
		}
		if r.records(); r.failed || len(r.left) > 0 {
			t.Errorf("%d bytes are left of the form of earlier releases", len(r.left))
		}
		want := map[string]tokens{"in hand": 90, "lost": 89}[is]
		switch is {
		case "spent":
			b.is(b.claims(1, 90, 60, 0, slot(ms100)), 0, 90, 30, 0)
		case "in hand":
			for range 3 {
				b.claims(1, 90, 0, 0, slot(ms100))
				b.pass(ms100)
			}
			b.is(b.claims(1, 90, 90, 0, slot(ms100)), 0, 90, 90, 0)
		case "lost":
			b.claims(1, 90, 90, 0, slot(ms100), func(c *Claim) { c.Learning = epochAt.Add(Learn) })
			b.pass(Learn - 2*ms100)
		}
		b.pass(2 * ms100)
		b.is(b.claims(4, 0, 0, 0, slot(ms100)), 0, 0, want, 0)
	}
}

// Slots have the length that leases have: the longer at once, the shorter when nothing is in hand.
func TestBucketSlotsOfDifferentLengths(t *testing.T) {
	b := newBench(t, filled(100, 10))
	b.is(b.claims(1, 0, 0, 50, slot(ms100)), 50, 50, 50, 0)
	b.pass(ms100 / 2)
	b.is(b.claims(2, 0, 0, 50, slot(time.Second)), 50, 50, 100, 50)
	b.pass(ms100)
	b.is(b.claims(3, 0, 0, 9, slot(ms100)), 0, 0, 100, 100)
	b.pass(900 * time.Millisecond) // both are live: their holders may keep them for a second
	b.is(b.claims(3, 0, 0, 9, slot(ms100)), 0, 0, 100, 100)
	b.pass(time.Second)
	b.is(b.claims(3, 0, 0, 9, slot(ms100)), 9, 9, 100, 0)
	k := b.account("k", 0)
	if k.slot != ms100 {
		t.Errorf("slots are %v long", k.slot)
	}
}

// A clock that goes back has no lease be over, and no bucket refuse for as long as the step was.
func TestBucketWhoseClockGoesBack(t *testing.T) {
	b := newBench(t, filled(100, 10))
	b.is(b.claims(1, 0, 0, 100, slot(ms100)), 100, 100, 100, 0)
	b.pass(-24 * time.Hour)
	b.is(b.claims(2, 0, 0, 9, slot(ms100)), 0, 0, 100, 100)
	b.is(b.claims(1, 100, 50, 0, slot(ms100)), 0, 100, 100, 0)
	b.is(b.claims(2, 0, 0, 9, slot(ms100)), 0, 0, 100, 50)
	b.pass(2 * time.Second)
	b.is(b.claims(2, 0, 0, 99, slot(ms100)), 20, 20, 100, 0)
}

// A bucket gains the tokens of a difference of clocks once, however often the clock goes to and fro: in etcd, each node
// has a clock of its own.
func TestBucketBetweenTwoClocks(t *testing.T) {
	b := newBench(t, filled(100, 10))
	b.is(b.claims(1, 0, 0, 100, slot(ms100)), 100, 100, 100, 0)
	b.claims(1, 100, 100, 0, slot(ms100))
	has := tokens(0)
	for range 20 {
		for _, d := range []time.Duration{time.Second / 2, -time.Second / 2} {
			b.pass(d)
			has += b.claims(2, has, has, 10, slot(ms100)).Granted
		}
	}
	if has != 5 {
		t.Errorf("%d are granted of a bucket that gains 5 in half a second", has)
	}
}

// A bucket that was lost grants a twentieth and its refill, once the leases of before may be over. When it has learned,
// it has the least that any holder states.
func TestBucketThatWasLost(t *testing.T) {
	b := newBench(t, filled(100, 1))
	learning := func(c *Claim) { c.Learning = epochAt.Add(Learn) }
	lacks := func(n int) func(*Claim) {
		return func(c *Claim) { c.Full = epochAt.Add(time.Duration(n) * time.Second) }
	}
	b.is(b.claims(1, 0, 0, 9, slot(ms100), learning, lacks(20)), 5, 5, 25, 20)
	b.is(b.claims(2, 0, 0, 9, slot(ms100), learning, lacks(60)), 0, 0, 65, 65)
	b.is(b.claims(2, 0, 0, 9, slot(ms100), learning, lacks(99)), 0, 0, 65, 65) // it is stated once
	b.pass(Learn - time.Microsecond)
	b.is(b.claims(3, 0, 0, 9, slot(ms100), learning), 1, 1, 65, 0)
	b.pass(time.Microsecond)
	b.is(b.claims(3, 1, 1, 90, slot(ms100)), 35, 36, 100, 0)
	b.Evict("k", 0)
	b.limit = filled(100, 10)
	g := b.claims(1, 10, 7, 9, slot(time.Second), lacks(6)) // of what it had only what is in hand counts
	b.is(g, 2, 12, 45, 40)
	if !g.Missing {
		t.Errorf("%+v", g)
	}
	b.pass(time.Second / 2) // which brings 5, and there is no room: what was leased before may be spent still
	b.is(b.claims(2, 0, 0, 9, slot(time.Second)), 0, 0, 45, 45)
	// What was granted of a bucket that was lost is no credit when it is given back.
	b = newBench(t, filled(100, 10))
	b.is(b.claims(1, 0, 0, 50, slot(time.Second)), 50, 50, 50, 0)
	b.is(b.claims(2, 0, 0, 0, slot(time.Second), learning), 0, 0, 50, 50)
	b.is(b.claims(1, 0, 0, 0, slot(time.Second), learning), 0, 0, 50, 50)
	// The tokens that return keep their room: the bucket does not fill in their place.
	b.pass(Learn - time.Microsecond)
	b.is(b.claims(2, 0, 0, 60, slot(time.Second), learning), 14, 14, 55, 0)
	b.pass(time.Microsecond)
	b.is(b.claims(3, 0, 0, 90, slot(time.Second)), 46, 46, 100, 14)
}

// A bucket is not dropped before it is full, nor while a lease is live.
func TestBucketExpires(t *testing.T) {
	b := newBench(t, filled(100, 10))
	over := func() time.Duration { return b.account("k", 0).over.Sub(epochAt) }
	b.claims(1, 0, 0, 50, slot(time.Second))
	if d := over(); d != 5*time.Second {
		t.Errorf("after %v", d)
	}
	b.pass(time.Second / 2)
	b.claims(1, 50, 0, 0, slot(10*time.Second))
	if d := over(); d != 11*time.Second {
		t.Errorf("after %v", d)
	}
	b.limit.Requests = 0
	b.claims(1, 50, 50, 0)
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
		b := bucket{slot: time.Second, ends: 1}
		elapsed := int64(0)
		for range 50 {
			step := rnd.Int64N([]int64{2, 1000, 10_000_000}[rnd.IntN(3)])
			b.refill(instant(elapsed+step), &l, l.Burst)
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
	inRedis, err := NewRedis(client, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	inRedis.LookThrough(client)
	inRedis.GoBy(func() ratelimit.LedgerTime { return began }) // not for views
	for _, ledger := range []interface {
		Ledger
		Look(context.Context, string, ratelimit.Window, *ratelimit.Limit) (*ratelimit.AccountLook, error)
	}{NewCAS(NewMemoryStore(func() ratelimit.LedgerTime { return now }), "", nil), inRedis} {
		now = began
		g := make([]Grant, 1)
		c := Claim{Key: "k", Limit: l, Holder: 1 << 63, Seq: 1, Need: 10, Want: 10, TTL: time.Second}
		if _, _, err := ledger.Settle(t.Context(), []Claim{c}, g); err != nil || g[0].Granted != 10 {
			t.Fatal(g, err)
		}
		now = now.Add(time.Minute / 2)
		if v, err := ledger.Look(t.Context(), "k", 0, &l); err != nil || v == nil || v.Free < 4 || v.Free > 6 {
			t.Errorf("half a minute after a grant of all 10, of %T people see %+v, %v", ledger, v, err)
		}
	}
}
