package main

import (
	"bytes"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	check := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := run(append([]string{"check"}, args...), streams{&out, &out})
		return code, regexp.MustCompile(" +").ReplaceAllString(out.String(), " ")
	}
	writeFile(t, file, rules(100)+"- key: a\n  coordination: {mode: approx, drift_budget: 3%, reclaim: eager, on_store_failure: open}\n  rate_limit: {unit: day, requests_per_unit: 200}\n- key: u\n  rate_limit: {unlimited: true}\n")
	code, out := check(dir)
	if code != 0 || !strings.Contains(out, "all rate limit configs ok\n") ||
		!strings.Contains(out, "warning: d.a: drift_budget 3% of 200 is 6 tokens, less than one for each of max_nodes 10") {
		t.Fatalf("%d\n%s", code, out)
	}
	code, out = check("--nodes=3", dir)
	for _, want := range []string{
		"d.k 100 per year leasing 200 (200%): each node counts alone",
		"d.k 100 per year leasing 0 ",
		"30 (10 a node)",
		"approx 306 (153%): 100, or one larger request, for each node that goes silent",
		"all demand",
		"d.u unlimited",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d, no %q in\n%s", code, want, out)
		}
	}
	writeFile(t, filepath.Join(dir, "b.yaml"), "domain: d\nfoo: 1\n")
	code, out = check(dir)
	if want := "b.yaml:1:9: duplicate domain 'd' in config file\nb.yaml:2:1: config error, unknown key 'foo'"; code != 1 || !strings.Contains(out, want) {
		t.Errorf("%d, want %q in\n%s", code, want, out)
	}
	if code, out = check("--nodes=0", dir); code != 1 || !strings.Contains(out, "--nodes is 0") {
		t.Errorf("%d\n%s", code, out)
	}
}
