package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Late replies of the store, and keys without a place, are in the log at once, and then once a minute.
func TestLateRepliesAreLogged(t *testing.T) {
	var log bytes.Buffer
	w := outageWatch{log: slog.New(slog.NewTextHandler(&log, nil))}
	var s ratelimit.LimiterStats
	for range 130 { // looks, one a second
		s.Fallbacks[ratelimit.FallbackDeadline] += 2
		s.Fallbacks[ratelimit.FallbackTableFull]++ // which is the same count
		s.Overflow++
		w.look(s, false)
	}
	for text, n := range map[string]int{
		"later than store_deadline: on_store_failure decided\" decisions=2\n": 1, "decisions=120\n": 2,
		"the table of keys is full": 3, "decisions_without_a_place=60": 2,
	} {
		if got := strings.Count(log.String(), text); got != n {
			t.Errorf("%q is there %d times, want %d:\n%s", text, got, n, &log)
		}
	}
}

// hall is the registry of a store.
type hall struct {
	store.Store
	all  []store.Registration
	gone []string // nodes that were taken out
}

func (c *hall) Register(_ context.Context, node, text string) ([]store.Registration, error) {
	if text == "" {
		c.gone = append(c.gone, node)
	}
	return c.all, nil
}

// A node that crashed stays in the list, as silent, and counts no longer after a minute. A process at its address
// replaces it. The console shows the first thousand nodes. Budgets for outages and leases are divided by all.
func TestNodesAreCounted(t *testing.T) {
	said := func(debug string, ago time.Duration) store.Registration {
		return store.Registration{Node: debug + ago.String(), Text: fmt.Sprintf(`{"debug": %q, "every": 2}`, debug), Ago: ago}
	}
	c := &hall{all: []store.Registration{
		said("here:6070", 0), said("there:6070", time.Second), said("hung:6070", time.Minute/2), said("dead:6070", 3*time.Hour), said("here:6070", 4*time.Hour),
	}}
	r := newRegistry(c, 1)
	r.register(t.Context(), "here:6070", "{}")
	var silent []string
	nodes := r.all().Nodes
	for _, n := range nodes {
		if n.Silent {
			silent = append(silent, n.Debug)
		}
	}
	if n := r.count(); n != 3 || len(nodes) != 4 || strings.Join(silent, " ") != "dead:6070 hung:6070" {
		t.Errorf("%d nodes count, %d are listed, and silent are %v", n, len(nodes), silent)
	}
	if strings.Join(c.gone, " ") != "here:60704h0m0s" {
		t.Errorf("taken out: %v", c.gone)
	}
	c.all = nil
	for i := range 2 * mostNodes {
		c.all = append(c.all, store.Registration{Node: fmt.Sprint(i), Text: "{}"})
	}
	r.register(t.Context(), "here:6070", "{}")
	if n, shown := r.count(), len(r.all().Nodes); n != 2*mostNodes || shown != mostNodes {
		t.Errorf("of %d nodes, %d count and %d are shown", 2*mostNodes, n, shown)
	}
}

// In an outage, each node shows what its policy admits of the worst key, and what is declared. It names the busiest
// keys. What all nodes show together is no less than what was admitted.
func TestOutageShowsItsHighestWindow(t *testing.T) {
	t.Parallel()
	const rules = "domain: d\ndescriptors: [{key: local, coordination: {on_store_failure: local, max_nodes: 3}, rate_limit: {unit: day, requests_per_unit: 90}}]\n"
	f := newFleet(t, 3, setup{rules: rules, store: aRedis(t)})
	admitted := int(f.load("local", 1, 60, 0, 1, 2))
	f.redis.Signal(syscall.SIGSTOP)
	admitted += int(f.load("local", 1, 400, 0, 1, 2))
	used, alone := 0, f.total("sluice_worst_key_by_policy_tokens")
	for _, n := range f.nodes {
		_, text := n.get(n.debug + "/console/state")
		var s struct {
			Rules []struct {
				Highest  int `json:"highest_window"`
				Declared int `json:"declared_in_outage"`
			}
			Hottest []struct{ Account string }
		}
		if err := json.Unmarshal([]byte(text), &s); err != nil || len(s.Rules) != 1 || len(s.Hottest) != 1 {
			t.Fatalf("%v: %s", err, text)
		}
		if r := s.Rules[0]; r.Highest > r.Declared || r.Highest < 60 || !strings.Contains(s.Hottest[0].Account, "local=x") {
			t.Errorf("%+v", s)
		}
		used = max(used, n.metric("sluice_window_used_tokens"))
	}
	if used+alone < admitted || admitted <= 90 || alone == 0 {
		t.Errorf("%d of 90 were admitted; %d are shown as used, and %d as admitted by policy", admitted, used, alone)
	}
}
