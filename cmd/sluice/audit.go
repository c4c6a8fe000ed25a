package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/ratelimit"
)

// auditCmd replays the record of audited rules.
type auditCmd struct {
	Files  []string `arg:"" type:"existingfile" help:"Files of all nodes (AUDIT_FILE, and FILE.1)."`
	Rule   string   `help:"Part of the name of a rule."`
	Key    string   `help:"Part of the name of an account."`
	Events bool     `help:"Also print each event as JSON lines."`
	JSON   bool     `name:"json" help:"Print the windows as JSON lines."`
}

// Help is what `sluice audit --help` says below its summary.
func (*auditCmd) Help() string {
	return `Examples:

  sluice audit node1.jsonl node2.jsonl      the files of AUDIT_FILE, of any number of nodes
  sluice audit --rule edge.login *.jsonl*   of one rule`
}

// Run prints what each window admitted and refused, and fails if that exceeds the rule's declared bound.
func (c *auditCmd) Run(s cli.Streams) error {
	var all []audit.Event
	for _, name := range c.Files {
		events, missing, err := audit.ReadFile(name)
		if err != nil {
			return err
		}
		for _, m := range missing {
			fmt.Fprintln(s.Err, "sluice:", m)
		}
		all = append(all, events...)
	}
	events := len(all)
	all = slices.DeleteFunc(all, func(e audit.Event) bool {
		return !strings.Contains(e.Rule, c.Rule) || !strings.Contains(e.Key, c.Key)
	})
	if c.Events {
		for i := range all {
			if err := s.JSONLine(&all[i]); err != nil {
				return err
			}
		}
	}
	windows := audit.Replay(all)
	if len(windows) == 0 {
		return fmt.Errorf("the record is empty, or --rule %q and --key %q leave out its %d events: check them, and that a rule has "+
			"coordination: {audit: true}", c.Rule, c.Key, events)
	}
	if err := c.print(s, windows); err != nil {
		return err
	}
	broken := 0
	for _, w := range windows {
		if !w.Held() {
			broken++
		}
	}
	if broken > 0 {
		return fmt.Errorf("%d of %d windows exceeded their limit and the declared bound", broken, len(windows))
	}
	return nil
}

// print prints the usage of each window.
func (c *auditCmd) print(s cli.Streams, windows []*audit.Window) (err error) {
	if !c.JSON {
		return printWindows(s.Out, windows)
	}
	for _, w := range windows {
		err = errors.Join(err, s.JSONLine(struct {
			*audit.Window
			Held bool `json:"held"`
		}{w, w.Held()}))
	}
	return err
}

// printWindows prints the usage of each window, and the causes of usage beyond its limit.
func printWindows(out io.Writer, windows []*audit.Window) error {
	t := cli.Columns(out)
	fmt.Fprintln(t, "RULE\tACCOUNT\tWINDOW ENDS\tLIMIT\tADMITTED\tREFUSED\tREFUSED BUT CHARGED\tCHARGED AT MOST\t"+
		"CHARGED AFTER THE FACT\tOVER-ADMITTED\tMAY BE\tNOT ON RECORD\tHOLDERS\tMESSAGES\t")
	var debt ratelimit.Tokens
	for _, w := range windows {
		ends, charged, verdict := w.Ends.Format(time.RFC3339), fmt.Sprint(w.Taken), "held"
		if w.Window == 0 {
			ends, charged = "(bucket)", charged+" since "+w.Begins.Format(time.RFC3339)
		}
		if !w.Held() {
			verdict = "BROKEN"
		}
		debt += w.Debt
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", w.Rule, w.Key, ends, w.Limit,
			w.Admitted, w.Refused, w.RefusedCharged, charged, w.Debt, w.Over, w.Bound, w.Unrecorded, w.Holders, w.Events,
			verdict)
	}
	if err := t.Flush(); err != nil || debt == 0 {
		return err
	}
	_, err := fmt.Fprintf(out, "Charged after the fact beyond the limits: %d. Such charges are booked whole.\n", debt)
	return err
}
