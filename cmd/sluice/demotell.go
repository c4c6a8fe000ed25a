//go:build !server

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// tellEvery is how often the demo says what becomes of its requests.
const tellEvery = 5 * time.Second

// reporter says what all nodes of the demo do together.
type reporter struct {
	out    io.Writer
	top    topCmd
	began  time.Time
	before *looked
}

// tell says it again and again, until ctx is done.
func (v *reporter) tell(ctx context.Context) {
	v.began, v.before = time.Now(), &looked{at: time.Now()}
	every(ctx, tellEvery, func() {
		now := v.top.look(nil)
		v.print(now)
		v.before = now
	})
}

// print writes a table in words that need nothing explained.
func (v *reporter) print(now *looked) {
	fmt.Fprintf(v.out, "after %.0f s", now.at.Sub(v.began).Seconds())
	silent := 0
	for i := range now.nodes {
		if now.nodes[i].err != nil {
			silent++
		}
	}
	if silent > 0 {
		fmt.Fprintf(v.out, ", and %d of %d nodes do not answer", silent, len(now.nodes))
	}
	fmt.Fprintln(v.out, ":")
	t := tabwriter.NewWriter(v.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  RULE\tEACH KEY MAY HAVE\tWORST KEY OVER BY\tKEYS THAT BROKE THE BOUND\tPASSED/S, ALL KEYS\tREFUSED/S, ALL KEYS\t")
	seconds := now.at.Sub(v.before.at).Seconds()
	for _, name := range slices.Sorted(maps.Keys(now.rules)) {
		r, old := now.rules[name], cmp.Or(v.before.rules[name], new(metrics.RuleState))
		rate := func(now, before uint64) string { return fmt.Sprintf("%.0f", float64(now-min(before, now))/seconds) }
		// Each node's worst key may be another one: together they are the most that one key can have.
		fmt.Fprintf(t, "  %s (%s)\t%s\t%d of %d allowed\t%d\t%s\t%s\t\n", r.Rule, r.Mode, strings.TrimSuffix(r.Limit, ","), r.Worst, r.Declared,
			r.Beyond, rate(r.Decisions-r.Denied, old.Decisions-old.Denied), rate(r.Denied, old.Denied))
	}
	_ = t.Flush()
	fmt.Fprintln(v.out)
}
