package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/sluice-gate/sluice/bench/caller"
)

// Every query of every dashboard, and of every alert, is one that Prometheus
// understands, and the dashboards' return data, from three nodes under load whose
// store fails for a while.
func TestDashboardsHaveData(t *testing.T) {
	t.Parallel()
	const rules = `domain: d
descriptors:
  - {key: lease, rate_limit: {unit: minute, requests_per_unit: 100000}}
  - {key: tight, rate_limit: {unit: minute, requests_per_unit: 50}}
  - {key: drift, coordination: {mode: approx, drift_budget: 10%, check_timeout: 0s}, rate_limit: {unit: second, requests_per_unit: 200}}
  - {key: owned, coordination: {mode: routing}, rate_limit: {unit: minute, requests_per_unit: 100000}}
  - {key: holds, hold: {amount: 20}, rate_limit: {unit: minute, requests_per_unit: 1000000}}
`
	f := newFleet(t, 3, setup{rules: rules, store: aRedis(t), ring: 3})
	prometheus := f.prometheus()
	first := f.nodes[0]
	// query is how many series with a value there are. Prometheus must understand it.
	query := func(q string) (n int) {
		t.Helper()
		_, text := first.get(prometheus + "/api/v1/query?query=" + url.QueryEscape(q))
		var body struct {
			Status string
			Data   struct{ Result []struct{ Value [2]any } }
		}
		if err := json.Unmarshal([]byte(text), &body); err != nil || body.Status != "success" {
			t.Fatalf("%s: %s (%v)", q, text, err)
		}
		for _, series := range body.Data.Result {
			if series.Value[1] != "NaN" {
				n++
			}
		}
		return n
	}
	// An increase from a counter's first value is not seen: it is there before.
	text := read(t, "docs/reference/runbooks.md") + strings.ReplaceAll(read(t, "deploy/prometheus/alerts.yaml"), `\"`, `"`)
	for _, m := range regexp.MustCompile(`increase\((sluice_[^\[]*)\[`).FindAllStringSubmatch(text, -1) {
		first.eventually(m[1]+" is there before it grows", func() bool { return query(m[1]) > 0 })
	}
	// The nodes decide under every rule, and the store hangs for a moment now and then.
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer cancel()
	for i, node := range f.nodes {
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				for _, key := range []string{"lease", "tight", "drift", "owned", "unlimited"} {
					f.ask(i, key, fmt.Sprint("k", n%3))
				}
				if hold, ok := node.holds("holds", "k", 1); ok {
					_ = f.nodes[(i+1)%3].settles("holds", "k", hold, n%40)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	load.Go(func() {
		for caller.Sleep(ctx, 2*time.Second) == nil {
			f.redis.Signal(syscall.SIGSTOP)
			time.Sleep(300 * time.Millisecond)
			f.redis.Signal(syscall.SIGCONT)
		}
	})
	files, err := filepath.Glob(top + "deploy/grafana/dashboards/*.json")
	if err != nil || len(files) != 8 {
		t.Fatal(files, err)
	}
	var missing []string // queries without data, with what Grafana would put into them
	for _, name := range files {
		var d struct {
			Panels []struct{ Targets []struct{ Expr string } }
		}
		if err := json.Unmarshal([]byte(read(t, strings.TrimPrefix(name, top))), &d); err != nil {
			t.Fatal(err)
		}
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				missing = append(missing, strings.NewReplacer("$__rate_interval", "10s", "$namespace", ".*", "$domain", ".*", "$rule", ".*").Replace(q.Expr))
			}
		}
	}
	if len(missing) < 40 {
		t.Errorf("%d queries on all dashboards", len(missing))
	}
	for end := time.Now().Add(patience); len(missing) > 0 && time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		missing = slices.DeleteFunc(missing, func(q string) bool { return query(q) > 0 })
	}
	for _, q := range missing {
		t.Errorf("no data for %s", q)
	}
	var file struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/prometheus/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, a := range file.Groups[0].Rules {
		query(a.Expr) // understood; most have nothing to say
	}
}

// prometheus scrapes the nodes twice a second, with rules in files of this repository.
func (f *fleet) prometheus(rules ...string) (address string) {
	dir := f.TempDir()
	targets := make([]string, len(f.nodes))
	for i, n := range f.nodes {
		targets[i] = n.debug
	}
	config := filepath.Join(dir, "prometheus.yml")
	for i, file := range rules {
		path, err := filepath.Abs(top + file)
		if err != nil {
			f.Fatal(err)
		}
		rules[i] = path
	}
	text := "global: {scrape_interval: 500ms, evaluation_interval: 1s}\nrule_files: [" + strings.Join(rules, ", ") + "]\nscrape_configs:\n- job_name: sluice\n  static_configs: [{targets: [" + strings.Join(targets, ",") + "]}]\n"
	writeFile(f.TB, config, text)
	address = "127.0.0.1:" + freePort(f.TB)
	program, err := exec.LookPath("prometheus")
	if err != nil {
		f.Fatal("there is no prometheus here, and this test needs one: make deps")
	}
	cmd := exec.Command(program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	f.nodes[0].eventually("Prometheus is ready", func() bool {
		code, _ := f.nodes[0].get(address + "/-/ready")
		return code == http.StatusOK
	})
	return address
}
