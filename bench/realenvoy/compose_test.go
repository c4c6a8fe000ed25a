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
)

// composed are the services of deploy/compose as processes. Each has a loopback address of its own in place of its name,
// and the ports that the file gives it.
type composed struct {
	*testing.T
	services object
	address  map[string]string // by a service's name
}

// host is a service's name with a port.
var host = regexp.MustCompile(`\b(redis|sluice-\d|envoy|prometheus):(\d+)`)

// here puts addresses in place of names.
func (c *composed) here(text string) string {
	text = regexp.MustCompile(`\$\{\w+:-(.*)\}`).ReplaceAllString(text, "$1") // what is set in no environment
	return host.ReplaceAllStringFunc(text, func(found string) string {
		name, port, _ := strings.Cut(found, ":")
		return c.address[name] + ":" + port
	})
}

// file is what a service mounts at a path.
func (c *composed) file(service, path string) string {
	for _, v := range at[[]any](c.services, service, "volumes") {
		if source, ok := strings.CutSuffix(fmt.Sprint(v), ":"+path+":ro"); ok {
			return filepath.Join("../../deploy/compose", source)
		}
	}
	c.Fatalf("%s mounts no %s", service, path)
	return ""
}

// run starts a service's program with its command and its environment, and more of both.
func (c *composed) run(service, program string, env []string, more ...string) {
	var args []string
	for _, a := range at[[]any](c.services, service, "command") {
		arg := c.here(fmt.Sprint(a))
		if strings.HasPrefix(arg, "/etc/") {
			arg = c.file(service, arg)
		}
		args = append(args, arg)
	}
	cmd := exec.Command(program, append(args, more...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range at[object](c.services, service, "environment") {
		cmd.Env = append(cmd.Env, name+"="+c.here(fmt.Sprint(value)))
	}
	cmd.Env = append(cmd.Env, env...)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		c.Fatalf("%s: %v", service, err)
	}
	c.Cleanup(func() {
		_ = cmd.Process.Kill()
		if _ = cmd.Wait(); c.Failed() {
			c.Logf("%s logged:\n%.2000s", service, log.String())
		}
	})
}

// built is the program of a service's image: the entry point of the Dockerfile's stage that the file names, or its last.
func (c *composed) built(service string) string {
	stages := regexp.MustCompile(`(?m)^FROM .*`).Split(shipped(c.T, "docker/Dockerfile"), -1)
	stage := stages[len(stages)-1]
	if t, ok := at[any](c.services, service, "build", "target").(string); ok {
		_, stage, _ = strings.Cut(shipped(c.T, "docker/Dockerfile"), " AS "+t+"\n")
	}
	name := regexp.MustCompile(`ENTRYPOINT \["/bin/(.*)"\]`).FindStringSubmatch(stage)[1]
	file := filepath.Join(c.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", file, "../../cmd/"+name).CombinedOutput(); err != nil {
		c.Fatalf("building %s: %v\n%s", service, err, out)
	}
	return file
}

// value is what Prometheus says to a query, or "".
func (c *composed) value(query string) string {
	r, err := http.Get("http://" + c.address["prometheus"] + ":9090/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	var body struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if json.NewDecoder(r.Body).Decode(&body) != nil || len(body.Data.Result) == 0 {
		return ""
	}
	return fmt.Sprint(body.Data.Result[0].Value[1])
}

// The services of the compose file start from its commands, environments and mounts, and reach each other by
// its names and ports. Demand goes through Envoy to the nodes, which share limits through Redis, and Prometheus
// scrapes them. Grafana does not run.
func TestComposeServices(t *testing.T) {
	needsLong(t)
	needsEnvoy(t)
	var file object
	if err := yaml.Unmarshal([]byte(shipped(t, "compose/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	c := &composed{T: t, services: at[object](file, "services"), address: map[string]string{}}
	names := []string{"redis", "sluice-1", "sluice-2", "sluice-3", "envoy", "prometheus"}
	for i, name := range names {
		c.address[name] = fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()/250%250, 1+os.Getpid()%250, 1+i)
	}
	c.run("redis", "env", nil, "--bind", c.address["redis"], "--dir", t.TempDir())
	w := &world{T: t}
	check := at[[]any](c.services, "redis", "healthcheck", "test")
	w.need(Until("Redis is healthy", func() bool {
		out, _ := exec.Command(fmt.Sprint(check[1]), "-h", c.address["redis"], fmt.Sprint(check[2])).Output()
		return strings.TrimSpace(string(out)) == "PONG"
	}))
	program := c.built("sluice-1")
	config := Config{Text: shipped(t, "compose/envoy.yaml"), Clusters: map[string][]string{}}
	for _, name := range names[1:4] {
		own := c.address[name]
		c.run(name, program, []string{"HOST=" + own, "GRPC_HOST=" + own, "DEBUG_HOST=" + own})
		m := regexp.MustCompile(`address: ` + name + `, port_value: (\d+)`).FindStringSubmatch(config.Text)
		if m == nil {
			t.Fatalf("Envoy has no endpoint %s", name)
		}
		config.Clusters["sluice"] = append(config.Clusters["sluice"], own+":"+m[1])
	}
	envoy, err := Find()
	w.need(err)
	e, err := Start(envoy, &config)
	w.need(err)
	t.Cleanup(e.Stop)
	demand := at[[]any](c.services, "demand", "command")
	demand[slices.Index(demand, any("http://envoy:8000/"))] = e.URL
	c.run("demand", c.built("demand"), nil)

	dir := t.TempDir()
	scrapes := c.here(shipped(t, "prometheus/prometheus.yml"))
	alerts, err := filepath.Abs(c.file("prometheus", "/etc/prometheus/alerts.yaml"))
	w.need(err)
	scrapes = change(t, scrapes, "/etc/prometheus/alerts.yaml", alerts)
	w.need(os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(scrapes), 0o600))
	c.run("prometheus", "prometheus", nil, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+c.address["prometheus"]+":9090")
	for query, want := range map[string]string{
		"sum(up)": "3", "count(count by (rule) (rate(sluice_decisions_total[15s]) > 0))": "4", "min(sluice_ring_members)": "3",
		"max(sluice_store_breaker_open)": "0",
	} {
		got := ""
		if err := Until(query, func() bool { got = c.value(query); return got == want }); err != nil {
			t.Errorf("%s is %q, must be %q", query, got, want)
		}
	}
}
