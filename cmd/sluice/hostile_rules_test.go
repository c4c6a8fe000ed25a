package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Restarted with a poisoned file in the live directory, the node limits by its copy of the last good rules, and says
// that. Once the file is mended, it limits by the rules. Without a copy it does not start, and says why.
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
	writeFile(t, filepath.Join(dir, "poison.yaml"), strings.Repeat("[", 45<<10))
	s.eventually("the file is refused", func() bool { return s.metric("ratelimit_service_config_load_error") > 0 })
	limits(s, "with the poison")
	if s.metric("sluice_config_from_copy") != 0 {
		t.Error("the rules are said to be the copy's")
	}
	s.ends(syscall.SIGKILL)

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

	writeFile(t, filepath.Join(dir, "poison.yaml"), strings.Repeat("[", 45<<10))
	out, err := command(nil, "serve", "--config", dir, "--port=0", "--grpc-port=0", "--debug-port=0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "exceeded max depth") || len(out) > 4<<10 {
		t.Errorf("without a copy it must not start, and say why: %v\n%.4000s", err, out)
	}
}
