package debugport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/ratelimit"
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

// Help is what `sluice top --help` says below its summary.
func (*Top) Help() string {
	return `A node that does not answer stays in the table, with the time of its last answer. Its counts stay in the sums.

Examples:

  sluice top node1:6070 node2:6070
  sluice top --all node1:6070
  sluice top --json --times=1 node1:6070 | jq .rules`
}

// Run prints a table for each look. It blocks until it is interrupted, or has
// looked as often as it should. It fails only if no node answers the first look.
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
		if shown == c.Times {
			stop()
		}
		v.Rules = v.Rules[:min(c.Rules, len(v.Rules))]
		if c.JSON {
			return s.JSONLine(v)
		}
		if c.Times != 1 && cli.Terminal(s.Out) { // the page begins anew
			fmt.Fprintf(s.Out, "\x1b[H\x1b[2J")
		}
		return v.write(s.Out)
	})
}

func (v *Summary) write(out io.Writer) error {
	answer, open, seats := 0, 0, 0
	for i := range v.Nodes {
		n := &v.Nodes[i].state
		switch {
		case v.Nodes[i].err != nil:
			continue
		case n.Store.BreakerOpen:
			open++
		case n.Seat != nil && *n.Seat >= 0:
			seats++
		}
		answer++
	}
	fmt.Fprintf(out, "%d of %d nodes answer (store does not answer: %d, with a drift seat: %d)   "+
		"%.0f calls/s, %.0f refused, %.0f errors   %.0f store operations/s   %.0f decided without the store/s\n",
		answer, len(v.Nodes), open, seats, v.Calls, v.Refused, v.Failed, v.Trips, v.Alone)
	v.writeTrouble(out)
	fmt.Fprintln(out)
	t := cli.Columns(out)
	fmt.Fprintln(t, "RULE\tLIMIT\tMODE\tADMITTED/S\tDENIED/S\tMAY GO OVER BY\tNEAR\tBEYOND\tOVER IN ALL\tDRIFT\tLEASED\t")
	for i := range v.Rules {
		r := &v.Rules[i]
		fmt.Fprintf(t, "%s.%s\t%s\t%s\t%.0f\t%.0f\t%d\t%d\t%d\t%d\t%d\t%d\t\n", r.Domain, r.Rule, r.Limit, r.Mode, r.AdmittedRate,
			r.DeniedRate, r.Declared, r.Near, r.Beyond, r.Over, r.Drifting, r.Leased)
	}
	return t.Flush()
}

// writeTrouble names the faults of nodes, and their rules.
func (v *Summary) writeTrouble(out io.Writer) {
	switch {
	case len(v.Sets) == 1:
		fmt.Fprintf(out, "rules %s\n", v.Sets[0].Fingerprint)
	case len(v.Sets) > 1:
		fmt.Fprintln(out, "NODES HAVE DIFFERENT RULES (runbook: rules-differ):")
		for _, s := range v.Sets {
			fmt.Fprintf(out, "  %s on %s\n", s.Fingerprint, strings.Join(s.Nodes, ", "))
		}
	}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if n.err != nil {
			fmt.Fprintf(out, "%s DOES NOT ANSWER: %s%s (runbook: node-down)\n", n.Debug, away(n.err), v.lastSeen(n))
			continue
		}
		if n.state.Config.Error != "" {
			first, _, _ := strings.Cut(n.state.Config.Error, "\n")
			fmt.Fprintf(out, "%s REFUSES NEWER RULES: %s (runbook: config-rejected)\n", n.Debug, first)
		}
		for _, p := range n.state.Problems {
			if !slices.Contains([]string{"config-rejected", "node-down", "rules-differ"}, p.Runbook) {
				fmt.Fprintf(out, "%s: %s. %s (runbook: %s)\n", n.Debug, p.What, strings.TrimSuffix(p.Detail, "."), p.Runbook)
			}
		}
	}
}

// away says why a node does not answer, without its address.
func away(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no reply in %v", patience)
	}
	if dialed, ok := errors.AsType[*net.OpError](err); ok {
		return dialed.Err.Error()
	}
	return ratelimit.OneLine(err.Error())
}

// lastSeen says when a node last answered here, or reported itself to the store; "" if neither is known.
func (v *Summary) lastSeen(n *Node) string {
	last := n.LastAnswer
	for i := range v.Nodes {
		said := &v.Nodes[i].state
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
