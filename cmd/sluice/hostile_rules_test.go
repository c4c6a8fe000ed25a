package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A file of brackets in the live directory costs its own reload: the process goes
// on, the rules before stay, and a metric says so. Restarted with the poison still
// there, the node limits by its copy of the last good rules, and says that; once
// the file is mended, by the rules.
func TestPoisonedRules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	saved := filepath.Join(t.TempDir(), "last-good")
	writeFile(t, filepath.Join(dir, "a.yaml"), rules(1))
	env := []string{"CONFIG_LAST_GOOD_FILE=" + saved, "DRAIN_TIME=0s"}
	limits := func(s *sluice, value string) {
		t.Helper()
		if first, second := s.post("k", value), s.post("k", value); first != 200 || second != 429 {
			t.Errorf("at a limit of 1: %d, %d", first, second)
		}
	}
	s := serve(t, env, "--config", dir)
	limits(s, "before")

	poisons := map[string]string{
		"brackets":     strings.Repeat("[", 45<<10),
		"complex keys": strings.Repeat("? ", 512<<10),
		"blank lines":  "a: |\n" + strings.Repeat("\n", 1<<20),
		"commented":    strings.Repeat("-\n #\n\n", 240_000), // as much as the bounds allow
		"flow":         "[" + strings.Repeat("a, #\n", 240_000) + "]",
	}
	quiet := s.memory("VmRSS")
	for name, text := range poisons {
		refused := s.metric("ratelimit_service_config_load_error")
		writeFile(t, filepath.Join(dir, "poison.yaml"), text)
		// After a slow load the next waits for up to 30 s.
		if known := func() bool { return s.metric("ratelimit_service_config_load_error") > refused }; !becomes(known) {
			s.eventually(name+" are refused", known)
		}
		limits(s, name)
	}
	peak := s.memory("VmHWM")
	t.Logf("%d MB when quiet, %d MB at most", quiet, peak)
	if runtime.GOOS == "linux" && peak > quiet+mostGrowth {
		t.Errorf("%d MB when quiet, and %d MB at most", quiet, peak)
	}
	if s.metric("sluice_config_from_copy") != 0 {
		t.Error("the rules are said to be the copy's")
	}
	_ = s.cmd.Process.Kill()
	<-s.exited

	again := serve(t, env, "--config", dir)
	again.untilHealthy()
	limits(again, "after a restart")
	if !strings.Contains(again.log(), "STARTED WITH THE LAST GOOD RULES") || again.metric("sluice_config_from_copy") != 1 {
		t.Errorf("it does not say that it has the copy's rules:\n%s", again.log())
	}
	if err := os.Remove(filepath.Join(dir, "poison.yaml")); err != nil {
		t.Fatal(err)
	}
	again.eventually("the rules are in force again", func() bool { return again.metric("sluice_config_from_copy") == 0 })
	limits(again, "mended")

	writeFile(t, filepath.Join(dir, "poison.yaml"), poisons["brackets"])
	out, err := command(nil, "serve", "--config", dir, "--port=0", "--grpc-port=0", "--debug-port=0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "exceeded max depth") || len(out) > 4<<10 {
		t.Errorf("without a copy it must not start, and say why: %v\n%.4000s", err, out)
	}
}
