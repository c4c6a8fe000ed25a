package leasing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// ahead has a client read that a server's clock is ahead by so much.
type ahead time.Duration

func (ahead) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (ahead) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (a ahead) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, c := range cmds {
			if t, ok := c.(*redis.TimeCmd); ok && t.Err() == nil {
				t.SetVal(t.Val().Add(time.Duration(a)))
			}
		}
		return err
	}
}

// clusterAhead connects to a Cluster of which one server's clock is ahead.
func clusterAhead(servers []*redistest.Server, who int, by time.Duration) func() redis.UniversalClient {
	return func() redis.UniversalClient {
		c := clusterOf(servers...)().(*redis.ClusterClient)
		c.Options().NewClient = func(o *redis.Options) *redis.Client {
			one := redis.NewClient(o)
			if o.Addr == servers[who].Addr {
				one.AddHook(ahead(by))
			}
			return one
		}
		return c
	}
}

// heldBy are n keys whose accounts a server of a Cluster has.
func (c *onRedis) heldBy(s *redistest.Server, of string, n int) (keys []string) {
	held := s.Client()
	defer held.Close()
	for i := 0; len(keys) < n; i++ {
		if i > 1000 {
			c.Fatalf("%v has no key", s)
		}
		key := fmt.Sprint(of, i)
		// Another server says who has it.
		if errors.Is(held.Get(context.Background(), "{"+ratelimit.KeyName([]byte(key))+"}").Err(), redis.Nil) {
			keys = append(keys, key)
		}
	}
	return keys
}

// greeted greets a part of the ledger, and waits for what comes of it.
func (c *onRedis) greeted(node, part int) {
	c.Helper()
	f := c.nodes[node]
	var fl *flight
	c.until("it cannot be greeted", func() bool { fl, _ = f.beat(&f.lanes[part]); return fl != nil })
	<-fl.done
}

// Each part of a Cluster is separate: its servers' answers bound its clock, and make it count as alive.
func TestPartsOfACluster(t *testing.T) {
	t.Parallel()
	const limit, by, who = 100, 300 * time.Millisecond, 2
	servers := redistest.Cluster(t, 3)
	c := newOnClients(t, 1, ratelimit.Limit{Unit: ratelimit.Second, Requests: limit}, clusterAhead(servers, who, by))
	c.strict()
	c.ready()
	f := c.nodes[0]
	ledger := f.ledger.(*account.Redis)
	last := ledger.Partitions() - 1
	mixed := ledger.Partitions() * who / 3 // of which servers 1 and 2 have accounts
	keys := c.heldBy(servers[who], "k", 1)
	there := func() time.Time { return time.Now().Add(by) }
	in := func(from, to int) func() bool { // a window of that server, ms
		return func() bool { ms := there().Nanosecond() / 1e6; return ms >= from && ms < to }
	}

	// A node that went by another server's clock would spend tokens of the window before in the next.
	for _, key := range keys {
		part := ledger.Partition(ratelimit.KeyName([]byte(key)))
		c.until("its window does not begin", in(10, 100))
		c.greeted(0, part)
		window, admitted := there().Unix(), 0
		for there().Unix() == window {
			if v, _ := c.attempt(0, key, 1); !v.OverLimit && there().Unix() == window {
				admitted++
			}
		}
		if admitted > limit || admitted == 0 {
			t.Errorf("%d of %d were admitted in a window of the server's clock", admitted, limit)
		}
	}

	// If two servers have accounts of a part, its clock covers both, whichever has answered last. Claims reach only
	// one, and so do not answer a greeting of the same batch.
	both := func(after string) {
		clock := f.lanes[mixed].time()
		early, late := clock.Between(c.clock())
		if now := time.Now(); early > ledgerTime(now.UnixMicro()) || late < ledgerTime(now.Add(by).UnixMicro())-1e4 {
			t.Errorf("after %s: at %d it is said to be from %d to %d, and one server is ahead by %v", after, now.UnixMicro(), early, late, by)
		}
	}
	for _, s := range servers[1:] {
		var key string
		for i := 0; key == "" || ledger.Partition(ratelimit.KeyName([]byte(key))) != mixed; i++ {
			key = c.heldBy(s, fmt.Sprint("m", i, "."), 1)[0]
		}
		c.until("it is not the same window at both", in(350, 700))
		c.attempt(0, key, 1)
		both("a claim")
		var sent instant
		c.until("no claim is answered in time", func() bool {
			claim, greets := &keyMessage{flight: newFlight()}, &beat{flight: newFlight()}
			claim.shard, claim.id, _ = f.find([]byte(key))
			claim.shard.mu.Unlock()
			sent = c.clock()
			f.settle(&f.lanes[mixed], []message{claim, greets})
			return claim.err == nil
		})
		if clock := f.lanes[mixed].time(); clock.At < sent {
			t.Errorf("it was heard at %d, and a greeting sent at %d", clock.At, sent)
		}
		both("a greeting")
	}

	servers[who].Kill()
	open := func(part int) bool { return f.lanes[part].Open() }
	c.until("a part that is dead counts as alive", func() bool { c.greeted(0, last); return open(last) })
	f.Answered()
	for part := range f.lanes {
		c.greeted(0, part)
		if dead := part >= mixed; open(part) != dead && (!dead || part == last) {
			t.Errorf("part %d counts as dead: %v", part, open(part))
		}
		if l := &f.lanes[part]; l.alive(c.clock()) != (part < mixed) {
			t.Errorf("part %d counts as alive: %v", part, part >= mixed)
		}
	}
}

// moving is a ledger that answers with an error.
type moving struct {
	account.Ledger
	err atomic.Pointer[error]
}

func (m *moving) Settle(
	ctx context.Context, c []account.Claim, g []account.Grant,
) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	if err := m.err.Load(); err != nil {
		return ratelimit.Epoch{}, 0, *err
	}
	return m.Ledger.Settle(ctx, c, g)
}

// A part whose slots move while it is probed is used again as soon as it answers.
func TestProbeOfMovedSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		clock := func() instant { return instant(time.Since(began)) + 1 }
		ledger := &moving{Ledger: account.NewMemory(func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) })}
		f := NewFleet(ledger, account.NewHolder(), 100, clock, began)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		all.Go(func() { f.Run(ctx) })
		dead, moved := errors.New("dead"), account.ErrMoved
		ledger.err.Store(&dead)
		for !f.lanes[0].Open() {
			f.Beat()
			time.Sleep(time.Millisecond)
		}
		ledger.err.Store(&moved)
		time.Sleep(time.Second)
		f.Beat() // the probe
		time.Sleep(time.Millisecond)
		ledger.err.Store(nil)
		f.Beat()
		time.Sleep(time.Millisecond)
		if f.lanes[0].Open() {
			t.Error("the part counts as dead, and answers")
		}
	})
}
