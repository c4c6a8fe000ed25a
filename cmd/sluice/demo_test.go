package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// The demo shows a fleet under load, of which every console answers, and ends by itself.
func TestDemo(t *testing.T) {
	t.Parallel()
	if code, _, errs := runLine("demo", "--rate=1e-9"); code != 1 || !strings.Contains(errs, "0.001 to 100000") {
		t.Errorf("of a rate for which no timer is long enough: %d %s", code, errs)
	}
	cmd := command(nil, "demo", "--for=15s", "--rate=300", "--nodes=2")
	var out lines
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &sluice{T: t}
	s.eventually("there is something to look at", func() bool { return strings.Contains(out.String(), " explain --debug") })
	for _, m := range regexp.MustCompile(`http://(\S+)/console`).FindAllStringSubmatch(out.String(), -1) {
		s.eventually("decisions on "+m[1], func() bool {
			_, body := s.get(m[1] + "/metrics")
			return regexp.MustCompile(`sluice_decisions_total\{domain="edge",rule="api_key",mode="approx",source="(lease|drift)",reason=""\} [1-9]`).MatchString(body)
		})
		s.eventually("costs that were settled on "+m[1], func() bool {
			_, body := s.get(m[1] + "/metrics")
			return regexp.MustCompile(`sluice_holds_settled_total\{domain="edge",rule="team",mode="leasing",result="settled"\} [1-9]`).MatchString(body)
		})
	}
	err := cmd.Wait()
	text := out.String()
	if err != nil || strings.Count(text, "/console") != 2 || !strings.Contains(text, "6 tokens for 2 nodes") || !regexp.MustCompile(`[1-9]\d* requests, [1-9]\d* passed, \d+ without an answer`).MatchString(text) {
		t.Errorf("%v\n%s", err, text)
	}
	// What it is about: each rule's own bound, and that no key went beyond it.
	if !strings.Contains(text, "KEYS THAT BROKE THE BOUND") || !regexp.MustCompile(`(?m)^  api_key \(approx\) +100 per second +[0-6] of 6 allowed +0 +[1-9]\d* +\d+ *$`).MatchString(text) {
		t.Errorf("it does not show what becomes of its limits, or they do not hold:\n%s", text)
	}
}

func TestDemoLeavesOthersAlone(t *testing.T) {
	store := redistest.Start(t)
	out, err := command(nil, "demo", "--for=2s", "--nodes=1", "--no-envoy", "--redis="+store.Addr).CombinedOutput()
	if all, own := store.Do("KEYS", "*").([]any), store.Do("KEYS", "*demo:*").([]any); err != nil || len(all) != len(own)+1 { // sluice:life is of redistest
		t.Errorf("%v, its names are %v of %v\n%s", err, own, all, out)
	}
}

func TestCalledAsRatelimit(t *testing.T) {
	for line, want := range map[string]string{"/bin/ratelimit": "serve", "/sluice check x": "check x"} {
		if got := strings.Join(arguments(strings.Fields(line)), " "); got != want {
			t.Errorf("%s: %s", line, got)
		}
	}
}
