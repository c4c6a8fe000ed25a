package store

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/sim"
)

// Virtual is one mode under one row in virtual time.
type Virtual struct {
	Row    string  `json:"row" col:"row"`
	Mode   string  `json:"mode" col:"mode"`
	Nodes  int     `json:"nodes" col:"nodes"`
	Claims float64 `json:"claims" col:"claims/1,000|%.1f"`   // for 1,000 decisions
	Batch  float64 `json:"batch" col:"in a batch|%.1f"`      // claims that travel together, in the mean
	CPU    float64 `json:"redis_us" col:"Redis, us"`         // Claims, by what a claim of such a batch costs
	Early  float64 `json:"early" col:"refused early|%.3f%%"` // share of requests that were refused while the limit had room
	Under  float64 `json:"under" col:"under|%.3f%%"`         // share of what an exact limiter had admitted
	Over   int64   `json:"over" col:"over"`
}

// virtualLength is how much time is played: a cold start, and what follows.
const virtualLength = 20 * time.Second

// virtualRows are those whose cost depends on the fleet: ordinary traffic, and few
// keys that all nodes share.
var virtualRows = []int{1, 2, 5, 6}

// virtual plays rows with fleets that do not fit into this machine.
func (o *Options) virtual(ctx context.Context, r *Report, tell func(string)) (all []Virtual, err error) {
	for _, i := range virtualRows {
		row := &rows[i-1]
		for _, m := range o.modes(row)[1:] {
			if m.name == "strict" || strings.HasPrefix(m.name, "routing") {
				continue // one claims for each request, the other has one holder a key, for any fleet
			}
			for _, nodes := range o.Virtual {
				tell(fmt.Sprintf("%s, %s, %d nodes, virtual time", m.name, row.Name, nodes))
				result, err := sim.Run(sim.Options{
					Seed: o.Seed, Nodes: nodes, Rule: row.rule(&m), Load: row.load(o.Rate, virtualLength),
					Net: sim.Net{Trip: sim.Delay{Least: 500 * time.Microsecond, Tail: 500 * time.Microsecond}, Hop: sim.Delay{Least: 300 * time.Microsecond}},
				})
				if err != nil {
					return nil, fmt.Errorf("%s, %s, %d nodes: %w", m.name, row.Name, nodes, err)
				}
				if result.Violation != nil {
					return nil, fmt.Errorf("%s, %s, %d nodes: %w", m.name, row.Name, nodes, result.Violation)
				}
				v := Virtual{
					Row: row.Name, Mode: m.name, Nodes: nodes, Claims: result.ClaimsPerThousand(), Over: int64(result.Over),
					Batch: float64(result.Claims) / float64(max(1, result.Trips)), Early: float64(result.Early) / float64(max(1, result.Offered)),
					Under: float64(result.Under) / float64(max(1, result.Admitted+result.Under)),
				}
				v.CPU = v.Claims / 1000 * r.costOf(v.Batch)
				all = append(all, v)
				if err := ctx.Err(); err != nil {
					return nil, err
				}
			}
		}
	}
	return all, nil
}

// costOf is what a claim costs that travels with others: by the measured length of a
// pipeline that is nearest.
func (r *Report) costOf(batch float64) (us float64) {
	nearest := math.Inf(1)
	for _, c := range r.Costs {
		if d := math.Abs(math.Log(float64(c.Pipeline) / max(1, batch))); c.Holders == costHolders && d < nearest {
			nearest, us = d, c.CPU
		}
	}
	return us
}

// costHolders is with how many holders pipelines of each length are measured.
const costHolders = 3
