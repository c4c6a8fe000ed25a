package realenvoy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/sluice-gate/sluice/leasing/redistest/program"
)

// The services of the compose file start from its commands, environments and mounts, as processes. Each has a
// loopback address of its own in place of its name, and the ports that the file gives it. Demand goes through
// Envoy to the nodes, which share limits through Redis, and Prometheus scrapes them. Grafana does not run.
func TestComposeServices(t *testing.T) {
	needsLong(t)
	w := newWorld(t, "compose/envoy.yaml", "")
	var file object
	w.need(yaml.Unmarshal([]byte(w.read("../../deploy/compose/compose.yaml")), &file))
	services := at[object](file, "services")
	address := map[string]string{}
	for i, name := range []string{"redis", "sluice-1", "sluice-2", "sluice-3", "envoy", "prometheus"} {
		address[name] = fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()/250%250, 1+os.Getpid()%250, 1+i)
	}
	variable := regexp.MustCompile(`\$\{\w+:-(.*)\}`)
	host := regexp.MustCompile(`\b(redis|sluice-\d|envoy|prometheus):(\d+)`)
	here := func(value any) string { // with addresses in place of names
		text := variable.ReplaceAllString(fmt.Sprint(value), "$1") // what is set in no environment
		return host.ReplaceAllStringFunc(text, func(found string) string {
			name, port, _ := strings.Cut(found, ":")
			return address[name] + ":" + port
		})
	}
	mounted := func(service, path string) string { // what a service has there
		for _, v := range at[[]any](services, service, "volumes") {
			if source, ok := strings.CutSuffix(fmt.Sprint(v), ":"+path+":ro"); ok {
				return filepath.Join("../../deploy/compose", source)
			}
		}
		t.Fatalf("%s mounts no %s", service, path)
		return ""
	}
	// run starts a service's program with its command and its environment, and more of both.
	run := func(service, program string, env []string, more ...string) {
		t.Helper()
		var args []string
		for _, a := range at[[]any](services, service, "command") {
			arg := here(a)
			if strings.HasPrefix(arg, "/etc/") {
				arg = mounted(service, arg)
			}
			args = append(args, arg)
		}
		cmd := exec.Command(program, append(args, more...)...)
		cmd.Env = slices.Concat(env, []string{"PATH=" + os.Getenv("PATH")})
		for name, value := range at[object](services, service, "environment") {
			cmd.Env = append([]string{name + "=" + here(value)}, cmd.Env...)
		}
		var log bytes.Buffer
		cmd.Stderr = &log
		if err := cmd.Start(); err != nil {
			t.Fatalf("%s: %v", service, err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			if _ = cmd.Wait(); t.Failed() {
				t.Logf("%s logged:\n%.2000s", service, log.String())
			}
		})
	}
	// built is the program of a service's image: the entry point of the Dockerfile's stage that the file names, or
	// its last.
	built := func(service string) string {
		dockerfile := w.read("../../deploy/docker/Dockerfile")
		stages := regexp.MustCompile(`(?m)^FROM .*`).Split(dockerfile, -1)
		stage := stages[len(stages)-1]
		if t, ok := at[any](services, service, "build", "target").(string); ok {
			_, stage, _ = strings.Cut(dockerfile, " AS "+t+"\n")
		}
		name := regexp.MustCompile(`ENTRYPOINT \["/bin/(.*)"\]`).FindStringSubmatch(stage)[1]
		binary, err := program.Build(name, "cmd/"+name)
		w.need(err)
		return binary
	}

	run("redis", "env", nil, "--bind", address["redis"], "--dir", t.TempDir())
	check := at[[]any](services, "redis", "healthcheck", "test")
	w.need(Until("Redis is healthy", func() bool {
		out, _ := exec.Command(fmt.Sprint(check[1]), "-h", address["redis"], fmt.Sprint(check[2])).Output()
		return strings.TrimSpace(string(out)) == "PONG"
	}))
	program := built("sluice-1")
	w.config.Clusters = map[string][]string{}
	for _, name := range []string{"sluice-1", "sluice-2", "sluice-3"} {
		own := address[name]
		run(name, program, []string{"HOST=" + own, "GRPC_HOST=" + own, "DEBUG_HOST=" + own})
		m := regexp.MustCompile(`address: ` + name + `, port_value: (\d+)`).FindStringSubmatch(w.config.Text)
		if m == nil {
			t.Fatalf("Envoy has no endpoint %s", name)
		}
		w.config.Clusters["sluice"] = append(w.config.Clusters["sluice"], own+":"+m[1])
	}
	w.cluster = "sluice"
	w.open(3)
	command := at[[]any](services, "demand", "command")
	command[slices.Index(command, any("http://envoy:8000/"))] = w.envoy.URL
	run("demand", built("demand"), nil)

	dir := t.TempDir()
	scrapes := here(w.read("../../deploy/prometheus/prometheus.yml"))
	alerts, err := filepath.Abs(mounted("prometheus", "/etc/prometheus/alerts.yaml"))
	w.need(err)
	if !strings.Contains(scrapes, "/etc/prometheus/alerts.yaml") {
		t.Error("Prometheus reads no alerts")
	}
	scrapes = strings.Replace(scrapes, "/etc/prometheus/alerts.yaml", alerts, 1)
	w.need(os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(scrapes), 0o600))
	prometheus := address["prometheus"] + ":9090"
	run("prometheus", "prometheus", nil, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheus)
	for query, want := range map[string]string{
		"sum(up)": "3", "count(count by (rule) (rate(sluice_decisions_total[15s]) > 0))": "4", "min(sluice_ring_members)": "3",
		"max(sluice_store_breaker_open)": "0",
	} {
		got := ""
		err := Until(query, func() bool {
			r, err := http.Get("http://" + prometheus + "/api/v1/query?query=" + url.QueryEscape(query))
			if err != nil {
				return false
			}
			defer r.Body.Close()
			var body struct {
				Data struct{ Result []struct{ Value [2]any } }
			}
			if json.NewDecoder(r.Body).Decode(&body) == nil && len(body.Data.Result) > 0 {
				got = fmt.Sprint(body.Data.Result[0].Value[1])
			}
			return got == want
		})
		if err != nil {
			t.Errorf("%s is %q, must be %q", query, got, want)
		}
	}
}
