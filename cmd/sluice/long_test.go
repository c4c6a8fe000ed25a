package main

import (
	"context"
	"encoding/json"
	goflag "flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/leasing/redistest/program"
)

var regionsLong = goflag.Bool("regions", false, "TestRegions plays each algorithm at 80 and 150 ms, for a window of a minute each")

// regionsTime is the longest time for which a fleet runs.
func regionsTime() time.Duration {
	if *regionsLong {
		return time.Hour
	}
	return 0
}

// farStore is a store behind a proxy that delays its replies.
type farStore struct {
	storeServer
	address string
}

func (s farStore) URL() string {
	u, err := url.Parse(s.storeServer.URL())
	if err != nil {
		return err.Error()
	}
	u.Host = s.address
	if strings.HasPrefix(u.Scheme, "postgres") {
		q := u.Query()
		q.Set("pool_max_conns", "40") // a round trip takes one, and several are under way
		u.RawQuery = q.Encode()
	}
	return u.String()
}

// regions are rings of two nodes each, with proxies to one far store.
type regions struct {
	*testing.T
	fleets  []*fleet
	proxies []*redistest.Proxy
}

func newRegions(t *testing.T, store storeServer, trip time.Duration, rules string) *regions {
	t.Helper()
	target, err := url.Parse(store.URL())
	if err != nil {
		t.Fatal(err)
	}
	r := &regions{T: t}
	for i := range 3 {
		p := redistest.NewProxy(t, target.Host)
		p.Delay(trip)
		region := fmt.Sprint("region-", i)
		f := newFleet(t, 2, setup{
			rules: rules, store: farStore{store, p.Addr}, ring: 2, env: []string{"REGION=" + region, "MAX_WAIT=1s", "REDIS_POOL_SIZE=40"},
		})
		r.fleets, r.proxies = append(r.fleets, f), append(r.proxies, p)
	}
	return r
}

// demand asks the nodes of a region for a time, at a rate.
func (r *regions) demand(region int, key string, rate float64, length time.Duration) {
	f := r.fleets[region]
	l := load.Load{Rate: rate, Keys: 1, Length: length}
	n := 0
	caller.Open(r.Context(), l, uint64(region), time.Now(), func(load.Request, time.Time) {
		n++
		f.askFor(n%2, key, "x")
	})
}

func (r *regions) admitted() (n int64) {
	for _, f := range r.fleets {
		n += f.admitted.Swap(0)
	}
	return n
}

const regionRules = `domain: d
coordination: {mode: routing, on_store_failure: closed, store_deadline: %v}
descriptors:
  - {key: fixed, rate_limit: {unit: second, unit_multiplier: %d, requests_per_unit: %d}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: second, unit_multiplier: %[2]d, requests_per_unit: %[3]d}}
  - {key: bucket, algorithm: token_bucket, burst: 200, rate_limit: {unit: second, unit_multiplier: %[2]d, requests_per_unit: %[3]d}}
`

// Three regions are far from their store. Demand of one and a half times a limit gets at least 98 % of it in a window,
// and nothing beyond. Demand that moves from region to region gets 95 %.
func TestRegions(t *testing.T) {
	if !*regionsLong {
		t.Parallel()
		testRegions(t, aRedis(t), 10, 80*time.Millisecond, "fixed")
		return
	}
	for _, trip := range []time.Duration{80 * time.Millisecond, 150 * time.Millisecond} {
		t.Run(fmt.Sprint("redis ", trip), func(t *testing.T) { testRegions(t, aRedis(t), 60, trip, "fixed", "sliding", "bucket") })
	}
	t.Run("postgres", func(t *testing.T) { testRegions(t, pgtest.Start(t), 60, 80*time.Millisecond, "fixed") })
}

func testRegions(t *testing.T, store storeServer, seconds int, trip time.Duration, keys ...string) {
	window := time.Duration(seconds) * time.Second
	limit := 100 * seconds
	r := newRegions(t, store, trip, fmt.Sprintf(regionRules, 5*trip, seconds, limit))
	for _, key := range keys {
		for _, moves := range []bool{false, true} {
			least, most := int64(limit)*98/100, int64(limit)
			if moves {
				least = int64(limit) * 95 / 100
			}
			if key == "bucket" {
				least, most = least+200, most+200+5 // it refills while the first and the last request travel
			}
			if key != "fixed" { // nothing of earlier windows counts any more, and buckets are full
				time.Sleep(window)
			}
			time.Sleep(time.Until(time.Now().Truncate(window).Add(window + trip))) // the turn of the store's window
			r.admitted()
			r.play(key, moves, time.Now(), window-4*trip)
			if got := r.admitted(); got < least || got > most {
				t.Errorf("%s at %v, moving %v: %d admitted, want %d to %d", key, trip, moves, got, least, most)
			} else {
				t.Logf("%s at %v, moving %v: %d admitted of %d", key, trip, moves, got, most)
			}
		}
	}
	for _, f := range r.fleets {
		if n := f.failed.Load(); n > 0 {
			t.Errorf("%d requests failed", n)
		}
		if _, text := f.nodes[0].get(f.nodes[0].debug + "/metrics"); !strings.Contains(text, `sluice_build_info{region="region-`) {
			t.Error("metrics do not name the region")
		}
	}
}

// play demands one and a half times what a window of 100 tokens a second has.
func (r *regions) play(key string, moves bool, begins time.Time, length time.Duration) {
	const rate = 155
	if moves {
		for i := range 3 {
			r.demand(i, key, rate, time.Until(begins.Add(time.Duration(i+1)*length/3)))
		}
		return
	}
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() { r.demand(i, key, rate/3., length) })
	}
	all.Wait()
}

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
	lab, err := program.Build("sluicelab", "cmd/sluicelab")
	if err != nil {
		f.Fatal(err)
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
