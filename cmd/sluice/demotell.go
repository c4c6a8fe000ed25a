//go:build !server

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// tellEvery is how often the demo says what becomes of its requests.
const tellEvery = 5 * time.Second

// reporter says what all nodes of the demo do together.
type reporter struct {
	out    io.Writer
	debug  []string
	began  time.Time
	before map[string]metrics.RuleState // of the last time, by rule
	at     time.Time
}

// tell says it again and again, until ctx is done.
func (v *reporter) tell(ctx context.Context) {
	v.began, v.at = time.Now(), time.Now()
	every(ctx, tellEvery, func() {
		rules, wrong := v.look()
		v.print(rules, wrong)
		v.before, v.at = rules, time.Now()
	})
}

// look sums the rules of all nodes that answer.
func (v *reporter) look() (rules map[string]metrics.RuleState, silent int) {
	rules = map[string]metrics.RuleState{}
	for _, address := range v.debug {
		var s console.State
		if err := debugGet(address, "/console/state", &s); err != nil {
			silent++
			continue
		}
		for i := range s.Rules {
			r := s.Rules[i]
			all, known := rules[r.Rule]
			if !known {
				rules[r.Rule] = r
				continue
			}
			all.Decisions, all.Denied, all.Worst, all.Beyond = all.Decisions+r.Decisions, all.Denied+r.Denied, all.Worst+r.Worst, all.Beyond+r.Beyond
			rules[r.Rule] = all
		}
	}
	return rules, silent
}

// print writes a table in words that need nothing explained.
func (v *reporter) print(rules map[string]metrics.RuleState, silent int) {
	names := make([]string, 0, len(rules))
	for name := range rules {
		names = append(names, name)
	}
	slices.Sort(names)
	now := time.Now()
	seconds := now.Sub(v.at).Seconds()
	fmt.Fprintf(v.out, "after %.0f s", now.Sub(v.began).Seconds())
	if silent > 0 {
		fmt.Fprintf(v.out, ", and %d of %d nodes do not answer", silent, len(v.debug))
	}
	fmt.Fprintln(v.out, ":")
	t := tabwriter.NewWriter(v.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  RULE\tEACH KEY MAY HAVE\tWORST KEY OVER BY\tKEYS THAT BROKE THE BOUND\tPASSED/S, ALL KEYS\tREFUSED/S, ALL KEYS\t")
	for _, name := range names {
		r, old := rules[name], v.before[name]
		rate := func(now, before uint64) string { return fmt.Sprintf("%.0f", float64(now-min(before, now))/seconds) }
		// Each node's worst key may be another one: together they are the most that one key can have.
		fmt.Fprintf(t, "  %s (%s)\t%s\t%d of %d allowed\t%d\t%s\t%s\t\n", name, r.Mode, strings.TrimSuffix(r.Limit, ","), r.Worst, r.Declared,
			r.Beyond, rate(r.Decisions-r.Denied, old.Decisions-old.Denied), rate(r.Denied, old.Denied))
	}
	_ = t.Flush()
	fmt.Fprintln(v.out)
}
