package store

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/ratelimit/table/tabletest"
)

func TestRedisTable(t *testing.T) {
	for name, args := range map[string][]string{
		"memory": {"--save", "", "--appendonly", "no"},
		"disk":   {"--appendonly", "yes", "--appendfsync", "always"},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t, args...)
			tabletest.Run(t, tabletest.Server{
				Open: func(t testing.TB) table.Store {
					c := s.Client()
					t.Cleanup(func() { _ = c.Close() })
					return newRedisFeed(c, "t:")
				},
				Restart: func() { s.Kill(); s.Run() },
				Lose:    func() { s.Do("FLUSHALL") },
			})
		})
	}
}

func TestRedisClusterTable(t *testing.T) {
	masters := redistest.Cluster(t, 3)
	tabletest.Run(t, tabletest.Server{Open: func(t testing.TB) table.Store {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{masters[0].Addr}})
		t.Cleanup(func() { _ = c.Close() })
		return newRedisFeed(c, "t:")
	}})
}

// switched is a client that finds another master.
type switched struct{ *redisFeed }

// A replica that lagged is promoted: it lacks a change, and has one that was replaced. Its nodes bring it up to date.
// So does a master that was a replica of another in between, under the same run.
func TestRedisTableAfterFailover(t *testing.T) {
	master, replica := redistest.Start(t), redistest.Start(t)
	host, port, _ := strings.Cut(master.Addr, ":")
	open := func(s *redistest.Server) *redisFeed {
		c := s.Client()
		t.Cleanup(func() { _ = c.Close() })
		return newRedisFeed(c, "t:")
	}
	store := &switched{open(master)}
	clock := func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) }
	n := table.NewNode(table.New(nil), store, clock, 1)
	beat := func() {
		t.Helper()
		for more, err := n.Step(t.Context()); more || err != nil; more, err = n.Step(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	set := func(key, value string) {
		t.Helper()
		if _, err := n.Set(t.Context(), table.Record{Key: key, Value: value}, table.Any); err != nil {
			t.Fatal(err)
		}
	}
	has := func(what string, s *redisFeed) {
		t.Helper()
		beat()
		p, err := s.Since(t.Context(), "", 0, 10)
		got := ""
		for _, r := range p.Records {
			got += r.Key + "=" + r.Value + " "
		}
		if err != nil || !strings.Contains(got, "ban=0 ") || !strings.Contains(got, "gone= ") {
			t.Errorf("%s the store has %s(%v)", what, got, err)
		}
	}
	beat()
	set("ban", "9")
	set("gone", "9")
	replica.Do("REPLICAOF", host, port)
	replica.UntilInfo("replication", "master_link_status:up")
	replica.Sever(master)
	set("ban", "0")
	set("gone", "")
	if _, err := open(replica).Since(t.Context(), "", 0, 10); err == nil {
		t.Error("a replica answers")
	}
	replica.Do("REPLICAOF", "NO", "ONE")
	store.redisFeed = open(replica)
	has("after a failover", store.redisFeed)

	store.redisFeed = open(master) // which has its run, and for a moment the data of another
	beat()
	other := redistest.Start(t)
	host, port, _ = strings.Cut(other.Addr, ":")
	master.Do("REPLICAOF", host, port)
	master.UntilInfo("replication", "master_link_status:up")
	master.Do("REPLICAOF", "NO", "ONE")
	has("after it was a replica", store.redisFeed)
}
