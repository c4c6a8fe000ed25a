package approx

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

const epoch ratelimit.LedgerTime = 1_800_000_000_000_000

// After random applications, no seat has two tenants, and a seat whose share may have been spent has a NotBefore.
func TestSeats(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			now := epoch
			memory := NewMemory(func() ratelimit.LedgerTime { return now })
			seats := 1 + rnd.IntN(4)
			type tenant struct {
				Tenancy
				till ratelimit.LedgerTime
			}
			tenants := make([]tenant, 6)
			for i := range tenants {
				tenants[i].Tenancy = none
			}
			last := ratelimit.Fence(0)
			plan, plans := uint64(1), make([]uint64, len(tenants))
			dirtyTill := make([]ratelimit.LedgerTime, 10) // when an unclean tenancy of the seat ended
			for step := range 200 {
				now = now.Add(time.Duration(rnd.Int64N(int64(3 * time.Second))))
				if rnd.IntN(30) == 0 {
					seats = 1 + rnd.IntN(4)
				}
				i := rnd.IntN(len(tenants))
				x := &tenants[i]
				if rnd.IntN(20) == 0 {
					plan = uint64(1 + rnd.IntN(3))
				}
				if rnd.IntN(3) == 0 {
					plans[i] = plan
				}
				if rnd.IntN(40) == 0 { // the ledger's clock is set back
					now = now.Add(-time.Duration(rnd.Int64N(int64(2 * time.Hour))))
					clear(dirtyTill)
					for j := range tenants { // who holds what is not to be said by this clock
						tenants[j].till = 0
					}
				}
				a := Application{
					Holder: ratelimit.Holder(i + 1), Seats: seats, Now: x.Tenancy, Plan: plans[i],
					Leave: rnd.IntN(8) == 0, Clean: rnd.IntN(2) == 0,
				}
				got, err := memory.Sit(context.Background(), a)
				if err != nil {
					t.Fatal(err)
				}
				lost := rnd.IntN(5) == 0
				held := x.Seat >= 0 && now < x.till
				if x.Seat >= 0 && got.Fence != x.Fence && (a.Leave && !a.Clean || !a.Leave && !lost) {
					end := x.till
					if held {
						end = now
					}
					dirtyTill[x.Seat] = max(dirtyTill[x.Seat], end)
				}
				if lost && !a.Leave { // it goes on as it was
					if got.Fence != x.Fence && got.Seat >= 0 { // and it has no tenant
						last = max(last, got.Fence)
					}
					continue
				}
				if got.Seat >= 0 && got.Fence != x.Fence {
					if got.Fence <= last {
						t.Fatalf("step %d: fence %d after %d", step, got.Fence, last)
					}
					last = got.Fence
					if got.NotBefore < dirtyTill[got.Seat] {
						t.Fatalf("step %d: taint %d, and an earlier tenant spent until %d", step, got.NotBefore, dirtyTill[got.Seat])
					}
				}
				x.Tenancy, x.till = got, now.Add(SeatTTL)
				for j := range tenants {
					if o := &tenants[j]; j != i && got.Seat >= 0 && o.Seat == got.Seat && now < o.till {
						t.Fatalf("step %d: seat %d has two tenants", step, got.Seat)
					}
				}
			}
		})
	}
}

// There are at most ten thousand seats. An application for more, for none, or without a holder is
// invalid.
func TestApplicationsAreChecked(t *testing.T) {
	m := NewMemory(func() ratelimit.LedgerTime { return epoch })
	for _, c := range []struct {
		a  Application
		ok bool
	}{
		{Application{}, false},
		{Application{Holder: 1, Seats: 10_000}, true},
		{Application{Holder: 1, Seats: 10_001}, false},
		{Application{Holder: 1, Seats: 1}, true},
		{Application{Holder: 1, Seats: 0}, false},
		{Application{Seats: 1}, false},
	} {
		if _, err := m.Sit(context.Background(), c.a); (err == nil) != c.ok {
			t.Errorf("%+v is answered %v", c.a, err)
		}
	}
}

// A keeper renews in time, and lets go: a node that did not run for longer
// than its seat lasts may not spend from it when it wakes.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		clock := func() ratelimit.Instant { return ratelimit.Instant(time.Since(start)) + 1 }
		seats := NewMemory(func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) })
		rule := dividedBy("p", 2)
		later := ratelimit.LedgerTime(start.Add(time.Hour).UnixMicro())
		keepers := make([]*Keeper, 3)
		stop := make([]context.CancelFunc, 3)
		for i := range keepers {
			keepers[i] = NewKeeper(seats, ratelimit.Holder(i+1), clock)
			ctx, cancel := context.WithCancel(context.Background())
			stop[i] = cancel
			go keepers[i].Run(ctx, func() Plan { return NewPlan([]*ratelimit.Rule{rule}) })
			synctest.Wait()
		}
		shares := func() (s [3]ratelimit.Tokens) {
			for i, k := range keepers {
				s[i] = k.Share(clock(), rule, later)
			}
			return s
		}
		if got := shares(); got != [3]ratelimit.Tokens{50, 50, 0} {
			t.Errorf("shares %v, of 1%% of 10000 for two", got)
		}
		time.Sleep(time.Minute)
		if got := shares(); got != [3]ratelimit.Tokens{50, 50, 0} {
			t.Errorf("a minute later: %v", got)
		}
		stop[0]() // it does not run any more
		time.Sleep(SeatTTL)
		if got := shares(); got != [3]ratelimit.Tokens{0, 50, 0} && got != [3]ratelimit.Tokens{0, 50, 50} {
			t.Errorf("a TTL after the first has stopped: %v", got)
		}
		time.Sleep(SeatTTL)
		if got := shares(); got != [3]ratelimit.Tokens{0, 50, 50} {
			t.Errorf("and another: %v", got)
		}
		stop[1]()
		stop[2]()
	})
}
