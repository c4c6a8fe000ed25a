package leasing

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/postgres"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// 1,000 overrides a second are set, as far as the store takes them: each counts at all of three nodes.
func TestOverridesUnderLoad(t *testing.T) {
	limit := ratelimit.Limit{Unit: ratelimit.Year, Requests: 100, Ceiling: 100_000}
	t.Run("redis", func(t *testing.T) {
		c := newOnRedis(t, 0, limit)
		overridesUnderLoad(t, c, func(alone func() bool) (account.Ledger, error) {
			client := clientOf(c.store.Addr)()
			t.Cleanup(func() { c.end(); client.Close() })
			return account.NewRedis(client, "")
		})
	})
	t.Run("postgres", func(t *testing.T) {
		server := pgtest.Start(t)
		overridesUnderLoad(t, newOnClients(t, 0, limit, nil), func(alone func() bool) (account.Ledger, error) {
			store, err := postgres.Open(server.URL(), "")
			if err != nil {
				return nil, err
			}
			t.Cleanup(store.Close)
			return account.NewCAS(store, ""), store.Prepare(t.Context())
		})
	})
}

func overridesUnderLoad(t *testing.T, c *onRedis, ledger func(func() bool) (account.Ledger, error)) {
	const perSecond, length, mostAtOnce = 1_000, 2 * time.Second, 64
	c.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	for range 3 {
		l, err := ledger(func() bool { return !c.used.Load() })
		if err != nil {
			t.Fatal(err)
		}
		c.joins(l, 100_000)
	}
	c.ready()
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	changes := &changing{onRedis: c, room: make(chan struct{}, mostAtOnce)}
	changes.change(ctx, perSecond)
	changes.all.Wait()
	took := changes.took
	slices.Sort(took)
	if half := took[len(took)/2]; half > time.Second {
		t.Errorf("half of them took longer than %v", half)
	}
	t.Logf("%d overrides at %.0f a second, %d of them followed: in force at three nodes after %v (p50), %v (p99), %v",
		changes.n, float64(changes.n)/length.Seconds(), len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}

// changing sets overrides, each of another key, and follows each tenth.
type changing struct {
	*onRedis
	n    int
	room chan struct{}
	all  sync.WaitGroup
	mu   sync.Mutex
	took []time.Duration // guarded by mu: until it counts at all nodes
}

func (x *changing) change(ctx context.Context, perSecond int) {
	due := time.NewTicker(time.Second / time.Duration(perSecond))
	defer due.Stop()
	for ctx.Err() == nil {
		<-due.C
		x.room <- struct{}{}
		i := x.n
		x.n++
		x.all.Go(func() {
			name := fmt.Sprint("k", i)
			if i%10 == 0 {
				x.attempt(i%len(x.nodes), name, 1)
			}
			began := x.clock()
			x.override(i%len(x.nodes), name, &ratelimit.Override{})
			<-x.room
			if i%10 > 0 {
				return
			}
			x.within(name, true)
			x.mu.Lock()
			defer x.mu.Unlock()
			x.took = append(x.took, x.clock().Sub(began))
		})
	}
}
