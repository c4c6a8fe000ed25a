// Package sluicetest runs command lines as people do, for their tests.
package sluicetest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/sluice-gate/sluice/cmd/cli"
)

// Run runs one command line of a grammar, and returns the exit code and what it writes.
func Run(grammar any, args []string, options ...kong.Option) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = cli.Run("sluice", grammar, args, cli.Streams{Out: &o, Err: &e}, options...)
	return code, o.String(), e.String()
}

// Examples checks that the help of each command has examples, and that these are command lines of it.
func Examples(t *testing.T, program string, grammar any, options ...kong.Option) {
	t.Helper()
	parser, err := cli.NewParser(program, grammar, cli.Streams{Out: t.Output(), Err: t.Output()}, options...)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range parser.Model.Leaves(true) {
		name := strings.TrimPrefix(n.FullPath(), program+" ")
		found := 0
		for line := range strings.Lines(n.Detail) {
			args, ok := exampleArgs(program, line)
			if !ok {
				continue
			}
			found++
			if !strings.HasPrefix(strings.Join(args, " "), name) {
				t.Errorf("%s: the example %q is of another command", name, line)
			}
			if _, err := parser.Parse(args); err != nil && !strings.Contains(err.Error(), "no such file") {
				t.Errorf("%s: the example %q: %v", name, line, err)
			}
		}
		if n.Help == "" || !strings.Contains(n.Detail, "Examples:\n") || found == 0 {
			t.Errorf("%s has no help, or no example that is a command line:\n%s", name, n.Detail)
		}
	}
}

// exampleArgs are the arguments of the program on a line of examples: up to what explains
// it, which two spaces separate, or what the shell does with it.
func exampleArgs(program, line string) (args []string, ok bool) {
	line = strings.TrimSpace(line)
	program += " "
	if i := strings.LastIndex(line, program); i > 0 && !strings.Contains(line[:i], "| ") && !strings.HasSuffix(line[:i], "<(") && !strings.Contains(line[:i], "=") {
		return nil, false
	}
	_, line, found := strings.Cut(line, program)
	if !found {
		return nil, false
	}
	for _, end := range []string{"  ", " |", " >", ")"} {
		line, _, _ = strings.Cut(line, end)
	}
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			args = append(args, part)
			continue
		}
		args = append(args, strings.Fields(part)...)
	}
	return args, true
}
