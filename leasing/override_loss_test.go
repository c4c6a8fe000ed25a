package leasing

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A node restates overrides after a loss, also of a key without requests in that window.
func TestLossKeepsOverridesOfIdleKeys(t *testing.T) {
	const period = 5000 // ms
	c := overridable(t, ratelimit.Limit{Unit: ratelimit.Second, Multiplier: period / 1000, Requests: 30})
	ctx, client := context.Background(), c.store.Client()
	defer client.Close()
	in := func() int64 { return time.Now().UnixMilli() % period }
	c.until("no window begins", func() bool { return in() < period/4 })
	c.override(0, "k", &ratelimit.Override{Reason: "fraud"})
	if v, _ := c.attempt(0, "k", 1); !v.OverLimit {
		t.Fatalf("it is admitted: %+v", v)
	}
	c.until("the window goes on", func() bool { return in() > period/2 })
	c.until("the window does not end", func() bool { return in() < period/2 && in() > 250 })
	if err := client.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	c.until("the nodes have not heard of the loss", func() bool { return c.nodes[0].Recoveries() > 0 })
	c.until("the nodes have not told all", func() bool { return c.nodes[0].Ready() && !c.nodes[0].Restating() })
	asked := func() bool { v, _ := c.attempt(0, "k", 1); return v.OverLimit }
	is := func() bool {
		_, ok, _ := c.nodes[0].Override(ctx, c.clock(), &ask{Rule: c.rule, Key: []byte("k")})
		return ok
	}
	for end := time.Now().Add(time.Second); !is() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		asked()
	}
	if !is() {
		v, _ := c.attempt(1, "k", 1)
		t.Errorf("node 0 has read the ban and tracks the key, and it is gone after a loss: node 1 says %+v", v)
	}
}

// An older copy of the data has an override that was removed since: nodes that have read so remove it again.
func TestLossKeepsRemovals(t *testing.T) {
	c := overridable(t, ratelimit.Limit{Unit: ratelimit.Year, Requests: 10})
	ctx, client := context.Background(), c.store.Client()
	defer client.Close()
	c.override(0, "k", &ratelimit.Override{Requests: 1000})
	c.drain("other")
	c.within("k", false)
	older, err := client.Get(ctx, "o{"+KeyName([]byte("k"))+"}").Result()
	if err != nil {
		t.Fatal(err)
	}
	c.override(0, "k", nil)
	if n := c.drain("k"); n > 10 {
		t.Fatal(n)
	}
	c.within("k", true)
	pipe := client.TxPipeline()
	pipe.FlushAll(ctx)
	pipe.Set(ctx, "o{"+KeyName([]byte("k"))+"}", older, 0)
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	c.until("the nodes have not heard of the loss", func() bool { return c.nodes[0].Recoveries() > 0 })
	c.until("the nodes have not told all", func() bool { return c.nodes[0].Ready() && !c.nodes[0].Restating() })
	c.drain("k")
	if o, ok, err := c.nodes[1].Override(ctx, c.clock(), &ask{Rule: c.rule, Key: []byte("k")}); ok || err != nil {
		t.Errorf("an override that was removed, and all nodes have read so, is in force again: %+v, %v", o, err)
	}
}

// A node that has not read that an override was removed tells it again after a loss, and the others its removal: that is
// the later.
func TestNoNodeBringsBackWhatWasRemoved(t *testing.T) {
	c := overridable(t, ratelimit.Limit{Unit: ratelimit.Year, Requests: 10})
	ctx, client := context.Background(), c.store.Client()
	defer client.Close()
	c.override(0, "k", &ratelimit.Override{Requests: 1000})
	c.within("k", false)
	if err := client.ClientKillByFilter(ctx, "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	c.override(1, "k", nil)
	c.attempt(1, "k", 1)
	if err := client.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	c.until("the nodes have not heard of the loss", func() bool { return c.nodes[0].Recoveries() > 0 })
	c.until("the nodes have not told all", func() bool { return c.nodes[0].Ready() && !c.nodes[0].Restating() })
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if o, ok, _ := c.nodes[1].Override(ctx, c.clock(), &ask{Rule: c.rule, Key: []byte("k")}); ok {
			t.Errorf("an override that was removed is in force again: %+v", o)
			return
		}
	}
}

// A list of the overrides at a node alone does not hold up its decisions, nor do changes meanwhile.
func TestListsLetDecisionsPass(t *testing.T) {
	const n = 200_000
	l, ctx := NewLocal(2*n, 1, time.Unix(1_800_000_000, 0)), context.Background()
	r := &ratelimit.Rule{Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Day, Requests: 3, Ceiling: 50}}
	r.Coordination = ratelimit.DefaultCoordination()
	at := func(i int) *ask {
		key := ratelimit.AppendEntry(ratelimit.AppendPrefix(nil, "d", r.Limit), "api_key", fmt.Sprint("customer-", i), ratelimit.OfRequest)
		return &ask{Rule: r, Key: key, Cost: 1}
	}
	for i := range n - 1 {
		if _, err := l.SetOverride(ctx, 1, at(i), &ratelimit.Override{Requests: 9}, ratelimit.Match{Any: true}); err != nil {
			t.Fatal(err)
		}
	}
	listed := make(chan time.Duration, 1)
	go func() {
		began := time.Now()
		_, _ = l.Overrides(ctx, 1, "", "", 100)
		listed <- time.Since(began)
	}()
	longest, a, v := time.Duration(0), at(7), make([]verdict, 1)
	go func() {
		_, _ = l.SetOverride(ctx, 1, at(5), &ratelimit.Override{Requests: 8}, ratelimit.Match{Any: true})
	}()
	for {
		began := time.Now()
		l.Decide(ctx, 1, []ask{*a}, v)
		longest = max(longest, time.Since(began))
		select {
		case took := <-listed:
			if longest > took/2 {
				t.Errorf("a decision waits %v, while a page of 100 of %d overrides takes %v", longest, n, took)
			}
			return
		default:
		}
	}
}

// A node alone does not list an override that is over.
func TestListsLackWhatIsOver(t *testing.T) {
	wall := time.Unix(1_800_000_000, 0)
	l, ctx := NewLocal(100, 1, wall), context.Background()
	r := &ratelimit.Rule{Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Day, Requests: 3, Ceiling: 50}}
	a := ask{Rule: r, Key: []byte("k")}
	o := &ratelimit.Override{Requests: 9, Expires: ratelimit.LedgerTime(wall.Add(time.Second).UnixMicro())}
	if _, err := l.SetOverride(ctx, 1, &a, o, ratelimit.Match{Any: true}); err != nil {
		t.Fatal(err)
	}
	later := instant(time.Hour)
	_, ok, _ := l.Override(ctx, later, &a)
	l.Decide(ctx, later, []ask{a}, make([]verdict, 1))
	if all, _ := l.Overrides(ctx, later, "", "", 10); !ok && len(all) > 0 {
		t.Errorf("an hour after it is over it is listed: %+v", all)
	}
}

// A key with an override takes a few hundred bytes more at a node than one without: keys with the same limit in force
// share its rule.
func TestOverriddenKeysTakeLittle(t *testing.T) {
	const n = 20_000
	r := &ratelimit.Rule{Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Day, Requests: 3, Ceiling: 50}}
	var s shard
	s.open(keytable.NewArena(), n)
	ids := make([]keytable.ID, n)
	for i := range ids {
		key := fmt.Append(nil, "customer-", i)
		ids[i] = keytable.Hasher{}.ID(key)
		s.keys.Add(ids[i], key, func(*cell) bool { return false }).Val.rule = s.rules.number(ruleKey{asked: r})
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i, id := range ids {
		s.move(s.keys.Get(id), r, ratelimit.Override{
			Requests: tokens(i % 10), Set: ratelimit.LedgerTime(i + 1), By: fmt.Sprint("ann@example.com", i%10), Reason: fmt.Sprint("contract ", i),
		})
	}
	each := (heap() - before) / n
	t.Logf("an override takes %d bytes at a node", each)
	if each > 300 || len(s.rules.uses) > 20 {
		t.Errorf("an override takes %d bytes at a node, and %d keys have %d rules", each, n, len(s.rules.uses))
	}
	runtime.KeepAlive(&s)
	r.Coordination = ratelimit.DefaultCoordination()
	l, ctx, v := NewLocal(2*n, 1, time.Unix(1_800_000_000, 0)), context.Background(), make([]verdict, 1)
	asked := func(i int) ask { return ask{Rule: r, Key: fmt.Append(nil, "customer-", i), Cost: 1} }
	for i := range n {
		l.Decide(ctx, 1, []ask{asked(i)}, v)
	}
	before = heap()
	for i := range n {
		a := asked(i)
		o := &ratelimit.Override{
			Requests: tokens(i % 10), By: fmt.Sprint("ann@example.com", i%10), Reason: fmt.Sprint("contract ", i),
		}
		if _, err := l.SetOverride(ctx, 1, &a, o, ratelimit.Match{Any: true}); err != nil {
			t.Fatal(err)
		}
		l.Decide(ctx, 1, []ask{a}, v)
	}
	each = (heap() - before) / n
	t.Logf("an override takes %d bytes at a node alone", each)
	if each > 500 {
		t.Errorf("an override takes %d bytes at a node alone", each)
	}
	runtime.KeepAlive(l)
	for _, id := range ids {
		s.move(s.keys.Get(id), r, ratelimit.Override{})
	}
	if len(s.overs) != 0 || len(s.rules.numbers) != 1 {
		t.Errorf("of no override %d are kept, and %d rules", len(s.overs), len(s.rules.numbers))
	}
}
