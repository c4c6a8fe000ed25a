package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/sluice-gate/sluice/cmd/sluice/cli"
	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// topCmd shows what nodes do, again and again.
type topCmd struct {
	Debug []string      `arg:"" optional:"" default:"${debug}" help:"Debug ports of nodes, HOST:PORT. Counts are sums."`
	All   bool          `help:"Include all nodes that share the store of the first node that answers."`
	Every time.Duration `default:"2s" help:"Time between two refreshes."`
	Times int           `help:"Number of tables to print, the first after --every (0: until interrupted)."`
	Rules int           `default:"20" help:"Number of rules to show."`
	JSON  bool          `name:"json" help:"Print a line of JSON for each refresh."`
}

// Help is what `sluice top --help` says below its summary.
func (*topCmd) Help() string {
	return `A node that does not answer stays in the table, with the time of its last answer. Its counts stay in the sums.

Examples:

  sluice top node1:6070 node2:6070
  sluice top --all node1:6070
  sluice top --json --times=1 node1:6070 | jq .rules`
}

// Run prints a table for each look. It blocks until it is interrupted, or has
// looked as often as it should. It fails only if no node answers the first look.
func (c *topCmd) Run(s cli.Streams) error {
	if c.Every < 100*time.Millisecond {
		return fmt.Errorf("--every is %v, must be at least 100ms", c.Every)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	before := c.look(nil)
	if err := before.failed(); err != nil {
		return err
	}
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Every):
		}
		now := c.look(before)
		if err := c.show(s, before, now); err != nil {
			return err
		}
		if before = now; n == c.Times {
			return nil
		}
	}
}

func (c *topCmd) show(s cli.Streams, before, now *looked) error {
	if c.JSON {
		return json.NewEncoder(s.Out).Encode(c.summary(before, now))
	}
	if s.Progress() != nil { // a terminal: the page begins anew
		fmt.Fprintf(s.Out, "\x1b[H\x1b[2J")
	}
	return c.print(s.Out, before, now)
}

// seen is the last answer of a node.
type seen struct {
	debug string
	state console.State
	heard time.Time // zero: never
	err   error     // why not now; nil: it answered
}

// looked is all nodes at one time.
type looked struct {
	at    time.Time
	nodes []seen
	rules map[string]*metrics.RuleState // by domain, rule and mode
	total struct{ calls, over, trips, fallbacks uint64 }
}

// failed is why no node answered, nil if one did.
func (v *looked) failed() error {
	var errs []error
	for i := range v.nodes {
		if v.nodes[i].err == nil {
			return nil
		}
		errs = append(errs, v.nodes[i].err)
	}
	return errors.Join(errs...)
}

// mostTopNodes bounds the asked nodes.
const mostTopNodes = 200

// look asks all nodes at once. What one said last stays where it does not answer.
func (c *topCmd) look(before *looked) *looked {
	v := &looked{at: time.Now(), rules: map[string]*metrics.RuleState{}}
	v.ask(c.Debug)
	if c.All {
		v.ask(v.others())
	}
	if before != nil {
		v.remember(before)
	}
	for i := range v.nodes {
		if n := &v.nodes[i]; !n.heard.IsZero() {
			v.add(&n.state)
		}
	}
	return v
}

// ask adds nodes, in the order of their addresses as given.
func (v *looked) ask(addresses []string) {
	first := len(v.nodes)
	for _, address := range addresses {
		v.nodes = append(v.nodes, seen{debug: address})
	}
	var all sync.WaitGroup
	for i := range v.nodes[first:] {
		n := &v.nodes[first+i]
		all.Go(func() {
			if n.err = debugGet(n.debug, "/console/state", &n.state); n.err == nil {
				n.heard = v.at
			}
		})
	}
	all.Wait()
}

// others are the nodes that answers name, without those that were asked.
func (v *looked) others() (addresses []string) {
	var asked []string // also the entry of a node before its last restart
	for i := range v.nodes {
		asked = append(asked, v.nodes[i].debug)
		for _, n := range v.nodes[i].state.Nodes {
			if n.Here {
				asked = append(asked, n.Debug)
			}
		}
	}
	for i := range v.nodes {
		for _, n := range v.nodes[i].state.Nodes {
			if !slices.Contains(asked, n.Debug) && !slices.Contains(addresses, n.Debug) && len(addresses) < mostTopNodes {
				addresses = append(addresses, n.Debug)
			}
		}
	}
	return addresses
}

// remember takes from the look before what nodes said that do not answer, and those
// nodes that are no longer named.
func (v *looked) remember(before *looked) {
	for _, old := range before.nodes {
		i := slices.IndexFunc(v.nodes, func(n seen) bool { return n.debug == old.debug })
		switch {
		case i < 0:
			old.err = errors.New("it left the registry of nodes")
			v.nodes = append(v.nodes, old)
		case v.nodes[i].err != nil:
			v.nodes[i].state, v.nodes[i].heard = old.state, old.heard
		}
	}
}

func (v *looked) add(s *console.State) {
	v.total.calls += s.Calls
	v.total.over += s.OverLimit
	v.total.trips += s.Store.RoundTrips
	for _, n := range s.Fallbacks {
		v.total.fallbacks += n
	}
	for i := range s.Rules {
		v.addRule(s.Rules[i])
	}
}

// addRule takes the rule by value: what a node said last is summed at each look.
func (v *looked) addRule(r metrics.RuleState) {
	name := r.Domain + "\x00" + r.Rule + "\x00" + r.Mode
	all := v.rules[name]
	if all == nil {
		v.rules[name] = &r
		return
	}
	all.Decisions, all.Denied, all.Admitted = all.Decisions+r.Decisions, all.Denied+r.Denied, all.Admitted+r.Admitted
	all.Near, all.Beyond, all.Worst = all.Near+r.Near, all.Beyond+r.Beyond, all.Worst+r.Worst
	all.Over, all.Under, all.Drifting, all.Leased = all.Over+r.Over, all.Under+r.Under, all.Drifting+r.Drifting, all.Leased+r.Leased
}

// topSummary is a look, for programs.
type topSummary struct {
	At      time.Time     `json:"at"`
	Seconds float64       `json:"seconds"` // since the look before; rates are over them
	Nodes   []topNode     `json:"nodes"`
	Calls   float64       `json:"calls_per_second"`
	Refused float64       `json:"refused_per_second"`
	Trips   float64       `json:"store_operations_per_second"`
	Alone   float64       `json:"decided_without_store_per_second"`
	Rules   []topRule     `json:"rules"`
	Sets    []topRulesSet `json:"rule_sets"` // of nodes that answer; more than one: they differ
}

type topNode struct {
	Debug       string    `json:"debug"`
	Answers     bool      `json:"answers"`
	Error       string    `json:"error,omitempty"`
	Heard       time.Time `json:"last_heard,omitzero"`
	Version     string    `json:"version"`
	Rules       string    `json:"rules"` // fingerprint
	RulesGood   bool      `json:"rules_good"`
	StoreFailed bool      `json:"store_does_not_answer"`
}

type topRule struct {
	metrics.RuleState
	AdmittedRate float64 `json:"admitted_per_second"`
	DeniedRate   float64 `json:"denied_per_second"`
}

type topRulesSet struct {
	Fingerprint string   `json:"fingerprint"`
	Nodes       []string `json:"nodes"`
}

func (c *topCmd) summary(before, now *looked) *topSummary {
	v := &topSummary{At: now.at.UTC(), Seconds: now.at.Sub(before.at).Seconds(), Sets: now.sets()}
	rate := func(now, before uint64) float64 { return float64(now-min(before, now)) / v.Seconds }
	v.Calls, v.Refused = rate(now.total.calls, before.total.calls), rate(now.total.over, before.total.over)
	v.Trips, v.Alone = rate(now.total.trips, before.total.trips), rate(now.total.fallbacks, before.total.fallbacks)
	for i := range now.nodes {
		n := &now.nodes[i]
		node := topNode{
			Debug: n.debug, Answers: n.err == nil, Heard: n.heard, Version: n.state.Version,
			Rules: n.state.Config.Fingerprint, RulesGood: n.state.Config.Good, StoreFailed: n.state.Store.BreakerOpen,
		}
		if n.err != nil {
			node.Error = n.err.Error()
		}
		v.Nodes = append(v.Nodes, node)
	}
	for _, name := range now.busiest(c.Rules) {
		r, old := now.rules[name], before.rules[name]
		if old == nil {
			old = r
		}
		v.Rules = append(v.Rules, topRule{*r, rate(r.Admitted, old.Admitted), rate(r.Denied, old.Denied)})
	}
	return v
}

// sets are the sets of rules that nodes which answer have in force.
func (v *looked) sets() (sets []topRulesSet) {
	for i := range v.nodes {
		n := &v.nodes[i]
		if n.err != nil {
			continue
		}
		print := n.state.Config.Fingerprint
		at := slices.IndexFunc(sets, func(s topRulesSet) bool { return s.Fingerprint == print })
		if at < 0 {
			at, sets = len(sets), append(sets, topRulesSet{Fingerprint: print})
		}
		sets[at].Nodes = append(sets[at].Nodes, n.debug)
	}
	return sets
}

// busiest are the names of n rules, those with most decisions first.
func (v *looked) busiest(n int) []string {
	names := make([]string, 0, len(v.rules))
	for name := range v.rules {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if x, y := v.rules[a].Decisions, v.rules[b].Decisions; x != y {
			return int(int64(y) - int64(x))
		}
		return strings.Compare(a, b)
	})
	return names[:min(n, len(names))]
}

func (c *topCmd) print(out io.Writer, before, now *looked) error {
	v := c.summary(before, now)
	answer, open, seats := 0, 0, 0
	for i := range now.nodes {
		n := &now.nodes[i].state
		switch {
		case now.nodes[i].err != nil:
			continue
		case n.Store.BreakerOpen:
			open++
		case n.Seat != nil && *n.Seat >= 0:
			seats++
		}
		answer++
	}
	fmt.Fprintf(out, "%d nodes (store does not answer: %d, with a drift seat: %d)   %.0f calls/s, %.0f refused   "+
		"%.0f store operations/s   %.0f decided without the store/s\n", answer, open, seats, v.Calls, v.Refused, v.Trips, v.Alone)
	now.trouble(out, v.Sets)
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RULE\tLIMIT\tMODE\tADMITTED/S\tDENIED/S\tMAY GO OVER BY\tNEAR\tBEYOND\tOVER IN ALL\tDRIFT\tLEASED\t")
	for i := range v.Rules {
		r := &v.Rules[i]
		fmt.Fprintf(t, "%s.%s\t%s\t%s\t%.0f\t%.0f\t%d\t%d\t%d\t%d\t%d\t%d\t\n", r.Domain, r.Rule, r.Limit, r.Mode, r.AdmittedRate,
			r.DeniedRate, r.Declared, r.Near, r.Beyond, r.Over, r.Drifting, r.Leased)
	}
	return t.Flush()
}

// trouble names the faults of nodes, and their rules.
func (v *looked) trouble(out io.Writer, sets []topRulesSet) {
	switch {
	case len(sets) == 1:
		fmt.Fprintf(out, "rules %s\n", sets[0].Fingerprint)
	case len(sets) > 1:
		fmt.Fprintln(out, "NODES HAVE DIFFERENT RULES:")
		for _, s := range sets {
			fmt.Fprintf(out, "  %s on %s\n", s.Fingerprint, strings.Join(s.Nodes, ", "))
		}
	}
	for i := range v.nodes {
		n := &v.nodes[i]
		switch {
		case n.err != nil && n.heard.IsZero():
			fmt.Fprintf(out, "%s DOES NOT ANSWER\n", n.debug)
		case n.err != nil:
			fmt.Fprintf(out, "%s DOES NOT ANSWER, last seen %v ago\n", n.debug, v.at.Sub(n.heard).Round(time.Second))
		case !n.state.Config.Good:
			first, _, _ := strings.Cut(n.state.Config.Error, "\n")
			fmt.Fprintf(out, "%s REFUSES NEWER RULES: %s\n", n.debug, first)
		}
		for _, p := range n.state.Problems {
			if n.err == nil && !slices.Contains([]string{"config-rejected", "node-down", "rules-differ"}, p.Runbook) {
				fmt.Fprintf(out, "%s: %s (runbook: %s)\n", n.debug, p.What, p.Runbook)
			}
		}
	}
}
