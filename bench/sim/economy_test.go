package sim

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Ordinary traffic has a few hot keys and many quiet ones. In each mode it needs at most that many
// claims for 1,000 decisions, of which that many are no draws. At most that part of the demand is
// refused while the limit has room.
//
//	go test -count=1 -v -run Economy ./bench/sim
func TestEconomyOfClaims(t *testing.T) {
	t.Parallel()
	// Mode approx does not wait for a recall for longer than its check_timeout.
	// A refusal is charged although others have tokens in hand: the rest of its window is refused that much earlier.
	early := [...]float64{ratelimit.Leasing: 0.006, ratelimit.Routing: 0.006, ratelimit.Approx: 0.011}
	for _, row := range []struct {
		name     string
		unit     ratelimit.Unit
		requests ratelimit.Tokens
		keys     int
		skew     float64
		most     [3]float64
		scripts  [3]float64 // of them no draws, which cost Redis several times as much
	}{
		{"60 a minute, 10,000 keys", ratelimit.Minute, 60, 10_000, 1.1, [...]float64{ratelimit.Leasing: 520, ratelimit.Routing: 260, ratelimit.Approx: 520}, [...]float64{ratelimit.Leasing: 260, ratelimit.Routing: 26, ratelimit.Approx: 260}},
		{"1,000 an hour, 10,000 keys", ratelimit.Hour, 1000, 10_000, 1.1, [...]float64{ratelimit.Leasing: 205, ratelimit.Routing: 130, ratelimit.Approx: 205}, [...]float64{ratelimit.Leasing: 17, ratelimit.Routing: 7, ratelimit.Approx: 17}},
		{"1,000,000 a day, 10,000 keys", ratelimit.Day, 1_000_000, 10_000, 1.1, [...]float64{ratelimit.Leasing: 195, ratelimit.Routing: 115, ratelimit.Approx: 195}, [...]float64{ratelimit.Leasing: 1, ratelimit.Routing: 1, ratelimit.Approx: 1}},
		{"10 a minute, 100,000 keys", ratelimit.Minute, 10, 100_000, 0, [...]float64{ratelimit.Leasing: 1100, ratelimit.Routing: 1100, ratelimit.Approx: 1100}, [...]float64{ratelimit.Leasing: 1, ratelimit.Routing: 1, ratelimit.Approx: 1}},
		{"100 a second, 100 keys", ratelimit.Second, 100, 100, 1.1, [...]float64{ratelimit.Leasing: 465, ratelimit.Routing: 350, ratelimit.Approx: 465}, [...]float64{ratelimit.Leasing: 125, ratelimit.Routing: 62, ratelimit.Approx: 125}},
		{"1,000,000 a day, 10 keys", ratelimit.Day, 1_000_000, 10, 1.1, [...]float64{ratelimit.Leasing: 1, ratelimit.Routing: 1, ratelimit.Approx: 1}, [...]float64{ratelimit.Leasing: 1, ratelimit.Routing: 1, ratelimit.Approx: 1}},
	} {
		for mode, most := range row.most {
			l, name := ratelimit.Limit{Unit: row.unit, Multiplier: 1, Requests: row.requests}, ratelimit.Mode(mode).String()
			result := played(t, Options{
				Seed: 1, Nodes: 3, Rule: declaring(t, l, map[string]string{"mode": name}), Net: near,
				Load: load.Load{Rate: 3000, Keys: row.keys, Skew: row.skew, Length: 20 * time.Second},
			})
			scripts := 1000 * float64(result.Claims-result.Draws) / float64(result.Requests)
			t.Logf("%-29s %-8s %7.1f claims for 1,000 decisions, %6.1f of them no draws, %6.1f trips, %4d recalls; %d over, %d of %d refused too early; waited %v (p99), %v (p99.9)",
				row.name, name, result.ClaimsPerThousand(), scripts, 1000*float64(result.Trips)/float64(result.Requests), result.Recalls,
				result.Over, result.Early, result.Offered, result.P99, result.P999)
			if got := result.ClaimsPerThousand(); got > most {
				t.Errorf("%s, %s: %.1f claims for 1,000 decisions, more than %v", row.name, name, got, most)
			}
			if most := row.scripts[mode]; scripts > most {
				t.Errorf("%s, %s: %.1f claims for 1,000 decisions are no draws, more than %v", row.name, name, scripts, most)
			}
			if float64(result.Early) > early[mode]*float64(result.Offered) || mode != int(ratelimit.Approx) && result.Over > 0 {
				t.Errorf("%s, %s: %d refused too early, %d over", row.name, name, result.Early, result.Over)
			}
		}
	}
}

// Few tokens among many nodes: each of 30 and of 100 nodes gets a few requests a second for a key,
// or fewer. Unspent tokens of some are missing at others, and recalls move them: the whole limit is
// admitted.
func TestManyNodesShareFewTokens(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{30, 100} {
		for _, limit := range []ratelimit.Limit{
			{Unit: ratelimit.Second, Multiplier: 1, Requests: 100},
			{Unit: ratelimit.Minute, Multiplier: 1, Requests: 600},
		} {
			result := played(t, Options{
				Seed: 1, Nodes: nodes, Rule: declaring(t, limit, map[string]string{"mode": "leasing"}), Net: near,
				Load: load.Load{Rate: 3000, Keys: 100, Skew: 1.1, Length: 10 * time.Second},
			})
			t.Logf("%d nodes, %v: %d of %d refused too early, %d less than %d admitted; %.1f claims for 1,000 decisions, %d recalls",
				nodes, &limit, result.Early, result.Offered, result.Under, result.Admitted+result.Under, result.ClaimsPerThousand(), result.Recalls)
			if result.Over > 0 || result.Early*50 > result.Offered || result.Under*1000 > result.Admitted {
				t.Errorf("%d nodes, %v: %d over; %d of %d refused too early, %d under of %d",
					nodes, &limit, result.Over, result.Early, result.Offered, result.Under, result.Admitted)
			}
		}
	}
}
