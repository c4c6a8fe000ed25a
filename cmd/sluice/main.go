// Command sluice is a rate limit service for fleets of Envoy proxies.
//
// It is one binary with a few commands: serve answers Envoy, check validates
// rules and declares their worst case. See --help of each. Command sluicelab
// shows a fleet at work, measures and simulates.
package main

import (
	"cmp"
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	_ "time/tzdata" // the zones of billing periods, for machines and images that have no zone database

	"github.com/alecthomas/kong"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/cmd/sluice/check"
	"github.com/sluice-gate/sluice/cmd/sluice/debugport"
	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/ratelimit"
)

// commands are the command line. Each field is a command, with its help in the tag. Longer texts are in help.txt, by
// the name of the command.
type commands struct {
	Serve      serveCmd           `cmd:"" help:"Answer Envoy's rate limit requests."`
	Settings   settingsCmd        `cmd:"" help:"Print the settings in force, and the source of each value."`
	Check      check.Command      `cmd:"" help:"Validate rules, and print the worst case of each."`
	Explain    debugport.Explain  `cmd:"" help:"Explain the next decision of a running node for a descriptor."`
	Top        debugport.Top      `cmd:"" help:"Show rules, limits, drift and the store of running nodes."`
	Admin      debugport.Admin    `cmd:"" help:"Correct limits on running nodes, with their ADMIN_TOKEN."`
	Limit      debugport.Limit    `cmd:"" help:"Override limits of keys at run time, with their ADMIN_TOKEN."`
	Audit      auditCmd           `cmd:"" help:"Check by the record of audited rules that limits held."`
	Version    versionCmd         `cmd:"" help:"Print version, commit and platform."`
	Completion completionCmd      `cmd:"" help:"Print a completion script for a shell."`
	Words      completionWordsCmd `cmd:"" name:"completion-words" hidden:"" help:"Print the words that may follow those of a command line."`
	ShortOf    kong.VersionFlag   `name:"version" help:"Print the version."`
}

func main() { os.Exit(runProgram(arguments(os.Args), cli.Streams{Out: os.Stdout, Err: os.Stderr})) }

// arguments are those of the command line. Called as ratelimit, as in the image
// that ours may replace, it serves.
func arguments(args []string) []string {
	if len(args) == 1 && filepath.Base(args[0]) == "ratelimit" {
		return []string{"serve"}
	}
	return args[1:]
}

// runProgram runs one command line and returns its exit code. Tests call it in place of main, with streams of their
// own.
func runProgram(args []string, s cli.Streams) int {
	return cli.Run("sluice", new(commands), args, s, programOptions()...)
}

//go:embed help.txt
var helpText string

// programOptions are what command lines refer to. The values of a settings file are bound twice: commands get them as
// an argument, and kong asks them for values as a resolver.
func programOptions() []kong.Option {
	file := new(settings.Values)
	return []kong.Option{
		kong.Description("A rate-limit service for fleets of Envoy gateways. Settings are flags or environment variables; " +
			"the names are those of envoyproxy/ratelimit."),
		kong.Vars{
			"version": version(), "modes": strings.Join(ratelimit.ModeNames(), ", "),
			// In a pod, commands ask its own node.
			"debug": "localhost:" + cmp.Or(os.Getenv("DEBUG_PORT"), "6070"),
		},
		kong.Bind(file, check.Version(version())),
		kong.Resolvers(file),
		kong.Help(settings.Help),
		kong.ExplicitGroups(settings.Sections),
		cli.Details(helpText),
	}
}
