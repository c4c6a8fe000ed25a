package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// leaves are all commands that can be run.
func leaves(n *kong.Node, path []string, each func(path []string, n *kong.Node)) {
	if len(n.Children) == 0 {
		each(path, n)
	}
	for _, child := range n.Children {
		leaves(child, append(path[:len(path):len(path)], child.Name), each)
	}
}

// Each command says what it is for, and has examples that are command lines of it.
func TestEachCommandHasExamples(t *testing.T) {
	parser, err := newParser(streams{&bytes.Buffer{}, &bytes.Buffer{}}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	leaves(parser.Model.Node, nil, func(path []string, n *kong.Node) {
		name := strings.Join(path, " ")
		if n.Help == "" || !strings.Contains(n.Detail, "Examples:\n") {
			t.Errorf("%s has no help, or no examples:\n%s", name, n.Detail)
		}
		found := 0
		for line := range strings.Lines(n.Detail) {
			args, ok := exampleArgs(line)
			if !ok {
				continue
			}
			found++
			if !strings.HasPrefix(strings.Join(args, " "), name) {
				t.Errorf("%s: the example %q is of another command", name, line)
			}
			t.Setenv("ADMIN_TOKEN", "x")
			if _, err := parser.Parse(args); err != nil && !strings.Contains(err.Error(), "no such file") {
				t.Errorf("%s: the example %q: %v", name, line, err)
			}
		}
		if found == 0 {
			t.Errorf("%s has no example that is a command line", name)
		}
	})
}

// exampleArgs are the arguments of sluice on a line of examples: up to what explains
// it, which two spaces separate, or what the shell does with it.
func exampleArgs(line string) (args []string, ok bool) {
	line = strings.TrimSpace(line)
	if i := strings.LastIndex(line, "sluice "); i > 0 && !strings.Contains(line[:i], "| ") && !strings.HasSuffix(line[:i], "<(") && !strings.Contains(line[:i], "=") {
		return nil, false
	}
	_, line, found := strings.Cut(line, "sluice ")
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

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		if code, out, errs := runLine(args...); code != 0 || out == "" {
			t.Errorf("%v: %d %s %s", args, code, out, errs)
		}
	}
	code, out, _ := runLine("version", "--json")
	var b built
	if err := json.Unmarshal([]byte(out), &b); code != 0 || err != nil || b.Version == "" || b.Platform != runtime.GOOS+"/"+runtime.GOARCH {
		t.Errorf("%d %v %s", code, err, out)
	}
}

// The script for bash, as bash runs it; for zsh and fish, where they are installed,
// that they can read theirs.
func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, script, errs := runLine("completion", shell)
		if code != 0 || !strings.Contains(script, "sluice completion-words") {
			t.Errorf("%s: %d %s\n%.500s", shell, code, errs, script)
		}
		file := filepath.Join(dir, shell)
		writeFile(t, file, script)
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		if out, err := exec.Command(shell, "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s does not read its script: %v\n%s", shell, err, out)
		}
	}
	for line, want := range map[string]string{
		"sluice ch": "check", "sluice check --str": "--strict", "sluice wha": "what-if", "sluice what-if --ra": "--rate",
		"sluice completion z": "zsh", "sluice admin re": "reset", "sluice --vers": "--version",
	} {
		words := strings.Fields(line)
		script := fmt.Sprintf("sluice() { SLUICE_RUN_MAIN=1 %s \"$@\"; }; source %s; COMP_WORDS=(%s); COMP_CWORD=%d; _sluice; echo \"${COMPREPLY[*]}\"", os.Args[0], filepath.Join(dir, "bash"), line, len(words)-1)
		out, err := exec.Command("bash", "-c", script).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s is completed with %s (%v), want %s", line, out, err, want)
		}
	}
	if code, _, errs := runLine("completion", "tcsh"); code != 2 || !strings.Contains(errs, "bash") {
		t.Errorf("of a shell that is not known: %d %s", code, errs)
	}
}
