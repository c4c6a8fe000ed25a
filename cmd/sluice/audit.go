package main

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// Run prints what each window admitted and refused, and fails if that exceeds the rule's declared bound. The files of
// all nodes are read as one record, because a window's usage is the sum over nodes. Lines that a full disk or a crash
// has cut off are reported, and the rest counts.
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
	// An empty filter is part of every name, so it leaves nothing out.
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
	// Without any window there is nothing that could have held: a check that passes would mislead.
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
		shown := struct {
			Windows []*audit.Window
			Debt    ratelimit.Tokens // of all
		}{Windows: windows}
		for _, w := range windows {
			shown.Debt += w.Debt
		}
		return windowsText.Write(s.Out, shown)
	}
	for _, w := range windows {
		err = errors.Join(err, s.JSONLine(struct {
			*audit.Window
			Held bool `json:"held"`
		}{w, w.Held()}))
	}
	return err
}

//go:embed audit.txt
var auditText string

// windowsText has a row for each window, and the causes of usage beyond its limit.
var windowsText = cli.NewText(auditText, nil)
