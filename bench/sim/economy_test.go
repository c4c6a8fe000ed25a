package sim

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// economyRows are ordinary traffic: few hot keys, and many that are asked seldom.
var economyRows = []struct {
	name     string
	unit     ratelimit.Unit
	requests ratelimit.Tokens
	keys     int
	skew     float64
}{
	{"60 a minute, 10,000 keys", ratelimit.Minute, 60, 10_000, 1.1},
	{"1,000 an hour, 10,000 keys", ratelimit.Hour, 1000, 10_000, 1.1},
	{"1,000,000 a day, 10,000 keys", ratelimit.Day, 1_000_000, 10_000, 1.1},
	{"10 a minute, 100,000 keys", ratelimit.Minute, 10, 100_000, 0},
	{"100 a second, 100 keys", ratelimit.Second, 100, 100, 1.1},
	{"1,000,000 a day, 10 keys", ratelimit.Day, 1_000_000, 10, 1.1},
}

func TestEconomyTable(t *testing.T) {
	for _, row := range economyRows[:] {
		for _, mode := range []ratelimit.Mode{ratelimit.Leasing, ratelimit.Routing, ratelimit.Approx} {
			c := ratelimit.DefaultCoordination()
			c.Mode = mode
			r := &ratelimit.Rule{Domain: "d", Path: "k", Limit: ratelimit.Limit{Unit: row.unit, Multiplier: 1, Requests: row.requests}, Coordination: c, Counters: &ratelimit.RuleCounters{}}
			o := Options{Seed: 1, Nodes: 3, Rule: r, Load: load.Load{Rate: 3000, Keys: row.keys, Skew: row.skew, Length: 60 * time.Second, Cost: 1}, Net: Net{Trip: Delay{Least: 500 * time.Microsecond, Tail: 500 * time.Microsecond}, Hop: Delay{Least: 300 * time.Microsecond}}}
			res, err := Run(o)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%-30s %-8v %7.1f claims for 1,000, %.1f trips, %d recalls, over %d, under %d, early %d of %d, p99 %v p999 %v", row.name, mode, res.ClaimsPerThousand(), 1000*float64(res.Trips)/float64(res.Requests), res.Recalls, res.Over, res.Under, res.Early, res.Offered, res.P99, res.P999)
		}
	}
}
