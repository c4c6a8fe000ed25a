package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Cluster starts a Redis Cluster of n masters without replicas, with contiguous slots. Its shards continue when another
// one is down.
func Cluster(tb testing.TB, n int) []*Server {
	tb.Helper()
	return ClusterOf(tb, n, func(slot int) int { return slot * n / 16384 })
}

// ClusterOf is Cluster with a master for each slot.
func ClusterOf(tb testing.TB, n int, masterOf func(slot int) int) []*Server {
	tb.Helper()
	servers, added := make([]*Server, n), make([][]any, n)
	for slot := range 16384 {
		i := masterOf(slot)
		added[i] = append(added[i], slot)
	}
	for i := range servers {
		servers[i] = startClustered(tb)
		servers[i].Do(append([]any{"CLUSTER", "ADDSLOTS"}, added[i]...)...)
		if i > 0 {
			servers[i].meet(servers[0])
		}
	}
	untilWhole(servers, n)
	return servers
}

// startClustered starts a server for a Cluster. Replicas take over by Promote only, and not when a master is killed.
func startClustered(tb testing.TB) *Server {
	tb.Helper()
	return Start(tb, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no",
		"--cluster-node-timeout", "2000", "--cluster-replica-no-failover", "yes", "--repl-diskless-sync-delay", "0")
}

func (s *Server) meet(other *Server) {
	host, port, _ := net.SplitHostPort(other.Addr)
	s.Do("CLUSTER", "MEET", host, port)
}

// untilWhole waits until each server has a Cluster of n servers, with all of its slots.
func untilWhole(servers []*Server, n int) {
	for _, s := range servers {
		s.until("the cluster is whole", func() bool {
			info, _ := s.Do("CLUSTER", "INFO").(string)
			return strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", n)) &&
				strings.Contains(info, "cluster_slots_ok:16384")
		})
	}
}

// Replicas starts a replica of each master of a Cluster, and waits until it follows.
func Replicas(tb testing.TB, masters []*Server) []*Server {
	tb.Helper()
	replicas := make([]*Server, len(masters))
	for i := range replicas {
		replicas[i] = startClustered(tb)
		replicas[i].meet(masters[0])
	}
	untilWhole(slices.Concat(masters, replicas), 2*len(masters))
	for i, s := range replicas {
		s.Do("CLUSTER", "REPLICATE", masters[i].Do("CLUSTER", "MYID"))
	}
	for _, s := range replicas {
		s.UntilInfo("replication", "master_link_status:up")
	}
	return replicas
}

// Sever cuts a replica off its master, which stays its master: it must not dial it again.
func (s *Server) Sever(master *Server) {
	s.Helper()
	s.Do("CONFIG", "SET", "masterauth", "another password")
	master.Do("CLIENT", "KILL", "TYPE", "replica")
	s.UntilInfo("replication", "master_link_status:down")
}

// Promote makes a replica of a Cluster its master, without votes of the other masters.
func (s *Server) Promote() {
	s.Helper()
	s.Do("CLUSTER", "FAILOVER", "TAKEOVER")
	s.UntilInfo("replication", "role:master")
}

// Sentinel starts one sentinel that watches master under a name, and fails over quickly.
func Sentinel(tb testing.TB, name string, master *Server) *Server {
	tb.Helper()
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		tb.Fatal(err)
	}
	config := filepath.Join(tb.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %s %s %s 1\nsentinel down-after-milliseconds %s 300\n"+
		"sentinel failover-timeout %s 3000\n", name, host, port, name, name)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	s := &Server{TB: tb, Addr: freeAddress(tb), dir: tb.TempDir(), config: config}
	s.Run()
	tb.Cleanup(s.Kill)
	return s
}

// Until waits for a condition of the server.
func (s *Server) until(what string, ok func() bool) {
	s.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("%v: %s: not within 20s", s, what)
		}
	}
}

// Info returns a section of INFO.
func (s *Server) Info(section string) string {
	s.Helper()
	c := s.Client()
	defer c.Close()
	text, err := c.Info(context.Background(), section).Result()
	if err != nil {
		return ""
	}
	return text
}

// UntilInfo waits until a section of INFO has a line.
func (s *Server) UntilInfo(section, line string) {
	s.Helper()
	s.until(line, func() bool { return strings.Contains(s.Info(section), line) })
}

// Join starts another master and adds it to a Cluster, without slots.
func Join(tb testing.TB, masters []*Server) *Server {
	tb.Helper()
	s := startClustered(tb)
	s.meet(masters[0])
	all := append(slices.Clone(masters), s)
	untilWhole(all, len(all))
	return s
}

// Move moves slots with their keys from one master of a Cluster to another, one after the other, while clients use
// them: the steps of redis-cli --cluster reshard. between is called after each slot; nil: no call.
func Move(masters []*Server, from, to *Server, slots []int, between func(moved int)) {
	from.Helper()
	ctx := context.Background()
	do := map[*Server]func(args ...any) any{}
	for _, s := range masters {
		c := s.Client()
		defer c.Close()
		do[s] = func(args ...any) any {
			from.Helper()
			v, err := c.Do(ctx, args...).Result()
			// A master without slots becomes a replica at once.
			if err != nil && !strings.Contains(err.Error(), "only with masters") {
				from.Errorf("%v: %v: %v", s, args, err)
			}
			return v
		}
	}
	host, port, _ := net.SplitHostPort(to.Addr)
	source, target := do[from]("CLUSTER", "MYID"), do[to]("CLUSTER", "MYID")
	for i, slot := range slots {
		do[to]("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
		do[from]("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
		for {
			keys, _ := do[from]("CLUSTER", "GETKEYSINSLOT", slot, 10).([]any)
			if len(keys) == 0 {
				break
			}
			do[from](append([]any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}, keys...)...)
		}
		do[to]("CLUSTER", "SETSLOT", slot, "NODE", target)
		do[from]("CLUSTER", "SETSLOT", slot, "NODE", target)
		for _, s := range masters {
			if s != to && s != from {
				do[s]("CLUSTER", "SETSLOT", slot, "NODE", target)
			}
		}
		if between != nil {
			between(i + 1)
		}
	}
}
