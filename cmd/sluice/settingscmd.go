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

// Run prints the settings in force. It fails if serve would refuse a value without opening a file or a port. The
// settings are printed also if one is wrong: a person looks for the wrong one there.
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
