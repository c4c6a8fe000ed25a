package leasing

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
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
				if n := admitted[key]; n < limit || n > limit+limit/account.LearnPart {
					t.Errorf("%s was admitted %d of %d: a loss may cost %d", key, n, limit, limit/account.LearnPart)
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
