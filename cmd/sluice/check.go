package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

type checkCmd struct {
	Path           string            `arg:"" help:"A file, or a directory read recursively."`
	Nodes          int               `default:"1" help:"How many nodes the fleet has."`
	IgnoreDotFiles bool              `env:"RUNTIME_IGNOREDOTFILES" name:"runtime-ignoredotfiles" help:"As for serve."`
	MergeDomains   bool              `env:"MERGE_DOMAIN_CONFIG" name:"merge-domain-config" help:"As for serve."`
	Coordination   coordinationFlags `embed:"" group:"coordination"`
	Bounds         ruleBoundFlags    `embed:""`
	Quotas         quotaCheckFlags   `embed:""`
}

var errCheckFailed = errors.New("the rules have problems")

// Run validates, and says so with the exit code: 0 all good, 1 not.
func (c *checkCmd) Run(s streams) error {
	if c.Nodes < 1 || c.Nodes > ratelimit.MaxMaxNodes {
		return fmt.Errorf("--nodes is %d, must be between 1 and %d", c.Nodes, ratelimit.MaxMaxNodes)
	}
	coordination, err := c.Coordination.coordination()
	if err := errors.Join(err, c.Bounds.validate(), c.Quotas.validate()); err != nil {
		return err
	}
	tree := config.Tree{Path: c.Path, IgnoreDotFiles: c.IgnoreDotFiles, Bounds: c.Bounds.bounds()}
	draft, err := tree.Read()
	if err != nil {
		return err
	}
	rules, warnings, problems := config.Build(draft, config.Options{
		Coordination: coordination, MergeDomains: c.MergeDomains, Bounds: c.Bounds.bounds(),
	})
	for _, w := range warnings {
		fmt.Fprintln(s.err, "warning:", w)
	}
	if len(problems) > 0 {
		fmt.Fprintln(s.err, problems)
		return errCheckFailed
	}
	for _, r := range rules.All() {
		for _, doubt := range r.Doubts() {
			fmt.Fprintf(s.err, "warning: %s.%s: %s\n", r.Domain, r.Path, doubt)
		}
	}
	fmt.Fprintln(s.out, "all rate limit configs ok")
	if err := c.declare(s.out, rules); err != nil || !c.Quotas.RLQS {
		return err
	}
	return c.Quotas.declare(s.out, rules)
}

func (c *checkCmd) declare(out io.Writer, rules *config.Rules) error {
	if len(rules.All()) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nWorst case for each key and window, on %d node(s):\n\n", c.Nodes)
	if err := c.table(out, rules, ratelimit.OwnMemory); err != nil {
		return err
	}
	if c.Nodes == 1 {
		return nil
	}
	fmt.Fprintf(out, "\nThe same with one store for all nodes:\n\n")
	return c.table(out, rules, ratelimit.SharedStore)
}

func (c *checkCmd) table(out io.Writer, rules *config.Rules, storage ratelimit.Storage) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RULE\tLIMIT\tMODE\tOVER-ADMISSION\tUNDER-ADMISSION\tLONGEST WAIT\tSTORE OPERATIONS\tIN AN OUTAGE\tWHEN DATA IS LOST")
	for _, r := range rules.All() {
		name := r.Domain + "." + r.Path
		b := r.Declare(c.Nodes, storage)
		if b.Unlimited {
			fmt.Fprintf(w, "%s\tunlimited\t-\t-\t-\t-\t-\t-\t-\n", name)
			continue
		}
		over := strconv.FormatInt(int64(b.Over), 10)
		if b.Over > 0 {
			over += fmt.Sprintf(" (%.4g%%)", b.OverPercent(r.Limit.Capacity()))
		}
		if b.OverNote != "" {
			over += ": " + b.OverNote
		}
		lost := "no store"
		if storage == ratelimit.SharedStore {
			lost = fmt.Sprintf("%d over, and what nodes that cannot tell it had spent", b.OnLoss)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, r.Limit, r.Coordination.Mode, over, b.Under, b.Wait, b.StoreOps, b.OnOutage, lost)
	}
	return w.Flush()
}
