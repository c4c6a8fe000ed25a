package debugport

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/console"
)

// Top is the command that shows what nodes do, again and again.
type Top struct {
	Debug []string      `arg:"" optional:"" default:"${debug}" help:"Debug ports of nodes, HOST:PORT. Counts are sums."`
	All   bool          `help:"Include all nodes that share the store of the first node that answers."`
	Every time.Duration `default:"2s" help:"Time between two refreshes."`
	Times int           `help:"Number of tables to print, the first after --every (0: until interrupted)."`
	Rules int           `default:"20" help:"Number of rules to show."`
	JSON  bool          `name:"json" help:"Print a line of JSON for each refresh."`
}

// Run prints a table for each look. It blocks until it is interrupted, or has looked as often as it should. It fails
// only if no node answers the first look.
func (c *Top) Run(s cli.Streams) error {
	if c.Every < 100*time.Millisecond || c.Times < 0 || c.Rules < 0 {
		return fmt.Errorf("--every is %v, must be at least 100ms; --times is %d and --rules %d, must not be negative",
			c.Every, c.Times, c.Rules)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	shown := 0
	return Watch(ctx, c.Debug, c.All, c.Every, func(v *Summary) error {
		shown++
		// stop ends the context, and Watch returns after this table.
		if shown == c.Times {
			stop()
		}
		// The rules with most decisions come first, so the others are cut.
		v.Rules = v.Rules[:min(c.Rules, len(v.Rules))]
		if c.JSON {
			return s.JSONLine(v)
		}
		// ESC [H goes to the upper left corner, and ESC [2J clears the screen.
		if c.Times != 1 && cli.Terminal(s.Out) { // the page begins anew
			fmt.Fprintf(s.Out, "\x1b[H\x1b[2J")
		}
		return v.write(s.Out)
	})
}

//go:embed top.txt
var topText string

// overview shows what nodes do, and their faults.
var overview = cli.NewText(topText, template.FuncMap{
	"away": away,
	"first": func(lines string) string {
		first, _, _ := strings.Cut(lines, "\n")
		return first
	},
	"others":   others,
	"sentence": func(text string) string { return strings.TrimSuffix(text, ".") },
})

// write adds counts of nodes to the summary: those that answer, that run without their store, and that have drift
// seats.
func (v *Summary) write(out io.Writer) error {
	shown := struct {
		*Summary
		Answer, Open, Seats int
	}{Summary: v}
	for i := range v.Nodes {
		n := &v.Nodes[i].State
		switch {
		case v.Nodes[i].Err != nil:
			continue
		// A node without its store cannot renew a seat, so it counts as open and not among the seats.
		case n.Store.BreakerOpen:
			shown.Open++
		case n.Seat != nil && *n.Seat >= 0:
			shown.Seats++
		}
		shown.Answer++
	}
	return overview.Write(out, shown)
}

// others are the problems of a node that the overview does not find by itself. The overview finds those three by
// comparing nodes, so a row of each node would repeat them.
func others(all []console.Problem) []console.Problem {
	return slices.DeleteFunc(slices.Clone(all), func(p console.Problem) bool {
		return slices.Contains([]string{"config-rejected", "node-down", "rules-differ"}, p.Runbook)
	})
}

// away says why a node does not answer, without its address. The causes are wrapped in texts of the HTTP client, which
// repeat the URL.
func away(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no reply in %v", patience)
	}
	if dialed, ok := errors.AsType[*net.OpError](err); ok {
		return dialed.Err.Error()
	}
	return ratelimit.OneLine(err.Error())
}

// LastSeen says when a node last answered here, or reported itself to the store; "" if neither is known. Other nodes
// list it with the seconds since its last registration, by their own Now.
func (v *Summary) LastSeen(n Node) string {
	last := n.LastAnswer
	for i := range v.Nodes {
		said := &v.Nodes[i].State
		for _, listed := range said.Nodes {
			if at := said.Now.Add(-time.Duration(listed.Seen) * time.Second); listed.Debug == n.Debug && at.After(last) {
				last = at
			}
		}
	}
	if last.IsZero() {
		return ""
	}
	return fmt.Sprintf(", last seen %v ago", max(0, v.At.Sub(last)).Round(time.Second))
}
