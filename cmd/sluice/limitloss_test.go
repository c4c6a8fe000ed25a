package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// lists waits until a node lists these overrides, as DESCRIPTOR=LIMIT, and no other.
func (s *sluice) lists(what string, want ...string) {
	s.Helper()
	var got []string
	if !becomes(func() bool {
		_, out, _ := s.read("export")
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

// What was set and removed stays so when the store loses its data, and when it starts again: for all nodes, and for one
// that comes later.
func TestOverridesOutliveTheStore(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, server storeServer) {
		f := newFleet(t, 2, setup{rules: peopleRules, store: server})
		one, other := f.nodes[0], f.nodes[1]
		one.may("set", "0", "d", "five=ban")
		other.may("set", "9", "d", "sliding=x")
		one.may("set", "9", "d", "five=gone")
		one.may("rm", "d", "five=gone")
		want := []string{"five=ban=0", "sliding=x=9"}
		lose := map[string]func(){"after a restart": func() { server.Kill(); server.Run() }}
		if s, ok := server.(*redistest.Server); ok {
			lose["after FLUSHALL"] = func() { s.Do("FLUSHALL") }
		}
		for what, lose := range lose {
			other.lists("before", want...)
			lose()
			other.eventually("what is set counts at another node", func() bool {
				code, _, _ := one.limit("set", "8", "d", "bucket=x")
				return code == 0
			})
			other.lists(what, slices.Sorted(slices.Values(append(want, "bucket=x=8")))...)
			one.may("rm", "d", "bucket=x")
			late := f.join()
			late.eventually("a late node is healthy", late.healthy)
			late.lists(what+", at a late node", want...)
			if got := late.post("five", "ban"); got != http.StatusTooManyRequests {
				t.Errorf("%s, a late node answers a banned key %d", what, got)
			}
		}
	})
}

// A replica that lagged behind becomes the master: what it lacks comes from the nodes.
func TestOverridesOutliveFailovers(t *testing.T) {
	t.Parallel()
	master, replica := redistest.Start(t), redistest.Start(t)
	host, port, _ := strings.Cut(master.Addr, ":")
	replica.Do("REPLICAOF", host, port)
	replica.UntilInfo("replication", "master_link_status:up")
	sentinel := redistest.Sentinel(t, "main", master)
	sentinel.UntilInfo("sentinel", "slaves=1")
	file := filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, file, peopleRules)
	begin := func() *sluice {
		return serve(t, []string{"REDIS_TYPE=SENTINEL", "REDIS_URL=main," + sentinel.Addr, "ADMIN_TOKEN=hunter2", "DRAIN_TIME=0s"}, "--config", file)
	}
	one := begin()
	one.eventually("it is healthy", one.healthy)
	one.may("set", "9", "d", "five=x")
	one.may("set", "9", "d", "five=gone")
	replica.Sever(master)
	one.may("set", "0", "d", "five=x")
	one.may("rm", "d", "five=gone")
	master.Kill()
	replica.UntilInfo("replication", "role:master")
	one.eventually("changes are possible again", func() bool {
		code, _, _ := one.limit("set", "7", "d", "bucket=x")
		return code == 0
	})
	late := begin()
	late.eventually("a late node is healthy", late.healthy)
	late.lists("after a failover", "bucket=x=7", "five=x=0")
}

// Two nodes set at once, the same keys and others: no change is lost, and both have the same.
func TestTwoWritersLoseNothing(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, server storeServer) {
		f := newFleet(t, 2, setup{rules: peopleRules, store: server})
		const each = 30
		var all sync.WaitGroup
		for w, s := range f.nodes {
			all.Go(func() {
				for i := range each {
					s.put(t, fmt.Sprintf("five=w%d-%02d", w, i), `{"limit": 7, "reason": ""}`)
					s.put(t, "sliding=both", fmt.Sprintf(`{"limit": %d, "reason": ""}`, 100*(w+1)+i))
				}
			})
		}
		all.Wait()
		var want []string
		for w := range f.nodes {
			for i := range each {
				want = append(want, fmt.Sprintf("five=w%d-%02d=7", w, i))
			}
		}
		last := func(s *sluice) string {
			_, out, _ := s.read("get", "--json", "d", "sliding=both")
			return regexp.MustCompile(`"limit": ?(\d+)`).FindString(out)
		}
		f.nodes[0].eventually("both nodes have the same", func() bool { return last(f.nodes[0]) == last(f.nodes[1]) })
		_, number, _ := strings.Cut(last(f.nodes[0]), ":")
		want = append(want, "sliding=both="+strings.TrimSpace(number))
		for _, s := range f.nodes {
			s.lists("after two writers", want...)
		}
	})
}
