package leasing_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/postgres"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// lossy starts a store, and nodes on it. copied makes an older copy of its data, or none, and used has it go on with
// that.
type lossy func(t *testing.T) (c *cluster, copied, used func())

func onServer(used func(*redistest.Server)) lossy {
	return func(t *testing.T) (*cluster, func(), func()) {
		s := redistest.Start(t)
		limit := limitOf(ratelimit.SlidingWindow, 100, ratelimit.Year)
		return onRedis(t, 3, limit, clientOf(s.Addr)), func() {}, func() { used(s) }
	}
}

func follows(s *redistest.Server, master string) {
	host, port, _ := net.SplitHostPort(master)
	s.Do("REPLICAOF", host, port)
	s.UntilInfo("replication", "master_link_status:up")
}

// wasReplica has a master be a replica of older data for a moment, and then master again.
func wasReplica(as time.Duration, kept bool) lossy {
	return func(t *testing.T) (*cluster, func(), func()) {
		a := redistest.Start(t, "--repl-diskless-sync-delay", "0")
		b := redistest.Start(t, "--repl-diskless-sync-delay", "0")
		follows(b, a.Addr)
		c := onRedis(t, 3, fixed(100, ratelimit.Year), clientOf(a.Addr))
		return c, func() { b.Do("REPLICAOF", "NO", "ONE") }, func() {
			follows(a, b.Addr)
			time.Sleep(as)
			a.Do("REPLICAOF", "NO", "ONE")
			if !kept { // the connections that watched are gone
				a.Do("CLIENT", "KILL", "TYPE", "normal")
			}
		}
	}
}

// wasReplicaInACluster does so in a Redis Cluster.
func wasReplicaInACluster(t *testing.T) (*cluster, func(), func()) {
	masters := redistest.Cluster(t, 1)
	replica := redistest.Replicas(t, masters)[0]
	c := onRedis(t, 3, fixed(100, ratelimit.Year), clusterOf(masters...))
	return c, func() { replica.Sever(masters[0]) }, func() {
		replica.Promote()
		masters[0].UntilInfo("replication", "master_link_status:up")
		masters[0].Promote()
	}
}

// lagging has a Sentinel promote a replica that lags behind.
func lagging(t *testing.T) (*cluster, func(), func()) {
	master, replica := redistest.Start(t), redistest.Start(t)
	lag := redistest.NewProxy(t, master.Addr)
	follows(replica, lag.Addr)
	sentinel := redistest.Sentinel(t, "m", master)
	sentinel.UntilInfo("sentinel", "slaves=1")
	c := onRedis(t, 3, fixed(100, ratelimit.Year), func() redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "m", SentinelAddrs: []string{sentinel.Addr}, MaxRetries: -1, ContextTimeoutEnabled: true,
			DialTimeout: 200 * time.Millisecond,
		})
	})
	return c, func() {
			c.until("the replica does not follow", func() bool { return replica.Do("DBSIZE").(int64) > 1 })
			lag.Delay(time.Minute)
		}, func() {
			master.Kill()
			replica.UntilInfo("replication", "role:master")
		}
}

// restored restores PostgreSQL from a snapshot of its volume. It has the identity of before: its epoch's record tells.
func restored(t *testing.T) (*cluster, func(), func()) {
	server := pgtest.Start(t)
	c := newCluster(t, fixed(100, ratelimit.Year), strict)
	for range 3 {
		store, err := postgres.Open(server.URL(), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.end(); store.Close() })
		if err := store.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.join(account.NewCAS(store, ""))
	}
	c.ready()
	var restore func()
	answers := func() {
		for i, f := range c.nodes {
			c.greeted(i, 0)
			c.until("it is not back", func() bool { return !f.Stats().BreakerOpen })
		}
	}
	return c, func() {
		restore = server.Snapshot()
		answers()
		time.Sleep(3 * beatEvery) // the copy is older than what nodes have read
	}, func() { restore(); answers() }
}

// Real stores lose their data, or all since a copy was made. One node has spent 95 of 100 of each key. Others then ask
// for all: they get at most what a loss costs, and the rest of the limit. No node has to see how it happened, and they
// count the loss.
func TestRealStoresThatLoseData(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]lossy{
		"FLUSHALL":                   onServer(func(s *redistest.Server) { s.Do("FLUSHALL") }),
		"restart":                    onServer(func(s *redistest.Server) { s.Kill(); s.Run() }),
		"a replica that lags":        lagging,
		"replica for a moment":       wasReplica(0, true),
		"replica for 12s, busy":      wasReplica(12*time.Second, true),
		"replica, other connections": wasReplica(0, false),
		"replica in a Cluster":       wasReplicaInACluster,
		"restored volume":            restored,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const limit, keys = 100, 12
			c, copied, used := start(t)
			var admitted [keys]int
			spend := func(node, each int) {
				for i := range each * keys {
					if c.attempt(node, fmt.Sprint("k", i%keys)) {
						admitted[i%keys]++
					}
				}
			}
			spend(0, 5)
			copied()
			spend(0, 90)
			var ends atomic.Bool
			var all sync.WaitGroup
			all.Go(func() {
				for strings.Contains(name, "busy") && !ends.Load() {
					spend(0, 1)
					time.Sleep(10 * time.Millisecond)
				}
			})
			used()
			ends.Store(true)
			all.Wait()
			spend(1, limit/2)
			spend(2, limit/2)
			c.until("the rest of the limit is refused", func() bool {
				spend(1, 1)
				spend(2, 1)
				return slices.Min(admitted[:]) >= limit
			})
			if n := slices.Max(admitted[:]); n > limit+limit/20 {
				t.Errorf("of a key, %d of %d were admitted: a loss may cost %d", n, limit, limit/20)
			}
			c.until("nodes have not noticed", func() bool {
				return !slices.ContainsFunc(c.nodes[1:], func(f *leasing.Fleet) bool { return f.Stats().Recoveries == 0 })
			})
		})
	}
}

// greeted greets a part of the ledger, and waits for what comes of it.
func (c *cluster) greeted(node, part int) {
	c.Helper()
	var done <-chan struct{}
	c.until("it cannot be greeted", func() bool {
		done = c.nodes[node].Greet(part)
		return done != nil
	})
	<-done
}

// Each part of a Cluster is separate: its servers' answers bound its clock, and make it count as alive. Where a server is
// down, its keys are decided by their rule's policy, and those of others by the store.
func TestPartsOfACluster(t *testing.T) {
	t.Parallel()
	const limit, by, who = 100, 300 * time.Millisecond, 2
	servers := redistest.Cluster(t, 3)
	c := newCluster(t, fixed(limit, ratelimit.Second), strict)
	c.joinRedis(1, func() redis.UniversalClient { // a client to which one server's clock is ahead
		cluster := clusterOf(servers...)().(*redis.ClusterClient)
		cluster.Options().NewClient = func(o *redis.Options) *redis.Client {
			one := redis.NewClient(o)
			if o.Addr == servers[who].Addr {
				one.AddHook(hook(func(cmd redis.Cmder) {
					if t, ok := cmd.(*redis.TimeCmd); ok && t.Err() == nil {
						t.SetVal(t.Val().Add(by))
					}
				}))
			}
			return one
		}
		return cluster
	})
	c.ready()
	f, ledger := c.nodes[0], c.ledgers[0].(*account.Redis)
	last, mixed := ledger.Partitions()-1, ledger.Partitions()*who/3 // servers 1 and 2 have accounts of this one
	there := func() time.Time { return time.Now().Add(by) }
	in := func(from, to int) func() bool { // a window of that server, ms
		return func() bool { ms := there().Nanosecond() / 1e6; return ms >= from && ms < to }
	}

	// heldBy is a key whose account a server has.
	heldBy := func(s *redistest.Server, of string) string {
		client := s.Client()
		defer client.Close()
		for i := range 1000 {
			key := fmt.Sprint(of, i)
			// Another server says who has it.
			if errors.Is(client.Get(t.Context(), "{"+ratelimit.KeyName([]byte(key))+"}").Err(), redis.Nil) {
				return key
			}
		}
		t.Fatalf("%v has no key", s)
		return ""
	}

	// A node that went by another server's clock would spend tokens of the window before in the next.
	key := heldBy(servers[who], "k")
	c.until("its window does not begin", in(10, 100))
	c.greeted(0, ledger.Partition(ratelimit.KeyName([]byte(key))))
	second, admitted := there().Unix(), 0
	for there().Unix() == second {
		if c.attempt(0, key) && there().Unix() == second {
			admitted++
		}
	}
	if admitted > limit || admitted == 0 {
		t.Errorf("%d of %d were admitted in a window of the server's clock", admitted, limit)
	}

	// If two servers have accounts of a part, its clock covers both, whichever has answered last. Claims reach only
	// one, and so do not answer a greeting of the same batch.
	both := func(after string) {
		early, late, _ := f.PartTime(mixed)
		now := time.Now()
		if int64(early) > now.UnixMicro() || int64(late) < now.Add(by).UnixMicro()-1e4 {
			t.Errorf("after %s: at %d it is said to be from %d to %d, and one server is ahead by %v",
				after, now.UnixMicro(), early, late, by)
		}
	}
	for _, s := range servers[1:] {
		key := ""
		for i := 0; key == "" || ledger.Partition(ratelimit.KeyName([]byte(key))) != mixed; i++ {
			key = heldBy(s, fmt.Sprint("m", i, "."))
		}
		c.until("it is not the same window at both", in(350, 700))
		c.attempt(0, key)
		both("a claim")
		var sent instant
		c.until("no claim is answered in time", func() bool {
			sent = c.clock()
			return f.ClaimAndGreet(key, mixed) == nil
		})
		if _, _, heard := f.PartTime(mixed); heard < sent {
			t.Errorf("it was heard at %d, and a greeting sent at %d", heard, sent)
		}
		both("a greeting")
	}

	servers[who].Kill()
	c.until("a part that is dead counts as alive", func() bool {
		c.greeted(0, last)
		open, _ := f.PartState(last)
		return open
	})
	f.Answered()
	for part := range ledger.Partitions() {
		c.greeted(0, part)
		open, alive := f.PartState(part)
		if dead := part >= mixed; alive == dead || open != dead && (!dead || part == last) {
			t.Errorf("part %d: its breaker is open: %v, and it counts as alive: %v", part, open, alive)
		}
	}
	up, down := ask{Key: []byte(heldBy(servers[0], "u")), Cost: 1}, ask{Key: []byte(key), Cost: 1}
	c.until("keys of servers that are up are decided without them", func() bool {
		return c.decide(0, up).Source != ratelimit.FromFallback
	})
	if v := c.decide(0, down); !v.OverLimit || v.Source != ratelimit.FromFallback {
		t.Errorf("a key of the dead server: %+v", v)
	}
}

// Slots that move between healthy masters of a Cluster lose nothing: no unused key is refused, no limit is exceeded,
// and no node notices a loss.
func TestReshard(t *testing.T) {
	t.Parallel()
	masters := redistest.Cluster(t, 3)
	owner := make([]int, 16384) // of each slot, by its place in masters
	for slot := range owner {
		owner[slot] = ((slot+1)*3 - 1) / 16384
	}
	c := newCluster(t, fixed(20, ratelimit.Year), fields{"on_store_failure": "closed", "store_deadline": "5s"})
	var slow atomic.Int64 // trips longer than a second: the machine is too busy for a verdict on time
	run := c.run
	c.run = func(f *leasing.Fleet) {
		f.OnFailure = func(err error) {
			if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() || errors.Is(err, context.DeadlineExceeded) {
				slow.Add(1)
			}
		}
		run(f)
	}
	c.joinRedis(3, clusterOf(masters...))
	c.ready()
	of := func(master int) (slots []int) {
		for slot, is := range owner {
			if is == master {
				slots = append(slots, slot)
			}
		}
		return slots
	}
	move := func(from, to int, slots ...int) {
		redistest.Move(masters, masters[from], masters[to], slots, func(moved int) { owner[slots[moved-1]] = to })
	}
	fixed, sliding := c.rule, *c.rule // whose claims need two accounts of a slot
	sliding.Limit.Algorithm = ratelimit.SlidingWindow
	for phase, row := range []struct {
		name  string
		event func()
	}{
		{"one slot", func() { move(0, 1, 0) }},
		{"the slot back", func() { move(1, 0, 0) }},
		{"more than a part", func() { move(0, 2, of(0)[:1100]...) }},
		{"slots of sliding windows", func() { move(2, 1, of(2)[:60]...) }},
		{"scale-out", func() {
			masters = append(masters, redistest.Join(t, masters))
			for from := range 3 {
				move(from, 3, of(from)[:40]...)
			}
		}},
		{"scale-in", func() { move(3, 1, of(3)...) }},
		{"the empty master is gone", func() {
			time.Sleep(time.Second) // in which each node asks all servers
			masters[3].Kill()
			masters = masters[:3]
			time.Sleep(time.Second)
		}},
	} {
		if c.rule = fixed; row.name == "slots of sliding windows" {
			c.rule = &sliding
		}
		// Meanwhile callers ask for tokens: new keys once, and others up to their limit of 20 and beyond.
		var mu sync.Mutex
		var callers sync.WaitGroup
		var ends atomic.Bool
		asked, refused, over, admitted := 0, 0, 0, map[string]int{}
		for caller := range 4 {
			callers.Go(func() {
				for i := 0; !ends.Load(); i++ {
					node, hot := (caller+i)%len(c.nodes), fmt.Sprint("hot", phase, ".", i/100)
					fresh, passes := c.attempt(node, fmt.Sprint("new", phase, ".", caller, ".", i)), c.attempt(node, hot)
					mu.Lock()
					if asked++; !fresh {
						refused++
					}
					if passes {
						if admitted[hot]++; admitted[hot] > 20 {
							over++
						}
					}
					mu.Unlock()
					time.Sleep(3 * time.Millisecond)
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		row.event()
		time.Sleep(300 * time.Millisecond)
		ends.Store(true)
		callers.Wait()
		alarms := uint64(0)
		for _, f := range c.nodes {
			alarms += f.Stats().Recoveries
		}
		if refused > 0 && slow.Load() == 0 || over > 0 || alarms > 0 {
			t.Errorf("%s: %d of %d refused, %d admitted beyond limits of %d keys, %d alarms, %d slow trips",
				row.name, refused, asked, over, len(admitted), alarms, slow.Load())
		}
	}
}

// rest asks until the limit of a key is admitted, for 20 s at most, and then a little more.
func (c *cluster) rest(key string, admitted, limit int) int {
	for end := time.Now().Add(20 * time.Second); admitted < limit && time.Now().Before(end); {
		admitted += c.load(60, 6, 2*time.Millisecond, key)[key]
	}
	return admitted + c.load(300, 6, 0, key)[key]
}

// For any fault of Redis, or of the network to it, admissions stay within the limit. After the fault, the whole limit is
// available.
func TestFaultsOfRedis(t *testing.T) {
	const limit = 3000
	for name, fault := range map[string]func(s *redistest.Server, p *redistest.Proxy, is bool){
		"lost replies": func(_ *redistest.Server, p *redistest.Proxy, is bool) { p.Swallow(map[bool]int{true: 20}[is]) },
		"cut":          func(_ *redistest.Server, p *redistest.Proxy, _ bool) { p.Cut() },
		"refused":      func(_ *redistest.Server, p *redistest.Proxy, is bool) { p.Refuse(is); p.Cut() },
		"slow": func(_ *redistest.Server, p *redistest.Proxy, is bool) {
			p.Delay(map[bool]time.Duration{true: 50 * time.Millisecond}[is])
		},
		"garbage": func(_ *redistest.Server, p *redistest.Proxy, is bool) {
			if p.Garbage(is); !is {
				p.Cut()
			}
		},
		"out of memory": func(s *redistest.Server, _ *redistest.Proxy, is bool) {
			s.Do("CONFIG", "SET", "maxmemory", map[bool]string{true: "1", false: "0"}[is])
		},
		"read-only": func(s *redistest.Server, _ *redistest.Proxy, is bool) {
			s.Do("CONFIG", "SET", "min-replicas-to-write", map[bool]string{true: "3", false: "0"}[is])
		},
		"scripts forgotten": func(s *redistest.Server, _ *redistest.Proxy, _ bool) { s.Do("SCRIPT", "FLUSH") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			p := redistest.NewProxy(t, s.Addr)
			c := onRedis(t, 3, fixed(limit, ratelimit.Year), clientOf(p.Addr))
			before := c.load(1200, 6, 0, "k")
			fault(s, p, true)
			during := c.load(900, 6, time.Millisecond, "k")
			fault(s, p, false)
			if n := c.rest("k", before["k"]+during["k"], limit); n != limit {
				t.Errorf("%d of %d were admitted, %d of them before and %d meanwhile", n, limit, before["k"], during["k"])
			}
		})
	}
}

// hook changes what a client of Redis reads in a pipeline.
type hook func(redis.Cmder)

func (hook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, c := range cmds {
			h(c)
		}
		return err
	}
}
