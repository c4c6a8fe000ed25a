// Command sluicelab is Sluice's laboratory: demo shows a fleet at work, what-if compares the modes, bench measures real
// processes, sim plays fleets in virtual time.
//
// It is not part of the product. Its nodes are the sluice that --sluice names, the one in its own directory, one on the
// PATH, or one that it builds from this module.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/alecthomas/kong"
	"github.com/sluice-gate/sluice/cmd/cli"
)

// commands are the command line.
type commands struct {
	Demo   demoCmd   `cmd:"" help:"Run a fleet under load on this machine."`
	WhatIf whatIfCmd `cmd:"" name:"what-if" help:"Compare the modes for a limit and a demand, simulated, and recommend one."`
	Bench  benchCmd  `cmd:"" help:"Measure real processes."`
	Sim    simCmd    `cmd:"" help:"Simulate fleets in virtual time."`
}

// simCmd has the simulation that checks invariants and bounds. what-if is one, too, but answers a question of a user.
type simCmd struct {
	Histories historiesCmd `cmd:"" help:"Simulate random fleets, settings and faults, and check each invariant at each step."`
}

func main() { os.Exit(run(os.Args[1:], cli.Streams{Out: os.Stdout, Err: os.Stderr})) }

//go:embed help.txt
var helpText string

// run runs one command line and returns its exit code.
func run(args []string, s cli.Streams) int {
	return cli.Run("sluicelab", new(commands), args, s, kong.Description("Measures and simulates Sluice."), cli.Details(helpText))
}

// measured is the sluice that a command runs.
type measured struct {
	Sluice string `env:"SLUICE_BINARY" type:"existingfile" placeholder:"FILE" help:"Binary of sluice. Default: the directory of sluicelab, the PATH, or a build of this module."`
}

// find returns the program's path; done removes what was built. It blocks while it builds. The order: --sluice, the
// directory of sluicelab, the PATH, and else a build, which needs Go.
func (m *measured) find() (path string, done func(), err error) {
	nothing := func() {}
	if m.Sluice != "" {
		path, err = filepath.Abs(m.Sluice)
		return path, nothing, err
	}
	self, err := os.Executable()
	if err != nil {
		return "", nil, fmt.Errorf("finding this binary: %w", err)
	}
	path = filepath.Join(filepath.Dir(self), "sluice")
	if _, err := os.Stat(path); err == nil {
		return path, nothing, nil
	}
	path, err = exec.LookPath("sluice")
	if err == nil {
		return path, nothing, nil
	}
	dir, err := os.MkdirTemp("", "sluicelab")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "sluice")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", path, "github.com/sluice-gate/sluice/cmd/sluice")
	if out, err := build.CombinedOutput(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("there is no sluice: name one by --sluice, or build it "+
			"(go build -o . ./cmd/...): %w: %s", err, out), os.RemoveAll(dir))
	}
	return path, func() { _ = os.RemoveAll(dir) }, nil
}
