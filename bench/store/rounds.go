package store

import (
	"context"
	"fmt"

	"github.com/sluice-gate/sluice/bench/process"
)

// A machine changes from one minute to the next, so that two modes of the same cost look different when each is
// measured once. With several rounds each mode is measured again after all others. The report has the sum of
// all rounds, and the minimum and maximum of one.

// measureRow measures each mode of a row, so many times in turn.
func (o *Options) measureRow(ctx context.Context, row *Row, nodes int, tell func(string)) ([]Measured, error) {
	modes := o.modes(row)
	all := make([]Measured, len(modes))
	for round := range o.rounds() {
		base := Measured{}
		for i := range modes {
			m := &modes[i]
			tell(fmt.Sprintf("%s, %s, %d nodes", m.name, row.Name, nodes))
			got, err := o.measure(ctx, row, m, nodes)
			if err != nil {
				return nil, fmt.Errorf("%s, %s, %d nodes: %w", m.name, row.Name, nodes, err)
			}
			if i == 0 {
				base = got
			}
			got.Ratio, got.WarmRate = got.CPU/base.CPU, got.Warm/base.Warm
			got.Least, got.Greatest = got.Ratio, got.Ratio
			if round == 0 {
				all[i] = got
				continue
			}
			all[i].add(&got)
		}
	}
	for i := range all {
		all[i].Ratio, all[i].WarmRate = all[i].CPU/all[0].CPU, all[i].Warm/all[0].Warm
	}
	return all, nil
}

func (o *Options) rounds() int { return max(1, o.Rounds) }

// add takes in what another round of the same mode was measured to be.
func (m *Measured) add(b *Measured) {
	// Means are of decisions, and not of rounds.
	whole, part := float64(m.Asked+b.Asked), float64(b.Asked)
	for _, mean := range []struct{ of, and *float64 }{
		{&m.CPU, &b.CPU}, {&m.Warm, &b.Warm}, {&m.Idle, &b.Idle}, {&m.Claims, &b.Claims}, {&m.Draws, &b.Draws}, {&m.Bytes, &b.Bytes}, {&m.NodeCPU, &b.NodeCPU},
	} {
		*mean.of += (*mean.and - *mean.of) * part / whole
	}
	m.Least, m.Greatest = min(m.Least, b.Least), max(m.Greatest, b.Greatest)
	m.P50, m.P99 = max(m.P50, b.P50), max(m.P99, b.P99)
	m.Asked += b.Asked
	m.Failed += b.Failed
	m.Early += b.Early
	m.Half += b.Half
	m.Over = max(m.Over, b.Over)
	m.Under += b.Under
	m.Allowed += b.Allowed
	if m.Problem == "" {
		m.Problem = b.Problem
	}
	for name, c := range b.Commands {
		was := m.Commands[name]
		m.Commands[name] = process.RedisCommand{Calls: was.Calls + c.Calls, Time: was.Time + c.Time}
	}
	for name, n := range b.Reasons {
		m.Reasons[name] += n
	}
	for name, n := range b.Fallbacks {
		m.Fallbacks[name] += n
	}
}
