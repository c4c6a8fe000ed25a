package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// descriptorArgs name one descriptor on a command line.
type descriptorArgs struct {
	Domain  string   `arg:"" help:"Domain."`
	Entries []string `arg:"" help:"The descriptor's entries, key=value, in their order."`
}

func (d *descriptorArgs) query() string {
	return url.Values{"domain": {d.Domain}, "entry": d.Entries}.Encode()
}

// debugGet reads JSON from a node's debug port.
func debugGet(address, path string, into any) error {
	return debugCall(http.MethodGet, address, path, "", into)
}

func debugCall(method, address, path, token string, into any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, nil)
	if err != nil {
		return fmt.Errorf("--debug %s: %w", address, err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("the debug port (--debug, DEBUG_PORT of the node) does not answer: %w", err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	if answer.StatusCode != http.StatusOK {
		var refusal struct{ Error string }
		if err := json.Unmarshal(body, &refusal); err != nil || refusal.Error == "" {
			refusal.Error = answer.Status
		}
		return fmt.Errorf("%s: %s", address, refusal.Error)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s is no debug port of sluice: %w", address, err)
	}
	return nil
}

// explainCmd asks a node what a descriptor would get, and why.
type explainCmd struct {
	descriptorArgs
	Debug string `default:"localhost:6070" placeholder:"HOST:PORT" help:"A node's debug port."`
	JSON  bool   `name:"json" help:"As JSON."`
}

// Run prints the explanation.
func (c *explainCmd) Run(s streams) error {
	if c.JSON {
		var raw json.RawMessage
		if err := debugGet(c.Debug, "/explain?"+c.query(), &raw); err != nil {
			return err
		}
		_, err := fmt.Fprintf(s.out, "%s\n", raw)
		return err
	}
	var e console.Explanation
	if err := debugGet(c.Debug, "/explain?"+c.query(), &e); err != nil {
		return err
	}
	return printExplanation(s.out, &e)
}

func printExplanation(out io.Writer, e *console.Explanation) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("next request", "%s", e.Next)
	for _, step := range e.Steps {
		matched := step.Matched
		if matched == "" {
			matched = "nothing"
		}
		row("matched", "%s by %s: %s", step.Entry, matched, step.Why)
	}
	if e.Rule != "" {
		row("rule", "%s.%s", e.Domain, e.Rule)
	}
	if e.Limit != "" {
		row("limit", "%s, mode %s, on_store_failure %s", e.Limit, e.Mode, e.OnFailure)
		row("over-admission", "%s", e.Declared)
	}
	if v := e.Look; v != nil {
		row("account", "%s", v.Account)
		if v.Owner != "" {
			row("owner", "%s", v.Owner)
		}
		if l := v.Lease; l != nil {
			row("lease here", "window %d, fence %d: granted %d, spent %d, unspent %d; expires in %v, heard %v ago", l.Window, l.Fence, l.Granted, l.Spent, l.Unspent, l.Expires.Round(time.Millisecond), l.Heard.Round(time.Millisecond))
		} else {
			row("lease here", "none")
		}
		switch {
		case v.LedgerError != "":
			row("ledger", "%s", v.LedgerError)
		case v.Ledger == nil:
			row("ledger", "has no account: nothing was spent")
		default:
			row("ledger", "%d of %d left in window %d", v.Ledger.Free, v.Ledger.Limit, v.Ledger.Window)
			for _, h := range v.Ledger.Holders {
				where := fmt.Sprint(h.Holder)
				if h.Node != "" {
					where = h.Node
				}
				if h.Here {
					where += " (this node)"
				}
				row("holder", "%s, fence %d: granted %d, spent %d, outstanding %d; expires in %v", where, h.Fence, h.Granted, h.Spent, h.Outstanding, h.Expires.Round(time.Millisecond))
			}
		}
	}
	return t.Flush()
}

// adminCmd are corrections on running nodes.
type adminCmd struct {
	Reset adminResetCmd `cmd:"" help:"Have the ledger count a descriptor from nothing again in this window."`
	Drop  adminDropCmd  `cmd:"" help:"Have nodes give back what their leases of a descriptor have left, and ask the ledger next time."`
}

type adminFlags struct {
	descriptorArgs
	Debug []string `default:"localhost:6070" sep:"," placeholder:"HOST:PORT,..." help:"Debug ports of all nodes."`
	Token string   `env:"ADMIN_TOKEN" required:"" help:"The nodes' ADMIN_TOKEN."`
}

type adminResetCmd struct{ adminFlags }

// Run resets by one node that can, and has all others drop their leases.
func (c *adminResetCmd) Run(s streams) error {
	var errs []error
	for i, address := range c.Debug {
		if err := c.call(s, address, "/admin/reset?"); err != nil {
			errs = append(errs, err) // perhaps another node owns it
			continue
		}
		for _, other := range slices.Delete(slices.Clone(c.Debug), i, i+1) {
			if err := c.call(s, other, "/admin/drop?"); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.Join(errs...)
}

type adminDropCmd struct{ adminFlags }

// Run drops the lease on every node named.
func (c *adminDropCmd) Run(s streams) error {
	for _, address := range c.Debug {
		if err := c.call(s, address, "/admin/drop?"); err != nil {
			return err
		}
	}
	return nil
}

func (c *adminFlags) call(s streams, address, path string) error {
	var answer struct{ Done string }
	if err := debugCall(http.MethodPost, address, path+c.query(), c.Token, &answer); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "%s: %s\n", address, answer.Done)
	return err
}

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
