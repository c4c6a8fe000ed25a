package check

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checkRLQS runs check --rlqs on rules.
func checkRLQS(t *testing.T, text string, args ...string) (int, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, file, text)
	code, out, errs := printed(append([]string{"--rlqs", file}, args...)...)
	return code, out + errs
}

// What cannot be divided is refused, with the reason and what to use instead.
func TestCheckRLQS(t *testing.T) {
	head := "domain: d\ndescriptors:\n- key: k\n  "
	for _, c := range []struct{ rule, want string }{
		{"rate_limit: {unit: minute, requests_per_unit: 60}", "a limit of 60 leaves 6 for each of 10 Envoys, must be at least 10: use RLS"},
		{"rate_limit: {unit: second, requests_per_unit: 600}", "a window of 1s is shorter than 1m0s"},
		{"algorithm: token_bucket\n  rate_limit: {unit: second, requests_per_unit: 600}", "use a burst of 36000, or RLS"},
		{"algorithm: token_bucket\n  rate_limit: {unit: minute, requests_per_unit: 120}", "a limit of 88 leaves 8 for each of 10 Envoys"},
	} {
		if code, out := checkRLQS(t, head+c.rule+"\n"); code == 0 || !strings.Contains(out, c.want) {
			t.Errorf("%s: %d, and no %q in\n%s", c.rule, code, c.want, out)
		}
	}
	code, out := checkRLQS(t, head+"rate_limit: {unit: hour, requests_per_unit: 600}\n  coordination: {lease: {size: 30}}\n- key: u\n  rate_limit: {unlimited: true}\n- key: s\n  shadow_mode: true\n  rate_limit: {unit: second, requests_per_unit: 1}\n- key: b\n"+
		"  algorithm: token_bucket\n  rate_limit: {unit: minute, requests_per_unit: 6000}\n", "--envoys=60")
	for _, want := range []string{"30 (one lease)", "2220 (one lease)", "d.b: leases come from a bucket of 4440; the other 1560 are held back for the refill of 15.6s", "d.u: Envoys are told ALLOW_ALL: it is unlimited", "d.s: Envoys are told ALLOW_ALL: it is in shadow_mode", "blanket_rule: DENY_ALL", "UNDER excludes"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d, and no %q in\n%s", code, want, out)
		}
	}
	if code, out := checkRLQS(t, head+"rate_limit: {unlimited: true}\n", "--envoys=0"); code == 0 || !strings.Contains(out, "--envoys is 0") {
		t.Errorf("%d: %s", code, out)
	}
}

// What cannot be divided fails each form of the output, and programs can read it.
func TestCheckRLQSFailsInEachForm(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, file, rules(60))
	for _, form := range []string{"--json", "--sarif", "--from=" + file} {
		code, out, errs := printed("--rlqs", form, file)
		if code != 1 || !strings.Contains(errs, "must be at least 10: use RLS") || strings.HasPrefix(out, "{") && !json.Valid([]byte(out)) {
			t.Errorf("%s: %d %s\n%s", form, code, errs, out)
		}
	}
}

// The worked example of docs/explain/rlqs.md is what check prints.
func TestDocsOfRLQS(t *testing.T) {
	text, err := os.ReadFile("../../../docs/explain/rlqs.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	_, example, _ := strings.Cut(page, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	code, out := checkRLQS(t, example, "--envoys=50")
	_, block, _ := strings.Cut(page, "<!-- check -->\n```text\n")
	block, _, _ = strings.Cut(block, "```")
	if code != 0 || len(block) < 100 || !strings.Contains(out, block) {
		t.Errorf("check says\n%s\nand docs/explain/rlqs.md\n%s", out, block)
	}
}
