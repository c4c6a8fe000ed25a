package leasing

import (
	"context"
	"flag"
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

var loadRounds = flag.Int("load-rounds", 1, "how often TestOverridesUnderLoad measures without and with changes")

// While 10,000 keys are asked at three nodes, 1,000 overrides a second are set, as far as the store takes them: each
// counts at all nodes. What that costs decisions is printed: the same load without and with changes, in turn.
//
//	go test -v -run TestOverridesUnderLoad -load-rounds 3 ./leasing
func TestOverridesUnderLoad(t *testing.T) {
	limit := ratelimit.Limit{Unit: ratelimit.Year, Requests: 100, Ceiling: 100_000}
	t.Run("redis", func(t *testing.T) {
		c := newOnRedis(t, 0, limit)
		overridesUnderLoad(t, c, func(alone func() bool) (account.Ledger, error) {
			client := clientOf(c.store.Addr)()
			t.Cleanup(func() { c.end(); client.Close() })
			return account.NewRedis(client, "", alone)
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
			return account.NewCAS(store, "", alone), store.Prepare(t.Context())
		})
	})
}

// asking is the same keys asked again and again, and how long decisions take.
type asking struct {
	*onRedis
	callers, keys int
	mu            sync.Mutex
	took          []time.Duration // guarded by mu
}

func (l *asking) name(i int) string { return fmt.Sprint("asked", i) }

// ask sends requests for all keys in turn, each to the next node, at most 1,000 a second and caller. It ends with ctx,
// but not before each key was asked.
func (l *asking) ask(ctx context.Context) {
	var all sync.WaitGroup
	for caller := range l.callers {
		all.Go(func() {
			var own []time.Duration
			due := time.NewTicker(time.Millisecond)
			defer due.Stop()
			each := l.keys / l.callers
			for i := 0; i < each || ctx.Err() == nil; i++ {
				<-due.C
				began := l.clock()
				l.attempt(i%len(l.nodes), l.name(caller*each+i%each), 1)
				own = append(own, l.clock().Sub(began))
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.took = append(l.took, own...)
		})
	}
	all.Wait()
}

// quantiles are of the decisions since the last.
func (l *asking) quantiles() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.took)
	n := len(l.took)
	s := fmt.Sprintf("%d decisions, p50 %v, p99 %v", n, l.took[n/2], l.took[n*99/100])
	l.took = nil
	return s
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
	load := &asking{onRedis: c, callers: 4, keys: 10_000}
	warm, stop := context.WithCancel(t.Context())
	stop()
	load.ask(warm) // each key once
	load.quantiles()
	changes := &changing{onRedis: c, room: make(chan struct{}, mostAtOnce)}
	for range *loadRounds {
		ctx, stop := context.WithTimeout(t.Context(), length)
		load.ask(ctx)
		stop()
		t.Logf("without changes: %s", load.quantiles())
		ctx, stop = context.WithTimeout(t.Context(), length)
		var asked sync.WaitGroup
		asked.Go(func() { load.ask(ctx) })
		changes.change(ctx, perSecond)
		asked.Wait()
		stop()
		t.Logf("with changes:    %s", load.quantiles())
		changes.all.Wait()
	}
	took := changes.took
	slices.Sort(took)
	if half := took[len(took)/2]; half > time.Second {
		t.Errorf("half of them took longer than %v", half)
	}
	t.Logf("%d overrides at %.0f a second, %d of them followed: in force at three nodes after %v (p50), %v (p99), %v",
		changes.n, float64(changes.n)/(time.Duration(*loadRounds)*length).Seconds(), len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
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
