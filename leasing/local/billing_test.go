package local

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

func billingLimit(t testing.TB, day int, name string) ratelimit.Limit {
	t.Helper()
	c, err := zone.Calendar(day, name)
	if err != nil {
		t.Fatal(err)
	}
	return ratelimit.Limit{Unit: ratelimit.Month, Requests: 30_000_000_000}.Billed(c)
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
		nodes := []*Limiter{New(10, 1, begins), New(10, 1, begins.Add(300*time.Millisecond))}
		owner, now, admitted := rnd.IntN(2), instant(1), map[window]tokens{}
		r := ownedRule(limit)
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
