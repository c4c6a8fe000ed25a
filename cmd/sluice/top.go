package main

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// topCmd shows what nodes do, again and again.
type topCmd struct {
	Debug []string      `arg:"" optional:"" default:"localhost:6070" help:"Debug ports of nodes, HOST:PORT; their counts are summed."`
	All   bool          `help:"Also all nodes that share the store of the first."`
	Every time.Duration `default:"2s" help:"Between two looks."`
	Times int           `help:"Looks, after the first; 0: until interrupted."`
	Rules int           `default:"20" help:"Rules to show."`
}

// Run prints a table for each look. It blocks until it is interrupted, or has
// looked as often as it should.
func (c *topCmd) Run(s streams) error {
	if c.Every < 100*time.Millisecond {
		return fmt.Errorf("--every is %v, must be at least 100ms", c.Every)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if c.All {
		if err := c.findAll(); err != nil {
			return err
		}
	}
	before, err := c.look()
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Every):
		}
		now, err := c.look()
		if err != nil {
			return err
		}
		if s.progress() != nil { // a terminal: the page begins anew
			fmt.Fprintf(s.out, "\x1b[H\x1b[2J")
		}
		if err := c.print(s.out, before, now); err != nil {
			return err
		}
		if before = now; n == c.Times {
			return nil
		}
	}
}

// findAll adds the nodes that the first one knows of.
func (c *topCmd) findAll() error {
	var s console.State
	if err := debugGet(c.Debug[0], "/console/state", &s); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		if !n.Here && !slices.Contains(c.Debug, n.Debug) {
			c.Debug = append(c.Debug, n.Debug)
		}
	}
	return nil
}

// looked is all nodes at one time.
type looked struct {
	at    time.Time
	nodes []console.State
	rules map[string]*metrics.RuleState // by domain, rule and mode
	total struct{ calls, over, trips, fallbacks uint64 }
}

func (c *topCmd) look() (*looked, error) {
	v := &looked{at: time.Now(), rules: map[string]*metrics.RuleState{}}
	for _, address := range c.Debug {
		var s console.State
		if err := debugGet(address, "/console/state", &s); err != nil {
			return nil, err
		}
		v.nodes = append(v.nodes, s)
		v.total.calls += s.Calls
		v.total.over += s.OverLimit
		v.total.trips += s.Store.RoundTrips
		for _, n := range s.Fallbacks {
			v.total.fallbacks += n
		}
		for i := range s.Rules {
			v.add(&s.Rules[i])
		}
	}
	return v, nil
}

func (v *looked) add(r *metrics.RuleState) {
	name := r.Domain + "\x00" + r.Rule + "\x00" + r.Mode
	all := v.rules[name]
	if all == nil {
		v.rules[name] = r
		return
	}
	all.Decisions, all.Denied, all.Admitted = all.Decisions+r.Decisions, all.Denied+r.Denied, all.Admitted+r.Admitted
	all.Near, all.Beyond = all.Near+r.Near, all.Beyond+r.Beyond
	all.Over, all.Under, all.Drifting, all.Leased = all.Over+r.Over, all.Under+r.Under, all.Drifting+r.Drifting, all.Leased+r.Leased
	all.Stranded = max(all.Stranded, r.Stranded)
}

func (c *topCmd) print(out io.Writer, before, now *looked) error {
	seconds := now.at.Sub(before.at).Seconds()
	rate := func(now, before uint64) string { return fmt.Sprintf("%.0f", float64(now-min(before, now))/seconds) }
	open, seats := 0, 0
	for i := range now.nodes {
		if n := &now.nodes[i]; n.Store.BreakerOpen {
			open++
		} else if n.Seat != nil && *n.Seat >= 0 {
			seats++
		}
	}
	fmt.Fprintf(out, "%d nodes (store does not answer: %d, with a drift seat: %d)   %s calls/s, %s refused   %s store operations/s   %s decided without the store/s\n\n",
		len(now.nodes), open, seats, rate(now.total.calls, before.total.calls), rate(now.total.over, before.total.over),
		rate(now.total.trips, before.total.trips), rate(now.total.fallbacks, before.total.fallbacks))
	names := make([]string, 0, len(now.rules))
	for name := range now.rules {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if x, y := now.rules[a].Decisions, now.rules[b].Decisions; x != y {
			return int(int64(y) - int64(x))
		}
		return strings.Compare(a, b)
	})
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RULE\tLIMIT\tMODE\tADMITTED/S\tDENIED/S\tMAY GO OVER BY\tNEAR\tBEYOND\tOVER IN ALL\tDRIFT\tLEASED\tSTRANDED\t")
	for _, name := range names[:min(c.Rules, len(names))] {
		r, old := now.rules[name], before.rules[name]
		if old == nil {
			old = r
		}
		fmt.Fprintf(t, "%s.%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", r.Domain, r.Rule, r.Limit, r.Mode, rate(r.Admitted, old.Admitted), rate(r.Denied, old.Denied),
			r.Declared, r.Near, r.Beyond, r.Over, r.Drifting, r.Leased, r.Stranded)
	}
	return t.Flush()
}
