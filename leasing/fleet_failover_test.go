package leasing

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/postgres"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
)

// Shards of a Cluster lose data while they are in use. Replicas that lag behind take over from live masters,
// with the votes of others or without, or a shard is emptied, or restarts. No key exceeds its limit by more
// than declared, the limit is not lost, and parts of other shards count no loss.
func TestShardsThatLoseTheirData(t *testing.T) {
	t.Parallel()
	const limit, callers = 500, 8
	masters := redistest.Cluster(t, 3)
	replicas := redistest.Replicas(t, masters)
	c := newOnClients(t, 3, yearly(limit), clusterOf(masters...))
	c.strict()
	c.ready()
	for _, fault := range []struct {
		name          string
		before, fault func()
		shards        []int
		unharmed      []int // parts of the ledger
	}{
		{
			"promotions",
			func() {
				replicas[0].Sever(masters[0])
				replicas[1].Sever(masters[1])
			},
			func() {
				replicas[0].Promote("TAKEOVER")
				replicas[1].Promote("FORCE")
			},
			[]int{0, 1},
			[]int{11, 12, 13, 14, 15},
		},
		{"FLUSHALL", func() {}, func() { masters[2].Do("FLUSHALL") }, []int{2}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
		{"restart", func() {}, func() { masters[2].Kill(); masters[2].Run() }, []int{2}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			var keys []string
			for _, shard := range fault.shards {
				keys = append(keys, c.heldBy(masters[shard], fault.name, 4)...)
			}
			admitted := map[string]int{}
			spend := func(times int) {
				more, _ := c.load(callers*times*len(keys), callers, 0, keys...)
				for key, n := range more {
					admitted[key] += n
				}
			}
			spend(limit / 10 / callers)
			fault.before()
			spend(limit / 2 / callers)
			was := c.lives()
			var all sync.WaitGroup
			all.Go(func() { spend(limit / 10 / callers) })
			fault.fault()
			all.Wait()
			for end := time.Now().Add(15 * time.Second); c.short(admitted, limit, keys...) > 0 && time.Now().Before(end); {
				spend(5)
			}
			spend(limit / 10 / callers)
			t.Logf("of %d were admitted %v", limit, admitted)
			for _, key := range keys {
				if n := admitted[key]; n < limit || n > limit+limit/20 {
					t.Errorf("%s was admitted %d of %d: a loss may cost %d", key, n, limit, limit/20)
				}
			}
			// Parts without claims see it later. The next fault must not be blamed for this one.
			unanswered := func() (n int) {
				for i, now := range c.lives() {
					for part := range now {
						if now[part] == was[i][part] && !slices.Contains(fault.unharmed, part) {
							n++
						}
					}
				}
				return n
			}
			for end := time.Now().Add(15 * time.Second); unanswered() > 0 && time.Now().Before(end); {
				time.Sleep(50 * time.Millisecond)
			}
			if n := unanswered(); n > 0 {
				t.Errorf("of %d parts no node has noticed", n)
			}
			for i, now := range c.lives() {
				for _, part := range fault.unharmed {
					if now[part] != was[i][part] {
						t.Errorf("node %d takes part %d for lost", i, part)
					}
				}
			}
		})
	}
}

// A master was a replica of older data for a moment, and is master again: no node had to see it as a replica. It grants
// at most what a loss costs.
func TestMasterThatWasAReplica(t *testing.T) {
	t.Parallel()
	single := func(t *testing.T, busy, cut bool, as time.Duration) {
		a, b := redistest.Start(t, "--repl-diskless-sync-delay", "0"), redistest.Start(t, "--repl-diskless-sync-delay", "0")
		host, port, _ := net.SplitHostPort(a.Addr)
		b.Do("REPLICAOF", host, port)
		b.UntilInfo("replication", "master_link_status:up")
		flip(newOnClients(t, 3, yearly(100), clientOf(a.Addr)), func() { b.Do("REPLICAOF", "NO", "ONE") }, func() {
			host, port, _ := net.SplitHostPort(b.Addr)
			a.Do("REPLICAOF", host, port)
			a.UntilInfo("replication", "master_link_status:up")
			time.Sleep(as)
			a.Do("REPLICAOF", "NO", "ONE")
			if cut { // the connections that watched are gone
				a.Do("CLIENT", "KILL", "TYPE", "normal")
			}
		}, busy)
	}
	for _, row := range []struct {
		name      string
		as        time.Duration
		busy, cut bool
	}{
		{"idle", 0, false, false},
		{"busy", 0, true, false},
		{"idle for 1s", time.Second, false, false},
		{"busy for 12s", 12 * time.Second, true, false},
		{"other connections", 0, false, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			single(t, row.busy, row.cut, row.as)
		})
	}
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		masters := redistest.Cluster(t, 1)
		replicas := redistest.Replicas(t, masters)
		flip(newOnClients(t, 3, yearly(100), clusterOf(masters...)), func() { replicas[0].Sever(masters[0]) }, func() {
			replicas[0].Promote("TAKEOVER")
			masters[0].UntilInfo("replication", "master_link_status:up")
			masters[0].Promote("TAKEOVER")
		}, false)
	})
}

// PostgreSQL restored from a snapshot of its volume has the identity of before: its epoch's record tells.
func TestRestoredVolume(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	c := newOnClients(t, 0, yearly(100), nil)
	c.joinPostgres(server, 3)
	var restore func()
	answers := func() {
		for i := range c.nodes {
			c.greeted(i, 0)
			c.until("it is not back", func() bool { return !c.nodes[i].lanes[0].Open() })
		}
	}
	flip(c, func() {
		restore = server.Snapshot()
		answers()
		time.Sleep(3 * beatEvery) // the copy is older than what nodes have read
	}, func() {
		restore()
		answers()
	}, false)
}

// joinPostgres adds nodes with a ledger in PostgreSQL.
func (c *onRedis) joinPostgres(server *pgtest.Server, n int) {
	c.Helper()
	for range n {
		store, err := postgres.Open(server.URL(), "")
		if err != nil {
			c.Fatal(err)
		}
		c.Cleanup(func() { c.end(); store.Close() })
		if err := store.Prepare(context.Background()); err != nil {
			c.Fatal(err)
		}
		c.joins(account.NewCAS(store, ""), 1000)
	}
}

// flip has one node spend 95 of 100 of 12 keys, mostly after a copy was made. Others then ask for all of it, after the
// copy is in use.
func flip(c *onRedis, copied, used func(), busy bool) {
	c.Helper()
	const limit, keys = 100, 12
	c.strict()
	c.ready()
	var admitted [keys]int
	spend := func(node, each int) {
		for range each {
			for key := range admitted {
				if v, _ := c.attempt(node, fmt.Sprint("k", key), 1); !v.OverLimit {
					admitted[key]++
				}
			}
		}
	}
	spend(0, 5)
	copied()
	spend(0, 90)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for busy {
			spend(0, 1)
			select {
			case <-done:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	used()
	close(done)
	<-ended
	spend(1, limit/2)
	spend(2, limit/2)
	c.Logf("of %d were admitted %v", limit, admitted)
	for key, n := range admitted {
		if n > limit+limit/20 {
			c.Errorf("key %d was admitted %d of %d: a loss may cost %d", key, n, limit, limit/20)
		}
	}
}

// lives are the epochs of all parts of the ledger, as last read by each node.
func (c *onRedis) lives() (of [][]uint64) {
	for _, f := range c.nodes {
		var ids []uint64
		for i := range f.lanes {
			l := &f.lanes[i]
			l.mu.Lock()
			ids = append(ids, l.epoch.ID)
			l.mu.Unlock()
		}
		of = append(of, ids)
	}
	return of
}
