package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"

	"github.com/sluice-gate/sluice/bench/table"
)

type benchTableCmd struct {
	Keys  []int    `default:"1000000,5000000,10000000" help:"Number of keys."`
	Kinds []string `default:"local,fleet" enum:"local,fleet" help:"Kinds of tables: local (a node alone), fleet (a node with a shared store)."`
	JSON  bool     `help:"Print JSON."`
	Here  bool     `hidden:"" help:"Measure the first size and kind in this process."`
}

// Help is what `sluicelab bench table --help` says below its summary.
func (*benchTableCmd) Help() string {
	return `Examples:

  sluicelab bench table
  sluicelab bench table --kinds fleet --keys 1000000`
}

// Run measures each table in a process of its own, for memory that one has used is not
// another's.
func (c *benchTableCmd) Run(s streams) error {
	if c.Here {
		r, err := table.Run(table.Options{Kind: table.Kind(c.Kinds[0]), Keys: c.Keys[0], Progress: s.progress()})
		if err != nil {
			return err
		}
		return table.WriteJSON(s.out, []table.Result{r})
	}
	program, err := self()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var all []table.Result
	for _, kind := range c.Kinds {
		for _, n := range c.Keys {
			child := exec.CommandContext(ctx, program, "bench", "table", "--here", "--kinds", kind, "--keys", strconv.Itoa(n))
			child.Stderr = s.err
			out, err := child.Output()
			if err != nil {
				return fmt.Errorf("measuring %d keys in a %s table: %w", n, kind, err)
			}
			var r []table.Result
			if err := json.Unmarshal(out, &r); err != nil {
				return fmt.Errorf("measuring the cost of %d keys: %w", n, err)
			}
			all = append(all, r...)
		}
	}
	if c.JSON {
		return table.WriteJSON(s.out, all)
	}
	return table.WriteTable(s.out, all)
}
