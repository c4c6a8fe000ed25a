package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

const overriddenRules = `domain: d
coordination: {%s}
descriptors:
  - {key: five, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: many, rate_limit: {unit: year, requests_per_unit: 50000}}
`

var (
	leasedOverrides = fmt.Sprintf(overriddenRules, "on_deny: refund")
	routedOverrides = fmt.Sprintf(overriddenRules, "mode: routing, on_store_failure: closed, on_deny: refund")
)

// Without a store, an override ends by the wall clock, which may have been set since the start.
func TestOverridesEndByTheWallClock(t *testing.T) {
	wall, clock, log := time.Now(), ratelimit.MonotonicClock(), slog.New(slog.DiscardHandler)
	store := config.NewStore(config.Static{{Name: "a", Data: []byte(fmt.Sprintf(overriddenRules, ""))}}, config.Options{Coordination: ratelimit.DefaultCoordination()}, log)
	if err := store.Load(); err != nil {
		t.Fatal(err)
	}
	d := &decider{NodeLimiter: local.New(10, clock(), wall)}
	d.override(overrides.NewTable(), store, wallTimes(clock), func() time.Time { return wall }, clock, log)
	_, key := store.Rules().Domain("d").Match([]config.Entry{{Key: "five", Value: "x"}}, nil)
	for _, step := range []time.Duration{8 * time.Hour, -24 * time.Hour} {
		wall = wall.Add(step)
		ban := &overrides.Override{Override: ratelimit.Override{Expires: ratelimit.LedgerTime(wall.Add(10 * time.Minute).UnixMicro())}}
		if _, err := d.overrides.Set(t.Context(), key, ban, table.Any); err != nil {
			t.Fatal(err)
		}
		for _, banned := range []bool{true, false} {
			if _, is := d.overrides.Get(key); is != banned {
				t.Errorf("after a step of %v, a ban is in force: %t, must be %t", step, is, banned)
			}
			a, v := []ratelimit.Ask{{Rule: store.Rules().All()[0], Key: key, Cost: 1}}, make([]ratelimit.Verdict, 1)
			if d.Decide(t.Context(), clock(), a, v); v[0].OverLimit != banned {
				t.Errorf("after a step of %v, a request is refused: %t, must be %t", step, v[0].OverLimit, banned)
			}
			wall = wall.Add(11 * time.Minute)
		}
	}
}

// put sets an override over HTTP, again while the store does not answer in time: its disk may be busy.
func (s *sluice) put(descriptor, body string) {
	s.Helper()
	var answer http.Response
	var said string
	becomes(func() bool {
		answer, said = s.do(http.MethodPut, s.debug+"/v1/overrides/d?"+descriptor, body, "Authorization", "Bearer hunter2")
		return answer.StatusCode != http.StatusServiceUnavailable
	})
	if answer.StatusCode != http.StatusOK {
		s.Errorf("PUT %s is answered %s %s", descriptor, answer.Status, said)
	}
}

// lists waits until a node lists these overrides, as DESCRIPTOR=LIMIT, and no other.
func (s *sluice) lists(what string, want []string) {
	s.Helper()
	slices.Sort(want)
	var got []string
	if !becomes(func() bool {
		_, out, _ := runLine("limit", "export", "--debug", s.debug, "--token=hunter2")
		got = nil
		for line := range strings.Lines(out) {
			if fields := strings.Split(line, ","); fields[0] == "d" {
				got = append(got, fields[1]+"="+fields[2])
			}
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	}) {
		s.Fatalf("%s, a node lists %q, must list %q; the log:\n%s", what, got, want, s.log())
	}
}

// overridesReach has nodes use up keys, and refuse them by themselves. An override that is set at one counts at all of
// them within a second, and each node lists all.
func overridesReach(t *testing.T, nodes []*sluice) (listed []string) {
	t.Helper()
	const workers, keys = 6, 24
	took := make([]time.Duration, keys)
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for i := worker; i < keys; i += workers {
				key := fmt.Sprint("k", i)
				for n := range 30 { // each request is charged
					nodes[n%len(nodes)].admits(1, "five", key)
				}
				began := time.Now()
				nodes[i%len(nodes)].put("five="+key, `{"limit": 1000, "reason": "", "expires": "1h"}`)
				for _, s := range nodes {
					if !becomes(func() bool { return s.admits(1, "five", key) }) {
						t.Errorf("%s is refused at %s after %v", key, s.debug, patience)
					}
				}
				took[i] = time.Since(began)
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	t.Logf("an override counts at all nodes after %v (median), %v at most", took[keys/2], took[keys-1])
	if took[keys/2] > time.Second { // a busy machine may hold up some
		t.Errorf("half of the overrides count later than after %v", took[keys/2])
	}
	for i := range keys {
		listed = append(listed, fmt.Sprintf("five=k%d=1000", i))
	}
	for _, s := range nodes {
		s.lists("after all are set", listed)
	}
	return listed
}

// An override reaches each node, on each kind of store. In mode routing it reaches the owner of a key, which decides by
// the rule that it gets, also for keys that other nodes lease.
func TestOverridesReachEachNode(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, server storeServer) {
		overridesReach(t, newFleet(t, 3, setup{rules: leasedOverrides, store: server}).nodes)
	})
	t.Run("owners", func(t *testing.T) {
		t.Parallel()
		overridesReach(t, newFleet(t, 3, setup{rules: routedOverrides, ring: 3, store: aRedis(t)}).nodes)
	})
}

// Nodes of a ring without a store do the same by the memory of each key's owner. Of an override, a node that is added
// takes nothing away, nor does one that ends in good order.
func TestRingOverridesOutliveRestarts(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 3, setup{rules: routedOverrides, ring: 4})
	listed := overridesReach(t, r.nodes)
	added := r.join()
	in := func(nodes []*sluice) {
		t.Helper()
		for _, s := range nodes {
			s.eventually("the ring is whole", func() bool { return s.metric("sluice_ring_members") == len(nodes) && s.healthy() })
		}
		for i, s := range nodes {
			s.lists("after the ring has changed", listed)
			for k := range listed {
				key := fmt.Sprint("k", k)
				if k%len(nodes) == i { // an owner may answer late
					s.eventually(key+" passes", func() bool { return s.admits(1, "five", key) })
				}
			}
		}
	}
	in(r.nodes)
	r.nodes[0].ends(syscall.SIGINT) // which skips the drain only
	in(r.nodes[1:])
	added.put("five=brief", `{"limit": 0, "reason": "", "expires": "300ms"}`)
	for _, s := range r.nodes[1:] {
		s.eventually("an override is over", func() bool { return s.admits(1, "five", "brief") })
		s.lists("after one has expired", listed)
	}
}

// A ban counts within seconds at a node that missed its recall: the connection that listens was cut.
func TestBanReachesWhoMissedItsRecall(t *testing.T) {
	t.Parallel()
	of := func(t *testing.T, server storeServer, cut func()) {
		t.Parallel()
		nodes := newFleet(t, 2, setup{rules: leasedOverrides, store: server}).nodes
		for range 300 { // a lease worth having
			nodes[0].admits(1, "many", "x")
		}
		cut()
		nodes[1].put("many=x", `{"limit": 0, "reason": "abuse"}`)
		nodes[0].eventually("the key is refused", func() bool {
			time.Sleep(300 * time.Millisecond) // so seldom that the lease is not used up meanwhile
			return !nodes[0].admits(1, "many", "x")
		})
	}
	t.Run("postgres", func(t *testing.T) {
		server := pgtest.Start(t)
		of(t, server, func() {
			server.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
		})
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		of(t, server, func() { server.Do("CLIENT", "KILL", "TYPE", "pubsub") })
	})
}
