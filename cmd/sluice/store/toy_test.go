package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// toy is a database in this process: all that a store's package has to have.
type toy struct {
	*account.MemoryStore
	mu     sync.Mutex
	said   map[string]said                   // guarded by mu
	events []account.Event                   // guarded by mu
	heard  map[ratelimit.Holder]func(string) // guarded by mu: by node
}

type said struct {
	text string
	at   time.Time
}

func newToy() *toy {
	t := &toy{
		MemoryStore: account.NewMemoryStore(func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) }),
		said:        map[string]said{}, heard: map[ratelimit.Holder]func(string){},
	}
	t.OnEvent = func(e *account.Event) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.events = append(t.events, *e)
	}
	return t
}

func (t *toy) Send(_ context.Context, names map[ratelimit.Holder][]string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for node, some := range names {
		for _, name := range some {
			if heard := t.heard[node]; heard != nil {
				go heard(name)
			}
		}
	}
	return nil
}

func (t *toy) Listen(ctx context.Context, node ratelimit.Holder, ready func(), heard func(name string)) error {
	t.mu.Lock()
	t.heard[node] = heard
	t.mu.Unlock()
	ready()
	<-ctx.Done()
	return nil
}

func (*toy) Prepare(context.Context) error         { return nil }
func (*toy) Ping(context.Context) error            { return nil }
func (*toy) Durable(context.Context) (bool, error) { return false, nil }
func (*toy) Close()                                {}

func (t *toy) Register(
	_ context.Context, node, text string, within time.Duration, see func(node, text string, ago time.Duration),
) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.said[node] = (said{text, time.Now()}); text == "" {
		delete(t.said, node)
	}
	maps.DeleteFunc(t.said, func(_ string, s said) bool { return time.Since(s.at) > within })
	for name, s := range t.said {
		see(name, s.text, time.Since(s.at))
	}
	return nil
}

func (t *toy) Events(_ context.Context, see func(*account.Event)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.events {
		see(&t.events[i])
	}
	return nil
}

func (t *toy) Forget(_ context.Context, before time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = slices.DeleteFunc(t.events, func(e account.Event) bool { return int64(e.At) < before.UnixMicro() })
	return nil
}

// A store is a Database and one line here: a fleet leases and drifts on it, its nodes see each other, audit
// events are on record, and check declares it.
func TestToyStore(t *testing.T) {
	before, data := schemes, newToy()
	defer func() { schemes = before }()
	schemes = append(schemes, scheme{[]string{"toy"}, Promise{Kind: "a toy"}, func(o *Options) (Store, error) { return newDatabase(data, o, error.Error), nil }})

	if p, err := PromiseOf("toy"); err != nil || p.Kind != "a toy" {
		t.Errorf("declared is %+v, %v", p, err)
	}
	rules := map[string]*ratelimit.Rule{}
	for name, mode := range map[string]ratelimit.Mode{"leases": ratelimit.Leasing, "drifts": ratelimit.Approx} {
		r := &ratelimit.Rule{
			Domain: "d", Path: name, Coordination: ratelimit.DefaultCoordination(),
			Limit: ratelimit.Limit{Unit: ratelimit.Year, Requests: 1000, Burst: 1000},
		}
		r.Coordination.Mode, r.Coordination.OnStoreFailure = mode, ratelimit.FailClosed
		r.Coordination.StoreDeadline, r.Coordination.DriftBudget = time.Second, ratelimit.Share{PPM: 40_000}
		r.Coordination.Audit, rules[name] = mode == ratelimit.Leasing, r
	}
	plan := func() approx.Plan { return approx.NewPlan([]*ratelimit.Rule{rules["drifts"]}) }

	const nodes = 3
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer func() { stop(); all.Wait() }()
	var fleets [nodes]*leasing.Fleet
	var stores [nodes]Store
	clock := ratelimit.MonotonicClock()
	for i := range fleets {
		s := started(t, Flags{URL: "toy://", Redis: few})
		holder := account.NewHolder()
		f, k := leasing.NewFleet(s.Ledger(), holder, 1000, clock, time.Now()), approx.NewKeeper(approx.NewStored(s.Seats()), holder, clock)
		k.Epoch, f.Drift = f.Epoch, k
		all.Go(func() { f.Run(ctx) })
		all.Go(func() { k.Run(ctx, plan) })
		fleets[i], stores[i] = f, s
		seated := func() bool { seat, _ := k.Seat(); return seat >= 0 }
		for at := time.Now(); !f.Ready() || !seated(); time.Sleep(time.Millisecond) {
			if time.Since(at) > 20*time.Second {
				t.Fatal("a node is not ready, or has no drift seat")
			}
		}
	}
	for name, r := range rules {
		var admitted atomic.Int64
		var callers sync.WaitGroup
		for c := range 6 {
			callers.Go(func() {
				for range 400 {
					v := make([]ratelimit.Verdict, 1)
					fleets[c%nodes].Decide(ctx, clock(), []ratelimit.Ask{{Rule: r, Key: []byte(name), Cost: 1}}, v)
					if !v[0].OverLimit {
						admitted.Add(1)
					}
				}
			})
		}
		callers.Wait()
		if n := ratelimit.Tokens(admitted.Load()); n > 1000+r.Declare(nodes, ratelimit.SharedStore).Over.Tokens || n < 900 {
			t.Errorf("rule %s: %d of 1000 were admitted", name, n)
		}
	}
	for i, s := range stores {
		if known, err := s.Register(ctx, fmt.Sprint("node ", i), "here"); err != nil || len(known) != i+1 {
			t.Errorf("after node %d came they know of %v, %v", i, known, err)
		}
	}
	audited := 0
	if _, err := stores[0].Events(ctx, func(e *account.Event) { audited += int(e.Granted) }); err != nil || audited < 1000 {
		t.Errorf("%d tokens are on record, %v", audited, err)
	}
}
