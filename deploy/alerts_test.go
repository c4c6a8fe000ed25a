package deploy

import (
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// Every alert is well-formed, has a test that makes it fire, and links to a page
// that says what to do.
func TestAlerts(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool, which make deps installs, %v: %v\n%s", args, err, out)
		}
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Keep        string `yaml:"keep_firing_for"`
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/prometheus/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	tests := read(t, "deploy/prometheus/alerts_test.yaml")
	handbook := read(t, "docs/reference/metrics.md")
	entries := regexp.MustCompile(`ENTRYPOINT \["(\S+)"\]`).FindAllStringSubmatch(read(t, "deploy/docker/Dockerfile"), -1)
	image := entries[len(entries)-1][1] // of the last stage
	if typed := "kubectl exec POD -- " + image + " "; strings.Count(read(t, "docs/reference/runbooks.md"), typed) < 3 {
		t.Errorf("docs/reference/runbooks.md does not type %s, where the image has the binary", typed)
	}
	alerts := file.Groups[0].Rules
	if len(alerts) < 25 {
		t.Errorf("%d alerts", len(alerts))
	}
	for _, name := range regexp.MustCompile(`Sluice\w+`).FindAllString(read(t, "deploy/prometheus/alertmanager.yml"), -1) {
		if !strings.Contains(read(t, "deploy/prometheus/alerts.yaml"), "alert: "+name+"\n") {
			t.Errorf("alertmanager.yml names %s, and there is no such alert", name)
		}
	}
	for _, a := range alerts {
		page := strings.TrimPrefix(a.Annotations["runbook_url"], "https://github.com/sluice-gate/sluice/blob/main/")
		page, anchor, _ := strings.Cut(page, "#")
		text := ""
		for section := range strings.SplitSeq(read(t, page), "\n## ") {
			title, rest, _ := strings.Cut(section, "\n")
			if strings.ReplaceAll(strings.ToLower(title), " ", "-") == anchor {
				text = rest
			}
		}
		for _, part := range []string{"Alert `" + a.Alert + "`, " + a.Labels["severity"], "- **Meaning.**", "- **Effect.**", "- **Safe until morning?** ", "Dashboard: *Sluice: ", "- **Diagnose.**", "- **Fix.**", "- **Resolved**"} {
			if !strings.Contains(text, part) {
				t.Errorf("%s#%s has no %q", page, anchor, part)
			}
		}
		minutes, _ := strconv.Atoi(strings.TrimSuffix(a.Keep, "m")) // it fires so long after the last event
		if window := regexp.MustCompile(`(?:rate|increase)\([a-z_]+(?:{[^}]*})?\[(\d+)m`).FindStringSubmatch(a.Expr); window != nil {
			n, _ := strconv.Atoi(window[1])
			minutes += n
		}
		spelled := map[int]string{0: "when", 5: "five minutes", 7: "seven minutes", 8: "eight minutes", 10: "ten minutes", 15: "fifteen minutes", 30: "thirty minutes"}[minutes]
		if _, resolved, _ := strings.Cut(text, "- **Resolved**"); spelled == "" || !strings.Contains(resolved, spelled) {
			t.Errorf("%s ends after %d minutes, and its page says: %s", a.Alert, minutes, resolved)
		}
		if strings.Count(tests, "alertname: "+a.Alert) < 2 {
			t.Errorf("%s has no test that it is silent, and that it fires", a.Alert)
		}
		for _, m := range regexp.MustCompile(`(sluice|ratelimit)_[a-z_]+`).FindAllString(a.Expr, -1) {
			m = regexp.MustCompile("_(bucket|sum|count)$").ReplaceAllString(m, "")
			if !strings.Contains(handbook, "`"+m+"`") {
				t.Errorf("%s asks for %s, which docs/reference/metrics.md does not have", a.Alert, m)
			}
		}
	}
}
