package main

import (
	"context"
	"encoding/json"
	goflag "flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
)

var quiet = goflag.Duration("quiet", 0, "how long TestNoFalseAlarm loads a fleet; 0: it is left out")

// quietRows are the loads of `sluicelab bench peers`, each in each mode, and one far beyond its limit.
var quietRows = []struct {
	key   string
	limit string
	load  load.Load
}{
	{"hot", "unit: day, requests_per_unit: 1000000", load.Load{Rate: 50, Keys: 10, Skew: 1.1}},
	{"warm", "unit: day, requests_per_unit: 1000000", load.Load{Rate: 50, Keys: 10_000, Skew: 1.1}},
	{"cool", "unit: minute, requests_per_unit: 60", load.Load{Rate: 50, Keys: 10_000, Skew: 1.1}},
	{"cold", "unit: minute, requests_per_unit: 10", load.Load{Rate: 50, Keys: 100_000}},
	{"over", "unit: second, requests_per_unit: 2", load.Load{Rate: 50, Keys: 10}},
}

func quietRules() string {
	rules := "domain: d\ndescriptors:\n" +
		"  - {key: tokens, hold: {amount: 20}, rate_limit: {unit: hour, requests_per_unit: 1000000}}\n"
	for _, r := range quietRows {
		for _, mode := range quietModes {
			rules += fmt.Sprintf("  - {key: %s-%s, coordination: {mode: %[2]s}, rate_limit: {%s}}\n", r.key, mode, r.limit)
		}
	}
	return rules
}

var quietModes = []string{"leasing", "routing", "approx"}

// No alert fires, and no console names a problem, while fleets do their work for as long as -quiet says: one under the
// loads of the benchmarks, and the demo. (make quiet)
func TestNoFalseAlarm(t *testing.T) {
	if *quiet == 0 {
		t.Skip("make quiet runs it, for an hour on a machine that does nothing else")
	}
	ctx, cancel := context.WithTimeout(t.Context(), *quiet)
	defer cancel()
	f := newFleet(t, 3, setup{rules: quietRules(), store: aRedis(t), ring: 3})
	prometheus := f.prometheus("deploy/prometheus/alerts.yaml")
	watched := f.demo(ctx)
	for _, n := range f.nodes {
		watched = append(watched, n.debug)
	}
	var load sync.WaitGroup
	load.Go(func() { f.quietLoad(ctx) })
	looks, named := 0, map[string]int{}
	for ; ctx.Err() == nil; looks++ {
		for _, node := range watched {
			for _, p := range f.nodes[0].problemsOf(node) {
				named["the console of "+node+": "+p.What+": "+p.Detail]++
			}
		}
		for _, alert := range f.nodes[0].alerts(prometheus) {
			named["Prometheus: "+alert]++
		}
		_ = caller.Sleep(ctx, 2*time.Second)
	}
	load.Wait()
	for what, n := range named {
		t.Errorf("%d of %d looks: %s", n, looks, what)
	}
	decided := 0
	for _, n := range f.nodes {
		decided += n.sum("sluice_decisions_total")
	}
	t.Logf("%d looks at %d consoles and Prometheus, %d decisions", looks, len(watched), decided)
	if n := f.failed.Load(); n > 0 {
		t.Errorf("%d requests failed", n)
	}
	if least := int(quiet.Seconds()) * 400; decided < least {
		t.Errorf("%d decisions, which are fewer than %d", decided, least)
	}
}

// quietLoad plays all rows at the same time, through all nodes, and holds and settles of token budgets.
func (f *fleet) quietLoad(ctx context.Context) {
	var all sync.WaitGroup
	for i, row := range quietRows {
		for j, mode := range quietModes {
			l := row.load
			l.Length = *quiet
			all.Go(func() {
				seed := uint64(len(quietModes)*i + j)
				caller.Open(ctx, l, seed, time.Now(), func(r load.Request, _ time.Time) {
					f.askFor(r.Key%len(f.nodes), row.key+"-"+mode, fmt.Sprint("k", r.Key))
				})
			})
		}
	}
	all.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			if hold, ok := f.holds(n%len(f.nodes), "tokens", fmt.Sprint("u", n%7), 1); ok {
				_ = f.settles((n+1)%len(f.nodes), "tokens", fmt.Sprint("u", n%7), hold, 5+n%40)
			}
			_ = caller.Sleep(ctx, 100*time.Millisecond)
		}
	})
	all.Wait()
}

// demo runs the demo, and returns the debug ports of its nodes.
func (f *fleet) demo(ctx context.Context) (nodes []string) {
	lab := filepath.Join(f.TempDir(), "sluicelab")
	if out, err := exec.Command("go", "build", "-o", lab, "../sluicelab").CombinedOutput(); err != nil {
		f.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(ctx, lab, "demo", "--for="+quiet.String(), "--rate=100", "--nodes=2", "--no-envoy")
	cmd.Env = append(os.Environ(), "SLUICE_BINARY="+os.Args[0], "SLUICE_RUN_MAIN=1")
	var out lines
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	f.nodes[0].eventually("the demo runs", func() bool { return strings.Contains(out.String(), " explain --debug") })
	for _, m := range regexp.MustCompile(`http://(\S+)/console`).FindAllStringSubmatch(out.String(), -1) {
		nodes = append(nodes, m[1])
	}
	if len(nodes) != 2 || ctx.Err() != nil {
		f.Fatalf("the demo has the nodes %q", nodes)
	}
	return nodes
}

// alerts are those that fire, with their labels.
func (s *sluice) alerts(prometheus string) (names []string) {
	_, text := s.get(prometheus + "/api/v1/alerts")
	var body struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &body); err != nil {
		s.Errorf("%v: %s", err, text)
	}
	for _, a := range body.Data.Alerts {
		if a.State == "firing" {
			names = append(names, fmt.Sprint(a.Labels))
		}
	}
	return names
}
