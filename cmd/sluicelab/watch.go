package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/cmd/sluice/debugport"
)

// watchEvery is the time between two tables of the demo.
const watchEvery = 5 * time.Second

// watch shows the sums of all nodes of the demo, again and again, until ctx is done.
func watch(ctx context.Context, out io.Writer, debug []string) error {
	began := time.Now()
	return debugport.Watch(ctx, debug, false, watchEvery, func(v *debugport.Summary) error { return writeTable(out, v.At.Sub(began), v) })
}

// writeTable writes a table in words that need nothing explained.
func writeTable(out io.Writer, after time.Duration, v *debugport.Summary) error {
	fmt.Fprintf(out, "after %.0f s", after.Seconds())
	silent := 0
	for i := range v.Nodes {
		if !v.Nodes[i].Answers {
			silent++
		}
	}
	if silent > 0 {
		fmt.Fprintf(out, ", and %d of %d nodes do not answer", silent, len(v.Nodes))
	}
	fmt.Fprintln(out, ":")
	t := cli.Columns(out)
	fmt.Fprintln(t, "  RULE\tEACH KEY MAY HAVE\tWORST KEY OVER BY\tKEYS THAT BROKE THE BOUND\tADMITTED/S, ALL KEYS\tREFUSED/S, ALL KEYS\t")
	slices.SortFunc(v.Rules, func(a, b debugport.Rule) int { return cmp.Compare(a.Rule, b.Rule) })
	for i := range v.Rules {
		r := &v.Rules[i]
		// Each node's worst key may be another one: together they are the most that one key can have.
		fmt.Fprintf(t, "  %s (%s)\t%s\t%d of %d allowed\t%d\t%.0f\t%.0f\t\n", r.Rule, r.Mode, strings.TrimSuffix(r.Limit, ","), r.Worst, r.Declared,
			r.Beyond, r.AdmittedRate, r.DeniedRate)
	}
	fmt.Fprintln(t)
	return t.Flush()
}
