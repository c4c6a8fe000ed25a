package main

import (
	goflag "flag"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
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

// A node does not enter the ring of another region, and says why.
func TestRingsDoNotSpanRegions(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, setup{rules: routingRules, ring: 2, env: []string{"REGION=eu"}})
	f.env = []string{"REGION=us"}
	other := f.join()
	other.eventually("it has a ring of its own", func() bool { return other.healthy() && other.metric("sluice_ring_members") == 1 })
	other.eventually("it says why", func() bool { return strings.Contains(other.output.String(), "the peer is of another region") })
	if n := f.nodes[0].metric("sluice_ring_members"); n != 1 {
		t.Errorf("%d members", n)
	}
}

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
