package leasing

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

func billingLimit(t testing.TB, day int, name string) ratelimit.Limit {
	t.Helper()
	c, err := zone.Calendar(day, name)
	if err != nil {
		t.Fatal(err)
	}
	return ratelimit.Limit{Unit: ratelimit.Month, Requests: thirtyBillion}.Billed(c)
}

// Two nodes whose clocks are 300 ms apart have a key's account in turn, in the seconds
// around a cut in which clocks are set. In neither window does it admit more than its
// limit, and in each it admits that.
func TestBillingCutBetweenTwoClocks(t *testing.T) {
	limit := billingLimit(t, 1, "America/Asuncion")
	limit.Requests = 1000
	cut := time.Date(2023, 10, 1, 4, 0, 0, 0, time.UTC) // from 00:00 -04:00 to 01:00 -03:00
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 300))
		begins := cut.Add(-2 * time.Second)
		nodes := []*Local{NewLocal(10, 1, begins), NewLocal(10, 1, begins.Add(300*time.Millisecond))}
		owner, now, admitted := rnd.IntN(2), instant(1), map[window]tokens{}
		r := testRule(limit)
		for now < instant(4*time.Second) {
			now = now.Add(time.Duration(rnd.Int64N(int64(4 * time.Millisecond))))
			a := ask{Rule: r, Key: keyOf(1), Cost: 1 + tokens(rnd.IntN(5))}
			v := decideOne(nodes[owner], now, a)
			admitted[v.Window] += v.Charged
			if rnd.IntN(50) == 0 {
				handOver(t, now, nodes[owner], nodes[1-owner], func([]byte) bool { return true })
				owner = 1 - owner
			}
		}
		w := limit.WindowAt(ledgerTime(cut.UnixMicro()))
		if len(admitted) != 2 || admitted[w-1] != limit.Requests || admitted[w] != limit.Requests {
			t.Errorf("seed %d: %v were admitted, by window, want %d in each", seed, admitted, limit.Requests)
		}
	}
}

// A fleet's two nodes, whose clocks are 300 ms apart, share a key on a Redis whose clock
// passes a cut. What they admit while it shows the window before is at most the limit,
// and so is what they admit after.
func TestBillingCutOfAFleet(t *testing.T) {
	s := redistest.Start(t)
	limit := billingLimit(t, 1, "America/Asuncion")
	limit.Requests = 2000
	cut := ledgerTime(time.Date(2023, 10, 1, 4, 0, 0, 0, time.UTC).UnixMicro())
	began := time.Now()
	clock := func() ledgerTime { return cut.Add(time.Since(began) - 700*time.Millisecond) }
	r := testRule(limit)
	r.Coordination.OnDeny, r.Coordination.OnStoreFailure = ratelimit.DenyRefunds, ratelimit.FailClosed
	r.Coordination.StoreDeadline = ratelimit.MaxStoreDeadline
	var before, after, all, refused atomic.Int64
	var wg sync.WaitGroup
	for n := range 2 {
		f := newLargeFleet(t, s, clock)
		f.SyncClock(f.clock(), time.UnixMicro(int64(clock())).Add(time.Duration(300*n)*time.Millisecond))
		wg.Go(func() {
			for sent := clock(); sent < cut.Add(700*time.Millisecond); sent = clock() {
				var v [1]verdict
				f.Decide(context.Background(), f.clock(), []ask{{Rule: r, Key: keyOf(7), Cost: 1}}, v[:])
				switch {
				case v[0].OverLimit:
					refused.Add(1)
					runtime.Gosched() // refusals are quick, and leave the processor to others
					continue
				case clock() < cut:
					before.Add(1)
				case sent >= cut:
					after.Add(1)
				}
				all.Add(1)
			}
		})
	}
	wg.Wait()
	if most := int64(limit.Requests); before.Load() > most || after.Load() > most || all.Load() > 2*most || all.Load() < most || refused.Load() == 0 {
		t.Errorf("of %d, %d were admitted before the cut, %d after it, %d in all; %d were refused", most, before.Load(), after.Load(), all.Load(), refused.Load())
	}
}

// What was admitted without the ledger is charged to the month that it was admitted in,
// however long that is.
func TestOwedOfALongMonth(t *testing.T) {
	calendar := ratelimit.Limit{Unit: ratelimit.Month, Requests: 10}.Cut()
	for _, l := range []ratelimit.Limit{calendar, billingLimit(t, 1, "UTC")} {
		for month, days := range map[time.Month]int{time.January: 31, time.February: 28, time.April: 30} {
			w := l.WindowAt(ledgerTime(time.Date(2026, month, 15, 0, 0, 0, 0, time.UTC).UnixMicro()))
			length := time.Duration(days) * 24 * time.Hour
			for before, want := range map[time.Duration]tokens{length - 1: 3, length: 0} {
				h := lease.Held{Rule: testRule(l)}
				h.Unplaced = 3
				h.Lease.Window, h.Lease.Reset = w, instant(100*24*time.Hour)
				h.UnplacedAt = h.Lease.Reset.Add(-before)
				if h.BookUnplaced(); h.Lease.Spent != want || h.Unplaced != 0 {
					t.Errorf("%v, %v: of 3 admitted %v before its end, %d are charged, want %d", l, month, before, h.Lease.Spent, want)
				}
			}
		}
	}
}
