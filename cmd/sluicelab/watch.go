package main

import (
	"cmp"
	"context"
	"io"
	"slices"
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

// writeTable writes a table in words that need nothing explained. By name instead of by decisions, so that each rule
// keeps its line from table to table.
func writeTable(out io.Writer, after time.Duration, v *debugport.Summary) error {
	shown := struct {
		*debugport.Summary
		After  float64
		Silent int
	}{Summary: v, After: after.Seconds()}
	for i := range v.Nodes {
		if !v.Nodes[i].Answers {
			shown.Silent++
		}
	}
	slices.SortFunc(v.Rules, func(a, b debugport.Rule) int { return cmp.Compare(a.Rule, b.Rule) })
	return tableText.Write(out, shown)
}

// Each node's worst key may be another one: together they are the most that one key can have.
var tableText = cli.NewText(`after {{printf "%.0f" .After}} s{{with .Silent}}, and {{.}} of {{len $.Nodes}} nodes do not answer{{end}}:
  RULE	EACH KEY MAY HAVE	WORST KEY OVER BY	KEYS THAT BROKE THE BOUND	ADMITTED/S, ALL KEYS	REFUSED/S, ALL KEYS	
{{range .Rules}}  {{.Rule}} ({{.Mode}})	{{.Limit}}	{{.Worst}} of {{.Declared}} allowed	{{.Beyond}}	{{printf "%.0f\t%.0f" .AdmittedRate .DeniedRate}}	
{{end}}
`, nil)
