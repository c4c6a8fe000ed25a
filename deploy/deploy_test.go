package deploy

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rate_limit_quota/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
)

// Every configuration is one that Envoy's types take, and none lets a client
// escape its limit.
func TestEnvoyConfigsAreValid(t *testing.T) {
	for _, name := range []string{"envoy/envoy.yaml", "envoy/approx.yaml", "envoy/ring-hash.yaml", "envoy/rlqs.yaml", "compose/envoy.yaml"} {
		t.Run(name, func(t *testing.T) {
			// Where Envoys lease, buckets are matched by a filter, and not by routes.
			byAddress := name != "compose/envoy.yaml" && !strings.HasSuffix(name, "rlqs.yaml")
			// notBypassed holds what comes from clients against what they could do to have no limit: name another address,
			// write the path differently, add a query to it, send no key.
			notBypassed := func(h *hcm.HttpConnectionManager) {
				if !h.GetUseRemoteAddress().GetValue() {
					t.Error("use_remote_address is not set: X-Forwarded-For, which clients send, is believed")
				}
				if !h.GetNormalizePath().GetValue() || !h.MergeSlashes {
					t.Error("the path is not normalized: //login and /./login are other paths than /login")
				}
				for _, host := range h.GetRouteConfig().VirtualHosts {
					for _, r := range host.Routes {
						if r.GetRoute() == nil {
							t.Errorf("%v goes to no cluster: Envoy's filter asks nobody about such a route", r.Match)
						}
						limits := slices.Concat(host.RateLimits, r.GetRoute().GetRateLimits())
						addresses := 0
						for _, limit := range limits {
							for _, a := range limit.Actions {
								if a.GetRequestHeaders().GetHeaderName() == ":path" {
									t.Errorf("%v reads the path with its query: each query has a budget of its own", r.Match)
								}
								if len(limit.Actions) == 1 && (a.GetMaskedRemoteAddress() != nil || a.GetRemoteAddress() != nil) {
									addresses++
								}
							}
						}
						if byAddress && addresses == 0 {
							t.Errorf("%v: who sends no key has no limit", r.Match)
						}
					}
				}
			}
			text, err := yaml.YAMLToJSON([]byte(read(t, "deploy/"+name)))
			if err != nil {
				t.Fatal(err)
			}
			var b bootstrap.Bootstrap
			if err := protojson.Unmarshal(text, &b); err != nil {
				t.Fatal(err)
			}
			if err := b.ValidateAll(); err != nil {
				t.Error(err)
			}
			for _, l := range b.StaticResources.Listeners {
				for _, f := range l.FilterChains[0].Filters {
					m, err := f.GetTypedConfig().UnmarshalNew()
					if err != nil {
						t.Fatal(err)
					}
					if h, ok := m.(*hcm.HttpConnectionManager); ok && h.StatPrefix == "ingress" {
						notBypassed(h)
					}
				}
			}
			for _, c := range b.StaticResources.Clusters {
				if c.Name != "sluice" {
					continue
				}
				if len(c.HealthChecks) != 1 || c.HealthChecks[0].GetGrpcHealthCheck().GetServiceName() != "ratelimit" {
					t.Fatalf("the cluster %s has no health check by gRPC: nodes that drain or hang are still asked", c.Name)
				}
				h := c.HealthChecks[0]
				if h.NoTrafficInterval.AsDuration() != h.Interval.AsDuration() {
					t.Errorf("without traffic, a node that was not ready at the first check is checked again after a minute")
				}
				if gone := h.Interval.AsDuration() + h.Timeout.AsDuration(); gone > 2*time.Second || h.UnhealthyThreshold.GetValue() != 1 {
					t.Errorf("a node that hangs is asked for more than %v: deploy/README.md says 2 s", gone)
				}
			}
		})
	}
}

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Behind gateways, a call waits for a new connection too: 20 ms, Envoy's default, are over before its handshake.
func TestGatewaysWaitForConnections(t *testing.T) {
	for _, name := range []string{
		"envoy-gateway/envoy-gateway.yaml", "envoy-gateway/envoy-gateway-tokens.yaml", "istio/ratelimit.yaml", "istio/llm.yaml", "kgateway/policy.yaml",
	} {
		if !regexp.MustCompile(`(?m)^ +timeout: (200ms|0\.2s) `).MatchString(read(t, "deploy/"+name)) {
			t.Errorf("deploy/%s does not set a timeout of 200ms", name)
		}
	}
}

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

// One cause is one page, with the file that people copy from. Its consequences are inhibited, in its fleet and in
// no other. Alerts of severity info do not page.
func TestOneCauseIsOnePage(t *testing.T) {
	t.Parallel()
	var firing []map[string]any
	var want []string
	fires := func(severity, fleet string, names ...string) {
		for _, name := range names {
			firing = append(firing, map[string]any{"labels": map[string]string{
				"alertname": name, "severity": severity, "namespace": "edge", "job": fleet, "instance": "a:6070",
			}})
		}
	}
	for fleet, c := range map[string]struct{ causes, effects string }{
		"an outage of the store": {
			"SluiceStoreBreakerOpen", "SluiceStoreSlow SluiceFallbackActive SluiceSlow SluiceSeatShortage SluiceLeaseStarvation SluiceStaleClaims SluiceOverloaded",
		},
		"outage, bad calls":   {"SluiceStoreBreakerOpen SluiceErrors", "SluiceFallbackActive"},
		"a slow store":        {"SluiceStoreSlow", "SluiceFallbackActive SluiceSlow"},
		"late answers":        {"SluiceFallbackActive", "SluiceSlow"},
		"an empty restart":    {"SluiceLedgerLost", "SluiceAccountsLost SluiceStoreClockStepped"},
		"a store that evicts": {"SluiceAccountsLost", "SluiceStoreMayEvict"},
		"bad rules":           {"SluiceConfigRejected", "SluiceRulesDiffer SluiceRulesFromCopy"},
		"no node":             {"SluiceFleetDown", "SluiceNodeDown SluiceRulesDiffer"},
		"two causes":          {"SluiceConfigRejected SluiceTableFull", ""},
	} {
		causes := strings.Fields(c.causes)
		fires("warning", fleet, append(causes, strings.Fields(c.effects)...)...)
		fires("info", fleet, "SluiceHotKey")
		for _, name := range causes {
			want = append(want, name+" "+fleet)
		}
	}
	slices.Sort(want)

	path := ""
	for _, name := range []string{"alertmanager", "prometheus-alertmanager"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
		}
	}
	if path == "" {
		t.Fatal("there is no alertmanager here, and this test needs one: make deps")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	cmd := exec.Command(path, "--config.file=prometheus/alertmanager.yml", "--storage.path="+t.TempDir(),
		"--web.listen-address="+address, "--cluster.listen-address=")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if _ = cmd.Wait(); t.Failed() {
			t.Logf("Alertmanager:\n%s", log.String())
		}
	})
	body, err := json.Marshal(firing)
	if err != nil {
		t.Fatal(err)
	}
	until := func(ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not within half a minute")
			}
		}
	}
	until(func() bool { // it is ready
		r, err := http.Post("http://"+address+"/api/v2/alerts", "application/json", bytes.NewReader(body))
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	// Alertmanager processes alerts and inhibitions one after the other.
	var page []string
	defer func() {
		if t.Failed() {
			t.Logf("these page somebody: %v, must be %v", page, want)
		}
	}()
	until(func() bool {
		r, err := http.Get("http://" + address + "/api/v2/alerts")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var alerts []struct {
			Labels    map[string]string
			Receivers []struct{ Name string }
			Status    struct{ State string }
		}
		if err := json.NewDecoder(r.Body).Decode(&alerts); err != nil {
			t.Fatal(err)
		}
		page = nil
		for _, a := range alerts {
			if a.Status.State != "suppressed" && a.Receivers[0].Name == "page" {
				page = append(page, a.Labels["alertname"]+" "+a.Labels["job"])
			}
		}
		slices.Sort(page)
		return slices.Equal(page, want)
	})
}

// The binary is built for the machines that people work on, too: files that are compiled for Windows or macOS use
// nothing of the system that only others have. `make platforms` compiles all of it, which takes minutes.
func TestOtherSystems(t *testing.T) {
	// Names of packages syscall and unix that each system has, of those that are used.
	signals := "syscall.SIGHUP syscall.SIGINT syscall.SIGPIPE syscall.SIGTERM syscall.SIGKILL syscall.Conn syscall.RawConn "
	for system, has := range map[string]string{
		"windows": signals,
		"darwin": signals + "syscall.SIGSTOP syscall.SIGCONT unix.Mmap unix.Munmap unix.PROT_READ unix.PROT_WRITE " +
			"unix.MAP_ANON unix.MAP_PRIVATE",
	} {
		portable := strings.Fields(has)
		cmd := exec.Command("go", "list", "-deps", "-f", `{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{end}}{{end}}{{with .Error}}ERROR {{.}}
{{end}}`, "./cmd/sluice")
		cmd.Dir = ".."
		cmd.Env = append(cmd.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", system, err)
		}
		files := 0
		for path := range strings.FieldsSeq(string(out)) {
			files++
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				pkg, ok := s.X.(*ast.Ident)
				if !ok || pkg.Name != "syscall" && pkg.Name != "unix" {
					return true
				}
				if name := pkg.Name + "." + s.Sel.Name; !slices.Contains(portable, name) {
					t.Errorf("%s, which is compiled for %s, uses %s", path, system, name)
				}
				return true
			})
		}
		if files < 200 {
			t.Errorf("%s: %d files of ours:\n%.2000s", system, files, out)
		}
	}
}
