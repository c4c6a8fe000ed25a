package main

import (
	"errors"

	"github.com/alecthomas/kong"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/cmd/sluice/settings"
)

// settingsCmd has the flags of serve.
type settingsCmd struct {
	flags
	JSON     bool `name:"json" help:"Print JSON."`
	Schema   bool `name:"schema" help:"Print the JSON Schema of settings files, for editors."`
	Markdown bool `name:"markdown" hidden:"" help:"Print docs/reference/settings.md."`
}

// Help is what `sluice settings --help` says below its summary.
func (*settingsCmd) Help() string {
	return `It takes the flags of serve, reads its environment, and starts nothing. Secrets are masked.

Examples:

  sluice settings --settings sluice.yaml       every setting in force, and the source of its value
  sluice settings --schema > settings.schema.json`
}

// Run prints the settings in force. It fails if serve would refuse a value without opening a file or a port.
func (c *settingsCmd) Run(s cli.Streams, ctx *kong.Context, file *settings.Values) error {
	switch {
	case c.Schema:
		return s.JSON(settings.Schema(ctx.Selected()))
	case c.Markdown:
		return settings.WritePage(s.Out, ctx.Selected())
	}
	all := settings.InForce(ctx, file)
	write := func() error { return settings.Write(s.Out, all) }
	if c.JSON {
		write = func() error { return s.JSON(all) }
	}
	written := write()
	_, noMemory := settings.MemoryOf(c.MaxMemory)
	_, noCoordination := c.Coordination.Default()
	return errors.Join(written, cli.Wrong(errors.Join(noMemory, c.validate(), noCoordination)))
}
