package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/cmd/sluice/cli/clitest"
)

// Each command says what it is for, and has examples that are command lines of it.
func TestEachCommandHasExamples(t *testing.T) {
	t.Setenv("ADMIN_TOKEN", "x")
	clitest.Examples(t, "sluice", new(commands), programOptions()...)
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

// The script for bash, as bash runs it; for zsh and fish, where they are installed, that they can read theirs.
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
		"sluice ch": "check", "sluice check --str": "--strict", "sluice expl": "explain", "sluice explain --deb": "--debug",
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

// The first help fits a terminal of 80 by 24.
func TestHelpFitsAScreen(t *testing.T) {
	code, out, errs := runLine("--help")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) > 23 || len(slices.MaxFunc(lines, func(a, b string) int { return len(a) - len(b) })) > 80 {
		t.Errorf("%d %s: %d lines\n%s", code, errs, len(lines), out)
	}
}

func TestCalledAsRatelimit(t *testing.T) {
	for line, want := range map[string]string{"/bin/ratelimit": "serve", "/sluice check x": "check x"} {
		if got := strings.Join(arguments(strings.Fields(line)), " "); got != want {
			t.Errorf("%s: %s", line, got)
		}
	}
}
