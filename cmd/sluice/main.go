// Command sluice is a rate limit service for fleets of Envoy proxies.
//
// It is one binary with a few commands: serve answers Envoy, check validates
// rules and declares their worst case. See --help of each. Command sluicelab
// measures and simulates.
//
// The build tag server leaves out demo and what-if, with the load generator,
// the simulator and the plotting that only those need: so the image is built.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	_ "time/tzdata" // the zones of billing periods, for machines and images that have no zone database

	"github.com/alecthomas/kong"

	"github.com/sluice-gate/sluice/ratelimit"
)

type cli struct {
	Serve      serveCmd    `cmd:"" help:"Answer Envoy's rate limit requests."`
	Settings   settingsCmd `cmd:"" help:"Print the settings in force, and the source of each value."`
	Check      checkCmd    `cmd:"" help:"Validate rules like the server, and print the worst case of each."`
	Explain    explainCmd  `cmd:"" help:"Explain the next decision of a running node for a descriptor."`
	Top        topCmd      `cmd:"" help:"Show rules, limits, drift and the store of running nodes."`
	Admin      adminCmd    `cmd:"" help:"Correct limits on running nodes, with their ADMIN_TOKEN."`
	Limit      limitCmd    `cmd:"" help:"Override the limits of keys at run time, with the ADMIN_TOKEN of the nodes."`
	Audit      auditCmd    `cmd:"" help:"Replay the record of audited rules: usage of each window, and whether its limit held."`
	laboratory `embed:""`
	Version    versionCmd         `cmd:"" help:"Print version, commit and platform."`
	Completion completionCmd      `cmd:"" help:"Print a completion script for a shell."`
	Words      completionWordsCmd `cmd:"" name:"completion-words" hidden:"" help:"Print the words that may follow those of a command line."`
	ShortOf    kong.VersionFlag   `name:"version" help:"Print the version."`
}

// streams are where a command writes; tests read them.
type streams struct{ out, err io.Writer }

// progress is where a long run says how far it is: a terminal, or nowhere.
func (s streams) progress() io.Writer {
	f, ok := s.err.(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return s.err
}

// writeJSON writes a value for programs.
func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func main() { os.Exit(run(arguments(os.Args), streams{os.Stdout, os.Stderr})) }

// arguments are those of the command line. Called as ratelimit, as in the image
// that ours may replace, it serves.
func arguments(args []string) []string {
	if len(args) == 1 && filepath.Base(args[0]) == "ratelimit" {
		return []string{"serve"}
	}
	return args[1:]
}

// run runs one command line and returns its exit code.
func run(args []string, s streams) int {
	exit := -1
	parser, err := newParser(s, func(code int) { exit = code })
	if err != nil {
		fmt.Fprintln(s.err, "sluice:", err)
		return 2
	}
	ctx, err := parser.Parse(args)
	if exit >= 0 {
		return exit
	}
	if err != nil {
		if bad, ok := errors.AsType[*fileError](err); ok {
			err = bad
		}
		fmt.Fprintln(s.err, "sluice:", err)
		return 2
	}
	if err := ctx.Run(); err != nil {
		fmt.Fprintln(s.err, "sluice:", err)
		return 1
	}
	return 0
}

// newParser reads command lines. exit is called where nothing is left to run.
func newParser(s streams, exit func(code int)) (*kong.Kong, error) {
	file := &fileSettings{}
	parser, err := kong.New(&cli{},
		kong.Name("sluice"),
		kong.Description("A rate-limit service for fleets of Envoy gateways. Settings are flags or environment variables; "+
			"the names are those of envoyproxy/ratelimit."),
		kong.Vars{
			"version": version(), "modes": strings.Join(ratelimit.ModeNames(), ", "),
			// In a pod, commands ask its own node.
			"debug": "localhost:" + cmp.Or(os.Getenv("DEBUG_PORT"), "6070"),
		},
		kong.Writers(s.out, s.err),
		kong.Exit(exit),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.Bind(s, file),
		kong.Resolvers(file),
		kong.Help(briefHelp),
		kong.ExplicitGroups(groups),
	)
	if err == nil {
		(*auditCmd)(nil).hideForServe(parser.Model.Node)
	}
	return parser, err
}

// released is the version that make release gives a binary; "": none.
var released string

// version is the release's, or the module's as the Go tool recorded it.
func version() string {
	if released != "" {
		return released
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
