package main

import (
	"context"
	"encoding/json"
	goflag "flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/leasing/redistest/program"
)

// Flags of runs that take longer than make test has time for.
var (
	regionsLong = goflag.Bool("regions", false, "TestRegions plays each algorithm at 80 and 150 ms, for a window of a minute each")
	quiet       = goflag.Duration("quiet", 0, "how long TestNoFalseAlarm loads a fleet; 0: it is left out")
)

// Three regions are far from their store. Demand of one and a half times a limit gets at least 98 % of it in a window,
// and nothing beyond. Demand that moves from region to region gets 95 %.
func TestRegions(t *testing.T) {
	const rules = `domain: d
coordination: {mode: routing, on_store_failure: closed, store_deadline: %v}
descriptors:
  - {key: fixed, rate_limit: {unit: second, unit_multiplier: %d, requests_per_unit: %d}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: second, unit_multiplier: %[2]d, requests_per_unit: %[3]d}}
  - {key: bucket, algorithm: token_bucket, burst: 200, rate_limit: {unit: second, unit_multiplier: %[2]d, requests_per_unit: %[3]d}}
`
	play := func(t *testing.T, kind string, seconds int, trip time.Duration, keys ...string) {
		t.Helper()
		window, limit := time.Duration(seconds)*time.Second, 100*seconds
		store := startStore(t, kind)
		var fleets []*fleet // of two nodes each
		for i := range 3 {
			far := newFarStore(t, store)
			far.proxy.Delay(trip)
			fleets = append(fleets, newFleet(t, 2, setup{
				rules: fmt.Sprintf(rules, 5*trip, seconds, limit), store: far, ring: 2,
				env: []string{fmt.Sprint("REGION=region-", i), "MAX_WAIT=1s", "REDIS_POOL_SIZE=40"},
			}))
		}
		// demand asks the nodes of a region for a time, at a rate, and counts what they admit.
		demand := func(region int, key, value string, rate float64, length time.Duration, admitted *atomic.Int64) {
			n := 0
			l := load.Load{Rate: rate, Keys: 1, Length: length}
			caller.Open(t.Context(), l, uint64(region), time.Now(), func(load.Request, time.Time) {
				n++
				if fleets[region].nodes[n%2].admits(1, key, value) {
					admitted.Add(1)
				}
			})
		}
		for i, key := range keys {
			if i > 0 { // nothing of earlier windows counts any more, and buckets are full
				time.Sleep(window)
			}
			time.Sleep(time.Until(time.Now().Truncate(window).Add(window + trip))) // the turn of the store's window
			const rate = 155
			var stays, moves atomic.Int64
			var all sync.WaitGroup
			length, begins := window-4*trip, time.Now()
			for i := range 3 {
				all.Go(func() { demand(i, key, "stays", rate/3., length, &stays) })
			}
			all.Go(func() {
				for i := range 3 {
					demand(i, key, "moves", rate, time.Until(begins.Add(time.Duration(i+1)*length/3)), &moves)
				}
			})
			all.Wait()
			for of, got := range map[string]int64{"stays": stays.Load(), "moves": moves.Load()} {
				least, most := int64(limit)*map[string]int64{"stays": 98, "moves": 95}[of]/100, int64(limit)
				if key == "bucket" {
					least, most = least+200, most+200+5 // it refills while the first and the last request travel
				}
				t.Logf("%s at %v, demand that %s: %d admitted of %d", key, trip, of, got, most)
				if got < least || got > most {
					t.Errorf("%s at %v, demand that %s: %d admitted, want %d to %d", key, trip, of, got, least, most)
				}
			}
		}
		for i, f := range fleets {
			f.nodes[0].metric("sluice_build_info", fmt.Sprintf(`region="region-%d"`, i))
		}
	}
	if !*regionsLong {
		t.Parallel()
		play(t, "redis", 8, 80*time.Millisecond, "fixed")
		return
	}
	for _, trip := range []time.Duration{80 * time.Millisecond, 150 * time.Millisecond} {
		t.Run(fmt.Sprint("redis ", trip), func(t *testing.T) { play(t, "redis", 60, trip, "fixed", "sliding", "bucket") })
	}
	t.Run("postgres", func(t *testing.T) { play(t, "postgres", 60, 80*time.Millisecond, "fixed") })
}

// No alert fires, and no console names a problem, while fleets do their work for as long as -quiet says: one under the
// loads of the benchmarks, and the demo. (make quiet)
func TestNoFalseAlarm(t *testing.T) {
	if *quiet == 0 {
		t.Skip("make quiet runs it, for an hour on a machine that does nothing else")
	}
	ctx, cancel := context.WithTimeout(t.Context(), *quiet)
	defer cancel()
	// The loads of `sluicelab bench fleets`, each in each mode, one far beyond its limit, and token budgets.
	rows := []struct {
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
	modes := []string{"leasing", "routing", "approx"}
	rules := "domain: d\ndescriptors:\n  - {key: tokens, hold: {amount: 20}, rate_limit: {unit: hour, requests_per_unit: 1000000}}\n"
	for _, r := range rows {
		for _, mode := range modes {
			rules += fmt.Sprintf("  - {key: %s-%s, coordination: {mode: %[2]s}, rate_limit: {%s}}\n", r.key, mode, r.limit)
		}
	}
	f := newFleet(t, 3, setup{rules: rules, store: aRedis(t), ring: 3})
	prometheus := f.prometheus("deploy/prometheus/alerts.yaml")
	var watched []string // debug ports; first those of the demo
	lab, err := program.Build("sluicelab", "cmd/sluicelab")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, lab, "demo", "--for="+quiet.String(), "--rate=100", "--nodes=2", "--no-envoy")
	cmd.Env = append(os.Environ(), "SLUICE_BINARY="+os.Args[0], "SLUICE_RUN_MAIN=1")
	file := t.TempDir() + "/demo"
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var text []byte
	f.nodes[0].eventually("the demo runs", func() bool {
		text, _ = os.ReadFile(file)
		return strings.Contains(string(text), " explain --debug")
	})
	for _, m := range regexp.MustCompile(`http://(\S+)/console`).FindAllStringSubmatch(string(text), -1) {
		watched = append(watched, m[1])
	}
	if len(watched) != 2 || ctx.Err() != nil {
		t.Fatalf("the demo has the nodes %q", watched)
	}
	for _, n := range f.nodes {
		watched = append(watched, n.debug)
	}
	var all sync.WaitGroup
	for i, row := range rows {
		for j, mode := range modes {
			row.load.Length = *quiet
			all.Go(func() {
				caller.Open(ctx, row.load, uint64(len(modes)*i+j), time.Now(), func(r load.Request, _ time.Time) {
					f.ask(r.Key%len(f.nodes), row.key+"-"+mode, fmt.Sprint("k", r.Key))
				})
			})
		}
	}
	all.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			user := fmt.Sprint("u", n%7)
			if hold, ok := f.nodes[n%3].holds("tokens", user, 1); ok {
				_ = f.nodes[(n+1)%3].settles("tokens", user, hold, 5+n%40)
			}
			_ = caller.Sleep(ctx, 100*time.Millisecond)
		}
	})
	looks, named := 0, map[string]int{}
	for ; ctx.Err() == nil; looks++ {
		for _, node := range watched {
			for _, p := range f.nodes[0].problems(node) {
				named["the console of "+node+": "+p.What+": "+p.Detail]++
			}
		}
		_, text := f.nodes[0].get(prometheus + "/api/v1/alerts")
		var body struct {
			Data struct {
				Alerts []struct {
					Labels map[string]string
					State  string
				}
			}
		}
		if err := json.Unmarshal([]byte(text), &body); err != nil {
			t.Errorf("%v: %s", err, text)
		}
		for _, a := range body.Data.Alerts {
			if a.State == "firing" {
				named[fmt.Sprint("Prometheus: ", a.Labels)]++
			}
		}
		_ = caller.Sleep(ctx, 2*time.Second)
	}
	all.Wait()
	for what, n := range named {
		t.Errorf("%d of %d looks: %s", n, looks, what)
	}
	decided := f.total("sluice_decisions_total")
	t.Logf("%d looks at %d consoles and Prometheus, %d decisions", looks, len(watched), decided)
	if n := f.failed.Load(); n > 0 {
		t.Errorf("%d requests failed", n)
	}
	if least := int(quiet.Seconds()) * 400; decided < least {
		t.Errorf("%d decisions, which are fewer than %d", decided, least)
	}
}
